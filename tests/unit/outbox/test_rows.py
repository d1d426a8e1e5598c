"""Rows of a table as lines of a feed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from tests.cases import each_case
from zeh_spark.service.outbox.rows import BadRowError, header_renderer, lines_of
from zeh_spark.service.outbox.table import Cells, OutboxRow
from zeh_spark.wire import wire

NAMES = ("kind", "Zeit\u2028", 'a"b')

header_values = st.tuples(*[st.none() | strategies.text] * len(NAMES))
not_null = strategies.json_values.filter(lambda value: value is not None)
data_texts = strategies.json_texts(not_null).map(bytes.decode)
spaces = st.text(" \t\n", max_size=2)

DEEP = "[" * (wire.MAX_DEPTH + 1) + "]" * (wire.MAX_DEPTH + 1)
BAD: dict[str, tuple[str | None, str]] = {
    "NULL": (None, "data: NULL is no event"),
    "null": ("null", "data: null is no event"),
    "null with spaces": (" null\t", "data: null is no event"),
    "null and a newline": ("\nnull\n", "data: null is no event"),
    "empty": ("", "data: not JSON"),
    "blank": (" \t", "data: not JSON"),
    "a newline": ("\n", "data: not JSON"),
    "text": ("hello", "data: not JSON"),
    "cut": ('{"a":1', "data: not JSON"),
    "more than one": ("1 2", "data: not JSON"),
    "one on each line": ("1\n2", "data: not JSON"),
    "NaN": ("NaN", "data: not JSON"),
    "a newline in a string": ('"a\nb"', "data: not JSON"),
    "a byte order mark": ("\ufeff1", "data: not JSON"),
    "a space of another alphabet": ("\u00a01", "data: not JSON"),
    "members of the line": ('1,"cursor":"x"', "data: not JSON"),
    "another line": ('1}\n{"partition":0,"cursor":"x"', "data: not JSON"),
    "too deep": (DEEP, "data: it is nested 501 deep; at most 500 are allowed"),
    "half a character": ('"\ud800"', "data: "),
    "half a character, escaped": ('"\\ud800"', "data: not JSON"),
    "a wrong escape": ('"\\x"', "data: not JSON"),
    "too long": (
        f'"{"x" * wire.MAX_LINE}"',
        "data: 65537 bytes with its headers, where a line takes 65535",
    ),
    "too long with its line": (f'"{"x" * 65_500}"', "its line has 65538 bytes, of 65535 at most"),
}
PLACES = {"alone": (0, 0), "first": (0, 2), "last": (2, 0), "in the middle": (2, 2)}


def cells(data: str | None, headers: Sequence[str | None] = (), key: int = 1) -> Cells:
    """A row as a database gives it, without data that is too long."""
    size = None if data is None else len(data.encode(errors="surrogatepass"))
    return (0, 7, key, size, None if size and size > wire.MAX_LINE else data, *headers)


def around(place: str, data: str | None) -> list[Cells]:
    """A row among good ones."""
    before, after = PLACES[place]
    texts = [*["1"] * before, data, *["2"] * after]
    return [cells(text, key=key) for key, text in enumerate(texts)]


def lines(rows: Sequence[Cells], names: Sequence[str] = (), skip: Any = None) -> bytes:
    return lines_of(0, rows, header_renderer(names), skip)


def one_by_one(rows: Sequence[Cells], names: Sequence[str]) -> bytes:
    """Behind a bad row, each row is looked at by itself."""
    bad = cells(None, [None] * len(names))
    return lines([bad, *rows], names, skip=lambda _: None)


# Good rows


@given(st.lists(st.tuples(not_null, header_values), max_size=8))
def test_every_row_is_a_line_with_its_data_and_headers(given: list[tuple[Any, Any]]) -> None:
    """What my service wrote is what the reader gets; columns that are NULL are no headers."""
    rows = [cells(json.dumps(data, ensure_ascii=False), headers) for data, headers in given]
    expected = [
        {
            "partition": 0,
            "headers": {k: v for k, v in zip(NAMES, headers, strict=True) if v is not None},
            "data": data,
        }
        for data, headers in given
    ]
    *found, end = lines(rows, NAMES).split(b"\n")
    assert (expected, b"") == ([json.loads(each) for each in found], end)


@given(st.lists(st.tuples(spaces, data_texts, spaces, header_values), max_size=8))
def test_rows_are_the_same_lines_by_the_block_and_one_by_one(given: list[Any]) -> None:
    """A bad row changes nothing about its neighbours."""
    rows = [cells(a + text + b, headers) for a, text, b, headers in given]
    assert lines(rows, NAMES) == one_by_one(rows, NAMES)


@given(st.lists(strategies.almost_lines, min_size=1, max_size=3), st.integers(0, 3))
def test_whatever_text_a_row_has_its_line_is_one_event_or_none(given, good):
    """No row can bring a cursor, another event, or the end of the line."""
    texts = [each.decode(errors="replace") for each in given] + ["1"] * good
    rows = [cells(text, key=key) for key, text in enumerate(texts)]
    skipped: list[BadRowError] = []
    found = lines(rows, skip=skipped.append).split(b"\n")[:-1]
    assert len(rows) == len(found) + len(skipped)
    members = [[*json.loads(each, parse_int=str)] for each in found]  # 5,000 digits are a number
    assert [["partition", "headers", "data"]] * len(found) == members


ROOM = wire.MAX_LINE - len('{"partition":0,"headers":{},"data":""}')


@each_case(
    ("partition", "texts", "expected"),
    [
        (0, [], b""),
        (5, ["1"], b'{"partition":5,"headers":{},"data":1}\n'),  # of its own numbers
        # JSON that was written for people is one line: newlines between tokens become spaces
        (0, ['{\n  "a": 1,\r\n  "b": [\r]\n}'],
         b'{"partition":0,"headers":{},"data":{   "a": 1,    "b": [ ] }}\n'),
        # the longest line has 65,535 bytes, and not one less; the deepest data 500 levels
        (0, [f'"{"x" * ROOM}"'],
         b'{"partition":0,"headers":{},"data":"%b"}\n' % (b"x" * ROOM)),
        (0, [DEEP[1:-1]], b'{"partition":0,"headers":{},"data":%b}\n' % DEEP[1:-1].encode()),
    ],
)  # fmt: skip
def test_lines_of_a_partition(partition: int, texts: list[str], expected: bytes) -> None:
    assert expected == lines_of(
        partition, [cells(each) for each in texts], header_renderer(()), None
    )


def test_many_different_headers_are_rendered_right() -> None:
    """More values than are remembered."""
    rows = [cells("1", [str(number)], number) for number in range(10_050)] * 2
    found = [json.loads(each)["headers"]["kind"] for each in lines(rows, ["kind"]).splitlines()]
    assert [str(number) for number in range(10_050)] * 2 == found


# Bad rows


@each_case("place", PLACES)
@each_case("kind", BAD)
def test_feed_stops_at_a_bad_row(kind: str, place: str) -> None:
    """Readers get the rows in front of it, and I am told which row it is, and why."""
    data, why = BAD[kind]
    before, _ = PLACES[place]
    rows = around(place, data)
    with pytest.raises(BadRowError) as raised:
        lines(rows)
    bad = raised.value
    assert str(bad).startswith(why)
    assert (OutboxRow.of(rows[before]), lines(rows[:before])) == (bad.row, bad.before)
    assert (OutboxRow.of(rows[before - 1]) if before else None) == bad.last


@each_case("place", PLACES)
@each_case("kind", BAD)
def test_bad_rows_can_be_passed_over(kind: str, place: str) -> None:
    """With on_bad_row = skip the others come, and I am told of each that does not."""
    data, why = BAD[kind]
    rows = around(place, data)
    good = [row for row in rows if row[4] in {"1", "2"}]
    skipped: list[BadRowError] = []
    assert lines(good) == lines(rows, skip=skipped.append)
    assert [True] == [str(bad).startswith(why) for bad in skipped]


def bad_rows(rows: Sequence[Cells], names: Sequence[str] = ()) -> list[int | str]:
    """The ids of the rows that are passed over; each of the others is a line."""
    skipped: list[BadRowError] = []
    found = lines(rows, names, skip=skipped.append)
    assert len(rows) == found.count(b"\n") + len(skipped)
    return [each.row.id for each in skipped]


@each_case(
    ("kinds", "bad"),
    [
        # few but long characters: a line's length is counted in bytes, whatever its neighbours have
        (["x" * 40_000, "\U0001f600" * 30_000], [1]),
        # headers and data share a line
        (["", "x" * 80_000, ""], [1]),
        # half a character, of a database that does not look at its text
        (["a", "\ud800", "b"], [1]),
    ],
)
def test_row_is_bad_whose_header_is(kinds: list[str], bad: list[int]) -> None:
    rows = [cells("1", [kind], key) for key, kind in enumerate(kinds)]
    assert bad == bad_rows(rows, ["kind"])


@each_case(
    ("texts", "bad"),
    [
        ([None, "1", "x", "", "2", "null"], [0, 2, 3, 5]),
        (["1", None, "2", None], [1, 3]),
        # bad rows do not make up for each other: as many values as rows are no proof
        (["1 2", ""], [0, 1]),
        (["", '"a""b"'], [0, 1]),
        (["[1,", "2] 3"], [0, 1]),
        (['{"a":1}{"b":2}', " ", "3"], [0, 1]),
    ],
)
def test_several_bad_rows_are_all_passed_over(texts: list[str | None], bad: list[int]) -> None:
    rows = [cells(text, key=key) for key, text in enumerate(texts)]
    assert bad == bad_rows(rows)
    with pytest.raises(BadRowError) as raised:  # a feed that does not pass them over: at the first
        lines(rows)
    assert bad[0] == raised.value.row.id
