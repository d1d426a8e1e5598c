"""The contract for clocks that are wrong: nothing is removed or stamped because of them."""

from __future__ import annotations

import time

import pytest

from tests.patience import eventually
from tests.store_contract.writers import (
    FEED,
    call,
    chunk,
    data,
    everything,
    large,
    publish,
    publish_as,
    upload,
)
from zeh_spark.errors import StoreError
from zeh_spark.publisher import Store
from zeh_spark.service.retention.pruner import Pruner
from zeh_spark.service.store import clock as clocks
from zeh_spark.service.store.interface import Retention, StoreBusyError

_A_MONTH = Retention(age_ms=30 * clocks.DAY_MS)


def _keep_one_for_a_month(store: Store) -> None:
    """Publish an event, which is to stay for a month."""
    publish(store, chunk(0, b"1"))
    store.set_retention(FEED, _A_MONTH)


def test_a_store_knows_when_the_clock_was_right(store, opened):
    """It is the time of the last commit, until a publisher notes a later one."""
    assert (0, 0) == (store.clock_seen(), clocks.sign(store))
    publish(store, chunk(0, b"1"))
    assert store.now() == clocks.sign(store)
    for seen in (store.now() + 5, store.now() - 5):
        store.see_clock(seen)
        assert seen == store.clock_seen() == clocks.sign(opened())


def test_a_pruner_a_month_ahead_empties_no_feed(store, clock, caplog):
    """All is there, and I am told what to do; the limit of the size holds on."""
    for each in (b"1", b"2", b"3"):
        publish(store, large(0, each))
    of_two = sum(each.size for each in everything(store)[1:])
    store.set_retention(FEED, _A_MONTH)
    store.stage(FEED, call(), upload(large(0, b"under way")))
    clock.pass_hours(24 * 31)
    with Pruner(store, every_seconds=0.01):
        eventually(lambda: "nothing is removed by age for 24 hours" in caplog.text)
        store.set_retention(FEED, Retention(_A_MONTH.age_ms, of_two))
        eventually(lambda: store.feed(FEED).size == of_two)
    assert "31.0 days after the last time that the store knows" in caplog.text
    assert "zeh-spark clock --accept" in caplog.text
    assert (2, [FEED]) == (len(everything(store)), list(store.staged()))


def test_a_clock_that_was_accepted_goes_on(store, clock):
    """My publisher was off for a month: I say so, and old events go again."""
    _keep_one_for_a_month(store)
    clock.pass_hours(24 * 31)
    with pytest.raises(StoreError, match=r"nothing is removed by age: the clock says .*--accept"):
        clocks.check_removal(store)
    store.see_clock(store.now())
    clocks.check_removal(store)
    with Pruner(store, every_seconds=0.01):
        eventually(lambda: not everything(store))


def test_a_clock_that_stays_ahead_is_believed_in_the_end(store, clock):
    """Nobody has to come to a publisher that was off for a month."""
    _keep_one_for_a_month(store)
    clock.pass_hours(24 * 31)
    with Pruner(store, every_seconds=0.01, held_seconds=0.05):
        eventually(lambda: not everything(store))
    assert store.now() == store.clock_seen()


def test_a_clock_years_ahead_is_never_believed_by_itself(store, clock, caplog):
    """Nobody looked at the warning for a day: still all is there, and no commit is stamped."""
    publish_as(store, call(0), chunk(0, b"1"))
    store.set_retention(FEED, _A_MONTH)
    before = store.now()
    clock.pass_hours(24 * 365 * 10)
    with Pruner(store, every_seconds=0.01, held_seconds=0.0):
        eventually(lambda: "nothing is removed by age, and nothing is committed: " in caplog.text)
        time.sleep(0.1)
    assert before == clocks.sign(store)
    with pytest.raises(StoreBusyError, match="commits nothing"):
        publish_as(store, call(1), chunk(0, b"2"))
    assert [b"1"] == data(store)


def test_a_clock_that_jumps_again_is_held_anew(store, clock, caplog):
    """The day in which somebody can see it begins again."""
    _keep_one_for_a_month(store)
    with Pruner(store, every_seconds=0.01):
        for days in (31, 62):
            clock.pass_hours(24 * 31)
            eventually(lambda days=days: f"{days}.0 days after" in caplog.text)  # type: ignore[misc]
    assert 2 == caplog.text.count("nothing is removed by age for 24 hours")
    assert [b"1"] == data(store)


def test_a_clock_that_goes_back_is_believed_at_once(store, clock, caplog):
    """It was set right within the day: nothing is lost, and the pruner goes on."""
    _keep_one_for_a_month(store)
    before = store.now()
    clock.pass_hours(24 * 31)
    with Pruner(store, every_seconds=0.01):
        eventually(lambda: "nothing is removed by age" in caplog.text)
        clock.pass_hours(-24 * 31)
        eventually(lambda: store.clock_seen() == before)
    assert [b"1"] == data(store)


def test_a_clock_years_ahead_stamps_no_commit(store, clock):
    """The times of a feed never go back, so retention by age would wait for those years. A feed
    without events for years continues, if another feed or the operator confirms the time.
    """
    publish_as(store, call(0), chunk(0, b"1"))
    clock.pass_hours(24 * 365 * 10)
    store.create("another", 1)
    for feed in (FEED, "another"):
        with pytest.raises(StoreBusyError, match=r"commits nothing: .*3,650.0 days after"):
            publish(store, chunk(0, b"2"), feed=feed)
    clock.pass_hours(-24 * 365 * 10)
    publish_as(store, call(1), chunk(0, b"2"))
    clock.pass_hours(24 * 365 * 2)
    store.see_clock(store.now())
    publish(store, chunk(0, b"2"), feed="another")
    publish_as(store, call(2), chunk(0, b"3"))
    assert [b"1", b"2", b"3"] == data(store)


def test_who_is_behind_the_newest_commit_is_told_so(store, clock, caplog):
    """Events of a clock that was ahead stay longer than they should: I hear why."""
    clock.pass_hours(48)
    publish(store, chunk(0, b"1"))
    clock.pass_hours(-48)
    with Pruner(store, every_seconds=0.01):
        eventually(lambda: "the newest commit is 2.0 days ahead of the clock" in caplog.text)


def test_a_feed_counts_what_it_has(store, opened):
    """The totals are those of its chunks after each commit, repetition and removal."""
    first = [chunk(0, b"1"), chunk(1, b"2", b"3")]
    for work in (
        *[lambda: publish_as(store, call(0), *first)] * 2,
        lambda: publish_as(store, call(1), large(0, b"4")),
        lambda: publish_as(store, call(2)),
        *[lambda: store.remove(FEED, 1)] * 2,
        lambda: store.begin_epoch(FEED),
        lambda: store.remove(FEED, 99),
        lambda: publish_as(store, call(3), chunk(1, b"5")),
    ):
        work()
        chunks = everything(store)
        counted = sum(each.events for each in chunks), sum(each.size for each in chunks)
        for each in (store.feed(FEED), *opened().feeds()):
            assert counted == (each.events, each.size)
    assert 1 == store.feed(FEED).events
