"""The stream source as Spark's driver calls it, without Spark: offsets, batches, replay, ends."""

from __future__ import annotations

import json
import logging
import pickle
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field

import pytest

from tests.fix_raw_server import chunked, gzipped, ok, refused
from zeh_spark._compat import ReadAllAvailable
from zeh_spark.decode import Decoder
from zeh_spark.errors import (
    CheckpointError,
    CursorGoneError,
    PublisherError,
    ReplayError,
    StagingError,
    UnavailableError,
)
from zeh_spark.options import parse
from zeh_spark.publisher import MemoryStore
from zeh_spark.source.options import SourceOptions
from zeh_spark.source.stream import StreamReader
from zeh_spark.testing import publish, running_publisher

DECODER = Decoder(("partition", "data"), "_corrupt_record", False)
_PATIENCE = 20


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
    asked: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.server.respond = self.respond

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
        deadline = time.monotonic() + _PATIENCE
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

    def begin(feed=None, offset=None, *, finite=False, once=False, **given):
        settings = {"retryTimeout": "5s", "wait": "0", "pollInterval": "10ms", **given}
        if feed:
            settings = {"partitionCount": str(len(feed.logs)), "url": feed.server.url, **settings}
        reader = StreamReader(parse(SourceOptions, settings), DECODER)
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


def wait_for(condition):
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


# Offsets (DESIGN 3.1)


def test_the_first_offset_touches_no_network(feed, start):
    """A query can be built, and its plan shown, without the publisher."""
    scripted = feed(Log(3))

    start(scripted)

    assert [] == scripted.server.requests


def test_a_feed_is_delivered_in_order(feed, start):
    """Each partition's events, once, in its order."""
    run = start(feed(Log(250), Log(100)), pageSizeHint="30")

    run.until(350)

    both = [[n for rows in run.batches for n in rows.get(p, [])] for p in (0, 1)]
    assert [list(range(250)), list(range(100))] == both


def test_nothing_due_gives_the_start_back(feed, start):
    """The same object: Spark sees that there is no batch to make."""
    run = start(feed(Log(3)))
    run.until(3)
    end = run.offset

    for _ in range(3):
        assert end is run.reader.latestOffset(end, run.limit)


def test_an_empty_feed_makes_no_batch(feed, start):
    """Waiting for the first event costs nothing."""
    run = start(feed(Log(0)))

    assert [None, None] == [run.next(), run.next()]


def test_the_offset_tells_what_lies_in_the_batch(feed, start):
    """Count, bytes and digest, to know the batch again."""
    run = start(feed(Log(3)))
    run.until(3)

    assert (3, 114, "c3", 32) == (
        position(run.offset)["events"],
        position(run.offset)["bytes"],
        position(run.offset)["cursor"],
        len(position(run.offset)["digest"]),
    )


def test_a_partition_that_did_not_move_has_no_count(feed, start):
    """Whatever it had in the batch before."""
    scripted = feed(Log(3), Log(2))
    run = start(scripted)
    run.until(5)
    scripted.logs[1].count = 4

    run.until(7)

    assert {"cursor": "c3", "events": 0, "bytes": 0} == position(run.offset, 0)
    assert 2 == position(run.offset, 1)["events"]


def test_first_stays_where_no_checkpoint_came(feed, start):
    """A partition that gave nothing yet starts at its beginning after a restart, too."""
    scripted = feed(Log(3), Log(0))
    scripted.before = lambda partition, cursor, query: ok() if partition == 1 else None
    run = start(scripted)

    run.until(3)

    assert "_first" == position(run.offset, 1)["cursor"]


def test_last_is_resolved_in_an_empty_batch_0(feed, start):
    """`last` means now, also after a restart: the first batch pins it and has no rows."""
    scripted = feed(Log(5), Log(7))
    run = start(scripted, startingCursors="last")

    assert {} == run.next()
    assert ["c5", "c7"] == [position(run.offset, each)["cursor"] for each in (0, 1)]
    scripted.logs[0].count = 6
    assert [5] == run.until(1)


def test_last_is_asked_for_without_waiting(feed, start):
    """A long poll at `_last` would skip what comes meanwhile."""
    scripted = feed(Log(5))
    start(scripted, startingCursors="last", wait="10s").next()

    assert "wait" not in scripted.server.requests[0].query


def test_last_may_serve_events_before_its_checkpoint(feed, start):
    """The reference server does; they are not new."""
    scripted = feed(Log(9))
    scripted.before = lambda partition, cursor, query: (
        ok(Log().event(3) + Log().checkpoint(4) + Log().event(4)) if cursor == "_last" else None
    )
    run = start(scripted, startingCursors="last")

    assert {} == run.next()
    assert [4, 5, 6, 7, 8] == run.until(5)


