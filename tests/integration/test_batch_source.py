"""The batch reader, called as Spark calls it, without Spark: where a read starts and ends."""

from __future__ import annotations

import json
import pickle

import pytest

from tests.fix_raw_server import ok
from zeh_spark import wire
from zeh_spark.decode import Decoder
from zeh_spark.errors import PublisherError
from zeh_spark.options import SourceOptions, parse
from zeh_spark.source.batch import BatchReader


class Feed:
    """Numbers in partitions, a checkpoint behind each `every` of them and at the page's end.

    A cursor is the count of events before it.
    """

    def __init__(self, *partitions, every=1):
        self.partitions = [list(each) for each in partitions]
        self.every = every

    def __call__(self, request):
        partition, cursor = cursor_of(request)
        events = self.partitions[partition]
        if cursor == wire.LAST:
            return ok(wire.checkpoint_line(partition, str(len(events))))
        begin = 0 if cursor == wire.FIRST else int(cursor)
        lines = b""
        page = events[begin : begin + int(request.query["pagesizehint"])]
        for place, number in enumerate(page, 1):
            lines += wire.event_line(partition, {}, b"%d" % number) + b"\n"
            if place % self.every == 0 or place == len(page):
                lines += wire.checkpoint_line(partition, str(begin + place))
        return ok(lines)


def cursor_of(request):
    ((name, cursor),) = [each for each in request.query.items() if each[0].startswith("cursor")]
    return int(name.removeprefix("cursor")), cursor


@pytest.fixture
def read(raw_server):
    """`read(feed, …)`: the numbers of each partition that is not empty."""

    def run(feed, partitions=None, **given):
        raw_server.respond = feed
        count = partitions or len(feed.partitions)
        usual = {"url": raw_server.url, "partitionCount": str(count), "retryTimeout": "1s"}
        options = parse(SourceOptions, {**usual, "pageSizeHint": "10", **given})
        reader = BatchReader(options, Decoder(("data",), "_corrupt_record", False))
        reader, tasks = pickle.loads(pickle.dumps((reader, list(reader.partitions()))))
        return [
            [int(data) for batch in reader.read(task) for data in batch["data"].to_pylist()]
            for task in tasks
        ]

    return run


def test_a_batch_read_holds_each_event_once_in_order(read):
    """A task for each partition reads all that was there."""
    feed = Feed(range(35), [], range(7), every=4)

    assert [list(range(35)), [], list(range(7))] == read(feed)


def test_a_batch_read_lies_between_two_cursors(read):
    """Exactly what lies behind the one and up to the other, however often it is asked."""
    feed = Feed(range(35), range(5))
    ends = {
        "startingCursors": json.dumps({"0": "12", "1": "_first"}),
        "endingCursors": json.dumps({"0": "23", "1": "2"}),
    }

    assert [list(range(12, 23)), [0, 1]] == read(feed, **ends)


def test_a_batch_read_from_a_cursor_to_itself_is_empty(read):
    """Nothing lies between a cursor and itself."""
    same = json.dumps({"0": "5"})

    assert [[]] == read(Feed(range(9)), startingCursors=same, endingCursors=same)


def test_a_batch_read_from_last_is_empty_on_a_quiet_feed(read):
    """`last` is where the feed is now."""
    assert [[]] == read(Feed(range(9)), startingCursors="last")


@pytest.mark.parametrize("every", [1, 7], ids=["the target comes", "the target never comes"])
def test_a_batch_read_ends_on_a_feed_that_never_goes_quiet(read, every):
    """More events with every answer do not keep a read going."""
    feed = Feed(range(30))

    def respond(request):
        _, cursor = cursor_of(request)
        if cursor != wire.LAST:
            feed.partitions[0] += range(len(feed.partitions[0]), len(feed.partitions[0]) + 10)
            feed.every = every
        return feed(request)

    (numbers,) = read(respond, 1)

    assert list(range(len(numbers))) == numbers
    assert len(numbers) >= 30


def test_an_ending_cursor_that_never_comes_is_named(read):
    """Less than what was asked for would look like all of it."""
    with pytest.raises(PublisherError, match="'99' of 'endingCursors' did not come"):
        read(Feed(range(9)), endingCursors=json.dumps({"0": "99"}))


def test_a_batch_read_ends_where_the_publisher_tells_no_target(read):
    """A publisher that answers `_last` with nothing is read until it has no more."""
    feed = Feed(range(12))

    def respond(request):
        return ok() if cursor_of(request)[1] == wire.LAST else feed(request)

    assert [list(range(12))] == read(respond, 1)
