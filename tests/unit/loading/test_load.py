"""Files become events without loss, or are refused with file, line and reason."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
from typing import Any

import pyarrow as pa
import pytest

from tests.store_contract.writers import everything
from tests.unit.loading.loads import Files, created, data, loaded
from zeh_spark.errors import StoreError
from zeh_spark.publisher import Problem
from zeh_spark.tools.loading.csv_rows import CsvFormat
from zeh_spark.tools.loading.load import Source, load
from zeh_spark.tools.loading.one_batch import named_batch
from zeh_spark.wire import partitioning
from zeh_spark.wire.upload_format import (
    UPLOAD_BYTES,
)


@pytest.mark.parametrize("name", ["a.ndjson", "a.jsonl", "a.json", "a.ndjson.gz", "A.JSON.GZ"])
def test_lines_become_data(file: Files, name: str) -> None:
    """Each line is an event; blank ones, CRLF and a BOM do no harm. I can pipe into a feed, too."""
    content = b'\xef\xbb\xbf{"a": 1}\r\n\n[2, 3]\n"4"'
    path = file(name, gzip.compress(content) if name.lower().endswith("gz") else content)
    expected = [{"a": 1}, [2, 3], "4"]
    assert expected == data(path) == data("standard input", stream=io.BytesIO(content))


def test_events_without_key_fill_one_partition_after_the_other(file: Files) -> None:
    """A thousand at a time, over all files, as a Producer does. NULL is no key."""
    keyed = b'{"key":"a","data":0}\n'
    one = file("a.ndjson", (b'{"data":1}\n' + keyed) * 1500)
    other = file("b.ndjson", (keyed + b'{"key":null,"data":1}\n') * 2200)
    found = loaded(one, other, partitions=3, envelope=True)
    free = [sum(line["data"] for line in lines) for lines in found]
    assert [1000, 1000, 1700] == sorted(free)
    assert 3700 == sum(map(len, found)) - sum(free)


def test_loads_begin_with_different_partitions(file: Files) -> None:
    """Many small files do not pile up in one partition."""
    name = file("a.ndjson", b"1\n")
    found: set[tuple[int, ...]] = set()
    tries = itertools.count()
    while len(found) < 2 and next(tries) < 64:
        found.add(tuple(map(len, loaded(name, partitions=2))))
    assert {(0, 1), (1, 0)} == found


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


KEY, ENVELOPE = {"key": "k"}, {"envelope": True}
BAD = [
    ("a.ndjson", b"1\nhello world\n", {}, "a.ndjson, line 2: not JSON: .*hello world.*; nothing"),
    ("a.ndjson", b'1\n{"a":NaN}\n', {}, "a.ndjson, line 2: not JSON: NaN is not JSON"),
    ("a.ndjson", b'1\n"\xff"\n', {}, "a.ndjson, line 2: not JSON: it is not UTF-8"),
    ("a.ndjson", b"null\n", {}, "line 1: null cannot be an event's data"),
    ("a.ndjson", b'"%s"\n' % (b"x" * 70_000), {}, "line 1: the event takes 70,0.. bytes"),
    (
        "a.ndjson",
        b'{"k":1}\n{"j":"hello"}\n',
        KEY,
        "line 2: there is no field 'k' .*hello.*; nothing",
    ),
    ("a.ndjson", b'{"k":1.5}\n', KEY, "line 1: the key is 1.5"),
    ("a.ndjson", b'{"k":true}\n', KEY, "line 1: the key is true"),
    ("a.ndjson", b"[1]\n", KEY, r"line 1: it is no object, .* no 'k' .*: '\[1\]'; nothing"),
    (
        "a.ndjson",
        b'{"data":1,"partiton":0}\n',
        ENVELOPE,
        'line 1: .*`partiton`.*"partiton":0.*; nothing',
    ),
    ("a.ndjson", b'{"partition":0}\n', ENVELOPE, "line 1: .*`data`"),
    ("a.ndjson", b'{"data":1,"partition":1}\n', ENVELOPE, "no partition 1: the feed has 0 to 0"),
    ("a.ndjson", b'{"data":1,"partition":0,"key":"a"}\n', ENVELOPE, "exclude each other"),
    ("a.ndjson", b'{"data":1,"data":2}\n', ENVELOPE, "envelope has 'data' 2 times"),
    ("a.ndjson", b'{"key":"a","data":1,"key":"a"}\n', ENVELOPE, "has 'key' 2 times"),
    (
        "a.ndjson",
        b'{"data":1,"headers":{"a":"1","a":"2"}}\n',
        ENVELOPE,
        "line 1: headers has 'a' 2 times",
    ),
    ("a.ndjson", b'{"data":1,"headers":{"a":1}}\n', ENVELOPE, "line 1: .*headers"),
    ("a.ndjson", b'{"data":null}\n', ENVELOPE, "null cannot be an event's data"),
    ("a.csv", b"a,b\n1,2\n3\n", {}, "a.csv: line 3: 1 fields where the header has 2"),
    ("a.csv", b"a\n1\n", {"key": "b"}, "line 1: there is no column 'b' for the key; there are a"),
    ("a.csv", b"a,a\n1,2\n", {}, "two columns 'a'"),
    (
        "a.csv",
        b"a\n1\n\n2\n",
        {},
        'line 3: it is empty; write "" if it is a row with an empty field',
    ),
    ("a.csv", b"a\n1\n\xff\n", {}, "a.csv: line 3: .*can't decode byte 0xff"),
    ("a.csv", b'a\n1\n"x\n', {}, "a.csv: line 3: unexpected end of data"),
    ("a.csv", b"", {}, "a.csv: line 1: the file is empty"),
    ("a.ndjson", b"1\n", {"csv": CsvFormat(";")}, "--delimiter, --null and --text are for"),
    ("a.csv", b"a;b\n1;2\n", {}, "line 1: there is one column, 'a;b'; is it --delimiter ';'"),
    ("a.csv", b"a\r1\r2\r", {}, "a.csv: line 1: a carriage return stands alone"),
    ("a.csv", b"a,\n1,2\n", {}, "a.csv: line 1: a column has no name"),
    ("a.csv", b"a\n1\n", {"csv": CsvFormat(texts=("b",))}, "no column 'b' for --text"),
    ("a.csv", b"a\n1\n", ENVELOPE, "not a csv file"),
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
    store = created()
    names = [file("good.ndjson", b"1\n" * 5000), file("bad.ndjson", b"{\n")]
    with pytest.raises(StoreError, match=r"bad\.ndjson, line 1: .*nothing was published"):
        load(store, "f", [Source(name) for name in names])
    assert (0, []) == (store.feed("f").head, store.producers("f"))
    assert {} == store.staged()


def test_load_is_one_batch_of_its_producer(file: Files) -> None:
    """Each load is the next batch of `load`, with a receipt and numbers of its own."""
    store = created(2)
    one = file("a.ndjson", b'{"partition":0,"data":1}\n{"partition":1,"data":2}\n')
    other = file("b.ndjson", b'{"partition":0,"data":3}\n')
    sources = [Source(each, envelope=True) for each in (one, other)]
    receipts = [load(store, "f", sources).receipt for _ in range(2)]
    found = [(each.producer, each.batch, each.events) for each in receipts if each]
    assert [("load", 0, 3), ("load", 1, 3)] == found
    chunks = everything(store, "f")
    assert [(0, 0), (0, 0), (1, 2), (1, 1)] == [(each.batch, each.sequence) for each in chunks]


def test_named_load_is_published_once(file: Files) -> None:
    """I may repeat a load that I gave a name: the second time adds nothing. A file that changed
    under the same name is not taken for the old one (EX-03). Elsewhere it makes the same uploads,
    in the same place.
    """
    places = set()
    for _ in range(8):
        store = created(16)
        call = named_batch(store, "f", "p", "2026-01")
        name = file("a.ndjson", b"1\n2\n3\n")
        first, second = (load(store, "f", [Source(name)], call=call) for _ in range(2))
        assert first.receipt is not None
        assert (first.receipt, False, True) == (second.receipt, first.repeated, second.repeated)
        with pytest.raises(Problem, match="other rows"):
            load(store, "f", [Source(file("a.ndjson", b"2\n"))], call=call)
        assert ["p#2026-01"] == [each.name for each in store.producers("f")]
        assert 3 == sum(each.events for each in store.feeds())
        places.add(first.receipt.ranges[0].partition)
    assert 1 == len(places)


def test_load_larger_than_an_upload_is_one_batch(file: Files) -> None:
    """However much I load, readers see it at once."""
    store = created()
    content = b"".join(b'"%s"\n' % os.urandom(20_000).hex().encode() for _ in range(400))
    receipt = load(store, "f", [Source(file("a.ndjson", content))]).receipt
    assert receipt is not None
    assert (400, (1, store.feed("f").head)) == (receipt.events, receipt.positions)
    assert len(content) > 3 * UPLOAD_BYTES


def test_progress_counts_the_bytes_of_each_file(file: Files) -> None:
    """The bar moves as the file is read."""
    told = [0]
    content = b'"%s"\n' % (b"x" * 500) * 20_000
    load(created(), "f", [Source(file("a.ndjson", content))], told.append)
    assert 0.9 < sum(told) / len(content) <= 1
