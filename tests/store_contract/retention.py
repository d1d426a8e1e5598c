"""The contract for retention: events are removed as set, and no reader misses one unnoticed."""

from __future__ import annotations

import pytest

from tests.store_contract.site import Opened, Site, StoppedClock
from tests.store_contract.writers import (
    FEED,
    call,
    chunk,
    commit,
    data,
    everything,
    large,
    publish,
    publish_as,
    refusal,
    until,
)
from tests.store_contract.writers import upload as upload_of
from zeh_spark.protocol.upload_format import StagedChunk
from zeh_spark.protocol.wire import BATCH_INCARNATION
from zeh_spark.publisher import Problem, Store
from zeh_spark.retention import rules as retention
from zeh_spark.retention.pruner import Pruner
from zeh_spark.retention.rules import (
    Removal,
    expire_names,
    expire_producers,
    plan,
    prune,
    removable,
)
from zeh_spark.store.acts import Actor
from zeh_spark.store.batches import Call
from zeh_spark.store.interface import Chunk, Retention, StoreBusyError

NOTHING = Retention(bytes=1)
"""A retention that keeps nothing: even the newest chunk is larger."""


def three(store: Store) -> None:
    """Publish three chunks: 1 and 3 in partition 0, 2 in partition 1."""
    for partition, each in ((0, b"1"), (1, b"2"), (0, b"3")):
        publish(store, chunk(partition, each))


# What is removed


def test_events_go_when_they_are_old_enough(store: Store, clock: StoppedClock) -> None:
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


def test_feed_keeps_the_newest_events_up_to_its_size(store: Store) -> None:
    """My disk does not fill up."""
    three(store)
    size = everything(store)[0].size
    assert (2, 2) == (plan(store, FEED, Retention(bytes=size)).chunks,) * 2
    prune(store, FEED, Retention(bytes=2 * size))
    assert [b"2", b"3"] == data(store)
    assert 2 * size == store.feeds()[0].size


def test_nothing_goes_unless_it_was_asked_for(store: Store) -> None:
    """A feed keeps all its events for ever."""
    three(store)
    assert (Retention(), Removal()) == (store.retention(FEED), prune(store, FEED, Retention()))
    assert 3 == len(data(store))


def test_what_is_kept_is_remembered(opened: Opened, store: Store, site: Site) -> None:
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


def test_names_of_old_batches_are_refused_and_never_taken_twice(
    opened: Opened, store: Store, clock: StoppedClock, site: Site
) -> None:
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

    for work in (lambda: publish_as(store, *old), lambda: store.admit(FEED, old[0])):
        with pytest.raises(Problem) as refused:
            work()
        assert ("batch-expired", 410) == refusal(refused.value)
        assert "a batch '1' of producer 'p' was published" in refused.value.detail
    assert not publish_as(store, *young)[1]
    assert not publish_as(store, call(0), chunk(0, b"3"))[1]
    assert [b"1", b"3", b"2"] == data(store)
    assert {"p", "p#1", "p#2"} == {each.name for each in store.producers(FEED)}
    assert {} == store.sequences(FEED, "p#1")


def test_names_are_kept_as_long_as_the_feed_says(store: Store, clock: StoppedClock) -> None:
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
    opened: Opened, store: Store, clock: StoppedClock, site: Site
) -> None:
    """What nobody uses any more takes no room, and nothing of it is published a second time."""
    idle = call(0, producer="idle")
    publish_as(store, idle, chunk(0, b"1"))
    publish_as(store, call(0, producer="used"), chunk(0, b"2"))
    publish_as(store, call(0), chunk(0, b"3"))
    publish_as(store, *_named("4"))
    clock.pass_hours(24 * 365)
    publish_as(store, call(1, producer="used"), chunk(0, b"5"))
    publish_as(store, *_named("6"))
    assert 0 == expire_producers(store, FEED)
    store.set_retention(FEED, Retention(producers_ms=3_600_000))
    assert (1, 0) == (expire_producers(store, FEED), expire_producers(store, FEED))
    site.crash()
    store = opened()

    assert Retention(producers_ms=3_600_000) == store.retention(FEED)
    assert ["idle"] == [each.name for each in store.producers(FEED) if each.deleted]
    assert ({}, []) == (store.sequences(FEED, "idle"), store.receipts(FEED, "idle", 1 << 40, 9))
    for again in (idle, call(1, producer="idle")):
        with pytest.raises(Problem, match="has expired because it was idle") as refused:
            publish_as(store, again, chunk(0, b"7"))
        assert ("producer-deleted", 410) == refusal(refused.value)
    assert not publish_as(store, *_named("4"))[1]
    assert not publish_as(store, call(0), chunk(0, b"3"))[1]
    assert [b"1", b"2", b"3", b"4", b"5", b"6"] == data(store)


