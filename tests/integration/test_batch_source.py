"""The batch reader, called as Spark calls it, without Spark: where a read starts and ends."""

from __future__ import annotations

import json
import pickle
import threading
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.fix_raw_server import Answer, chunked, head, ok, refused, short
from zeh_spark import wire
from zeh_spark.decode import Decoder
from zeh_spark.errors import (
    AccessError,
    CursorGoneError,
    MalformedLineError,
    OptionError,
    PublisherError,
    UnavailableError,
)
from zeh_spark.options import parse
from zeh_spark.source.batch import BatchReader, last_cursors
from zeh_spark.source.options import SourceOptions


class Feed:
    """Numbers in partitions, a checkpoint behind each `every` of them and at the page's end.

    A cursor is the count of events before it. A page holds as many events as the hint says and
    `surplus` more, or `most`, which then may be `open`: without a checkpoint at its end.
    """

    def __init__(self, *partitions, every=1, most=10_000, surplus=0, open=False):
        self.partitions = [list(each) for each in partitions]
        self.every = every
        self.most = most
        self.surplus = surplus
        self.open = open

    def __call__(self, request):
        partition, cursor = cursor_of(request)
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


def test_a_read_goes_on_exactly_where_the_last_one_ended(read, raw_server):
    """`last_cursors` is the seam between a feed's history and what comes later."""
    feed = Feed(range(35), [], range(5))
    raw_server.respond = feed
    seam = last_cursors(raw_server.url, partitionCount="3")
    feed.partitions[0] += range(35, 60)
    feed.partitions[1] += range(3)

    before, after = read(feed, endingCursors=seam), read(feed, startingCursors=seam)

    assert [list(range(35)), [], list(range(5))] == before
    assert [list(range(35, 60)), [0, 1, 2], []] == after


def test_a_batch_read_from_last_is_empty_on_a_quiet_feed(read):
    """`last` is where the feed is now."""
    assert [[]] == read(Feed(range(9)), startingCursors="last")


@pytest.mark.parametrize("every", [1, 7], ids=["the target comes", "the target never comes"])
def test_a_batch_read_ends_on_a_feed_that_never_goes_quiet(read, every):
    """More events with every answer do not keep a read going."""
    feed = Feed(range(33))

    def respond(request):
        if cursor_of(request)[1] != wire.LAST:
            feed.partitions[0] += range(len(feed.partitions[0]), len(feed.partitions[0]) + 10)
            feed.every = every
        return feed(request)

    (numbers,) = read(respond, 1)

    assert list(range(len(numbers))) == numbers
    assert 33 <= len(numbers) <= 40


@pytest.mark.parametrize("every", [1, 7], ids=["the target comes", "the target never comes"])
def test_equal_events_do_not_end_a_batch_read_early(read, every):
    """Heartbeats are all alike: an event that looks like the first new one is not the end."""
    feed = Feed([7] * 33)

    def respond(request):
        if cursor_of(request)[1] != wire.LAST:
            feed.partitions[0] += [7] * 10
            feed.every = every
        return feed(request)

    (numbers,) = read(respond, 1)

    assert 33 <= len(numbers) <= 40


def test_a_target_that_was_passed_before_there_was_anything_behind_it(read):
    """A feed may begin to grow while the page is read that holds its end, and never be quiet."""
    feed = Feed(range(20), every=1000)
    asked = []

    def respond(request):
        asked.append(cursor_of(request)[1])
        if asked[-1] not in {wire.LAST, "20"} or len(asked) > 2:
            feed.partitions[0] += range(len(feed.partitions[0]), len(feed.partitions[0]) + 2)
        return feed(request)

    (numbers,) = read(respond, 1, pageSizeHint="1000")

    assert list(range(len(numbers))) == numbers
    assert 20 <= len(numbers) <= 30
    assert "20" == asked[1]


@pytest.mark.parametrize("quiet_every", [2, 5])
def test_a_feed_without_a_target_ends_at_a_quiet_moment(read, quiet_every):
    """A publisher that never sends a checkpoint without an event, under a writer."""
    feed = Feed(range(20))
    asked = iter(range(1000))

    def respond(request):
        if cursor_of(request)[1] == wire.LAST:
            return ok()
        if next(asked) % quiet_every > 1:
            feed.partitions[0] += [len(feed.partitions[0])]
        return feed(request)

    (numbers,) = read(respond, 1, pageSizeHint="1000")

    assert 20 <= len(numbers) <= 40


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 60),
    st.lists(st.integers(0, 12), max_size=30),
    st.booleans(),
    st.integers(1, 9),
    st.integers(1, 20),
    st.integers(0, 3),
    st.booleans(),
)
@example(7, [12] * 5, False, 5, 8, 0, True)  # what was passed still waits for its checkpoint
def test_a_batch_read_holds_all_that_was_there(
    read, there, growth, equal, every, most, surplus, open
):
    """Whatever a publisher's pages and checkpoints, how fast it grows and how much alike its events
    are: a beginning of the feed, and no less than it held.
    """
    pages = {"every": every, "most": max(every, most), "surplus": surplus, "open": open}
    feed = Feed([7] * there if equal else range(there), **pages)
    (events,) = feed.partitions
    more = iter(growth)

    def respond(request):
        if cursor_of(request)[1] != wire.LAST:
            events.extend(7 if equal else len(events) + i for i in range(next(more, 0)))
        return feed(request)

    (numbers,) = read(respond, 1)

    assert events[: len(numbers)] == numbers
    assert len(numbers) >= there