def test_last_without_a_checkpoint_is_an_error(feed, start):
    """There is no place to start from: the error names partition and way on."""
    scripted = feed(Log(5))
    scripted.before = lambda partition, cursor, query: ok()
    run = start(scripted, startingCursors="last", retryTimeout="50ms")

    with pytest.raises(UnavailableError, match=r"partition 0.*'_last'.*'startingCursors'"):
        run.next()


def test_one_partition_may_start_at_last(feed, start):
    """Explicit cursors may be special ones."""
    run = start(feed(Log(5), Log(5)), startingCursors='{"0": "_last", "1": "c3"}')

    assert {} == run.next()
    assert ["c5", "c3"] == [position(run.offset, each)["cursor"] for each in (0, 1)]
    assert {1: [3, 4]} == run.next()


def test_cursors_that_move_without_events_make_no_batch(feed, start):
    """An idle feed whose cursors move is idle; they ride with the next events."""
    ticks = iter(range(100_000))
    news = threading.Event()

    def respond(partition, cursor, query):
        line = Log().event(7) if news.is_set() and cursor != "c100001" else b""
        number = 100_001 if line or cursor == "c100001" else next(ticks)
        return ok(line + Log().checkpoint(number))

    scripted = feed(Log(0))
    scripted.before = respond
    run = start(scripted)
    assert run.next() is None
    wait_for(lambda: len(scripted.server.requests) > 5)
    assert run.next() is None

    news.set()

    assert [7] == run.until(1)
    assert "c100001" == position(run.offset)["cursor"]


def test_an_available_now_run_keeps_cursors_that_moved_without_events(feed, start):
    """Else a feed of empty pages never gets on: one empty batch at the end."""
    scripted = feed(Log(0))
    scripted.before = lambda partition, cursor, query: ok(Log().checkpoint(9))
    run = start(scripted, finite=True)

    assert [{}, None] == [run.next(), run.next()]
    assert {"cursor": "c9", "events": 0, "bytes": 0} == position(run.offset)


def test_equal_offsets_have_no_partitions(feed, start):
    """Spark plans such a batch when another source of the query has news."""
    run = start(feed(Log(3)))

    assert [] == run.reader.partitions(run.offset, run.offset)


def test_partitions_are_the_same_each_time(feed, start):
    """A self-join plans its batch twice."""
    run = start(feed(Log(30)))
    end = run.reader.latestOffset(run.offset, run.limit)

    once, again = (run.reader.partitions(run.offset, end) for _ in range(2))

    assert once and [each.payload for each in once] == [each.payload for each in again]


def test_only_one_request_for_each_page(feed, start):
    """The driver reads each page once; the tasks read nothing."""
    scripted = feed(Log(10))
    run = start(scripted, pollInterval="1h")
    run.until(10)

    assert ["_first"] == [each for each in scripted.requests() if each == "_first"]


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"feed": "https://old"}, "feedId='https://old'"),
        ({"version": 2}, "new checkpointLocation"),
        ({"partitionCount": 3}, "go on with partitionCount=3"),
    ],
)
@pytest.mark.parametrize("call", ["latestOffset", "partitions", "commit"])
def test_another_feeds_checkpoint_is_refused(feed, start, call, change, remedy):
    """Cursors of another feed are never taken in silence; the error prints the way on."""
    run = start(feed(Log(3), Log(3)))
    run.until(6)
    old = {**run.offset, **change}
    if change.get("partitionCount"):
        old["partitions"] = {each: {"cursor": "c", "events": 0, "bytes": 0} for each in "012"}
    arguments = {"latestOffset": (old, None), "partitions": (old, run.offset), "commit": (old,)}

    with pytest.raises(CheckpointError, match=remedy):
        getattr(start(feed(Log(3), Log(3))).reader, call)(*arguments[call])


def test_the_partition_count_is_learned_once(feed, start):
    """A new query asks the publisher; a restart knows it from its checkpoint."""
    scripted = feed(Log(3), Log(3))
    usual = scripted.server.respond
    scripted.server.respond = lambda request: (
        usual(request) if request.query else refused(400, '{"partitionCount":2}')
    )
    options = {"url": scripted.server.url}
    run = start(**options)
    run.until(6)
    scripted.logs[0].count = 4

    again = start(offset=run.offset, **options)
    again.until(1)

    assert 1 == [each.query for each in scripted.server.requests].count({})


def test_explicit_cursors_have_to_fit_the_learned_count(raw_server, start):
    """As many cursors as the publisher says it has partitions."""
    raw_server.script(refused(400, '{"partitionCount":3}'))
    run = start(url=raw_server.url, startingCursors='{"0": "a", "1": "b"}')

    with pytest.raises(ValueError, match=r"'startingCursors'.*2 partitions.*has 3"):
        run.next()


