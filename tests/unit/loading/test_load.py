"""Files become events without loss, or are refused with file, line and reason."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
from collections.abc import Callable
from datetime import datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from zeh_spark.errors import StoreError
from zeh_spark.loading.csv_rows import CsvFormat
from zeh_spark.loading.load import Source, load, named_batch
from zeh_spark.protocol import partitioning, wire
from zeh_spark.protocol.upload_format import (
    CHUNK_BYTES,
    CHUNK_EVENTS,
    LINE_BYTES,
    UPLOAD_BYTES,
    Chunker,
    lines_of,
)
from zeh_spark.publisher import MemoryStore, Problem

Files = Callable[[str, bytes | pa.Table], str]


@pytest.fixture
def file(tmp_path: Path) -> Files:
    def write(name: str, content: bytes | pa.Table) -> str:
        path = tmp_path / name
        if isinstance(content, pa.Table):
            parquet.write_table(content, path)
        else:
            path.write_bytes(content)
        return str(path)

    return write


def loaded(*names: str, partitions: int = 1, **how: Any) -> list[list[dict[str, Any]]]:
    """The lines of each partition after a load."""
    store = MemoryStore()
    store.create("f", partitions)
    load(store, "f", [Source(name, **how) for name in names])
    head = store.feed("f").head
    lines: list[list[dict[str, Any]]] = [[] for _ in range(partitions)]
    for chunk in store.chunks("f", dict.fromkeys(range(partitions), 0), head, 10_000):
        (frame,) = store.frames([chunk.blob])
        lines[chunk.partition] += map(json.loads, lines_of(frame).splitlines())
    return lines


def data(*names: str, **how: Any) -> list[Any]:
    return [line["data"] for line in loaded(*names, **how)[0]]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60_000)), max_size=150))
def test_chunks_hold_every_line_in_order_within_their_limits(events: list[tuple[int, int]]) -> None:
    """Nothing is lost between my file and the feed."""
    chunker, chunks = Chunker(), []
    texts = [(p, b'"%d%s"' % (number, b"x" * size)) for number, (p, size) in enumerate(events)]
    for partition, text in texts:
        chunks += chunker.add(partition, {}, text)
    chunks += chunker.close()
    for partition in range(4):
        found = b"".join(lines_of(each.frame) for each in chunks if each.partition == partition)
        assert found == b"".join(
            wire.event_line(p, {}, text) + b"\n" for p, text in texts if p == partition
        )
    assert all(each.events <= CHUNK_EVENTS and each.size <= CHUNK_BYTES for each in chunks)


def test_longest_line_leaves_room_for_stamps() -> None:
    """An event that fits is served to every client; a longer one is refused with its size."""
    room = LINE_BYTES - len(wire.event_line(0, {}, b'""'))
    Chunker().add(0, {}, b'"%s"' % (b"x" * room))
    with pytest.raises(ValueError, match=f"{LINE_BYTES + 1:,} bytes"):
        Chunker().add(0, {}, b'"%s"' % (b"x" * (room + 1)))


@pytest.mark.parametrize("name", ["a.ndjson", "a.jsonl", "a.json", "a.ndjson.gz", "A.JSON.GZ"])
def test_lines_become_data(file: Files, name: str) -> None:
    """Each line is an event; blank ones, CRLF and a BOM do no harm."""
    content = b'\xef\xbb\xbf{"a": 1}\r\n\n[2, 3]\n"4"'
    path = file(name, gzip.compress(content) if name.lower().endswith("gz") else content)
    assert [{"a": 1}, [2, 3], "4"] == data(path)


def test_standard_input_is_ndjson() -> None:
    """I can pipe into a feed."""
    assert [1, 2] == data("-", stdin=io.BytesIO(b"1\n2\n"))


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_csv_rows_become_objects(file: Files, name: str) -> None:
    """Numbers are numbers, an empty field is null, the rest is text; quotes and newlines as in RFC
    4180; a BOM, CRLF and blank lines do no harm.
    """
    content = b'\xef\xbb\xbfid,name\r\n1,"x ""y"",\nz"\r\n\r\n,"\xc3\xbc"\r\n'
    path = file(name, gzip.compress(content) if name.endswith("gz") else content)
    assert [{"id": 1, "name": 'x "y",\nz'}, {"id": None, "name": "ü"}] == data(path)


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("00123", '"00123"'),
        ("9007199254740993", "9007199254740993"),
        ("12345678901234567890", "12345678901234567890"),
        ("1.50", "1.50"),
        ("-0.0", "-0.0"),
        ("1e-05", "1e-05"),
        ("+1", '"+1"'),
        (".5", '".5"'),
        ("1_000", '"1_000"'),
        ("١", '"١"'),
        ("NaN", '"NaN"'),
        ("true", '"true"'),
        ("null", '"null"'),
        ("NA", "null"),
        (" 1", '" 1"'),
    ],
)
def test_a_csv_field_keeps_every_digit_in_every_file(
    file: Files, field: str, expected: str
) -> None:
    """No value changes in silence, whatever stands in the same column."""
    for others in ("1", "1.5", "x", ""):
        path = file("a.csv", f"v,w\n{others},0\n{field},0\n".encode())
        store = MemoryStore()
        store.create("f", 1)
        load(store, "f", [Source(path, csv=CsvFormat(nulls=("NA",)))])
        line = lines_of(store.frames([0])[0]).splitlines()[1]
        assert wire.event_line(0, {}, f'{{"v":{expected},"w":0}}'.encode()) == line


@pytest.mark.parametrize(("texts", "expected"), [(("v",), ["1.10", 2]), (("*",), ["1.10", "2"])])
def test_csv_numbers_can_be_text(file: Files, texts: tuple[str, ...], expected: list[Any]) -> None:
    """Codes that look like numbers."""
    path = file("a.csv", b"v,w\n1.10,2\n,\n")
    found = data(path, csv=CsvFormat(texts=texts))
    assert [dict(zip("vw", expected, strict=True)), {"v": None, "w": None}] == found


def test_csv_has_any_delimiter(file: Files) -> None:
    """As spreadsheets of other countries write it."""
    assert [{"a": "1,5", "b": 2}] == data(
        file("a.csv", b"a;b\n1,5;2\n"), csv=CsvFormat(delimiter=";")
    )


def test_parquet_values_stay_exact(file: Files) -> None:
    """No digit and no byte is lost on the way into JSON."""
    table = pa.table(
        {
            "big": [2**63 - 1],
            "price": [Decimal("12345678901234567890.12")],
            "raw": [b"\x00\xff"],
            "nested": [[{"x": 1.5}]],
            "kind": pa.array(["a"]).dictionary_encode(),
        }
    )
    store = MemoryStore()
    store.create("f", 1)
    load(store, "f", [Source(file("a.parquet", table))])
    lines = lines_of(store.frames([0])[0])
    expected = (
        b'{"big":9223372036854775807,"price":12345678901234567890.12,"raw":"AP8=",'
        b'"nested":[{"x":1.5}],"kind":"a"}'
    )
    assert wire.event_line(0, {}, expected) + b"\n" == lines


MAP = pa.map_(pa.string(), pa.int64())
DOUBLE_KEYS = pa.map_(pa.float64(), pa.int64())
DURATION_INSIDE = pa.struct({"x": pa.list_(pa.duration("s"))})


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"v": [1.0, math.nan]}, "row 2: v: JSON has no NaN and no Infinity: 'nan'"),
        ({"v": [[math.inf]]}, "row 1: v: JSON has no NaN and no Infinity: 'inf'"),
        ({"v": [{"x": -math.inf}]}, "row 1: v: x: JSON has no NaN and no Infinity: '-inf'"),
        ({"v": pa.array([0, 1], pa.timestamp("ns"))}, "row 2: v: a time is finer than a micro"),
        ({"v": pa.array([0, 1], pa.time64("ns"))}, "row 2: v: a time is finer than a microsecond"),
        ({"v": pa.array([1], pa.duration("ns"))}, r"the column 'v' .*: v is duration\[ns\], for"),
        ({"v": pa.array([5_000_000], pa.date32())}, "row 1: v: its year is not in 1 to 9999"),
        ({"v": pa.array([2**62], pa.timestamp("us"))}, "row 1: v: its year is not in 1 to 9999"),
        ({"v": pa.array([2**53], pa.timestamp("ms"))}, "row 1: v: its year is not in 1 to 9999"),
        (
            {"v": pa.array([[(1.5, 1)]], DOUBLE_KEYS)},
            "the column 'v' .*: the keys of v are double, not text",
        ),
        ({"v": pa.array([[("a", 1), ("a", 2)]], MAP)}, "row 1: v: a name is there twice: 'a'"),
        (
            {"v": pa.array([{"x": [None]}], DURATION_INSIDE)},
            r"the column 'v' .*: v\.x\[\] is duration\[s\]",
        ),
        ({}, "there are no columns, so its rows say nothing"),
    ],
)
def test_what_json_cannot_say_is_refused_by_name(
    file: Files, columns: dict[str, Any], reason: str
) -> None:
    """A value is never changed in silence."""
    with pytest.raises(StoreError, match=f"a.parquet: {reason}"):
        data(file("a.parquet", pa.table(columns)))


def test_the_row_at_fault_is_found_in_a_large_file(file: Files) -> None:
    """Rows are counted over the whole file."""
    values = [*map(float, range(40_000)), math.nan, 1.0]
    with pytest.raises(StoreError, match=r"a.parquet: row 40001: v: JSON has no NaN"):
        data(file("a.parquet", pa.table({"v": values, "w": ["x" * 300] * len(values)})))


def test_parquet_values_are_written_as_those_of_a_data_frame(file: Files) -> None:
    """The same table is the same events, whether Spark or `zeh-spark load` publishes it."""
    noon = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
    columns = {
        "real": pa.array([0.1], pa.float32()),
        "at": pa.array([noon], pa.timestamp("us", "Europe/Berlin")),
        "far": pa.array([noon], pa.timestamp("us", "Mars/X")),
        "local": pa.array([noon.replace(tzinfo=None)], pa.timestamp("ms")),
        "time": pa.array([time(12, 0, 0, 5)]),
        "map": pa.array([[("b", 1), ("a", None)]], MAP),
        "id": pa.array([b"\xff\x00"], pa.binary(2)),
        "pair": pa.array([[1, None]], pa.list_(pa.int8(), 2)),
    }
    (event,) = data(file("a.parquet", pa.table(columns)))
    assert event == {
        "real": 0.1,
        "at": "2026-11-20T12:00:00Z",
        "far": "2026-11-20T12:00:00Z",
        "local": "2026-11-20T12:00:00",
        "time": "12:00:00.000005",
        "map": {"a": None, "b": 1},
        "id": "/wA=",
        "pair": [1, None],
    }


@pytest.mark.parametrize("keys", [pa.array([7, 8], pa.uint8()), pa.array(["7", "ü"])])
def test_parquet_keys_may_be_in_a_dictionary(file: Files, keys: pa.Array) -> None:
    """As many writers store them."""
    plain = loaded(file("a.parquet", pa.table({"k": keys})), partitions=16, key="k")
    packed = pa.table({"k": keys.dictionary_encode()})
    assert plain == loaded(file("b.parquet", packed), partitions=16, key="k")


def test_events_without_key_fill_one_partition_after_the_other(file: Files) -> None:
    """A thousand at a time, over all files, as those of a DataFrame and of a Producer."""
    names = [file("a.ndjson", b"1\n" * 1500), file("b.ndjson", b"2\n" * 2200)]
    found = loaded(*names, partitions=3)
    assert [1000, 1000, 1700] == sorted(map(len, found))


def test_loads_begin_with_different_partitions(file: Files) -> None:
    """Many small files do not pile up in one partition."""
    name = file("a.ndjson", b"1\n")
    found = {tuple(map(len, loaded(name, partitions=2))) for _ in range(64)}
    assert {(0, 1), (1, 0)} == found


def test_a_named_load_has_the_same_place_each_time(file: Files) -> None:
    """A load that is repeated makes the same uploads."""
    places = set()
    for _ in range(8):
        store = MemoryStore()
        store.create("f", 16)
        call = named_batch(store, "f", "p", "2026-01")
        receipt = load(store, "f", [Source("-", io.BytesIO(b"1\n"))], call=call).receipt
        assert receipt is not None
        places.add(receipt.ranges[0].partition)
    assert 1 == len(places)


@pytest.mark.parametrize("name", ["a.ndjson", "a.csv", "a.parquet"])
@pytest.mark.parametrize("keys", [[17, 18, 17], ["x", "ü", "x"]])
def test_key_chooses_the_same_partition_in_every_kind_of_file(
    file: Files, name: str, keys: list[Any]
) -> None:
    """Integers count as their decimal text, so that all writers agree."""
    table = pa.table({"k": keys})
    content: bytes | pa.Table = table
    if name == "a.ndjson":
        content = "\n".join(json.dumps({"k": key}, ensure_ascii=False) for key in keys).encode()
    elif name == "a.csv":
        content = ("k\n" + "\n".join(map(str, keys))).encode()
    found = loaded(file(name, content), partitions=8, key="k")
    expected = [
        {partitioning.partition_of(str(key), 8) for key in keys if key == each["data"]["k"]}
        for p in found
        for each in p
    ]
    assert expected == [{p} for p, lines in enumerate(found) for _ in lines]


def test_envelope_says_where_an_event_goes_and_its_headers(file: Files) -> None:
    """I control partition and headers of each event; reserved headers are the publisher's."""
    lines = (
        b'{"partition": 1, "data": 1}\n'
        b'{"key": 5, "headers": {"b": "2", "a": "1", "zeh-time": "0"}, "data": {"x": null}}\n'
    )
    found = loaded(file("a.ndjson", lines), partitions=2, envelope=True)
    keyed = {
        "partition": partitioning.partition_of("5", 2),
        "headers": {"a": "1", "b": "2"},
        "data": {"x": None},
    }
    assert {"partition": 1, "headers": {}, "data": 1} in found[1]
    assert keyed in found[partitioning.partition_of("5", 2)]


