"""The stream source: where a finite run ends, and what was removed unread (DESIGN 3.5)."""

import pytest

from tests.fix_log_texts import check_documented
from tests.fix_raw_server import ok, refused
from tests.fix_stream import Log
from zeh_spark.errors import CursorGoneError, PublisherError


def test_available_now_reads_what_is_there(feed, start):
    """In batches, and ends: a quiet partition does not stop a busy one, and each has an end of its
    own. With nothing new since the last run there is no batch.
    """
    scripted = feed(Log(0), Log(250, page=40), Log(1))
    run = start(scripted, finite=True, maxEventsPerTrigger="100")

    assert [0, *range(250)] == sorted(run.to_the_end())
    assert len(run.batches) >= 3
    assert start(scripted, run.offset, finite=True).next() is None


@pytest.mark.parametrize(
    ("log", "last"),
    [(Log(250, page=40), ok()), (Log(300, each=100), ok(Log().event(299)))],
    ids=["nothing", "an event"],
)
def test_a_an_answer_without_events_ends_it(feed, start, log, last):
    """(a) Where `_last` gives no checkpoint there is no target; a quiet answer is the end."""
    scripted = feed(log)
    scripted.before = lambda partition, cursor, query: last if cursor == "_last" else None
    run = start(scripted, finite=True)

    assert list(range(log.count)) == run.to_the_end()


def test_a_cursors_that_move_for_ever_end_it(feed, start, caplog):
    """(a) Many answers without events; the next run continues, and my alert hears of it."""
    ticks = iter(range(10_000))
    scripted = feed(Log(0))
    scripted.before = lambda partition, cursor, query: ok(Log().checkpoint(next(ticks)))
    run = start(scripted, finite=True)

    assert [] == run.to_the_end()
    assert 100 <= len(scripted.server.requests) <= 120
    check_documented(caplog.records, "this run ends here")


def test_a_a_target_beyond_the_last_event_ends_it_after_a_while(feed, start, caplog):
    """(a) Some publishers' `_last` is the last of all partitions; the next run continues."""
    scripted = feed(Log(9))
    scripted.before = lambda partition, cursor, query: (
        ok(Log().checkpoint(50)) if cursor == "_last" else None
    )
    run = start(scripted, finite=True, retryTimeout="1s")

    assert list(range(9)) == run.to_the_end()
    assert "cursor 'c9' is taken for the end" in caplog.text


def test_b_the_target_ends_it(feed, start):
    """(b) What was last when the run began, on a feed that keeps growing."""
    scripted = feed(Log(100, page=10))

    def grow(partition, cursor, query):
        scripted.logs[0].count += 10

    scripted.before = grow
    run = start(scripted, finite=True)

    assert list(range(110)) == run.to_the_end()


def test_c_the_first_event_after_the_target_ends_it(feed, start):
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


def test_a_target_that_is_removed_throws_nobody_back(feed, start):
    """A reader that is behind the target already does not begin again from the oldest events."""
    scripted = feed(Log(95, page=10))
    scripted.before = lambda partition, cursor, query: (
        refused(410, "removed") if query["pagesizehint"] == "1" else None
    )
    run = start(scripted, finite=True, failOnDataLoss="false")

    assert list(range(95)) == run.to_the_end()


def test_once_makes_one_batch_of_all(feed, start):
    """Once reads what is there in one batch, up to the limits; the rest comes with the next run."""
    scripted = feed(Log(250, page=40), Log(30))

    assert 280 == sum(map(len, start(scripted, once=True).next().values()))
    capped = start(scripted, once=True, maxEventsPerTrigger="100").next()
    assert 100 == sum(map(len, capped.values()))


# What the publisher removed


def test_data_loss_without_an_oldest_event_is_an_error(feed, start):
    """Where even `_first` is gone there is nothing to continue with."""
    scripted = feed(Log(9))
    scripted.before = lambda partition, cursor, query: refused(410, "removed")
    run = start(scripted, failOnDataLoss="false")

    with pytest.raises(CursorGoneError, match="cursor '_first'"):
        run.next()


def test_cursors_that_go_round_end_a_run(feed, start):
    """A run with availableNow names the fault, and does not publish the same events for ever."""
    scripted = feed(Log(0))
    rounds = iter(range(50))  # then it is quiet, and a run that has not noticed ends
    scripted.before = lambda partition, cursor, query: (
        around(Log(), cursor)
        if cursor in {"_first", "c1", "c2"} and next(rounds, None) is not None
        else ok(Log().checkpoint(9))
    )

    with pytest.raises(PublisherError, match=r"cursors form a loop: .* 'c2' is 'c1' again"):
        start(scripted, finite=True, partitionCount="1").to_the_end()


def around(log, cursor):
    place = 2 if cursor == "c1" else 1
    return ok(log.event(place - 1) + log.checkpoint(place))