# Where a batch ends, and how much is held (DESIGN 3.2)


def test_events_behind_the_last_checkpoint_wait(feed, start):
    """Only what a checkpoint closed is delivered; the rest comes when it is closed."""
    scripted = feed(Log(8, each=5))
    grown = threading.Event()
    scripted.before = lambda partition, cursor, query: cursor == "c5" and not grown.wait(_PATIENCE)
    run = start(scripted)
    assert list(range(5)) == run.until(5)

    scripted.logs[0].count = 10
    grown.set()

    assert list(range(10)) == run.until(10)


@pytest.mark.parametrize("each", [1, 7, 1000])
def test_batches_are_limited_by_events(feed, start, each):
    """maxEventsPerTrigger, soft by one interval."""
    log = Log(2000 // each * each, each=each)
    run = start(feed(log, log), maxEventsPerTrigger="100")

    run.until(2 * log.count)

    sizes = [sum(map(len, rows.values())) for rows in run.batches]
    assert max(sizes) <= max(100, each)


def test_batches_are_limited_by_bytes(feed, start):
    """maxBytesPerTrigger, soft by one interval."""
    run = start(feed(Log(999, each=3), Log(1000, each=1)), maxBytesPerTrigger="2000")

    run.until(1999)

    assert max(len(rows) for rows in run.batches) == 2
    assert all(sum(map(len, rows.values())) * 39 <= 2000 for rows in run.batches)


def test_no_partition_starves(feed, start):
    """Intervals that fill a batch each: partitions take turns."""
    run = start(feed(*(Log(10_000, each=50) for _ in range(3))), maxEventsPerTrigger="10")

    for _ in range(60):
        run.next()

    shares = Counter(partition for rows in run.batches for partition in rows)
    assert 3 == len(shares)
    assert min(shares.values()) >= 5


def test_no_more_is_held_than_a_batch(feed, start):
    """Memory follows maxBytesPerTrigger: what is ready is never above it by more than one
    interval.
    """
    run = start(feed(*(Log(20_000, each=5) for _ in range(3))), maxBytesPerTrigger="4000")
    ready = []

    for _ in range(100):
        run.next()
        ready.append(run.reader.reportLatestOffset()["readyBytes"])

    assert max(ready) <= 4000 + 5 * 42


def test_intervals_larger_than_a_batch_come_one_by_one(feed, start):
    """Several partitions that need more room than there is do not wait for each other for ever."""
    log = Log(3000, each=1000, page=1000)
    scripted = feed(log, log, log)

    def in_pieces(partition, cursor, query):
        body = log.body(cursor, 1000, partition).pieces[0].partition(b"\r\n\r\n")[2]
        return chunked(*(body[at : at + 500] for at in range(0, len(body), 500)))

    scripted.before = in_pieces
    run = start(scripted, maxBytesPerTrigger="20000")

    run.until(9000)

    both = [[n for rows in run.batches for n in rows.get(p, [])] for p in range(3)]
    assert [list(range(3000))] * 3 == both
    assert {1} == {len(rows) for rows in run.batches}


def test_an_interval_that_never_ends_is_an_error(feed, start):
    """More than 4 × maxBytesPerTrigger without a checkpoint stops the query by name."""
    run = start(feed(Log(10_000, each=100_000)), maxBytesPerTrigger="1000")

    with pytest.raises(PublisherError, match=r"partition 0.*'maxBytesPerTrigger'"):
        run.until(1)


def test_pages_shorter_than_their_checkpoints_are_made_longer(feed, start):
    """A checkpoint every 1,000 events and pages of 500 would loop for ever."""
    run = start(feed(Log(3000, each=1000)), pageSizeHint="500")

    assert list(range(3000)) == run.until(3000)


def test_a_publisher_without_checkpoints_is_named(feed, start):
    """Nothing could be delivered exactly once."""
    run = start(feed(Log(3000, each=100_000, page=100)), pageSizeHint="50")

    with pytest.raises(PublisherError, match=r"partition 0.*'_first'.*no checkpoint"):
        run.until(1)


def test_a_slow_partition_does_not_stop_the_others(feed, start):
    """One that hangs delays only itself."""
    hangs = threading.Event()
    scripted = feed(Log(300), Log(300))
    scripted.before = lambda partition, cursor, query: (
        chunked(Log().event(0, 1), hangs) if partition == 1 and cursor == "_first" else None
    )
    run = start(scripted, maxEventsPerTrigger="50")

    got = run.until(300)

    assert list(range(300)) == got
    hangs.set()


def test_an_error_of_one_partition_stops_the_query(feed, start):
    """And stays: the query must not go on without it."""
    scripted = feed(Log(3), Log(3))
    scripted.before = lambda partition, cursor, query: refused(403, "no") if partition else None
    run = start(scripted)

    for _ in range(2):
        with pytest.raises(PublisherError, match="403: no"):
            run.until(10)


def test_a_line_of_another_partition_stops_the_query(feed, start):
    """Named where a task decodes it."""
    scripted = feed(Log(3))
    scripted.before = lambda partition, cursor, query: ok(
        Log().event(0, 1) + Log().checkpoint(1, 0)
    )
    run = start(scripted)

    with pytest.raises(PublisherError, match="partition 1, which was not asked for"):
        run.next()


def test_a_body_that_breaks_off_doubles_nothing(feed, start):
    """An answer cut behind some checkpoints goes on from the last one."""
    scripted = feed(Log(100))
    whole = scripted.logs[0].body("_first", 100).pieces[0].partition(b"\r\n\r\n")[2]
    cut = [gzipped(whole, cut=9)]
    scripted.before = lambda partition, cursor, query: cut.pop() if cut else None
    run = start(scripted)

    assert list(range(100)) == run.until(100)
    assert 1 == run.reader.reportLatestOffset()["retries"]


def test_stopping_ends_the_tries(feed, start):
    """A query that is stopped while its publisher is away leaves no thread that goes on asking."""
    scripted = feed(Log(3))
    scripted.before = lambda partition, cursor, query: refused(503)
    run = start(scripted, retryTimeout="1h")
    errors = []

    def ask():
        with pytest.raises(UnavailableError) as caught:
            run.next()
        errors.append(caught.value)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_for(lambda: len(scripted.server.requests) >= 2)

    run.reader.stop()

    asking.join(_PATIENCE)
    assert 1 == len(errors)


def test_reading_is_told(feed, start):
    """Pages, retries, ignored lines, time, and what is ready, for the query's progress."""
    run = start(feed(Log(3)))
    assert run.reader.reportLatestOffset() is None
    run.until(3)

    report = run.reader.reportLatestOffset()

    names = {"pages", "retries", "ignoredLines", "fetchSeconds", "readyEvents", "readyBytes"}
    assert (names, True, 0) == (report.keys(), report["pages"] >= 1, report["readyEvents"])
    assert json.dumps(report)


def test_events_are_fetched_while_a_batch_is_in_work(feed, start):
    """The next batch is there when Spark asks for it."""
    scripted = feed(Log(10))
    run = start(scripted)
    run.until(10)

    scripted.logs[0].count = 20
    wait_for(lambda: run.reader.reportLatestOffset()["readyEvents"] == 10)

    assert list(range(20)) == run.until(20)


def test_small_batches_are_one_spark_partition(feed, start):
    """A task costs 50 ms by itself."""
    run = start(feed(*(Log(20) for _ in range(5))))
    end = run.reader.latestOffset(run.offset, run.limit)

    assert 1 == len(run.reader.partitions(run.offset, end))


def test_large_batches_keep_all_cores_busy(feed, start):
    """minPartitions, for batches that are worth it, in the feed's order."""
    large = Log(60_000, each=100, page=60_000)
    run = start(feed(large, large), minPartitions="3", pageSizeHint="60000")
    end = run.reader.latestOffset(run.offset, run.limit)
    parts = run.reader.partitions(run.offset, end)

    assert 3 <= len(parts) <= 4
    assert {0: list(range(60_000)), 1: list(range(60_000))} == run.rows(run.offset, end)


# Long polling and idling (DESIGN 3.2, 3.5)


def test_the_first_answer_is_asked_for_without_waiting(feed, start):
    """An idle feed's query starts at once; then it waits at the publisher."""
    scripted = feed(Log(3))
    run = start(scripted, wait="2s")
    run.until(3)
    wait_for(lambda: len(scripted.server.requests) >= 2)

    waits = [each.query.get("wait") for each in scripted.server.requests]
    assert [None, "2"] == waits[:2]


def test_no_long_polls_with_more_partitions_than_requests(feed, start):
    """A waiting partition would keep another one from being asked."""
    scripted = feed(*(Log(3) for _ in range(3)))
    run = start(scripted, wait="2s", maxConcurrentRequests="2")
    run.until(9)
    wait_for(lambda: len(scripted.server.requests) >= 9)

    assert {None} == {each.query.get("wait") for each in scripted.server.requests}


def test_a_publisher_that_ignores_wait_is_not_hammered(feed, start):
    """An empty answer that comes at once is followed by a pause."""
    scripted = feed(Log(3))
    run = start(scripted, wait="2s", pollInterval="1h")
    run.until(3)
    wait_for(lambda: len(scripted.server.requests) >= 2)

    for _ in range(5):
        run.next()

    assert len(scripted.server.requests) == 2


def test_an_idle_partition_is_asked_once_for_each_wait(start):
    """Our publisher holds the answer; idle, that is one request each `wait`."""
    with closing(MemoryStore()) as store:
        store.create("orders", 2)
        with running_publisher(store) as base:
            run = start(url=f"{base}/orders", wait="1s")
            assert run.next() is None
            begun = time.monotonic()
            wait_for(lambda: run.reader.reportLatestOffset()["pages"] >= 6)
            assert time.monotonic() - begun >= 1.5

            publish(store, "orders", [1, 2])
            assert [1, 2] == sorted(run.until(2))


def test_what_is_published_while_waiting_arrives_at_once(start):
    """A long poll ends with the event, not with its time."""
    with closing(MemoryStore()) as store:
        store.create("orders", 1)
        with running_publisher(store) as base:
            run = start(url=f"{base}/orders", wait="20s")
            assert run.next() is None
            publish(store, "orders", [1])
            begun = time.monotonic()
            assert [1] == run.until(1)
            assert time.monotonic() - begun < 5


# The end of a finite run (DESIGN 3.5)


def test_available_now_reads_what_is_there(feed, start):
    """In batches, and ends."""
    run = start(feed(Log(250, page=40), Log(0)), finite=True, maxEventsPerTrigger="100")

    assert list(range(250)) == run.to_the_end()
    assert len(run.batches) >= 3


def test_a_an_answer_without_events_ends_it(feed, start):
    """(a) Where `_last` gives no checkpoint there is no target; a quiet answer is the end."""
    scripted = feed(Log(250, page=40))
    scripted.before = lambda partition, cursor, query: ok() if cursor == "_last" else None
    run = start(scripted, finite=True)

    assert list(range(250)) == run.to_the_end()


def test_a_cursors_that_move_for_ever_end_it(feed, start):
    """(a) The third answer in a row without events."""
    ticks = iter(range(1000))
    scripted = feed(Log(0))
    scripted.before = lambda partition, cursor, query: ok(Log().checkpoint(next(ticks)))
    run = start(scripted, finite=True)

    assert [] == run.to_the_end()
    assert len(scripted.server.requests) <= 7


def test_b_the_target_ends_it(feed, start):
    """(b) What was last when the run began, on a feed that goes on growing."""
    scripted = feed(Log(100, page=10))

    def grow(partition, cursor, query):
        scripted.logs[0].count += 10

    scripted.before = grow
    run = start(scripted, finite=True)

    rows = run.to_the_end()

    assert list(range(110)) == rows


def test_c_the_first_event_behind_the_target_ends_it(feed, start):
    """(c) A page's last checkpoint does not come again once there is more, and the feed never goes
    quiet.
    """
    scripted = feed(Log(95, page=10, each=10_000, page_ends=True))

    def grow(partition, cursor, query):
        scripted.logs[0].count += 3 if cursor != "_last" else 0

    scripted.before = grow
    run = start(scripted, finite=True)

    rows = run.to_the_end()

    assert list(range(len(rows))) == rows
    assert 95 <= len(rows) <= 110


def test_targets_without_a_checkpoint_in_their_page(feed, start):
    """`_last` and the one event behind it may come without a checkpoint; that stops nothing."""
    scripted = feed(Log(300, each=100, page_ends=False))
    scripted.before = lambda partition, cursor, query: (
        ok(Log().event(299)) if cursor == "_last" else None
    )
    run = start(scripted, finite=True)

    assert list(range(300)) == run.to_the_end()


def test_a_target_that_is_removed_throws_nobody_back(feed, start):
    """A reader that is behind the target already does not begin again from the oldest events."""
    scripted = feed(Log(95, page=10))
    scripted.before = lambda partition, cursor, query: (
        refused(410, "removed") if query["pagesizehint"] == "1" else None
    )
    run = start(scripted, finite=True, failOnDataLoss="false")

    assert list(range(95)) == run.to_the_end()


def test_a_quiet_partition_does_not_stop_a_busy_one(feed, start):
    """Each partition has an end of its own."""
    run = start(feed(Log(0), Log(250, page=40), Log(1)), finite=True)

    assert [0, *range(250)] == sorted(run.to_the_end())


def test_a_run_that_starts_at_the_end_ends(feed, start):
    """Nothing new since the last run: no batch."""
    scripted = feed(Log(5))
    run = start(scripted, finite=True)
    run.to_the_end()

    assert start(scripted, run.offset, finite=True).next() is None


def test_once_makes_one_batch_of_all(feed, start):
    """Once reads what is there, up to the limits, in one batch."""
    run = start(feed(Log(250, page=40), Log(30)), once=True)

    assert 280 == sum(map(len, run.next().values()))


def test_once_is_capped(feed, start):
    """The limits hold for Once, too; the rest comes with the next run."""
    run = start(feed(Log(250, page=40)), once=True, maxEventsPerTrigger="100")

    assert {0: list(range(100))} == run.next()


# What the publisher removed


def test_a_cursor_that_is_gone_stops_the_query(feed, start):
    """410: the error names what is lost, and nothing is skipped."""
    scripted = feed(Log(20, gone_below=5))
    run = start(scripted, startingCursors='{"0": "c2"}')

    with pytest.raises(CursorGoneError, match="410: c2 was removed") as caught:
        run.next()

    assert (0, "c2") == (caught.value.partition, caught.value.cursor)
    assert "failOnDataLoss" in str(caught.value)


def test_data_loss_may_be_accepted(feed, start, caplog):
    """failOnDataLoss=false goes on with the oldest events left, and warns."""
    caplog.set_level(logging.WARNING, "zeh_spark")
    scripted = feed(Log(20, gone_below=5, first=5))
    run = start(scripted, startingCursors='{"0": "c2"}', failOnDataLoss="false")

    assert list(range(5, 20)) == run.until(15)
    assert "EVENTS ARE LOST" in caplog.text
    assert "partition 0" in caplog.text


@pytest.mark.parametrize("given", [{}, {"failOnDataLoss": "false"}], ids=str)
def test_a_replay_never_skips(feed, start, given):
    """failOnDataLoss=false is not for a batch that Spark repeats."""
    scripted = feed(Log(20))
    run = start(scripted, startingCursors='{"0": "c2"}')
    run.until(18)
    scripted.logs[0].gone_below = scripted.logs[0].first = 5

    again = start(scripted, startingCursors='{"0": "c2"}', **given)

    with pytest.raises(ReplayError, match=r"partition 0: .*18 events from cursor 'c2' to 'c20'"):
        again.reader.partitions(run.start, run.offset)


# Replay (DESIGN 3.3)


@pytest.fixture
def repeated(feed, start):
    """A batch of 18 events from c2 of a feed, and a run after a crash that has to repeat it."""

    @dataclass
    class Repeated:
        feed: Feed
        done: Run
        run: Run

        def rows(self):
            return self.run.rows(self.done.start, self.done.offset)

    def make(log=None, between=lambda feed: None, **given):
        scripted = feed(log or Log(20))
        done = start(scripted, startingCursors='{"0": "c2"}', **given)
        done.until(18)
        done.reader.stop()
        between(scripted)
        run = start(scripted, done.offset, startingCursors='{"0": "c2"}', **given)
        return Repeated(scripted, done, run)

    return make


def test_a_batch_is_read_again(repeated):
    """The same rows, from the start cursor."""
    assert {0: list(range(2, 20))} == repeated().rows()


def test_later_events_are_not_in_a_repeated_batch(repeated):
    """The feed has grown since; the batch has not."""

    def grow(feed):
        feed.logs[0].count = 500

    case = repeated(between=grow)

    assert {0: list(range(2, 20))} == case.rows()
    assert list(range(20, 500)) == case.run.until(480)


def test_checkpoints_do_not_matter_for_a_repeated_batch(repeated):
    """They may come at other places, or not at all."""

    def change(feed):
        feed.logs[0].each, feed.logs[0].tag = 100_000, "x"

    assert {0: list(range(2, 20))} == repeated(between=change).rows()


def test_other_pages_do_not_matter_for_a_repeated_batch(repeated):
    """What came in one page may come in many."""

    def change(feed):
        feed.logs[0].page = 3

    assert {0: list(range(2, 20))} == repeated(between=change).rows()


def test_pages_without_events_do_not_matter_for_a_repeated_batch(repeated):
    """A publisher that filters may send many answers that only move the cursor."""

    def change(feed):
        steps = iter(range(1000, 1005))
        feed.before = lambda partition, cursor, query: (
            ok(Log().checkpoint(next(steps)))
            if cursor in {"c2", "c1000", "c1001", "c1002"}
            else feed.logs[0].body("c2", 100)
            if cursor == "c1003"
            else None
        )

    assert {0: list(range(2, 20))} == repeated(between=change).rows()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"count": 12}, "the feed gives 10 now"),
        ({"count": 2}, "the feed gives 0 now"),
        ({"gone_below": 5}, "the publisher no longer has them"),
    ],
    ids=str,
)
def test_a_batch_that_is_shorter_now_is_an_error(repeated, change, found):
    """It names partition, cursors, and the ways on."""

    def shrink(feed):
        for name, value in change.items():
            setattr(feed.logs[0], name, value)

    case = repeated(between=shrink)

    with pytest.raises(ReplayError, match=rf"'c2' to 'c20', but {found}") as caught:
        case.rows()

    assert "stagingLocation" in str(caught.value)
    assert "replay=accept" in str(caught.value)


