"""A table's settings, and cursors into it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import create_engine

from tests import strategies
from tests.cases import each_case
from zeh_spark.errors import OptionError
from zeh_spark.publisher import Problem, SqlTableFeed
from zeh_spark.service.outbox.table import (
    Cursor,
    OutboxRow,
    OutboxTable,
    Removed,
    all_removed,
    later,
    parse_cursor,
)

HISTORY = "0a1b2c3d"
SOME_UUID = "6b1ff5a4-9d0e-4e1f-8a39-0a6a0d2c7e11"

histories = st.text("0123456789abcdef", min_size=8, max_size=8)
ids = st.integers(-(2**63), 2**63 - 1) | st.uuids().map(str)
places = st.tuples(st.integers(0, 2**63 - 1), ids)
tags = st.from_regex(r"[0-9a-f]{8}(-[0-9]{1,4})?", fullmatch=True)
removals = st.integers(0, 10**18 - 1)
cursors = st.builds(Cursor, histories, removals=removals) | st.builds(
    Cursor, histories, places, tags, removals
)


def has_uuid(cursor: Cursor) -> bool:
    return cursor.place is not None and isinstance(cursor.place[1], str)


# Cursors


@given(cursors)
@example(Cursor(HISTORY, (0, -(2**63)), "01234567"))
def test_cursor_is_read_as_it_was_written(cursor: Cursor) -> None:
    """It takes me back to where I was, and may stand in a URL: ASCII without spaces."""
    assert cursor == parse_cursor(0, str(cursor), cursor.history, has_uuid(cursor))

    assert str(cursor).isascii() and str(cursor).isprintable() and " " not in str(cursor)


def test_special_cursors_are_no_places() -> None:
    """They mean something else each time."""
    assert [None] * 2 == [parse_cursor(0, text, HISTORY, False) for text in ("_first", "_last")]


@each_case("uuid", [False, True])
@each_case(
    "text",
    [
        "",
        "begin",
        "_FIRST",
        f"{HISTORY}.",
        f"{HISTORY}.begin.0",
        f"{HISTORY}.begin\n",
        f" {HISTORY}.begin",
        f"{HISTORY.upper()}.begin",
        f"{HISTORY}.7.1",
        f"{HISTORY}.7.1.0123456",
        f"{HISTORY}.7.1.0123456g",
        f"{HISTORY}.7.1.01234567-",
        f"{HISTORY}.7.1.01234567-x",
        f"{HISTORY}.-7.1.01234567",
        f"{HISTORY}.7.1 OR 1=1.01234567",
        f"{HISTORY}.7.+1.01234567",
        f"{HISTORY}.7.٣.01234567",
        f"{HISTORY}.7.12345678901234567890.01234567",
        f"{HISTORY}.7.{SOME_UUID.upper()}.01234567",
        f"{HISTORY}.7.{'-' * 36}.01234567",
        f"{HISTORY}.7.{SOME_UUID.replace('-', '0')}.01234567",
        f"{HISTORY}.7.9223372036854775808.01234567",
        f"{HISTORY}.7.-9223372036854775809.01234567",
        f"{HISTORY}.9223372036854775808.{SOME_UUID}.01234567",
    ],
)
def test_cursor_that_no_feed_gives_is_refused(text: str, uuid: bool) -> None:
    """I get 400, with what is allowed, and not an error of the database."""
    with pytest.raises(Problem, match=rf"allowed are _first, _last, .* {HISTORY}\.begin") as raised:
        parse_cursor(3, text, HISTORY, uuid)
    document = raised.value.document()
    assert ("urn:zeroeventhub:problem:malformed-cursor", 400, 3, text) == tuple(
        document[each] for each in ("type", "status", "partition", "cursor")
    )


@each_case(
    ("text", "uuid"),
    [(f"{HISTORY}.7.1.01234567", True), (f"{HISTORY}.7.{SOME_UUID}.01234567", False)],
)
def test_cursor_with_ids_of_another_type_is_refused(text: str, uuid: bool) -> None:
    with pytest.raises(Problem, match="allowed are _first, _last"):
        parse_cursor(0, text, HISTORY, uuid)


@each_case("rest", ["begin", "7.1.01234567", f"7.{SOME_UUID}.01234567"])
def test_cursor_of_another_history_is_refused(rest: str) -> None:
    """After a restore, or at another feed, I am told so."""
    with pytest.raises(Problem, match="the feed's history is '0a1b2c3d'") as raised:
        parse_cursor(0, f"ffffffff.{rest}", HISTORY, uuid="-" in rest)
    assert ("cursor-of-another-history", 409) == (raised.value.name, raised.value.status)


# Tags


def row(key: int | str = 1, tx: int = 7, data: str | None = "1") -> OutboxRow:
    return OutboxRow(0, tx, key, len(data or ""), data, ())


@given(places, st.none() | strategies.json_texts(), st.integers(0, 1600))
def test_cursor_knows_its_row_again(place, data, columns):
    """Whatever the row has, I can go on behind it."""
    found = row(place[1], place[0], data and data.decode())
    given = Cursor(HISTORY, place, found.tag(columns))
    cursor = parse_cursor(0, str(given), HISTORY, has_uuid(given))
    assert cursor is not None and cursor.is_behind(found)


@each_case("columns", [0, 2])
@each_case("other", [row(2), row(tx=8), row(data="2"), row(data=None)])
def test_cursor_is_not_behind_another_row(other: OutboxRow, columns: int) -> None:
    """A row that took the place of the one that I read is noticed."""
    assert not Cursor(HISTORY, row().place, row().tag(columns)).is_behind(other)


def test_cursor_is_not_behind_a_row_with_another_end() -> None:
    """Also where the change is far behind."""
    before, after = (row(data=f'"{"x" * 5000}{end}"') for end in "ab")
    assert not Cursor(HISTORY, before.place, before.tag(0)).is_behind(after)


@each_case(
    ("before", "after", "expected"),
    [
        ('{"a":1,"b":"x"}', '{"a":1,"b":"x","c":null}', True),
        ('{"a":1,"b":"x"}', '{"a":1,"b":"y","c":null}', False),
        ('{"a":1,"b":"x"}', '{"a":1}', False),
        ('{"a":1,"b":"x"}', None, False),
        ('{"a":1,"b":"x"}', '{"a":', False),
    ],
)
def test_columns_can_be_added_behind_the_others(before, after, expected):
    """When my team adds a column to the data, or a header, cursors stay good."""
    cursor = Cursor(HISTORY, (7, 1), row(data=before).tag(2))
    for columns in (0, 2):
        same = Cursor(HISTORY, (7, 1), row(data=before).tag(columns))
        assert same.is_behind(row(data=before)._replace(headers=("created",)))
    assert expected == cursor.is_behind(row(data=after))


# Floors


@given(st.none() | st.tuples(st.integers(), st.integers()))
def test_nothing_is_before_the_beginning(place: tuple[int, int] | None) -> None:
    assert [place, place] == [later(place, None), later(None, place)]


@each_case(
    ("removed", "expected"),
    [
        ({}, Removed()),
        ({1: Removed((5, 2), 3)}, Removed((5, 2), 3)),
        ({0: Removed((9, 9), 9), 2: Removed((9, 9), 9)}, Removed()),
        ({1: Removed((5, 2), 3), 3: Removed((4, 7), 2)}, Removed((5, 2), 5)),
        ({-1: Removed((6, 1), 1), 3: Removed((4, 7), 2)}, Removed((6, 1), 3)),
    ],
)
def test_removals_are_those_of_what_is_covered(removed: Any, expected: Removed) -> None:
    """What was removed from partitions that I do not read does not concern me."""
    assert expected == all_removed(removed, range(1, 4, 2))


@each_case(
    ("place", "known", "misses"),
    [
        (None, 0, True),
        (None, 2, False),
        ((5, 1), 1, True),
        ((5, 1), 2, False),
        ((5, 2), 0, False),
        ((6, 1), 0, False),
    ],
)
def test_reader_misses_what_was_removed_since(place: Any, known: int, misses: bool) -> None:
    """Who stands before a row that is gone has missed it, unless it was gone before."""
    cursor = Cursor(HISTORY, place, "01234567", known)
    assert misses == cursor.misses(Removed((5, 2), 2))
    assert not cursor.misses(Removed())


# Settings


@each_case(
    ("settings", "message"),
    [
        ({"name": ""}, r"table is ''; it must be a table's name, like outbox or shop\.outbox"),
        ({"name": "a.b.c"}, r"table is 'a\.b\.c'; it must be a table's name"),
        ({"name": ".outbox"}, r"table is '\.outbox'; it must be a table's name"),
        ({"name": "x" * 64}, r"it must be a table's name"),
        ({"name": "a\0"}, r"it must be a table's name"),
        ({"data": ""}, r"data is ''; it must be a column, or a list of columns"),
        ({"data": []}, r"data is \[\]; it must be a column, or a list of columns"),
        ({"data": ["a", ""]}, r"data is \['a', ''\]; it must be a column, or a list"),
        ({"data": ["a", "b", "a"]}, r"data is \['a', 'b', 'a'\]; it must be each column once"),
        ({"headers": "kind"}, r"headers is 'kind'; it must be a list of columns, each once"),
        ({"headers": ("a", "a")}, r"headers is \('a', 'a'\); it must be a list of columns"),
        ({"headers": ("Zeh-Time",)}, r"headers is 'Zeh-Time'; it must be not zeh-…: that is the"),
        ({"partitions": 0}, r"partitions is 0; it must be a number of 1 to 64"),
        ({"partitions": 65, "partition": "p"}, r"partitions is 65; it must be a number of 1 to"),
        ({"partitions": True}, r"partitions is True; it must be a number of 1 to 64"),
        ({"partitions": 2}, r"partitions is 2; it must be 1, unless partition_by names a column"),
        (
            {"partition": "p", "partition_by": "k"},
            r"partition is 'p'; it must be left out if partition_by is given",
        ),
        ({"on_bad_row": "fail"}, r"on_bad_row is 'fail'; it must be stop or skip"),
    ],
)
def test_settings_that_make_no_feed_are_refused(settings: dict[str, Any], message: str) -> None:
    """I am told which setting, its value, and what it may be."""
    with pytest.raises(OptionError, match=message):
        OutboxTable(**{"name": "outbox", "data": "data", **settings})


@each_case(
    ("given", "message"),
    [
        ({"headers": "kind"}, r"headers is 'kind'; it must be a list of columns, each once"),
        ({"table": "shop.outbox"}, r"table is 'shop\.outbox', and SQLite has no schemas"),
        ({"dialect": "mysql"}, r"through an engine of postgresql\+psycopg://… or sqlit"),
    ],
)
def test_feeds_settings_are_refused_before_the_database_is_asked(given, message):
    """My mistake shows when the program starts, also an asynchronous engine of my service."""
    engine = create_engine("sqlite:////nowhere/shop.db")
    settings = {"table": "outbox", "data": "data", **given}
    engine.dialect.name = settings.pop("dialect", "sqlite")
    with pytest.raises(OptionError, match=message):
        SqlTableFeed(engine, **settings)


def test_columns_that_are_read_are_named_once() -> None:
    """A column may be data and header and key at once."""
    table = OutboxTable("shop.outbox", ["a", "id"], ("a", "k"), partition_by="k", partitions=2)
    assert (["id", "k", "a"], "shop", "outbox", True) == (
        list(table.used),
        table.schema,
        table.bare_name,
        table.is_object,
    )
