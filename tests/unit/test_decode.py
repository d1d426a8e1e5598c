"""Lines to record batches: the same rows whatever the blocks, and what happens to odd lines."""

from __future__ import annotations

import gc
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from zeh_spark import decode, wire
from zeh_spark.decode import Decoder, blocks
from zeh_spark.errors import MalformedLineError, PublisherError

ALL = Decoder(("partition", "headers", "data"), "_corrupt_record", False)
PERMISSIVE = Decoder(("partition", "headers", "data", "_corrupt_record"), "_corrupt_record", True)
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("data", pa.string()),
    ]
)


def rows(lines, decoder=ALL, partition=0):
    return [row for batch in decoder.batches(lines, partition) for row in batch.to_pylist()]


def event(data, headers=b"{}"):
    return b'{"partition":0,"headers":%b,"data":%b}\n' % (headers, data)


def row(data, headers=()):
    return {"partition": 0, "headers": list(headers), "data": data}


def test_an_event_is_a_row():
    """partition, headers and data, with Spark's types."""
    (batch,) = ALL.batches(event(b'{"id": 1}', b'{"a":"b"}'), 0)

    expected = pa.RecordBatch.from_pylist([row('{"id": 1}', [("a", "b")])], schema=SCHEMA)
    assert expected == batch


@pytest.mark.parametrize("data", ['{"a": 1.50}', "[1, 2]", '"x"', "1e2", "true", '"\\u00e9é"'])
def test_data_is_kept_byte_for_byte(data):
    """What was published is what I get: no number is rounded, no space is lost."""
    assert [row(data)] == rows(event(data.encode()))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"partition":0}\n', row(None)),
        (b'{"partition":0,"headers":{"a":"b"}}\n', row(None, [("a", "b")])),
        (event(b"null"), row("null")),
        (b'{"data":1}\n', row("1")),
        (b'{"partition":null,"data":1}\n', row("1")),
        (b'{"partition":0,"headers":null,"data":1}\n', row("1")),
        (event(b"1", b'{"a":null}'), row("1", [("a", None)])),
        (b' {"data" : 1 , "new" : 2} \n', row("1")),
    ],
)
def test_what_publishers_leave_out(line, expected):
    """Missing data is NULL, null is the text null, missing headers are an empty map."""
    assert [expected] == rows(line)


def test_unknown_lines_are_left_out():
    """Later versions of the protocol may add lines."""
    assert [row("1"), row("2")] == rows(event(b"1") + b'{"new":{"data":1}}\n' + event(b"2"))


def test_no_lines_are_no_batches():
    """An empty part gives nothing, not an empty batch."""
    assert [] == list(ALL.batches(b"", 0))


@pytest.mark.parametrize(
    "columns",
    [("data",), ("data", "partition"), ("headers",), ("partition",), ("headers", "data")],
)
def test_columns_as_the_schema_has_them(columns):
    """A schema may leave columns out and put them in another order."""
    (batch,) = Decoder(columns, "c", False).batches(event(b"1", b'{"a":"b"}') + event(b"2"), 0)

    assert list(columns) == batch.schema.names
    assert 2 == batch.num_rows


# Lines that are no events

BAD = {
    "NaN": (event(b"NaN"), "NaN is not JSON"),
    "-Infinity": (event(b'{"a":-Infinity}'), "-Infinity is not JSON"),
    "broken UTF-8": (event(b'"\xff"'), "not UTF-8"),
    "broken UTF-8 in a header": (event(b"1", b'{"a":"\xff"}'), "not UTF-8"),
    "nested too deeply": (event(b"[" * 100_000 + b"]" * 100_000), "nested too deeply"),
    "two objects": (b'{"data":1}{"data":2}\n', "JSON is malformed"),
    "half": (b'{"partition":0,"data":{"a":\n', "truncated|malformed"),
    "an object over two lines": (b'{"partition":0,\n"data":1}\n', "truncated|malformed"),
    "text": (b'Internal server "data"\n', "malformed"),
    "a list": (b'["data"]\n', "Expected `object`"),
    "a header that is no text": (event(b"1", b'{"a":1}'), "Expected `str"),
}


@pytest.mark.parametrize(("lines", "why"), BAD.values(), ids=BAD)
def test_a_bad_line_stops_the_query_by_name(lines, why):
    """The error shows partition, line and reason."""
    with pytest.raises(MalformedLineError, match=rf"partition 0: .*({why})"):
        rows(event(b"1") + lines)


