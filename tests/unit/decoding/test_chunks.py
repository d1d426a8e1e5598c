"""Chunks are decoded to the rows that the driver's way gives."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.cases import each_case
from zeh_spark.client.decoding import chunks as chunk_decode
from zeh_spark.client.decoding.chunks import ChunkDecoder
from zeh_spark.client.decoding.lines import Decoder
from zeh_spark.client.http.direct_client import FetchedGroup
from zeh_spark.client.options.given import parse
from zeh_spark.errors import MalformedLineError, PublisherError, StoreError
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.wire import wire
from zeh_spark.wire.direct_reads import HEADERS, PLACES, name_hash
from zeh_spark.wire.feed_identity import Epoch, FeedIdentity
from zeh_spark.wire.served_lines import Block, renderer
from zeh_spark.wire.served_lines import stamps as publisher_stamps
from zeh_spark.wire.stamp_columns import MAX_TIME, OF_HEADERS, POSITION
from zeh_spark.wire.upload_format import frame_of

TRAPS = [
    *('},"data":', '"},"data":{"', '{"partition":0,"headers":{', "\\"),
    *("x", "zeh-time", "ø\u2028"),
]
NAMES = ["a", "b", "ø", "zeh-origin", "zeh-key", 'quo"te']
ONE = FeedIdentity("a" * 16, (Epoch("a" * 16),))
TWO = FeedIdentity("a" * 16, (Epoch("a" * 16), Epoch("a" * 16 + "~1", 50)))

events = st.tuples(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TRAPS), max_size=3),
    st.sampled_from(TRAPS) | st.integers() | st.dictionaries(st.sampled_from(TRAPS), st.none()),
)
chunks = st.tuples(
    st.sampled_from([0, 2, 4]),  # stored partitions of the reader's partition 0
    st.sampled_from([10, 50, 90]),  # time
    st.sampled_from(["p", "q"]),
    st.lists(events, min_size=1, max_size=4),
)
Chunk = tuple[int, int, str, list[tuple[dict[str, str], object]]]
columns = st.sampled_from([("partition", "headers", "data"), ("data",), ("data", "headers")])
typed = st.lists(st.sampled_from([*OF_HEADERS, POSITION]), unique=True).map(tuple)


def stored_lines(partition: int, given_events: Sequence[tuple[dict[str, str], object]]) -> bytes:
    texts = [
        wire.event_line(partition, headers, json.dumps(data, ensure_ascii=False).encode())
        for headers, data in given_events
    ]
    return b"".join(text + b"\n" for text in texts)


def group_of(given_chunks: Sequence[Chunk]) -> FetchedGroup:
    texts = [stored_lines(chunk[0], chunk[3]) for chunk in given_chunks]
    records = []
    for g, (partition, time, producer, own) in enumerate(given_chunks, 1):
        size = len(texts[g - 1])
        whose = name_hash(producer)
        records.append((g, time, whose, 7, 100 * g, g, partition, len(own), size))
    names = {name_hash(each): each for each in ("p", "q")}
    frames = list(map(frame_of, texts))
    return FetchedGroup(0, np.array(records, HEADERS), names, one_each(len(frames)), frames)


def one_each(count: int) -> np.ndarray:
    """The places of chunks that have a frame each."""
    return np.array([(at, 0) for at in range(count)], PLACES)


def driver_rows(
    given_chunks: Sequence[Chunk],
    decoder: Decoder,
    wanted: tuple[str, ...],
    feed: FeedIdentity | None,
) -> list[dict[str, object]]:
    """What the driver's way makes of the same chunks."""
    render, rows = renderer(wanted), []
    for g, (partition, time, producer, own) in enumerate(given_chunks, 1):
        stamped = publisher_stamps(partition, time, producer, 7)
        block = Block(partition, stored_lines(partition, own), "", stamped, 100 * g)
        for found in decoder.batches(render(block, 0), 0, feed, g):
            rows += found.to_pylist()
    return rows