def test_other_events_are_an_error(repeated):
    """As many, but not the same: never delivered in silence."""

    def change(feed):
        feed.before = lambda partition, cursor, query: ok(
            b"".join(Log().event(n) for n in range(100, 118)) + Log().checkpoint(20)
        )

    with pytest.raises(ReplayError, match="others now, or in another order"):
        repeated(between=change).rows()


def test_accept_takes_what_is_there_now(repeated, caplog):
    """replay=accept: up to the end cursor, once, with a warning."""
    caplog.set_level(logging.WARNING, "zeh_spark")

    def change(feed):
        feed.before = lambda partition, cursor, query: (
            ok(Log().event(100) + Log().checkpoint(20) + Log().event(20) + Log().checkpoint(21))
            if cursor == "c2"
            else None
        )

    assert {0: [100]} == repeated(between=change, replay="accept").rows()
    assert "had 18 events, now it has 1" in caplog.text


@pytest.mark.parametrize(("gone_below", "rows"), [(5, list(range(5, 20))), (30, [])])
def test_accept_where_the_start_is_gone(repeated, gone_below, rows):
    """What is left of the batch; nothing, where all that is left lies behind it."""

    def remove(feed):
        log = feed.logs[0]
        log.count, log.gone_below, log.first = 40, gone_below, gone_below

    got = repeated(between=remove, replay="accept").rows()

    assert rows == got.get(0, [])


