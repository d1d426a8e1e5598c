"""Lines to record batches: the same rows whatever the blocks, and what happens to odd lines."""

import contextlib
import gc
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from tests.cases import each_case
from zeh_spark.client.decoding import lines as decode
from zeh_spark.client.decoding.lines import Decoder, _without_gc, blocks
from zeh_spark.errors import MalformedLineError, PublisherError
from zeh_spark.wire import wire
from zeh_spark.wire.feed_identity import Epoch, FeedIdentity, parse_stamped, untold

ALL = Decoder(("partition", "headers", "data"), "_corrupt_record", False)
PERMISSIVE = Decoder(("partition", "headers", "data", "_corrupt_record"), "_corrupt_record", True)
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("data", pa.string()),
    ]
)


def rows(lines, decoder=ALL, partition=0, feed=None):
    return [row for batch in decoder.batches(lines, partition, feed) for row in batch.to_pylist()]


def event(data, headers=b"{}"):
    return b'{"partition":0,"headers":%b,"data":%b}\n' % (headers, data)


def row(data, headers=()):
    return {"partition": 0, "headers": list(headers), "data": data}


def test_an_event_is_a_row():
    """partition, headers and data, with Spark's types."""
    (batch,) = ALL.batches(event(b'{"id": 1}', b'{"a":"b"}'), 0)

    expected = pa.RecordBatch.from_pylist([row('{"id": 1}', [("a", "b")])], schema=SCHEMA)
    assert expected == batch


@each_case(
    "data",
    ['{"a": 1.50}', "[1, 2]", '"x"', "1e400", "true", '"\\u00e9é"', '"\\u2028\\ud83d\\ude00"'],
)
def test_data_is_kept_byte_for_byte(data):
    """No number is rounded, no space is lost, also in a block that is read line by line."""
    assert [row(data)] == rows(event(data.encode()))
    assert [row(data), row(None)] == rows(event(data.encode()) + b'{"partition":0}\n')