@given(
    st.lists(chunks, min_size=1, max_size=5),
    columns,
    typed,
    st.sampled_from(
        ["_all", "none", "a,zeh-time", "zeh-sequence,ø,zeh-time", "a,ø", "zeh-key,zeh-time"]
    ),
    st.sampled_from(["headers", "columns", "none"]),
    st.sampled_from([ONE, TWO]),
)
def test_rows_are_those_of_the_drivers_way(
    given_chunks: list[Chunk],
    names: tuple[str, ...],
    stamp_names: tuple[str, ...],
    headers: str,
    stamps: str,
    feed: FeedIdentity,
) -> None:
    """Whoever fetches, my rows are the same, headers in the same order."""
    assume(stamps == "headers" or "zeh-" not in headers)
    given_options = {"url": "http://h/f", "headers": headers, "stamps": stamps}
    options = replace(parse(SourceOptions, given_options), columns=(*names, *stamp_names))
    decoder = Decoder(options.columns, "_corrupt_record", False, options.hidden_headers)
    wanted, identity = options.requested_headers, options.stamping(feed)
    found = ChunkDecoder(decoder, wanted, identity).batches(group_of(given_chunks))
    rows = [row for batch in found for row in batch.to_pylist()]
    assert driver_rows(given_chunks, decoder, wanted, identity) == rows
    shown = {name for row in rows for name, _ in row.get("headers", [])}
    if stamps != "headers":
        assert not {name for name in shown if name.startswith("zeh-")} - {"zeh-origin"}
    elif headers != "_all":
        assert shown <= {*headers.split(","), "zeh-feed"}
    elif "headers" in names:
        assert {"zeh-time", "zeh-feed"} <= shown
    for row, stamped in zip(rows, expected_stamps(given_chunks, feed), strict=True):
        assert {name: stamped[name] for name in stamp_names} == {
            name: row[name] for name in stamp_names
        }


def expected_stamps(given_chunks: list[Chunk], feed: FeedIdentity) -> list[dict[str, object]]:
    """What the columns of stamps show, said once more and plainly."""
    return [
        {
            "timestamp": datetime.fromtimestamp(time / 1000, timezone.utc),
            "feed": feed.at(time),
            "producer": producer,
            "storedPartition": partition,
            "sequence": 100 * g + number,
            "batch": 7,
            "position": g,
            "key": own_headers.get("zeh-key"),
        }
        for g, (partition, time, producer, own) in enumerate(given_chunks, 1)
        for number, (own_headers, _) in enumerate(own)
    ]


@pytest.mark.parametrize(
    "headers", [{}, {"a": "x", "b": "y"}, {"zeh-origin": "x"}, {"a": "x", "zeh-key": "ø"}]
)
def test_usual_events_are_not_parsed(monkeypatch, headers):
    """What makes it fast is what happens."""
    monkeypatch.setattr(ChunkDecoder, "_unusual", None)
    group = group_of([(0, 10, "p", [(headers, {"id": 1})] * 3), (2, 60, "q", [({}, [2])])])
    decoder = ChunkDecoder(Decoder(("headers", "data"), "c", False), ("_all",), TWO)
    (batch,) = decoder.batches(group)
    assert ['{"id": 1}'] * 3 + ["[2]"] == batch.column("data").to_pylist()
    first = dict(batch.column("headers").to_pylist()[2])
    assert {**headers, "zeh-producer": "p", "zeh-sequence": "102", "zeh-feed": "a" * 16} == {
        name: value
        for name, value in first.items()
        if name not in ("zeh-batch", "zeh-partition", "zeh-time")
    }
    assert "a" * 16 + "~1" == dict(batch.column("headers").to_pylist()[3])["zeh-feed"]