def test_a_replay_of_last_has_no_rows(feed, start):
    """Batch 0 of a query that starts at `last`."""
    scripted = feed(Log(5))
    run = start(scripted, startingCursors="last")
    run.next()
    scripted.logs[0].count = 9

    again = start(scripted, run.offset, startingCursors="last")

    assert {} == again.rows(run.start, run.offset)
    assert [5, 6, 7, 8] == again.until(4)


# Staging (DESIGN 3.3)


def names(folder):
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def test_a_staged_batch_needs_no_publisher(repeated, tmp_path):
    """What waits in the directory is delivered again as it was."""

    def lose(feed):
        feed.before = lambda partition, cursor, query: refused(404, "gone")

    assert {0: list(range(2, 20))} == repeated(between=lose, stagingLocation=str(tmp_path)).rows()


def test_a_staged_batch_carries_no_bytes(feed, start, tmp_path):
    """Tasks read them from the directory."""
    run = start(feed(Log(5)), stagingLocation=str(tmp_path))
    end = run.reader.latestOffset(run.offset, run.limit)

    (partition,) = run.reader.partitions(run.offset, end)

    assert (None, end["batch"]) == (partition.payload, partition.batch)
    assert [f"{end['stage']}/{end['batch']}/0"] == names(tmp_path)


