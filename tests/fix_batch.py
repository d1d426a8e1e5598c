"""Runs of the batch reader as Spark calls it, without Spark, and a feed of numbers to read."""

import pickle

import pytest

from tests.fix_raw_server import NO_IDENTITY, ok
from tests.fix_stream import DECODER
from zeh_spark import reading
from zeh_spark.client.options.given import parse
from zeh_spark.spark.source.batch import BatchReader
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.wire import wire


class Feed:
    """Numbers in partitions, a checkpoint after each `every` of them and at the page's end.

    A cursor is the count of events before it. A page holds as many events as the hint says and
    `surplus` more, or `most`, which then may be `open`: without a checkpoint at its end. A cursor
    that is among `answers` gets what it has there.
    """

    def __init__(self, *partitions, every=1, most=10_000, surplus=0, open=False, answers=None):
        self.partitions = [list(each) for each in partitions]
        self.every = every
        self.most = most
        self.surplus = surplus
        self.open = open
        self.answers = answers or {}

    def __call__(self, request):
        partition, cursor = cursor_of(request)
        if cursor in self.answers:
            return self.answers[cursor]
        events = self.partitions[partition]
        if cursor == wire.LAST:
            return ok(wire.checkpoint_line(partition, str(len(events))))
        begin = 0 if cursor == wire.FIRST else int(cursor)
        lines = b""
        size = min(int(request.query["pagesizehint"]) + self.surplus, self.most)
        page = events[begin : begin + size]
        closed = not self.open or size < self.most or begin + size >= len(events)
        for place, number in enumerate(page, 1):
            lines += wire.event_line(partition, {}, b"%d" % number) + b"\n"
            if place % self.every == 0 or (place == len(page) and closed):
                lines += wire.checkpoint_line(partition, str(begin + place))
        return ok(lines)


def cursor_of(request):
    ((name, cursor),) = [each for each in request.query.items() if each[0].startswith("cursor")]
    return int(name.removeprefix("cursor")), cursor


def batch_reader(url, decoder=DECODER, **given):
    """A reader with these options."""
    return BatchReader(parse(SourceOptions, {"url": url, "retryTimeout": "5s", **given}), decoder)


def rows_of(reader, tasks):
    """Partition and number of each row that tasks read, which have nothing but their pickles."""
    reader, tasks = pickle.loads(pickle.dumps((reader, tasks)))
    for task in tasks:
        for batch in reader.read(task):
            for row in batch.to_pylist():
                yield row["partition"], int(row["data"])


def with_spark(url, count, options):
    """The numbers of each partition, as tasks of the batch source read them."""
    reader = batch_reader(url, **options)
    tasks = list(reader.partitions())
    return [[number for _, number in rows_of(reader, [task])] for task in tasks]


def without_spark(url, count, options):
    """The same, as a program reads them."""
    found = [[] for _ in range(count)]
    for page, _ in reading.reader(url, **options):
        for event in page.to_pylist():
            found[event["partition"]].append(int(event["data"]))
    return found


@pytest.fixture(params=[with_spark, without_spark])
def read(raw_server, request):
    """`read(feed, …)`: the numbers of each partition, with Spark's batch source and without."""

    def run(feed, partitions=None, **given):
        raw_server.respond = feed
        raw_server.discovery = raw_server.discovery or NO_IDENTITY
        count = partitions or len(feed.partitions)
        usual = {"partitionCount": str(count), "retryTimeout": "1s", "pageSizeHint": "10"}
        return request.param(raw_server.url, count, {**usual, **given})

    return run