@given(st.lists(st.none() | st.text(max_size=3)).map(lambda keys: keys * 200), st.integers(1, 5))
def test_null_keys_do_not_pile_up(keys: list[str | None], partitions: int) -> None:
    """Events without a key are spread evenly, but for one chunk."""
    lines = b"\n".join(json.dumps({"key": key, "data": key is None}).encode() for key in keys)
    store = MemoryStore()
    store.create("f", partitions)
    load(store, "f", [Source("-", io.BytesIO(lines), envelope=True)])
    chunks = store.chunks("f", dict.fromkeys(range(partitions), 0), store.feed("f").head, 1000)
    spread = [0] * partitions
    for each in chunks:
        spread[each.partition] += lines_of(store.frames([each.blob])[0]).count(b'"data":true')
    assert max(spread) - min(spread) <= CHUNK_EVENTS


BAD = [
    ("a.ndjson", b'1\n{"a":\n', {}, "a.ndjson, line 2: not JSON"),
    ("a.ndjson", b'1\n{"a":NaN}\n', {}, "a.ndjson, line 2: not JSON: NaN is not JSON"),
    ("a.ndjson", b'1\n"\xff"\n', {}, "a.ndjson, line 2: not JSON: it is not UTF-8"),
    ("a.ndjson", b"null\n", {}, "line 1: null cannot be an event's data"),
    ("a.ndjson", b'"%s"\n' % (b"x" * 70_000), {}, "line 1: the event takes 70,0.. bytes"),
    ("a.ndjson", b'{"k":1}\n{"j":1}\n', {"key": "k"}, "line 2: there is no field 'k'"),
    ("a.ndjson", b'{"k":1.5}\n', {"key": "k"}, "line 1: the key is 1.5"),
    ("a.ndjson", b'{"k":true}\n', {"key": "k"}, "line 1: the key is true"),
    ("a.ndjson", b"[1]\n", {"key": "k"}, r"line 1: '\[1\]' is no object, so it has no 'k'"),
    ("a.ndjson", b'{"data":1,"partiton":0}\n', {"envelope": True}, "line 1: .*partiton"),
    ("a.ndjson", b'{"partition":0}\n', {"envelope": True}, "line 1: .*`data`"),
    (
        "a.ndjson",
        b'{"data":1,"partition":1}\n',
        {"envelope": True},
        "no partition 1: the feed has 0 to 0",
    ),
    ("a.ndjson", b'{"data":1,"partition":0,"key":"a"}\n', {"envelope": True}, "exclude each other"),
    ("a.ndjson", b'{"data":1,"headers":{"a":1}}\n', {"envelope": True}, "line 1: .*headers"),
    ("a.ndjson", b'{"data":null}\n', {"envelope": True}, "null cannot be an event's data"),
    ("a.csv", b"a,b\n1,2\n3\n", {}, "a.csv: line 3: 1 fields where the header has 2"),
    (
        "a.csv",
        b"a\n1\n",
        {"key": "b"},
        "line 1: there is no column 'b' for the key; there are a",
    ),
    ("a.csv", b"a,a\n1,2\n", {}, "two columns 'a'"),
    ("a.csv", b"a\n1\n\xff\n", {}, "a.csv: line 3: .*can't decode byte 0xff"),
    ("a.csv", b'a\n1\n"x\n', {}, "a.csv: line 3: unexpected end of data"),
    ("a.csv", b"", {}, "a.csv: line 1: the file is empty"),
    (
        "a.ndjson",
        b"1\n",
        {"csv": CsvFormat(";")},
        "--delimiter, --null and --text are for",
    ),
    (
        "a.csv",
        b"a;b\n1;2\n",
        {},
        "line 1: there is one column, 'a;b'; is it --delimiter ';'",
    ),
    ("a.csv", b"a\r1\r2\r", {}, "a.csv: line 1: a carriage return stands alone"),
    ("a.csv", b"a,\n1,2\n", {}, "a.csv: line 1: a column has no name"),
    ("a.csv", b"a\n1\n", {"csv": CsvFormat(texts=("b",))}, "no column 'b' for --text"),
    ("a.csv", b"a\n1\n", {"envelope": True}, "not a csv file"),
    ("a.ndjson.gz", b"1\n", {}, "a.ndjson.gz: Not a gzipped file"),
    ("a.ndjson.gz", gzip.compress(b"1\n" * 999, mtime=0)[:-9], {}, "a.ndjson.gz: .*end"),
    ("a.parquet", b"1\n", {}, "a.parquet: "),
    ("a.xlsx", b"", {}, "a.xlsx: unknown kind of file; known are .ndjson"),
]