@pytest.mark.parametrize("lines", [bad for bad, _ in BAD.values()], ids=BAD)
def test_permissive_keeps_a_bad_line_in_its_column(lines):
    """The bad line is there to look at, and the good ones around it arrive."""
    got = rows(event(b"1") + lines + event(b"2"), PERMISSIVE)

    bad = [
        {**row(None), "_corrupt_record": each.decode(errors="replace")}
        for each in lines.split(b"\n")[:-1]
    ]
    good = [{**row(data), "_corrupt_record": None} for data in ("1", "2")]
    assert [good[0], *bad, good[1]] == got


@pytest.mark.parametrize("decoder", [ALL, PERMISSIVE])
@pytest.mark.parametrize("line", [b'{"partition":1,"data":1}\n', b'{"partition":-1}\n'])
def test_a_line_of_another_partition_always_stops(decoder, line):
    """It may be there a second time under its own number; PERMISSIVE does not take it either."""
    with pytest.raises(PublisherError, match=r"partition 0: .*not asked for"):
        rows(event(b"1") + line, decoder)


def test_collecting_garbage_goes_on_afterwards():
    """Decoding holds the collector off only while it works."""
    assert gc.isenabled()
    for _ in ALL.batches(event(b"1"), 0):
        assert gc.isenabled()
    with pytest.raises(MalformedLineError):
        rows(event(b"NaN"))
    assert gc.isenabled()


# Laws


@given(st.lists(strategies.events), st.integers(1, 200))
def test_any_events_in_any_blocks_are_the_same_rows(events, size):
    """Law: whatever is published and however it is cut into blocks, the rows say what json.loads of
    each line says, and data is there byte for byte.
    """
    lines = [wire.event_line(0, *each) for each in events]
    before, decode._BLOCK = decode._BLOCK, size
    try:
        got = rows(b"".join(line + b"\n" for line in lines))
    finally:
        decode._BLOCK = before

    assert [data.decode() for _, data in events] == [each["data"] for each in got]
    parsed = [json.loads(line) for line in lines]
    assert [each["headers"] for each in parsed] == [dict(each["headers"]) for each in got]


STRINGS = st.text(max_size=4) | st.sampled_from(['"', ":", '":"', "{}", "}"])
MEMBERS = st.builds(
    "{}{}{}".format,
    st.builds(json.dumps, STRINGS | st.sampled_from("ab"), ensure_ascii=st.booleans()),
    st.sampled_from([":"] * 8 + [" : "]),
    st.builds(json.dumps, STRINGS, ensure_ascii=st.booleans())
    | st.sampled_from(["null", "1", "{}", '["a"]', '{"a":"b"}', '"\\u00e9"', "true"]),
)
HEADERS = st.lists(MEMBERS, max_size=4).map(",".join).map("{{{}}}".format) | st.sampled_from(
    ["null", "[]", '["a","b"]', '"}"', '{"a":"b","a":"c"}', '{ "a":"b", "c":"d" }', "1"]
)


@given(st.lists(HEADERS, min_size=1, max_size=6))
def test_headers_cut_from_a_block_are_those_of_each_line(texts):
    """Law: headers are the same whether they are cut out of a block's bytes or parsed line by line,
    which is slower; also where a name is there twice, escaped, or its value no string.
    """
    lines = [event(b"1", text.encode(errors="replace")) for text in texts]
    try:
        expected = [wire.parse_event(line, 0).headers or {} for line in lines]
    except MalformedLineError:
        with pytest.raises(MalformedLineError):
            rows(b"".join(lines))
    else:
        assert [[*each.items()] for each in expected] == [
            each["headers"] for each in rows(b"".join(lines))
        ]


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"") + b"\n")))
def test_blocks_are_whole_lines(lines):
    """Law: blocks together are the lines, and each ends where a line ends."""
    before, decode._BLOCK = decode._BLOCK, 20
    try:
        cut = list(blocks(b"".join(lines)))
    finally:
        decode._BLOCK = before

    assert b"".join(lines) == b"".join(cut)
    assert all(block.endswith(b"\n") for block in cut)


@given(strategies.almost_lines)
def test_whatever_the_bytes_there_is_one_kind_of_error(garbage):
    """Law: bytes that no feed sends give rows or a PublisherError, and PERMISSIVE a row or nothing
    for each line that is of this partition.
    """
    lines = garbage.replace(b"\r", b"") + b"\n"
    for decoder in (ALL, PERMISSIVE):
        try:
            rows(lines, decoder)
        except PublisherError:
            continue
