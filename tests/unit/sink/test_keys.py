"""The header `zeh-key` of events that keep their keys (option `keepKey`)."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as T

from tests.cases import each_case
from tests.unit.sink.test_rows import DATA, HEADERS, INT, LONG, STRING, batch, frame
from zeh_spark.errors import OptionError, RowError
from zeh_spark.service.app.upload_validation import _rests
from zeh_spark.spark.sink.row_layout import layout
from zeh_spark.spark.sink.rows import Renderer
from zeh_spark.wire import event_key, partitioning, wire
from zeh_spark.wire.upload_format import LINE_BYTES, prefix

KEY, PARTITION = ("key", STRING), ("partition", INT)
LONGEST = "ä" * (event_key.MAX_BYTES // 2)


def renderer(*columns, keeps_origin=False, n=4):
    return Renderer(layout(frame(*columns), keeps_origin=keeps_origin, keeps_key=True), n)


def render(columns, *rows, n=4):
    return renderer(*columns, n=n).render(batch(columns, *rows))


def headers_of(rendered):
    return [json.loads(b"{" + rest)["headers"] for rest in rendered.rests]


TEXTS = ["c-4", "", "ø\u2028\U0001f600", 'say "x"', "two\nlines", "back\\slash", LONGEST]


@each_case(
    ("kind", "key"),
    [*((STRING, text) for text in TEXTS), (LONG, -(2**63)), (INT, 7), (T.ByteType(), -1)],
)
def test_the_text_of_a_key_stays(kind, key):
    """Whatever it holds; NULL is no key, and the empty text is one. An integer is kept in decimal,
    the text that chooses the partition.
    """
    found = render([DATA, ("key", kind)], ("1", key), ("2", None))
    assert [{"zeh-key": str(key)}, {}] == headers_of(found)
    assert [partitioning.partition_of(str(key), 4), -1] == found.partitions.tolist()


def test_without_the_option_nothing_is_kept():
    """The default: the key chooses the partition, and the content is what it always was."""
    columns = [DATA, KEY, HEADERS]
    plain = Renderer(layout(frame(*columns)), 4)
    found = plain.render(batch(columns, ("1", "k", {"zeh-key": "x"})))
    assert [b'"headers":{},"data":1}'] == found.rests


def test_a_row_that_is_the_object_keeps_its_key():
    """Without a column data, the key is in the header and in the object."""
    found = render([KEY, ("i", INT)], ("k", 1), (None, 2))
    assert [{"zeh-key": "k"}, {}] == headers_of(found)
    assert [{"key": "k", "i": 1}, {"key": None, "i": 2}] == [
        json.loads(b"{" + rest)["data"] for rest in found.rests
    ]


def test_origin_and_key_are_kept_together():
    stamps = {"zeh-feed": "f", "zeh-producer": "p", "zeh-partition": "1", "zeh-sequence": "3"}
    columns = [DATA, KEY, HEADERS]
    both = renderer(*columns, keeps_origin=True)
    rows = [("1", "k", {**stamps, "zeh-time": "50"}), ("2", None, {**stamps, "zeh-time": "51"})]
    expected = [{"zeh-key": "k", "zeh-origin": "f/p/1/3/50"}, {"zeh-origin": "f/p/1/3/51"}]
    assert expected == headers_of(both.render(batch(columns, *rows)))


characters = st.characters(exclude_categories=["Cs"])
keys = st.text(characters, max_size=9) | st.none()
texts = st.text(characters, min_size=1, max_size=9)
names = texts | st.sampled_from(["zeh-time", "zeh-key", "a", "zz"])


@given(st.lists(st.tuples(keys, st.dictionaries(names, texts) | st.none())))
def test_what_is_rendered_is_an_event_that_publishers_take(rows):
    """Law: with a column headers and without one, the bytes are those of any writer. The key is
    beside the event's own headers, sorted; other reserved headers are dropped, a key that was read
    with them, too.
    """
    columns = [DATA, KEY, HEADERS]
    found = render(columns, *(("1", key, own) for key, own in rows), n=1)
    expected = []
    for key, own in rows:
        kept = {k: v for k, v in (own or {}).items() if not k.startswith("zeh-")}
        kept |= {} if key is None else {"zeh-key": key}
        expected.append(wire.event_line(0, kept, b"1").removeprefix(prefix(0)))
    assert expected == found.rests
    if rows:
        assert _rests(b"".join(prefix(0) + rest + b"\n" for rest in found.rests), 0) is not None
    alone = render([DATA, KEY], *(("1", key) for key, _ in rows), n=1)
    assert alone.rests == render(columns, *(("1", key, None) for key, _ in rows), n=1).rests


# What is refused


def test_a_key_that_is_too_long_is_its_rows_error():
    """At the limit it is kept, one byte over it is refused by name; a shorter row is not."""
    with pytest.raises(RowError, match="row 1 of this task cannot be published: key: it takes"):
        render([DATA, KEY], ("1", LONGEST), ("2", LONGEST + "x"))
    rows = batch([DATA, KEY], ("1", LONGEST), ("2", LONGEST + "x"), ("3", "k"))
    good, reasons = renderer(DATA, KEY).sift(rows)
    assert [{"zeh-key": LONGEST}, {"zeh-key": "k"}] == headers_of(good)
    said = "key: it takes 1,025 bytes in UTF-8; at most 1,024 are kept in zeh-key"
    assert {1: said} == reasons
    plain = Renderer(layout(frame(DATA, KEY)), 4).render(rows)  # without keepKey, no limit
    assert 3 == len(plain.rests)


@each_case("more", [0, 1])
@each_case("key", ["k", 'quo"te'])
def test_an_event_that_is_too_long_with_its_key_says_so(key, more):
    """So I know whether to shorten the event, or to leave the key out."""
    rest = b'"headers":{"zeh-key":%b},"data":""}' % msgspec.json.encode(key)
    room = LINE_BYTES - len(prefix(0)) - len(rest)
    render([DATA, KEY], (f'"{"x" * room}"', key), n=1)
    plain = LINE_BYTES - len(prefix(0)) - len(b'"headers":{},"data":""}')
    size = plain + more
    with pytest.raises(RowError) as raised:
        render([DATA, KEY], (f'"{"x" * size}"', key), n=1)
    said = "" if more else " with the header zeh-key"
    assert f"bytes as a line of the feed{said}; at most" in str(raised.value)


NEEDED = "keepKey=true needs the column key"


@each_case(
    ("columns", "option", "why", "remedy"),
    [
        ([DATA], "keepKey", NEEDED, "Add the column, like customer AS key, or leave out keepKey"),
        ([DATA, PARTITION], "keepKey", NEEDED, "Put the column key in the place of partition"),
        ([DATA, KEY, PARTITION], "key", "contradicts 'partition'", ""),
        ([DATA, ("key", T.DoubleType())], "key", "CAST it AS STRING", ""),
    ],
)
def test_a_frame_without_a_key_to_keep_is_refused(columns, option, why, remedy):
    """Also as it is without the option."""
    with pytest.raises(OptionError, match=why) as raised:
        layout(frame(*columns), keeps_key=True)
    assert (option, True) == (raised.value.option, remedy in str(raised.value))