@pytest.mark.parametrize(("name", "content", "how", "reason"), BAD)
def test_bad_input_names_place_and_reason(
    file: Files, name: str, content: bytes, how: dict[str, Any], reason: str
) -> None:
    """I find the line that is wrong, and nothing of the load was published."""
    with pytest.raises(StoreError, match=reason):
        data(file(name, content), **how)


def test_load_that_fails_in_its_last_file_publishes_nothing(file: Files) -> None:
    """One load is one batch, over all its files."""
    store = MemoryStore()
    store.create("f", 1)
    names = [file("good.ndjson", b"1\n" * 5000), file("bad.ndjson", b"{\n")]
    with pytest.raises(StoreError, match=r"bad\.ndjson, line 1: .*nothing was published"):
        load(store, "f", [Source(name) for name in names])
    assert (0, []) == (store.feed("f").head, store.producers("f"))
    assert not any(store._blobs)


def test_load_is_one_batch_of_its_producer(file: Files) -> None:
    """Each load is the next batch of `load`, with a receipt and numbers of its own."""
    store = MemoryStore()
    store.create("f", 2)
    one = file("a.ndjson", b'{"partition":0,"data":1}\n{"partition":1,"data":2}\n')
    other = file("b.ndjson", b'{"partition":0,"data":3}\n')
    sources = [Source(each, envelope=True) for each in (one, other)]
    receipts = [load(store, "f", sources).receipt for _ in range(2)]
    found = [(each.producer, each.batch, each.events) for each in receipts if each]
    assert [("load", 0, 3), ("load", 1, 3)] == found
    chunks = store.chunks("f", {0: 0, 1: 0}, 99, 99)
    assert [(0, 0), (0, 0), (1, 2), (1, 1)] == [(each.batch, each.sequence) for each in chunks]