def test_a_lost_segment_is_read_again(repeated, tmp_path):
    """Someone cleaned the directory: as without staging, with the same checks."""

    def lose(feed):
        for each in tmp_path.rglob("0"):
            each.unlink()

    assert {0: list(range(2, 20))} == repeated(between=lose, stagingLocation=str(tmp_path)).rows()


def test_commit_deletes_what_is_done(feed, start, tmp_path):
    """Spark has it: nothing piles up, and committing again does no harm."""
    scripted = feed(Log(5))
    run = start(scripted, stagingLocation=str(tmp_path))
    run.until(5)
    first = run.offset
    scripted.logs[0].count = 9
    run.until(9)

    run.reader.commit(first)
    run.reader.commit(first)

    assert [f"{run.offset['stage']}/{run.offset['batch']}/0"] == names(tmp_path)


def test_the_stage_is_the_checkpoints_for_life(repeated, tmp_path):
    """Batches of one query lie together, also after a restart."""

    def grow(feed):
        feed.logs[0].count = 30

    case = repeated(between=grow, stagingLocation=str(tmp_path))
    case.run.until(10)

    assert case.done.offset["stage"] == case.run.offset["stage"]
    assert case.done.offset["batch"] != case.run.offset["batch"]


def test_what_a_crash_left_is_deleted_and_nothing_else(repeated, tmp_path):
    """Batches that no offset names, under the own stage only."""
    other = tmp_path / "other-stage" / "batch" / "0"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"theirs")

    def leave(feed):
        (stage,) = (each for each in tmp_path.iterdir() if each.name != "other-stage")
        (stage / "left").mkdir()
        (stage / "left" / "0").write_bytes(b"ours")
        feed.logs[0].count = 30

    case = repeated(between=leave, stagingLocation=str(tmp_path))
    case.run.until(10)

    stage = case.done.offset["stage"]
    kept = {f"{stage}/{each.offset['batch']}/0" for each in (case.done, case.run)}
    assert {*kept, "other-stage/batch/0"} == set(names(tmp_path))


