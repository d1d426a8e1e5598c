"""The batch reader, called as Spark calls it, without Spark: what is read, and on the way."""

from __future__ import annotations

import json
import threading

import pytest

from tests.fix_batch import Feed
from tests.fix_raw_server import NO_IDENTITY, chunked, ok, refused, short
from zeh_spark.decoding.lines import Decoder
from zeh_spark.errors import (
    AccessError,
    CursorGoneError,
    MalformedLineError,
    OptionError,
    PublisherError,
    UnavailableError,
)
from zeh_spark.options.given import parse
from zeh_spark.protocol import wire
from zeh_spark.source.batch import BatchReader, last_cursors
from zeh_spark.source.options import SourceOptions


def test_a_batch_read_holds_each_event_once_in_order(read):
    """A task for each partition reads all that was there."""
    feed = Feed(range(35), [], range(7), every=4)

    assert [list(range(35)), [], list(range(7))] == read(feed)


def test_a_batch_read_lies_between_two_cursors(read):
    """Exactly what lies after the one and up to the other, however often it is asked."""
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


def test_a_read_continues_exactly_where_the_last_one_ended(read, raw_server):
    """`last_cursors` is the seam between a feed's history and what comes later."""
    feed = Feed(range(35), [], range(5))
    raw_server.respond = feed
    raw_server.discovery = NO_IDENTITY
    seam = last_cursors(raw_server.url, partitionCount="3")
    feed.partitions[0] += range(35, 60)
    feed.partitions[1] += range(3)

    before, after = read(feed, endingCursors=seam), read(feed, startingCursors=seam)

    assert [list(range(35)), [], list(range(5))] == before
    assert [list(range(35, 60)), [0, 1, 2], []] == after


def test_a_batch_read_from_last_is_empty_on_a_quiet_feed(read):
    """`last` is where the feed is now."""
    assert [[]] == read(Feed(range(9)), startingCursors="last")


# What a task does on its way


def scripted(server, partition_count=1, **given):
    """A reader of a scripted server, and its tasks."""
    server.discovery = server.discovery or NO_IDENTITY
    usual = {"url": server.url, "partitionCount": str(partition_count), "retryTimeout": "5s"}
    options = parse(SourceOptions, {**usual, **given})
    reader = BatchReader(options, Decoder(("data",), "_corrupt_record", False))
    return reader, reader.partitions()


def lines(numbers, cursor=None):
    body = b"".join(wire.event_line(0, {}, b"%d" % number) + b"\n" for number in numbers)
    return body + (wire.checkpoint_line(0, cursor) if cursor else b"")


def numbers(batches):
    return [int(data) for batch in batches for data in batch["data"].to_pylist()]


def test_rows_come_while_the_page_does(raw_server):
    """A page may be larger than memory: its rows are handed on as its bytes arrive."""
    rest = threading.Event()
    first = lines(range(40_000), "c1")
    page = chunked(first, rest, lines(range(40_000, 40_010), "c2"))
    answers = {"_last": ok(lines([], "c2")), "c2": ok(), "_first": page}
    raw_server.respond = lambda request: answers[request.query["cursor0"]]
    reader, (task,) = scripted(raw_server)
    batches = reader.read(task)

    early = numbers([next(batches)])
    rest.set()

    assert len(early) >= 20_000
    assert list(range(40_010)) == early + numbers(batches)


def test_an_answer_that_breaks_off_doubles_nothing(raw_server):
    """A task continues from the last checkpoint that came."""
    answers = {
        "_last": ok(lines([], "c9")),
        "_first": short(lines(range(5), "c5") + lines(range(5, 7))),
        "c5": ok(lines(range(5, 9), "c9")),
        "c9": ok(),
    }
    raw_server.respond = lambda request: answers[request.query["cursor0"]]
    reader, (task,) = scripted(raw_server)

    assert list(range(9)) == numbers(reader.read(task))