def test_named_load_is_published_once(file: Files) -> None:
    """I may repeat a load that I gave a name: the second time adds nothing."""
    store = MemoryStore()
    store.create("f", 2)
    sources = [Source(file("a.ndjson", b"1\n2\n3\n"))]
    first, second = (
        load(store, "f", sources, call=named_batch(store, "f", "p", "2026-01")) for _ in range(2)
    )
    assert (first.receipt, False, True) == (second.receipt, first.repeated, second.repeated)
    assert ["p#2026-01"] == [each.name for each in store.producers("f")]
    assert 3 == sum(each.events for each in store.feeds())


def test_named_load_with_other_rows_is_refused(file: Files) -> None:
    """A file that changed under the same name is not taken for the old one (EX-03)."""
    store = MemoryStore()
    store.create("f", 1)
    for number, content in enumerate([b"1\n", b"2\n"]):
        call = named_batch(store, "f", "p", "2026-01")
        source = Source(file("a.ndjson", content))
        if number:
            with pytest.raises(Problem, match="other rows"):
                load(store, "f", [source], call=call)
        else:
            load(store, "f", [source], call=call)
    assert 1 == sum(each.events for each in store.feeds())


def test_load_larger_than_an_upload_is_one_batch(file: Files) -> None:
    """However much I load, readers see it at once."""
    store = MemoryStore()
    store.create("f", 1)
    content = b"".join(b'"%s"\n' % os.urandom(20_000).hex().encode() for _ in range(400))
    receipt = load(store, "f", [Source(file("a.ndjson", content))]).receipt
    assert receipt is not None
    assert (400, (1, store.feed("f").head)) == (receipt.events, receipt.positions)
    assert len(content) > 3 * UPLOAD_BYTES


def test_progress_counts_the_bytes_of_each_file(file: Files) -> None:
    """The bar moves as the file is read."""
    store, told = MemoryStore(), [0]
    store.create("f", 1)
    content = b'"%s"\n' % (b"x" * 500) * 20_000
    load(store, "f", [Source(file("a.ndjson", content))], told.append)
    assert 0.9 < sum(told) / len(content) <= 1