def test_a_location_that_cannot_be_written_fails_before_the_first_batch(feed, start, tmp_path):
    """The error names the option."""
    (tmp_path / "file").write_text("")
    run = start(feed(Log(5)), stagingLocation=str(tmp_path / "file"))

    with pytest.raises(StagingError, match="'stagingLocation': cannot write"):
        run.next()


# Spark 4.0 and 4.1, which call latestOffset without arguments


def test_without_arguments_offsets_go_on_from_the_last_one(feed, start):
    """The old signature."""
    scripted = feed(Log(5))
    run = start(scripted)
    end = run.reader.latestOffset()
    scripted.logs[0].count = 9
    wait_for(lambda: run.reader.reportLatestOffset()["readyEvents"] == 4)

    later = run.reader.latestOffset()

    assert ("c5", "c9") == (position(end)["cursor"], position(later)["cursor"])
    assert {0: [5, 6, 7, 8]} == run.rows(end, later)


def test_without_arguments_a_restart_is_told_by_partitions(feed, start):
    """Spark calls partitions(x, x) with the checkpoint's offset before anything else."""
    scripted = feed(Log(5))
    done = start(scripted)
    done.until(5)
    scripted.logs[0].count = 9
    run = start(scripted)

    assert [] == run.reader.partitions(done.offset, done.offset)
    end = run.reader.latestOffset()

    assert {0: [5, 6, 7, 8]} == run.rows(done.offset, end)