def test_a_read_that_is_repeated_between_cursors_gives_the_same(raw_server):
    """With endingCursors, a task that Spark runs again sees no later events."""
    feed = Feed(range(30))
    raw_server.respond = feed
    reader, (task,) = scripted(raw_server, endingCursors='{"0": "25"}')
    once = numbers(reader.read(task))
    feed.partitions[0] += range(30, 60)

    assert once == numbers(reader.read(task)) == list(range(25))


@pytest.mark.parametrize(
    ("status", "kind"), [(401, AccessError), (404, PublisherError), (410, CursorGoneError)]
)
def test_a_refusal_stops_the_read_by_name(raw_server, status, kind):
    """What the publisher said arrives where the query was started."""
    raw_server.script(refused(status, "because"))

    with pytest.raises(kind, match=f"{status}: because"):
        scripted(raw_server)


def test_a_publisher_that_stays_away_stops_the_read(raw_server):
    """After retryTimeout, not never."""
    raw_server.script(refused(503, "maintenance"))

    with pytest.raises(UnavailableError, match="503: maintenance"):
        scripted(raw_server, retryTimeout="0s")


def test_a_read_from_last_without_a_checkpoint_is_an_error(raw_server):
    """There is no place to start from."""
    raw_server.script(ok())

    with pytest.raises(UnavailableError, match=r"'_last'.*'startingCursors'"):
        scripted(raw_server, startingCursors="last", retryTimeout="0s")


def test_events_without_checkpoints_are_an_error(raw_server):
    """They could not be delivered exactly once; the error says where."""
    raw_server.script(ok(lines(range(5))))
    reader, (task,) = scripted(raw_server)

    with pytest.raises(PublisherError, match=r"partition 0: after cursor '_first'.*no checkpoint"):
        list(reader.read(task))


def test_a_bad_line_is_named_by_its_task(raw_server):
    """The line, the partition, and what is wrong."""
    bad = ok(b'{"data":NaN}\n' + lines([], "c1"))
    answers = {"_last": ok(lines([], "c1")), "_first": bad, "c1": ok()}
    raw_server.respond = lambda request: answers[request.query["cursor0"]]
    reader, (task,) = scripted(raw_server)

    with pytest.raises(MalformedLineError, match=r"partition 0: .*NaN is not JSON"):
        list(reader.read(task))


def test_cursors_for_only_some_partitions_are_refused(raw_server):
    """Before anything is read, with the number that is needed."""
    raw_server.script(refused(400, '{"partitionCount":3}'))
    options = parse(SourceOptions, {"url": raw_server.url, "startingCursors": '{"0": "a"}'})

    with pytest.raises(OptionError, match=r"'startingCursors'.*has 3"):
        BatchReader(options, Decoder(("data",), "c", False)).partitions()


# Other servers


@pytest.mark.parametrize("checkpoints", ["event", "page"])
def test_the_reference_server_is_read(start_reference_server, checkpoints):
    """The reference implementation, with a checkpoint for each event or each page."""
    url = start_reference_server(events=300, checkpoints=checkpoints)
    options = parse(SourceOptions, {"url": url, "partitionCount": "2", "pageSizeHint": "70"})
    reader = BatchReader(options, Decoder(("data",), "c", False))

    read = [
        [
            json.loads(data)["id"]
            for batch in reader.read(task)
            for data in batch["data"].to_pylist()
        ]
        for task in reader.partitions()
    ]

    assert [list(range(300))] * 2 == read


def test_our_publisher_is_read(publisher):
    """A task for each of its partitions; their number is learned."""
    for begin in range(0, 300, 60):
        publisher.publish(*range(begin, begin + 60))
    reader = BatchReader(
        parse(SourceOptions, {"url": publisher.url, "fetch": "driver"}),
        Decoder(("data",), "c", False),
    )

    read = [numbers(reader.read(task)) for task in reader.partitions()]

    assert [list(range(0, 300, 2)), list(range(1, 300, 2))] == read