@pytest.mark.parametrize("shown", [(), ("headers",)])
def test_keys_of_usual_events_are_cut(monkeypatch, shown):
    """The column `key` needs no parser, and with typed stamps its header is not in the map."""
    monkeypatch.setattr(ChunkDecoder, "_unusual", None)
    keyed = [({"a": "x", "zeh-key": "ø"}, 1), ({}, 2), ({"zeh-key": ""}, 3), ({"b": "y"}, 4)]
    group = group_of([(0, 10, "p", keyed), (2, 60, "q", [({}, 5)])])
    decoder = Decoder(("data", "key", *shown), "c", False, ("zeh-key", "zeh-time"))
    (batch,) = ChunkDecoder(decoder, ("_all",), None).batches(group)
    assert ["ø", None, "", None, None] == batch.column("key").to_pylist()
    if shown:
        maps = [dict(each) for each in batch.column("headers").to_pylist()]
        assert [{"a": "x"}, {}, {}, {"b": "y"}, {}] == maps


@pytest.mark.parametrize("stamps", ["headers", "columns"])
def test_without_the_column_no_headers_are_cut(monkeypatch, stamps):
    """A query without keys does not pay for them."""
    monkeypatch.setattr(chunk_decode._Lines, "headers", None)
    options = parse(SourceOptions, {"url": "http://h/f", "headers": "none", "stamps": stamps})
    decoder = Decoder(("headers", "data"), "c", False, options.hidden_headers)
    group = group_of([(0, 10, "p", [({"zeh-key": "k"}, 1)])])
    (batch,) = ChunkDecoder(decoder, options.requested_headers, None).batches(group)
    assert [([], "1")] == [(row["headers"], row["data"]) for row in batch.to_pylist()]


GOOD = group_of([(0, 10, "p", [({}, 1)])])
LINE = b'{"partition":0,"headers":{},"data":1}\n'


def changed(
    lines: bytes = LINE, *, events: int = 1, frame: bytes | None = None, size: int | None = None
) -> FetchedGroup:
    """A group of one chunk that is not what a publisher stores."""
    headers = GOOD.headers.copy()
    headers["size"] = size or len(lines)
    headers["events"] = events
    return FetchedGroup(0, headers, GOOD.producers, one_each(1), [frame or frame_of(lines)])


def cut_in_a_line() -> FetchedGroup:
    """Two chunks whose lines are events only together, and the first one ends within a line."""
    group = group_of([(0, 10, "p", [({}, 1)]), (0, 20, "p", [({}, 1)])])
    texts = [LINE + LINE[:9], LINE[9:]]
    group.headers["size"] = list(map(len, texts))
    frames = list(map(frame_of, texts))
    return FetchedGroup(0, group.headers, group.producers, one_each(2), frames)


def placed(*places: tuple[int, int], frames: Sequence[bytes] = (LINE * 2,)) -> FetchedGroup:
    """Chunks of one line each at some places, by frame and offset, in frames with these lines."""
    group = group_of([(0, 10 + at, "p", [({}, 0)]) for at in range(len(places))])
    there = np.array([*places], PLACES)
    sent = [each if each.startswith(b"\x28\xb5") else frame_of(each) for each in frames]
    return FetchedGroup(0, group.headers, group.producers, there, sent)


def of_size(size: int) -> bytes:
    """A frame of nothing that says that it unpacks to so many bytes (RFC 8878, 3.1.1.1)."""
    return b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x01\0\0"


def decoded(
    group: FetchedGroup, columns: tuple[str, ...] = ("data",), hidden: tuple[str, ...] = ()
) -> list[dict[str, object]]:
    decoder = ChunkDecoder(Decoder(columns, "c", False, hidden), ("_all",), ONE)
    return [row for batch in decoder.batches(group) for row in batch.to_pylist()]


@each_case("rest", [b',"data":"\xff"}', b"}{}", b',"data":1', b',"data":12', b',"data":}'])
def test_a_damaged_line_is_an_error(rest):
    """What is no event never becomes a row."""
    group = changed(LINE + b'{"partition":0,"headers":{}' + rest + b"\n", events=2)
    with pytest.raises(MalformedLineError):
        decoded(group, ("headers", "data"))