def test_the_available_now_wrapper_is_refused(feed, start):
    """It asks for offsets before it tells the checkpoint's: events would come twice."""
    scripted = feed(Log(5))
    done = start(scripted)
    done.until(5)
    scripted.logs[0].count = 9
    run = start(scripted)
    run.reader.latestOffset()

    with pytest.raises(CheckpointError, match="triggerAvailableNowWrapper"):
        run.reader.partitions(done.offset, done.offset)


# Other servers


@pytest.mark.parametrize("checkpoints", ["event", "page"])
@pytest.mark.parametrize("finite", [True, False])
def test_the_reference_server_is_read(start_reference_server, start, checkpoints, finite):
    """The reference implementation, with a checkpoint for each event or each page."""
    url = start_reference_server(events=300, checkpoints=checkpoints)
    run = start(url=url, partitionCount="2", pageSizeHint="70", finite=finite)
    got = Counter()
    deadline = time.monotonic() + _PATIENCE
    while got.total() < 600 and time.monotonic() < deadline:
        end = run.reader.latestOffset(run.offset, run.limit)
        for partition in run.reader.partitions(run.offset, end):
            for batch in run.reader.read(partition):
                got.update(
                    (row["partition"], json.loads(row["data"])["id"]) for row in batch.to_pylist()
                )
        run.offset = end

    assert Counter((p, i) for p in (0, 1) for i in range(300)) == got


def test_the_reference_server_that_breaks_off_is_read(start_reference_server, start):
    """It aborts bodies; each event comes once all the same."""
    url = start_reference_server(events=100, checkpoints="event", fail_after=20, failures=3)
    run = start(url=url, partitionCount="2", pageSizeHint="70", finite=True)
    got = Counter()
    while (end := run.reader.latestOffset(run.offset, run.limit)) is not run.offset:
        for partition in run.reader.partitions(run.offset, end):
            for batch in run.reader.read(partition):
                got.update(
                    (row["partition"], json.loads(row["data"])["id"]) for row in batch.to_pylist()
                )
        run.offset = end

    assert Counter((p, i) for p in (0, 1) for i in range(100)) == got


@pytest.mark.parametrize("finite", [True, False])
def test_our_publisher_is_read(publisher, start, finite):
    """Both halves of the package together; the partition count is learned."""
    for begin in range(0, 300, 60):
        publisher.publish(*range(begin, begin + 60))
    run = start(url=publisher.url, finite=finite, maxEventsPerTrigger="100")

    rows = run.to_the_end() if finite else run.until(300)

    assert list(range(300)) == sorted(rows)


def test_our_publishers_batches_can_be_repeated(publisher, start):
    """Its checkpoints are the same on every request; so are its stamps."""
    publisher.publish(*range(50))
    run = start(url=publisher.url)
    run.until(50)
    publisher.publish(*range(50, 80))

    again = start(url=publisher.url, offset=run.offset)

    assert run.batches[-1] == again.rows(run.start, run.offset)
    assert list(range(50, 80)) == sorted(again.until(30))


def test_our_publishers_last_is_where_new_events_come(publisher, start):
    """`last` on an empty partition, and on one with events."""
    publisher.publish(1, 2, partition=0)
    run = start(url=publisher.url, startingCursors="last")
    assert {} == run.next()

    publisher.publish(3, 4)

    assert [3, 4] == sorted(run.until(2))
