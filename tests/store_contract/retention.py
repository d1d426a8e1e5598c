"""The contract for retention: events are removed as set, and no reader misses one unnoticed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.patience import eventually
from tests.store_contract.writers import (
    FEED,
    call,
    chunk,
    data,
    everything,
    frames_of,
    large,
    publish,
    publish_as,
    refusal,
    refused,
)
from zeh_spark.errors import StoreError
from zeh_spark.publisher import Store
from zeh_spark.service.retention import rules as retention
from zeh_spark.service.retention.pruner import Pruner
from zeh_spark.service.retention.rules import (
    Removal,
    expire_names,
    expire_producers,
    plan,
    prune,
    removable,
)
from zeh_spark.service.store.acts import Actor
from zeh_spark.service.store.batches import Call
from zeh_spark.service.store.interface import Retention, StoreBusyError
from zeh_spark.service.store.log import Chunk
from zeh_spark.wire.upload_format import StagedChunk
from zeh_spark.wire.wire import BATCH_INCARNATION

NOTHING = Retention(bytes=1)
"""A retention that keeps nothing: even the newest chunk is larger."""


def three(store: Store) -> None:
    """Publish three chunks: 1 and 3 in partition 0, 2 in partition 1."""
    for partition, each in ((0, b"1"), (1, b"2"), (0, b"3")):
        publish(store, chunk(partition, each))


# What is kept


def test_a_rule_is_changed_as_it_was_seen(store, opened):
    """None of several that add a reader at the same time undoes what another one did."""

    def add(name: str) -> None:
        mine, done = opened(), False
        while not done:
            seen = mine.retention(FEED)
            with suppress(StoreError):
                changed = replace(seen, readers=(*seen.readers, name))
                mine.set_retention(FEED, changed, before=seen)
                done = True

    names = [f"reader {each}" for each in range(6)]
    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(add, names))
    assert names == sorted(store.retention(FEED).readers)
    with pytest.raises(StoreError, match="somebody else has changed the retention meanwhile"):
        store.set_retention(FEED, NOTHING, before=Retention())


# What is removed


def test_events_go_when_they_are_old_enough(store, clock):
    """Yesterday's events are there, last week's are not."""
    publish(store, chunk(0, b"1"))
    clock.pass_hours(24)
    publish(store, chunk(1, b"2"))
    clock.pass_hours(1)
    publish(store, chunk(0, b"3"))
    day = Retention(age_ms=24 * 3_600_000)
    assert 1 == plan(store, FEED, day).events
    assert 3 == len(data(store))
    removed = prune(store, FEED, day)
    assert (1, 1, 1) == (removed.chunks, removed.events, removed.upto)
    assert [b"2", b"3"] == data(store)
    assert Removal() == prune(store, FEED, day)


def test_feed_keeps_the_newest_events_up_to_its_size(store):
    """My disk does not fill up; a feed keeps all its events for ever if I ask for nothing."""
    three(store)
    assert (Retention(), Removal()) == (store.retention(FEED), prune(store, FEED, Retention()))
    assert 3 == len(data(store))
    size = everything(store)[0].size
    assert 2 == plan(store, FEED, Retention(bytes=size)).chunks
    prune(store, FEED, Retention(bytes=2 * size))
    assert [b"2", b"3"] == data(store)
    assert 2 * size == store.feeds()[0].size


def test_what_is_kept_is_remembered(opened, store, site):
    """Every publisher of the store uses the same retention, also after a restart."""
    kept = Retention(86_400_000, 1 << 40, ("warehouse", "mailer"), None)
    store.set_retention(FEED, Retention(age_ms=1))
    store.set_retention(FEED, kept)
    site.crash()
    assert kept == opened().retention(FEED)


# Batches with names


def _named(name: str, at: int = 0) -> tuple[Call, StagedChunk]:
    """Return the call and the chunk of a batch with a name."""
    of = call(0, producer=f"p#{name}", incarnation=BATCH_INCARNATION)
    return of, chunk(at, name.encode())


def test_names_of_old_batches_are_refused_and_never_taken_twice(opened, store, clock, site):
    """A batch of last year is not published again, and I hear that it is there (PU-08)."""
    old, young = _named("1"), _named("2", at=1)
    publish_as(store, *old)
    publish_as(store, call(0), chunk(0, b"3"))
    clock.pass_hours(24 * 30)
    publish_as(store, *young)
    clock.pass_hours(24 * 60 + 1)
    assert (1, 0) == (expire_names(store, FEED), expire_names(store, FEED))
    site.crash()
    store = opened()

    for problem in (refused(publish_as, store, *old), refused(store.admit, FEED, old[0])):
        assert ("batch-expired", 410) == refusal(problem)
        assert "a batch '1' of producer 'p' was published" in problem.detail
    for again in (young, (call(0), chunk(0, b"3"))):
        assert not publish_as(store, *again)[1]
    assert [b"1", b"3", b"2"] == data(store)
    assert {"p", "p#1", "p#2"} == {each.name for each in store.producers(FEED)}
    assert {} == store.sequences(FEED, "p#1")


def test_names_are_kept_as_long_as_the_feed_says(store, clock):
    """For ever, or for an hour; a few in each transaction."""
    for each in range(5):
        publish_as(store, *_named(str(each)))
    store.set_retention(FEED, Retention(names_ms=None))
    clock.pass_hours(24 * 365)
    assert 0 == expire_names(store, FEED)
    store.set_retention(FEED, Retention(names_ms=3_600_000))
    before = store.now() - 3_600_000
    assert [2, 2, 1, 0] == [store.expire_names(FEED, before, 2) for _ in range(4)]


def test_idle_producers_expire_only_if_the_feed_says_so_and_are_refused_by_name(
    opened, store, clock, site
):
    """What nobody uses any more takes no room, and nothing of it is published a second time."""
    idle, used = call(0, producer="idle"), call(0, producer="used")
    for row, by in ((b"1", idle), (b"2", used), (b"3", call(0))):
        publish_as(store, by, chunk(0, row))
    publish_as(store, *_named("4"))
    clock.pass_hours(24 * 365)
    publish_as(store, replace(used, batch=1), chunk(0, b"5"))
    publish_as(store, *_named("6"))
    assert 0 == expire_producers(store, FEED)
    kept = Retention(producers_ms=3_600_000)
    store.set_retention(FEED, kept)
    assert (1, 0) == (expire_producers(store, FEED), expire_producers(store, FEED))
    site.crash()
    store = opened()

    assert kept == store.retention(FEED)
    assert ["idle"] == [each.name for each in store.producers(FEED) if each.deleted]
    assert ({}, []) == (store.sequences(FEED, "idle"), store.receipts(FEED, "idle", 1 << 40, 9))
    for again in (idle, replace(idle, batch=1)):
        problem = refused(publish_as, store, again, chunk(0, b"7"))
        assert ("producer-deleted", 410) == refusal(problem)
        assert "has expired because it was idle" in str(problem)
    for once_more in (_named("4"), (call(0), chunk(0, b"3"))):
        assert not publish_as(store, *once_more)[1]
    assert [b"1", b"2", b"3", b"4", b"5", b"6"] == data(store)


def test_idle_producers_expire_a_few_in_each_transaction(store, clock):
    """Other writers of the feed do not wait for long."""
    for each in range(5):
        publish_as(store, call(0, producer=f"p{each}"), chunk(0, b"1"))
    clock.pass_hours(1)
    assert [2, 2, 1, 0] == [store.expire_producers(FEED, store.now(), 2) for _ in range(4)]


def test_a_publisher_lets_producers_and_names_expire(store, clock):
    """Nobody has to remember it."""
    publish_as(store, call(0, producer="q"), chunk(0, b"1"))
    publish_as(store, *_named("1"))
    store.set_retention(FEED, Retention(producers_ms=3_600_000))
    clock.pass_hours(24 * 91)
    store.see_clock(store.now())
    with Pruner(store, every_seconds=0.01):
        eventually(lambda: store.producer(FEED, "q").deleted)
        eventually(lambda: not store.receipts(FEED, "p#1", 1 << 40, 1))


def test_many_chunks_go_in_small_steps(store, monkeypatch):
    """Writers are not held up by a year of removals. Frames go too: their space is free."""
    monkeypatch.setattr(retention, "STEP_CHUNKS", 4)
    publish(store, *[large(each % 2, b"%d" % each) for each in range(11)])
    found = everything(store)
    steps, remove = [], store.remove

    def counted(feed: str, upto: int, by: Actor | None) -> None:
        steps.append(upto)
        remove(feed, upto, by=by)

    monkeypatch.setattr(store, "remove", counted)
    assert 11 == prune(store, FEED, NOTHING).chunks
    assert ([4, 8, 11], []) == (steps, everything(store))
    for each in found:
        with pytest.raises(StoreError, match=r"the store is damaged: it has no|is in none now"):
            frames_of(store, [each])


def test_numbers_and_positions_go_on(opened, store, site):
    """A feed that was emptied is the same feed."""
    for batch in range(3):
        publish_as(store, call(batch), chunk(0, b"%d" % batch))
    prune(store, FEED, NOTHING)
    site.crash()
    store = opened()
    receipt, _ = publish_as(store, call(3), chunk(0, b"3"))
    assert ((4, 4), 3) == (receipt.positions, receipt.ranges[0].first)
    assert not publish_as(store, call(1), chunk(0, b"1"))[1]
    assert [b"3"] == data(store)


def test_pruner_goes_on_whatever_fails(store, monkeypatch, caplog):
    """An error in one round does not end retention."""
    three(store)
    store.set_retention(FEED, Retention(bytes=1))
    faults, remove = iter([RuntimeError("a bug"), StoreBusyError("later")]), store.remove

    def failing(feed: str, upto: int, by: Actor | None) -> None:
        if fault := next(faults, None):
            raise fault
        remove(feed, upto, by=by)

    monkeypatch.setattr(store, "remove", failing)
    with Pruner(store, every_seconds=0.01):
        eventually(lambda: not everything(store))
    assert "old events stay for now: [ZEH_STORE] later" in caplog.text


# The decision


@pytest.mark.parametrize(
    ("times", "now", "limits", "steps"),
    [
        ([10, 30, 20], 30, Retention(age_ms=75), [1]),
        ([1, 2, 3, 4], 40, Retention(age_ms=98, bytes=15), [1, 2, 3]),
    ],
    ids=["a beginning of the log, without a hole", "either limit is enough"],
)
def test_what_is_removed(times, now, limits, steps):
    """Of a log of chunks of 10 bytes."""
    log = [Chunk(g, 0, 1, 10, time, "", "p", 0, 0) for g, time in enumerate(times, 1)]
    found = removable(log, now, limits, 100, lambda _: None)
    assert steps == [each.upto for each in found]
