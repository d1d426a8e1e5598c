"""Runs of the stream source as Spark calls it, without Spark, and a scripted feed to read."""

from __future__ import annotations

import json
import pickle
import time
from dataclasses import dataclass

import pytest

from tests.fix_raw_server import NO_IDENTITY, ok, refused
from tests.patience import PATIENCE
from zeh_spark.client.decoding.lines import Decoder
from zeh_spark.client.options.given import parse
from zeh_spark.spark.frames.compat import ReadAllAvailable
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.stream import StreamReader

DECODER = Decoder(("partition", "data"), "_corrupt_record", False)


@dataclass
class Log:
    """A partition of a scripted feed: events 0, 1, 2, … of about 40 bytes.

    `each`: events between checkpoints; `page`: most events in an answer; a page that is full ends
    with a checkpoint only where one is due, unless `page_ends` gives it one.
    """

    count: int = 0
    each: int = 1
    page: int = 10_000
    page_ends: bool = False
    first: int = 0
    gone_below: int = -1
    tag: str = "c"

    def body(self, cursor, hint, partition=0):
        at = {"_first": self.first, "_last": self.count}.get(cursor)
        at = int(cursor[1:]) if at is None else at
        if at < self.gone_below and cursor != "_first":
            return refused(410, f"{cursor} was removed")
        lines, end = [], min(self.count, at + min(hint, self.page))
        for number in range(at, end):
            lines.append(self.event(number, partition))
            if (number + 1) % self.each == 0 or (self.page_ends and number + 1 == end):
                lines.append(self.checkpoint(number + 1, partition))
        if at == end:
            lines.append(self.checkpoint(at, partition))
        return ok(b"".join(lines))

    def event(self, number, partition=0):
        return b'{"partition":%d,"headers":{},"data":%d}\n' % (partition, number)

    def checkpoint(self, number, partition=0):
        return b'{"partition":%d,"cursor":"%b%d"}\n' % (partition, self.tag.encode(), number)


@dataclass
class Feed:
    """A scripted feed behind a raw server."""

    server: object
    logs: list[Log]
    before: object = None

    def __post_init__(self):
        self.server.respond = self.respond
        self.server.discovery = self.server.discovery or NO_IDENTITY

    def respond(self, request):
        query = request.query
        partition = next(int(key[6:]) for key in query if key.startswith("cursor"))
        cursor = query[f"cursor{partition}"]
        special = self.before(partition, cursor, query) if self.before else None
        log = self.logs[partition]
        return special or log.body(cursor, int(query["pagesizehint"]), partition)

    def requests(self, partition=0):
        cursors = [each.query.get(f"cursor{partition}") for each in self.server.requests]
        return [cursor for cursor in cursors if cursor is not None]


class Run:
    """A run of a query: what Spark calls, in Spark's order."""

    def __init__(self, reader, start=None, limit=None):
        self.reader = reader
        self.limit = limit
        self.offset = start or reader.initialOffset()
        self.batches = []

    def next(self):
        """One batch's rows by partition; None when nothing is due."""
        end = self.reader.latestOffset(self.offset, self.limit)
        if end is self.offset:
            return None
        rows = self.rows(self.offset, end)
        self.start, self.offset = self.offset, json.loads(json.dumps(end))
        self.batches.append(rows)
        return rows

    def rows(self, start, end):
        rows = {}
        for partition in pickle.loads(pickle.dumps(self.reader.partitions(start, end))):
            for batch in pickle.loads(pickle.dumps(self.reader)).read(partition):
                for row in batch.to_pylist():
                    rows.setdefault(row["partition"], []).append(int(row["data"]))
        return rows

    def until(self, total):
        """Go on until there are so many rows."""
        deadline = time.monotonic() + PATIENCE
        while len(self.all()) < total:
            assert time.monotonic() < deadline, f"{len(self.all())} rows of {total}"
            self.next()
        return self.all()

    def to_the_end(self):
        """A finite run."""
        while self.next() is not None:
            pass
        return self.all()

    def all(self):
        return [row for rows in self.batches for part in sorted(rows) for row in rows[part]]


@pytest.fixture
def start():
    """`start(url=…, …)`: a run with these options; `finite=True` as AvailableNow."""
    readers = []

    def begin(feed=None, offset=None, *, finite=False, once=False, decoder=DECODER, **given):
        settings = {"retryTimeout": "5s", "wait": "0", "pollInterval": "10ms", **given}
        if feed:
            settings = {"partitionCount": str(len(feed.logs)), "url": feed.server.url, **settings}
        reader = StreamReader(parse(SourceOptions, settings), decoder)
        readers.append(reader)
        if finite:
            reader.prepareForTriggerAvailableNow()
        return Run(reader, offset, ReadAllAvailable() if once else reader.getDefaultReadLimit())

    yield begin
    for reader in readers:
        reader.stop()


@pytest.fixture
def feed(raw_server):
    """`feed(Log(…), …)`: a scripted feed with these partitions."""
    return lambda *logs: Feed(raw_server, list(logs))


def position(offset, partition=0):
    return offset["partitions"][str(partition)]
