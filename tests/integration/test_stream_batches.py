"""The stream source: where a batch ends, how much is held, how often it asks (DESIGN 3.2, 3.5)."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.fix_metrics import Scrape
from tests.fix_raw_server import chunked, gzipped, refused
from tests.fix_stream import Log
from tests.patience import PATIENCE, eventually
from zeh_spark.errors import PublisherError, UnavailableError
from zeh_spark.service.app import read_requests

# Where a batch ends, and how much is held (DESIGN 3.2)


def test_events_after_the_last_checkpoint_wait(feed, start):
    """Only what a checkpoint closed is delivered; the rest comes when it is closed."""
    scripted = feed(Log(8, each=5))
    grown = threading.Event()
    scripted.before = lambda partition, cursor, query: cursor == "c5" and not grown.wait(PATIENCE)
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


def test_no_more_is_held_than_a_batch(feed, start):
    """Memory follows maxBytesPerTrigger: what is ready is above it by one interval at most."""
    run = start(feed(*(Log(20_000, each=5) for _ in range(3))), maxBytesPerTrigger="4000")
    ready = []

    for _ in range(100):
        run.next()
        ready.append(run.reader.reportLatestOffset()["readyBytes"])

    assert max(ready) <= 4000 + 5 * 42


def test_the_next_batch_is_packed_while_spark_works(feed, start):
    """The batch after the current one is ready when Spark asks, and the one after it is fetched. If
    Spark continues elsewhere, what it asks for decides, not what was made ready for it.
    """
    scripted = feed(Log(1000, each=100, page=100))
    run = start(scripted, maxEventsPerTrigger="100")
    assert {0: list(range(100))} == run.next()
    eventually(lambda: "c200" in scripted.requests())
    assert {0: list(range(100, 200))} == run.next()
    eventually(lambda: "c300" in scripted.requests())

    run.offset = run.start

    assert {0: list(range(100, 200))} == run.next()
    assert list(range(200, 1000)) == run.until(1100)[300:]


def test_what_is_packed_ahead_ends_with_the_run(feed, start):
    """A stopped query leaves no thread that waits for a full batch."""
    run = start(feed(Log(100, each=1)))
    run.until(100)
    assert "zeh-pack" in {each.name for each in threading.enumerate()}

    run.reader.stop()

    eventually(lambda: "zeh-pack" not in {each.name for each in threading.enumerate()})


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


@pytest.mark.parametrize(
    ("log", "given", "match"),
    [
        (Log(10_000), {"maxBytesPerTrigger": "1000"}, r"partition 0.*'maxBytesPerTrigger'"),
        (Log(3000, page=100), {"pageSizeHint": "50"}, r"partition 0.*'_first'.*no checkpoint"),
    ],
    ids=["too much", "too many"],
)
def test_events_that_no_checkpoint_closes_stop_the_query(feed, start, log, given, match):
    """They could not be delivered exactly once, and 4 × maxBytesPerTrigger at most are held."""
    run = start(feed(replace(log, each=100_000)), **given)

    with pytest.raises(PublisherError, match=match):
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
    """And stays: the query must not continue without it."""
    scripted = feed(Log(3), Log(3))
    scripted.before = lambda partition, cursor, query: refused(403, "no") if partition else None
    run = start(scripted)

    for _ in range(2):
        with pytest.raises(PublisherError, match="403: no"):
            run.until(10)


def test_stopping_ends_the_tries(feed, start):
    """A query that is stopped while its publisher is away leaves no thread that keeps asking."""
    scripted = feed(Log(3))
    scripted.before = lambda partition, cursor, query: refused(503)
    run = start(scripted, retryTimeout="1h")
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(run.next)
        eventually(lambda: len(scripted.server.requests) >= 2)

        run.reader.stop()

        with pytest.raises(UnavailableError):
            asking.result(PATIENCE)


def test_reading_is_told(feed, start):
    """Pages, retries, ignored lines, time, what is ready, and lag, for the query's progress. An
    answer that breaks off is continued from its last checkpoint, and doubles nothing.
    """
    scripted = feed(Log(100))
    whole = scripted.logs[0].body("_first", 100).pieces[0].partition(b"\r\n\r\n")[2]
    cut = [gzipped(whole, cut=9)]
    scripted.before = lambda partition, cursor, query: cut.pop() if cut else None
    run = start(scripted)
    assert run.reader.reportLatestOffset() is None
    assert list(range(100)) == run.until(100)

    report = run.reader.reportLatestOffset()

    names = {"pages", "retries", "ignoredLines", "fetchSeconds", "readyEvents", "readyBytes"}
    unknown = {"head", "eventsBehind", "secondsBehind"}  # of a publisher that offers no plans
    assert names | unknown | {"feed"} == report.keys()
    assert [None] * 3 == [report[name] for name in sorted(unknown)]
    assert (True, 1, 0) == (report["pages"] >= 1, report["retries"], report["readyEvents"])
    assert json.dumps(report)


def test_large_batches_keep_all_cores_busy(feed, start):
    """minPartitions, for batches that are worth it, in the feed's order."""
    large = Log(60_000, each=100, page=60_000)
    run = start(feed(large, large), minPartitions="3", pageSizeHint="60000")
    end = run.reader.latestOffset(run.offset, run.limit)
    parts = run.reader.partitions(run.offset, end)

    assert 3 <= len(parts) <= 4
    assert {0: list(range(60_000)), 1: list(range(60_000))} == run.rows(run.offset, end)


# Long polling and idling (DESIGN 3.2, 3.5)


def test_no_long_polls_with_more_partitions_than_requests(feed, start):
    """A waiting partition would keep another one from being asked."""
    scripted = feed(*(Log(3) for _ in range(3)))
    run = start(scripted, wait="2s", maxConcurrentRequests="2")
    run.until(9)
    eventually(lambda: len(scripted.server.requests) >= 9)

    assert {None} == {each.query.get("wait") for each in scripted.server.requests}


def test_a_publisher_that_ignores_wait_is_not_hammered(feed, start):
    """An idle query waits at the publisher; a pause follows an empty answer at once (D18)."""
    scripted = feed(Log(3))
    run = start(scripted, wait="2s", pollInterval="1h")
    run.until(3)
    eventually(lambda: len(scripted.server.requests) >= 2)

    for _ in range(5):
        run.next()

    assert [None, "2"] == [each.query.get("wait") for each in scripted.server.requests]


def test_an_idle_partition_waits_at_the_publisher_for_its_next_event(publisher, start, monkeypatch):
    """One request each, which ends with the event: nothing else ends it in the time of a test."""
    monkeypatch.setattr(read_requests, "MAX_WAIT", 3600.0)
    run = start(url=publisher.url, wait="1h", readTimeout="2h", fetch="driver")
    assert run.next() is None
    eventually(lambda: Scrape(publisher.base)("zeh_waiting_readers", feed="orders") == 2)
    assert 4 == run.reader.reportLatestOffset()["pages"]  # each partition was empty twice

    publisher.publish(1, 2)
    assert [1, 2] == sorted(run.until(2))