@each_case(
    ("group", "why"),
    [
        (changed(LINE.replace(b":0", b":1")), "has lines of another one"),
        (changed(LINE * 2), "damaged"),  # the sequence numbers would be wrong
        (cut_in_a_line(), "store is damaged"),
        (changed(frame=frame_of(b"x" * 5)), "store is damaged"),
        (changed(frame=b"no frame at all"), "store is damaged"),
        (changed(frame=frame_of(LINE)[:-3]), "store is damaged"),
        (changed(frame=frame_of(b"") * 2), "store is damaged"),
        (changed(frame=of_size(1 << 63)), "another size"),
        (placed(*[(each, 0) for each in range(4)], frames=[of_size(1 << 62)] * 4), "another size"),
        (changed(lines=b"", frame=frame_of(b""), events=0), "another size"),
        (placed((0, 0), (0, 0)), "where another one is"),
        (placed((0, 0), (0, len(LINE) - 1)), "where another one is"),
        (placed((0, 0), (0, len(LINE) + 1)), "not in its frame"),
        (changed(frame=frame_of(b"\n" * (4 << 20)), size=4 << 20), "another size"),  # too large
    ],
)
def test_a_damaged_chunk_is_an_error(group, why):
    """It is never taken for fewer events, nor for those of another partition."""
    with pytest.raises((PublisherError, StoreError), match=why):
        decoded(group)


def test_chunks_that_share_frames_are_cut_out():
    """In my order, whatever the order in the frames, and without what is not mine."""
    texts = [b'{"partition":0,"headers":{},"data":%d}\n' % each for each in range(5)]
    size, frames = len(texts[0]), [b"".join(texts[:3]), b"".join(texts[3:])]
    for places in [(1, 0), (0, 0), (0, 2 * size)], [(0, size), (0, 2 * size), (1, size)]:
        expected = [str(3 * frame + offset // size) for frame, offset in places]
        assert expected == [row["data"] for row in decoded(placed(*places, frames=frames))]


@each_case(
    "headers",
    [
        b'{"zeh-time":"5"}',
        b'{"a":"b","zeh-sequence":"5"}',
        b'{"zeh-other":"5"}',
        b'{"a":"1","a":"2"}',
    ],
)
@each_case("hidden", [(), ("zeh-time",)])
def test_headers_that_no_publisher_stores_are_those_of_the_drivers_way(headers, hidden):
    """A store that is older than the checks, or that another program wrote, changes no row."""
    lines = b'{"partition":0,"headers":%b,"data":1}\n' % headers
    columns = ("headers", "data")
    block = Block(0, lines, "", publisher_stamps(0, 10, "p", 7), 100)
    served = renderer(("_all",))(block, 0)
    driver = Decoder(columns, "c", False, hidden).batches(served, 0, ONE, 1)
    expected = [row for batch in driver for row in batch.to_pylist()]
    assert expected == decoded(changed(lines), columns, hidden)


def test_a_time_that_no_timestamp_can_hold_is_an_error():
    """It never becomes another time."""
    group = group_of([(0, 10, "p", [({}, 1)]), (0, MAX_TIME, "p", [({}, 2)])])
    assert ["1", "2"] == [row["data"] for row in decoded(group, ("data", "timestamp"))]
    group.headers["time"][1] += 1
    with pytest.raises(MalformedLineError):
        decoded(group, ("data", "timestamp"))


def test_a_frame_that_tells_another_size_than_its_chunk_is_not_unpacked():
    """A small frame that unpacks to 64 MiB takes no memory."""
    group = changed(frame=frame_of(b"\n" * (64 << 20)))
    tracemalloc.start()
    try:
        with pytest.raises(PublisherError, match="another size"):
            decoded(group)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