@each_case(
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
    """Missing data is NULL, null is the text null, missing headers are an empty map (D11, D16)."""
    assert [expected] == rows(line)


def test_unknown_lines_are_left_out():
    """Later versions of the protocol may add lines. No lines are no batch, not an empty one."""
    assert [row("1"), row("2")] == rows(event(b"1") + b'{"new":{"data":1}}\n' + event(b"2"))
    assert [] == list(ALL.batches(b"", 0))


@each_case(
    "columns",
    [("data",), ("data", "partition"), ("headers",), ("partition",), ("headers", "data")],
)
def test_columns_as_the_schema_has_them(columns):
    """A schema may leave columns out and put them in another order."""
    (batch,) = Decoder(columns, "c", False).batches(event(b"1", b'{"a":"b"}') + event(b"2"), 0)

    assert list(columns) == batch.schema.names
    assert 2 == batch.num_rows


# The header zeh-feed

FEED = "9f86d081884c7d65"
ONE = FeedIdentity(FEED, (Epoch(FEED),))
THREE = FeedIdentity(FEED, (Epoch(FEED), Epoch(f"{FEED}~1", 100), Epoch(f"{FEED}~2", 200)))


def at(time, data=b"1", **more):
    headers = {**more, **({} if time is None else {"zeh-time": str(time)})}
    return event(data, json.dumps(headers, separators=(",", ":")).encode())


def feeds(lines, feed, decoder=ALL):
    """Each row's `zeh-feed`, None without; fails if one has it twice."""
    found = [
        [v for k, v in each["headers"] if k == "zeh-feed"] for each in rows(lines, decoder, 0, feed)
    ]
    assert {0, 1} >= {len(each) for each in found}
    return [each[0] if each else None for each in found]


@each_case(
    ("headers", "expected"),
    [
        (b"{}", []),
        (b'{"b":"1","a":"2"}', [("b", "1"), ("a", "2")]),
        (b'{"a":"\\u00e9"}', [("a", "é")]),
        (b'{"zeh-feed":"mine","a":"b"}', [("a", "b")]),
        (b'{ "zeh-feed" : "mine" }', []),
        (b"null", []),
    ],
)
@each_case("feed", [ONE, untold("https://orders.example/feed")])
def test_each_event_says_which_feed_it_comes_from(headers, expected, feed):
    """Once, behind its own headers in their order; a publisher's own of that name is replaced."""
    got = rows(event(b"1", headers) + event(b"2", b'{"c":"d"}'), feed=feed)

    added = [("zeh-feed", feed.id)]
    assert [row("1", [*expected, *added]), row("2", [("c", "d"), *added])] == got


def test_an_event_belongs_to_the_epoch_of_its_time():
    """Producers' numbers of another epoch are other events."""
    times = [0, 99, 100, 101, 199, 200, 10**12, "099", "100"]

    assert [
        *[FEED] * 2, *[f"{FEED}~1"] * 3, *[f"{FEED}~2"] * 2, FEED, f"{FEED}~1",
    ] == feeds(b"".join(at(time, type="é") for time in times), THREE)  # fmt: skip


@each_case("time", [None, "", "x", "-1", "1e3", "1.5", " 100", "٣", "1" * 19])
@each_case("alone", [True, False])
def test_an_event_without_a_time_belongs_to_no_one_of_several_epochs(time, alone):
    """It is a malformed line, which the error shows; a feed of one epoch needs no times."""
    lines = at(time) if alone else at(150) + at(time, data=b"2") + at(250)
    bad = at(time, data=b"1" if alone else b"2")

    with pytest.raises(
        MalformedLineError, match=r"no valid 'zeh-time'.* 3 epochs.*\\?data"
    ) as error:
        rows(lines, feed=THREE)

    assert wire.excerpt(bad.rstrip(b"\n")) == error.value.body
    assert {FEED} == set(feeds(lines, ONE))


def test_permissive_keeps_an_event_without_a_time_in_the_column_of_bad_lines():
    """Others get ids; what is no event gets none. A query for data alone needs no times."""
    lines = at(150) + at(None, data=b"2") + event(b"NaN") + at(250)

    assert [f"{FEED}~1", None, None, f"{FEED}~2"] == feeds(lines, THREE, PERMISSIVE)
    assert [{"data": "1"}] == rows(at(None), Decoder(("data",), "c", False), feed=THREE)


# Lines that are no events

BAD = {
    "NaN": (event(b"NaN"), r"NaN is not JSON .*allow_nan=False"),
    "-Infinity": (event(b'{"a":-Infinity}'), "-Infinity is not JSON"),
    "broken UTF-8": (event(b'"\xff"'), "not UTF-8"),
    "broken UTF-8 in a header": (event(b"1", b'{"a":"\xff"}'), "not UTF-8"),
    "nested too deeply": (event(b"[" * 100_000 + b"]" * 100_000), "nested too deeply"),
    "two objects": (b'{"data":1}{"data":2}\n', "JSON is malformed"),
    "half": (b'{"partition":0,"data":{"a":\n', "truncated|malformed"),
    "an object over two lines": (b'{"partition":0,\n"data":1}\n', "truncated|malformed"),
    "text": (b'Internal server "data"\n', "malformed"),
    "a list": (b'["data"]\n', "Expected `object`"),
    "nothing": (b"null\n", "Expected `object`"),
    "a text as partition": (b'{"partition":"0","data":1}\n', r"Expected `int.*\$\.partition"),
    "a list of headers": (event(b"1", b"[]"), r"Expected `object.*\$\.headers"),
    "a header that is no text": (event(b"1", b'{"a":1}'), "Expected `str"),
    "half of a surrogate pair": (event(b'"\\ud800"'), "half of a surrogate pair"),
}


@each_case(("lines", "why"), BAD.values())
def test_a_bad_line_stops_the_query_by_name(lines, why):
    """With partition, line and reason. PERMISSIVE keeps it in its column, between good ones."""
    with pytest.raises(MalformedLineError, match=rf"partition 0: .*({why})") as error:
        rows(event(b"1") + lines)
    first = lines.partition(b"\n")[0]
    assert (0, wire.excerpt(first)) == (error.value.partition, error.value.body)
    got = rows(event(b"1") + lines + event(b"2"), PERMISSIVE)

    bad = [
        {**row(None), "_corrupt_record": each.decode(errors="replace")}
        for each in lines.split(b"\n")[:-1]
    ]
    good = [{**row(data), "_corrupt_record": None} for data in ("1", "2")]
    assert [good[0], *bad, good[1]] == got


@each_case("decoder", [ALL, PERMISSIVE])
@each_case("line", [b'{"partition":1,"data":1}\n', b'{"partition":-1}\n'])
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


def test_collecting_garbage_goes_on_after_two_threads(monkeypatch):
    """One ends while the other has just seen that the collector is off."""
    first, second = _without_gc(), _without_gc()
    with contextlib.ExitStack() as running:
        running.enter_context(first)
        monkeypatch.setattr(gc, "isenabled", lambda: running.close())
        with second:
            monkeypatch.undo()
    assert gc.isenabled()


# Laws


@given(st.lists(strategies.events), st.integers(1, 200))
def test_any_events_in_any_blocks_are_the_same_rows(events, size):
    """Law: however events are cut, rows say what json.loads of each line says, byte for byte."""
    lines = [wire.event_line(0, *each) for each in events]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_BLOCK", size)
        got = rows(b"".join(line + b"\n" for line in lines))

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


TIMES = st.sampled_from(["0", "99", "100", "250", "0100", "", "x", "1" * 19]) | st.none()
NAMES = st.sampled_from(["a", "b", "zeh-producer", "zeh-feed", "zéh"])
STAMPED = st.lists(
    st.tuples(TIMES, st.dictionaries(NAMES, STRINGS, max_size=3), st.booleans()), max_size=8
)


@given(STAMPED, st.sampled_from([ONE, THREE, untold("https://orders.example/feed?x=é")]))
def test_a_block_gets_the_same_ids_as_its_lines(events, feed):
    """Law: columns at a time give what each line by itself gives."""
    lines = b""
    for time, headers, blank in events:
        given = {**headers, **({} if time is None else {"zeh-time": time})}
        text = json.dumps(given, separators=(", ", ":") if blank else (",", ":"))
        lines += event(b"1", text.encode())
    try:
        expected = [[*parse_stamped(line, 0, feed).headers.items()] for line in lines.splitlines()]
    except MalformedLineError:
        with pytest.raises(MalformedLineError):
            rows(lines, feed=feed)
    else:
        assert expected == [each["headers"] for each in rows(lines, feed=feed)]
        assert all(("zeh-feed", feed.id) in each for each in expected if len(feed.epochs) == 1)


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"") + b"\n")))
def test_blocks_are_whole_lines(lines):
    """Law: blocks together are the lines, and each ends where a line ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_BLOCK", 20)
        cut = list(blocks(b"".join(lines)))

    assert b"".join(lines) == b"".join(cut)
    assert all(block.endswith(b"\n") for block in cut)


@given(strategies.almost_lines)
def test_whatever_the_bytes_there_is_one_kind_of_error(garbage):
    """Law: rows or a PublisherError; PERMISSIVE: a row or nothing per line of this partition."""
    lines = garbage.replace(b"\r", b"") + b"\n"
    for decoder in (ALL, PERMISSIVE):
        try:
            rows(lines, decoder)
        except PublisherError:
            continue