@pytest.mark.parametrize(
    "answer",
    [
        ok(),
        ok(b"{}"),
        ok(b'{"error":"backend timeout"}'),
        Answer((head(status=202, content_length=0),)),
        Answer((head(status=204),)),
        Answer((head(content_length="?"),), "close"),
        Answer((head(transfer_encoding="xchunked"),), "close"),
    ],
    ids=["empty", "{}", "error", "202", "204", "broken length", "broken encoding"],
)
def test_one_odd_answer_does_not_end_a_batch_read_early(read, answer):
    """A hiccup on the way is not the end of the feed: all of it, or an error."""
    feed = Feed(range(35), every=4)
    hiccups = iter([answer])

    def respond(request):
        odd = next(hiccups, None) if cursor_of(request)[1] == "20" else None
        return odd or feed(request)

    try:
        assert [list(range(35))] == read(respond, 1)
    except PublisherError as exc:
        assert exc.status == 202


def test_an_ending_cursor_that_never_comes_is_named(read):
    """Less than what was asked for would look like all of it."""
    with pytest.raises(PublisherError, match="'99' of 'endingCursors' did not come"):
        read(Feed(range(9)), endingCursors=json.dumps({"0": "99"}))


@pytest.mark.parametrize("most", [15, 100], ids=["it still waits for one", "within an interval"])
def test_an_ending_cursor_that_does_not_come_by_itself_is_asked_for(read, most):
    """Exactly up to mine, where the publisher sets its checkpoints elsewhere."""
    feed = Feed(range(35), every=most // 10 * 10, most=most, open=True)
    ends = {"endingCursors": json.dumps({"0": "13"}), "pageSizeHint": "30"}

    assert [list(range(13))] == read(feed, **ends)


def test_an_ending_cursor_within_an_interval_is_an_error(read):
    """Never more than was asked for, where the publisher gives no page that ends there."""
    ends = {"endingCursors": json.dumps({"0": "13"}), "pageSizeHint": "30"}

    with pytest.raises(PublisherError, match="'13' of 'endingCursors' did not come"):
        read(Feed(range(35), every=100, surplus=3), **ends)


def test_a_target_beyond_the_partitions_last_event(read):
    """Some publishers' `_last` is the last position of all partitions: an error that names the way
    on, because answers that lag look the same.
    """
    feed = Feed(range(9))

    def respond(request):
        last = cursor_of(request)[1] == wire.LAST
        return ok(wire.checkpoint_line(0, "50")) if last else feed(request)

    with pytest.raises(UnavailableError, match=r"at '50' when .* endingCursors=quiet"):
        read(respond, 1)
    assert [list(range(9))] == read(respond, 1, endingCursors="quiet")


def test_answers_that_lag_behind_are_waited_for(read):
    """`_last` comes from a primary, pages from its replica."""
    whole, lagging = Feed(range(33)), Feed(range(20))
    quiet = iter(range(2))

    def respond(request):
        cursor = cursor_of(request)[1]
        if cursor == "20" and next(quiet, None) is None:
            lagging.partitions = whole.partitions
        return (whole if cursor == wire.LAST else lagging)(request)

    assert [list(range(33))] == read(respond, 1)


def test_a_replica_that_does_not_know_the_target_is_an_error(read):
    """It refuses what it does not have yet; that is no proof of an end."""
    whole, lagging = Feed(range(33)), Feed(range(20))

    def respond(request):
        cursor = cursor_of(request)[1]
        if cursor == "33":
            return refused(409, "unknown cursor")
        return (whole if cursor == wire.LAST else lagging)(request)

    with pytest.raises(UnavailableError, match=r"nothing behind cursor '20'.*at '33'"):
        read(respond, 1)


def test_a_batch_read_ends_where_the_publisher_tells_no_target(read):
    """A publisher that answers `_last` with nothing is read until it has no more."""
    feed = Feed(range(12))

    def respond(request):
        return ok() if cursor_of(request)[1] == wire.LAST else feed(request)

    assert [list(range(12))] == read(respond, 1)


def test_a_batch_read_goes_on_behind_pages_without_events(read):
    """A publisher may skip far over what it filters; what comes behind is read."""

    def respond(request):
        at = cursor_of(request)[1]
        number = 9 if at == wire.LAST else 0 if at == wire.FIRST else int(at)
        event = b'{"data":7}\n' if number == 5 else b""
        return ok(event + b'{"cursor":"%d"}\n' % min(number + 1, 9))

    assert [[7]] == read(respond, 1)


def test_a_cursor_that_moves_for_ever_without_events_is_an_error(read):
    """Less than what was there would look like all of it."""
    with pytest.raises(PublisherError, match=r"moved the cursor without an event.*availableNow"):
        read(lambda request: ok(wire.checkpoint_line(0, str(time.monotonic_ns()))), 1)


# What a task does on its way


def scripted(server, partition_count=1, **given):
    """A reader of a scripted server, and its tasks."""
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
    """A task goes on from the last checkpoint that came."""
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

    with pytest.raises(PublisherError, match=r"partition 0: behind cursor '_first'.*no checkpoint"):
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
        parse(SourceOptions, {"url": publisher.url}), Decoder(("data",), "c", False)
    )

    read = [numbers(reader.read(task)) for task in reader.partitions()]

    assert [list(range(0, 300, 2)), list(range(1, 300, 2))] == read
