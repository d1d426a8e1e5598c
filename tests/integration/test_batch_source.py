"""The batch reader, called as Spark calls it, without Spark: what is read, and on the way."""

import json
import threading

import pytest

from tests.fix_batch import Feed, batch_reader
from tests.fix_raw_server import NO_IDENTITY, chunked, ok, refused
from zeh_spark.errors import AccessError, CursorGoneError, PublisherError, UnavailableError
from zeh_spark.spark.source.batch import last_cursors
from zeh_spark.wire import wire


def test_a_batch_read_holds_each_event_once_in_order(read):
    """A task for each partition reads all that was there."""
    feed = Feed(range(35), [], range(7), every=4)

    assert [list(range(35)), [], list(range(7))] == read(feed)


def test_a_batch_read_lies_between_two_cursors(read):
    """After the one, up to the other, whatever I repeat; nothing is after `last`, which is now."""
    feed = Feed(range(35), range(5))
    ends = {
        "startingCursors": json.dumps({"0": "12", "1": "_first"}),
        "endingCursors": json.dumps({"0": "23", "1": "2"}),
    }

    assert [list(range(12, 23)), [0, 1]] == read(feed, **ends)
    same = json.dumps({"0": "5", "1": "5"})
    assert [[], []] == read(feed, startingCursors=same, endingCursors=same)
    assert [[], []] == read(feed, startingCursors="last")


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


# What a task does on its way


def scripted(server, **given):
    """A reader of a scripted server, and its tasks."""
    server.discovery = server.discovery or NO_IDENTITY
    reader = batch_reader(server.url, **{"partitionCount": "1", **given})
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


AT_ONCE = {"retryTimeout": "0s"}
REFUSALS = [
    (refused(401, "because"), {}, AccessError, "401: because"),
    (refused(404, "because"), {}, PublisherError, "404: because"),
    (refused(410, "because"), {}, CursorGoneError, "410: because"),
    (refused(503, "maintenance"), AT_ONCE, UnavailableError, "503: maintenance"),
    (ok(), {"startingCursors": "last", **AT_ONCE}, UnavailableError, "'_last'.*'startingCursors'"),
]


@pytest.mark.parametrize(("answer", "given", "kind", "match"), REFUSALS)
def test_a_refusal_stops_the_read_by_name(raw_server, answer, given, kind, match):
    """What the publisher said arrives where the query was started, after retryTimeout if it may
    pass; and where there is no place to start from, the error names the option.
    """
    raw_server.script(answer)

    with pytest.raises(kind, match=match):
        scripted(raw_server, **given)