def test_idle_producers_expire_a_few_in_each_transaction(store: Store, clock: StoppedClock) -> None:
    """Other writers of the feed do not wait for long."""
    for each in range(5):
        publish_as(store, call(0, producer=f"p{each}"), chunk(0, b"1"))
    clock.pass_hours(1)
    assert [2, 2, 1, 0] == [store.expire_producers(FEED, store.now(), 2) for _ in range(4)]


def test_a_publisher_lets_producers_expire(store: Store, clock: StoppedClock) -> None:
    """Nobody has to remember it."""
    publish_as(store, call(0), chunk(0, b"1"))
    store.set_retention(FEED, Retention(producers_ms=3_600_000))
    clock.pass_hours(2)
    store.see_clock(store.now())
    with Pruner(store, every_seconds=0.01):
        until(lambda: store.producer(FEED, "p").deleted)


def test_a_publisher_lets_names_expire(store: Store, clock: StoppedClock) -> None:
    """Nobody has to remember it."""
    publish_as(store, *_named("1"))
    clock.pass_hours(24 * 91)
    store.see_clock(store.now())
    with Pruner(store, every_seconds=0.01):
        until(lambda: not store.receipts(FEED, "p#1", 1 << 40, 1))


def test_many_chunks_go_in_small_steps(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers are not held up while a year of events is removed."""
    monkeypatch.setattr(retention, "STEP_CHUNKS", 4)
    publish(store, *[large(each % 2, b"%d" % each) for each in range(11)])
    steps, remove = [], store.remove

    def counted(feed: str, upto: int, by: Actor | None) -> None:
        steps.append(upto)
        remove(feed, upto, by=by)

    monkeypatch.setattr(store, "remove", counted)
    assert 11 == prune(store, FEED, NOTHING).chunks
    assert [4, 8, 11] == steps
    assert [] == everything(store)


def test_frames_go_with_their_chunks(store: Store) -> None:
    """Their space is free for new events."""
    three(store)
    blobs = [each.blob for each in everything(store)]
    prune(store, FEED, NOTHING)
    for blob in blobs:
        with pytest.raises(Exception, match=f"no frame {blob}"):
            store.frames([blob])


def test_numbers_and_positions_go_on(opened: Opened, store: Store, site: Site) -> None:
    """A feed that was emptied is the same feed."""
    for batch in range(3):
        commit(store, call(batch), upload_of(chunk(0, b"%d" % batch)))
    prune(store, FEED, NOTHING)
    site.crash()
    store = opened()
    receipt, _ = commit(store, call(3), upload_of(chunk(0, b"3")))
    assert ((4, 4), 3) == (receipt.positions, receipt.ranges[0].first)
    assert not commit(store, call(1), upload_of(chunk(0, b"1")))[1]
    assert [b"3"] == data(store)


def test_pruner_goes_on_whatever_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
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
        until(lambda: not everything(store))
    assert "old events stay for now: [ZEH_STORE] later" in caplog.text


# The decision


def _chunk(g: int, time: int, size: int = 10) -> Chunk:
    return Chunk(g, 0, 1, size, time, "", 0)


def test_removal_ends_at_the_first_chunk_that_stays() -> None:
    """Removal takes a beginning of the log, and never leaves a hole in it."""
    log = [_chunk(1, 10), _chunk(2, 30), _chunk(3, 20)]
    steps = list(removable(log, 30, Retention(age_ms=75), 100, lambda _: None))
    assert [1] == [each.upto for each in steps]


def test_either_limit_is_enough() -> None:
    """An event is removed if it is too old, or if the feed is too large."""
    log = [_chunk(g, g) for g in range(1, 5)]
    steps = list(removable(log, 40, Retention(age_ms=98, bytes=15), 100, lambda _: None))
    assert [1, 2, 3] == [each.upto for each in steps]
