"""The stream source: what an offset says and which are refused; where a query starts."""

import threading

import pytest

from tests.fix_raw_server import NO_IDENTITY, ok, refused
from tests.fix_stream import Log, position
from tests.patience import eventually
from zeh_spark.errors import CheckpointError, UnavailableError


def test_a_feed_is_delivered_in_order(feed, start):
    """Each partition's events, once, in its order. A query can be built, and its plan shown,
    without the publisher; and where there is nothing more to read, Spark gets the same object back.
    """
    scripted = feed(Log(250), Log(100))
    run = start(scripted, pageSizeHint="30")
    assert [] == scripted.server.requests

    run.until(350)

    both = [[n for rows in run.batches for n in rows.get(p, [])] for p in (0, 1)]
    assert [list(range(250)), list(range(100))] == both
    for _ in range(3):
        assert run.offset is run.reader.latestOffset(run.offset, run.limit)


def test_an_empty_feed_makes_no_batch(feed, start):
    """Waiting costs nothing. Spark plans between equal offsets if another source has news."""
    run = start(feed(Log(0)))

    assert [None, None] == [run.next(), run.next()]
    assert [] == run.reader.partitions(run.offset, run.offset)


def test_the_offset_tells_what_lies_in_the_batch(feed, start):
    """To know it again: count, bytes, digest. A partition that did not move has no count."""
    scripted = feed(Log(3), Log(0))
    run = start(scripted)
    run.until(3)
    moved = position(run.offset)
    assert ("c3", 3, 114) == (moved["cursor"], moved["events"], moved["bytes"])
    assert 32 == len(moved["digest"])
    scripted.logs[1].count = 2

    run.until(5)

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
    """`last` means now, also after a restart: the first batch pins it and has no rows. It does not
    wait: a long poll at `_last` would skip what comes meanwhile.
    """
    scripted = feed(Log(5), Log(7))
    run = start(scripted, startingCursors="last", wait="10s")

    assert {} == run.next()
    assert ["c5", "c7"] == [position(run.offset, each)["cursor"] for each in (0, 1)]
    assert [None] * 2 == [each.query.get("wait") for each in scripted.server.requests[:2]]
    scripted.logs[0].count = 6
    assert [5] == run.until(1)


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
    eventually(lambda: len(scripted.server.requests) > 5)
    assert run.next() is None

    news.set()

    assert [7] == run.until(1)
    assert "c100001" == position(run.offset)["cursor"]


def test_an_available_now_run_keeps_cursors_that_moved_without_events(feed, start):
    """Else a feed of empty pages never makes progress: one empty batch at the end."""
    scripted = feed(Log(0))
    scripted.before = lambda partition, cursor, query: ok(Log().checkpoint(9))
    run = start(scripted, finite=True)

    assert [{}, None] == [run.next(), run.next()]
    assert {"cursor": "c9", "events": 0, "bytes": 0} == position(run.offset)


def test_partitions_are_the_same_each_time(feed, start):
    """A self-join plans a batch twice. The driver reads each page once, and tasks read nothing."""
    scripted = feed(Log(30))
    run = start(scripted, pollInterval="1h")
    assert list(range(30)) == run.until(30)

    once, again = (run.reader.partitions(run.start, run.offset) for _ in range(2))

    assert once and [each.payload for each in once] == [each.payload for each in again]
    assert ["_first"] == [each for each in scripted.requests() if each == "_first"]


@pytest.mark.parametrize("call", ["latestOffset", "partitions", "commit"])
def test_another_feeds_checkpoint_is_refused(feed, start, call):
    """Cursors of another feed are never taken in silence; the error prints the way on."""
    run = start(feed(Log(3)))
    run.until(3)
    old = {**run.offset, "feed": "https://old"}
    arguments = {"latestOffset": (old, None), "partitions": (old, run.offset), "commit": (old,)}

    with pytest.raises(CheckpointError, match="feedId='https://old'"):
        getattr(start(feed(Log(3))).reader, call)(*arguments[call])


def test_the_partition_count_is_learned_once(feed, start):
    """A new query asks the publisher; a restart knows it from its checkpoint."""
    scripted = feed(Log(3), Log(3))
    scripted.server.discovery = refused(400, '{"partitionCount":2}')
    options = {"url": scripted.server.url}
    run = start(**options)
    run.until(6)
    scripted.logs[0].count = 4
    scripted.server.discovery = NO_IDENTITY

    again = start(offset=run.offset, **options)

    assert [3] == again.until(1)


def test_explicit_cursors_have_to_fit_the_learned_count(raw_server, start):
    """As many cursors as the publisher says it has partitions."""
    raw_server.script(refused(400, '{"partitionCount":3}'))
    run = start(url=raw_server.url, startingCursors='{"0": "a", "1": "b"}')

    with pytest.raises(ValueError, match=r"'startingCursors'.*2 partitions.*has 3"):
        run.next()


# Spark 4.0 and 4.1, which call latestOffset without arguments


def test_without_arguments_a_run_reads_past_answers_without_events(feed, start):
    """Else drain() would take a page that a publisher filtered empty for the feed's end."""
    scripted = feed(Log(0))

    def skipping(partition, cursor, query):
        at = {"_first": 0, "_last": 14}[cursor] if cursor[0] == "_" else int(cursor[1:])
        return ok((Log().event(at) if at == 13 else b"") + Log().checkpoint(min(at + 1, 14)))

    scripted.before = skipping
    run = start(scripted)

    end = run.reader.latestOffset()

    assert {0: [13]} == run.rows(run.offset, end)


def test_without_arguments_a_restart_is_told_by_partitions(feed, start):
    """Spark calls partitions(x, x) with the checkpoint's offset before anything else. The wrapper
    for AvailableNow is refused: it asks for offsets before, and events would come twice.
    """
    scripted = feed(Log(5))
    done = start(scripted)
    done.until(5)
    scripted.logs[0].count = 9
    run, wrapped = start(scripted), start(scripted)

    assert [] == run.reader.partitions(done.offset, done.offset)
    assert {0: [5, 6, 7, 8]} == run.rows(done.offset, run.reader.latestOffset())

    wrapped.reader.latestOffset()
    with pytest.raises(CheckpointError, match="triggerAvailableNowWrapper"):
        wrapped.reader.partitions(done.offset, done.offset)
