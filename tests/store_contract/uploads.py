"""The contract for uploads: how long they are kept, and what drops them, but never a commit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from tests.store_contract.site import Site, StoppedClock
from tests.store_contract.writers import (
    FEED,
    call,
    chunk,
    commit,
    data,
    declared,
    publish,
    refusal,
    until,
    upload,
)
from zeh_spark.publisher import Problem, Store
from zeh_spark.retention.pruner import Pruner
from zeh_spark.store.batches import UPLOAD_BYTES, TaskAttempt, Upload
from zeh_spark.store.outcome import attempted

ONE = upload(chunk(0, b"1"))
SIZE = ONE.bytes


def different(number: int, *, task: int = 0) -> Upload:
    """Return an upload with other data for each number, and always of the same size."""
    return upload(chunk(0, b"%d" % (number + 2)), task=task)


def test_released_batch_cannot_be_committed(store: Store) -> None:
    """A batch that I gave up is never published."""
    store.stage(FEED, call(), ONE)
    assert 1 == store.release(FEED, "p", 0, "r1")
    with pytest.raises(Problem) as refused:
        store.commit(FEED, call(), declared(ONE))
    assert (("upload-missing", 409), []) == (refusal(refused.value), data(store))


def test_release_of_an_attempt_leaves_the_others(store: Store) -> None:
    """A task that fails removes what it has sent, and nothing of other tasks (F1)."""
    for task in (0, 1):
        store.stage(FEED, call(), different(task, task=task))
    assert (0, 1) == tuple(store.release(FEED, "p", 0, "r1", (1, each)) for each in (7, 0))
    assert store.commit(FEED, call(), declared(different(0)))[1]


def test_staged_bytes_are_told_by_feed(store: Store) -> None:
    """The operator sees what is uploaded and not committed."""
    store.create("other", 1)
    before = store.staged()
    store.stage(FEED, call(), ONE)
    store.stage(FEED, call(run="r2"), ONE)
    staged = store.staged()
    store.release(FEED, "p", 0, "r2")
    store.commit(FEED, call(), declared(ONE))
    assert ({}, {FEED: 2 * SIZE}, {}) == (before, staged, store.staged())


def test_named_batches_share_a_quota(store: Store) -> None:
    """A job that fails each time under a new name does not fill the disk (F16)."""
    for name in ("p#a", "p#b"):
        store.stage(FEED, call(producer=name, incarnation="batch"), ONE, 2 * SIZE)
    with pytest.raises(Problem) as refused:
        store.stage(FEED, call(producer="p#c", incarnation="batch"), ONE, 2 * SIZE)
    assert ("quota-exceeded", 507) == refusal(refused.value)


def test_staged_chunks_are_those_of_the_attempts_that_count(store: Store) -> None:
    """What another attempt has sent, or another run, makes my batch no larger."""
    large = upload(*(chunk(each % 2, b"%d" % each) for each in range(70)), task=1)
    store.stage(FEED, call(), large)
    for task, attempt, number in ((0, 0, 0), (0, 0, 1), (0, 1, 0)):
        store.stage(FEED, call(), upload(chunk(0, b"1"), task=task, attempt=attempt, number=number))
    store.stage(FEED, call(run="r2"), ONE)
    store.stage(FEED, call(), upload(task=2))
    counted = [TaskAttempt(0, 0, 2, 2), TaskAttempt(1, 0, 1, 70), TaskAttempt(2, 0, 1, 0)]
    assert 2 + 70 == store.staged_chunks(FEED, call(), counted)
    assert 0 == store.staged_chunks(FEED, call(7), counted)


def test_release_after_the_commit_undoes_nothing(store: Store) -> None:
    """Spark may abort a batch that was committed, if it did not get the answer (F6)."""
    receipt, _ = commit(store, call(), ONE)
    assert 0 == store.release(FEED, "p", 0, "r1")
    assert ([b"1"], receipt) == (data(store), store.receipt(FEED, "p", 0, None))


def test_release_drops_only_what_the_run_itself_sent(store: Store) -> None:
    """A zombie that gives up does not remove my rows (F6, F7)."""
    for by in (call(0, run="r1"), call(0, run="r2"), call(0, run="r1", producer="q")):
        store.stage(FEED, by, ONE)
    assert 1 == store.release(FEED, "p", 0, "r2")
    assert store.commit(FEED, call(0, run="r1"), declared(ONE))[1]
    assert store.commit(FEED, call(0, run="r1", producer="q"), declared(ONE))[1]


def test_release_of_many_uploads_drops_all_of_them(store: Store) -> None:
    """Giving up a large batch leaves nothing."""
    for task in range(150):
        store.stage(FEED, call(), upload(chunk(0, b"1"), task=task))
    assert [150, 0] == [store.release(FEED, "p", 0, "r1") for _ in range(2)]


def test_release_drops_what_a_run_sent_under_two_incarnations(store: Store) -> None:
    """A run is known by its name alone."""
    for incarnation in ("a", "b"):
        store.stage(FEED, call(incarnation=incarnation), ONE)
    assert 2 == store.release(FEED, "p", 0, "r1")


def test_failed_attempts_of_a_committed_batch_are_dropped(store: Store, site: Site) -> None:
    """Uploads of attempts that failed are not kept (F1, A8)."""
    store.stage(FEED, call(run="r0"), ONE)
    store.stage(FEED, call(), upload(chunk(0, b"2"), attempt=7))
    commit(store, call(), ONE)
    site.settle()
    assert [0, 0] == [store.release(FEED, "p", 0, run) for run in ("r0", "r1")]


def test_uploads_of_an_overtaken_run_are_dropped(store: Store, site: Site) -> None:
    """Uploads of a zombie for later batches are of no use (F7)."""
    commit(store, call(0, run="r1"), ONE)
    store.stage(FEED, call(1, run="r1"), ONE)
    commit(store, call(1, run="r2"), ONE)
    store.stage(FEED, call(2, run="r2"), ONE)
    commit(store, call(0, producer="q"), ONE)
    site.settle()
    assert [0, 1] == [store.release(FEED, "p", *at) for at in ((1, "r1"), (2, "r2"))]


def test_batches_left_for_a_day_are_dropped(store: Store, site: Site, clock: StoppedClock) -> None:
    """Crashed jobs do not fill the disk for ever (A8)."""
    store.stage(FEED, call(run="crashed"), ONE)
    store.stage(FEED, call(None, run="crashed"), ONE)
    clock.pass_hours(25)
    store.stage(FEED, call(run="slow"), ONE)
    publish(store, chunk(0, b"1"))
    site.settle()
    sent = ((0, "crashed"), (None, "crashed"), (0, "slow"))
    left = [store.release(FEED, "p", batch, run) for batch, run in sent]
    assert [0, 0, 1] == left


def test_batch_that_takes_longer_than_a_day_is_kept(
    store: Store, site: Site, clock: StoppedClock
) -> None:
    """A batch lives as long as its tasks send something (A8)."""
    uploads = [upload(chunk(0, b"%d" % task), task=task) for task in range(1, 5)]
    for each in uploads:
        store.stage(FEED, call(), each)
        clock.pass_hours(20)
        publish(store, chunk(1, b"0"))
        site.settle()
    assert store.commit(FEED, call(), declared(*uploads))[1]


def test_dropped_uploads_can_be_sent_again(store: Store, site: Site, clock: StoppedClock) -> None:
    """How long uploads are kept is a question of cost, not of safety (F3)."""
    store.stage(FEED, call(), ONE)
    clock.pass_hours(25)
    publish(store, chunk(1, b"0"))
    site.settle()
    with pytest.raises(Problem) as refused:
        store.commit(FEED, call(), declared(ONE))
    assert ("upload-missing", 409) == refusal(refused.value)
    assert commit(store, call(), ONE)[1]


def test_quota_bounds_what_a_producer_has_staged(store: Store) -> None:
    """One job cannot fill the disk for everybody; what it has sent already stays."""
    store.stage(FEED, call(), ONE, quota=2 * SIZE)
    store.stage(FEED, call(), different(0, task=1), quota=2 * SIZE)
    with pytest.raises(Problem) as refused:
        store.stage(FEED, call(), different(0, task=2), quota=2 * SIZE)
    assert ("quota-exceeded", 507) == refusal(refused.value)
    assert (2 * SIZE, 2 * SIZE) == tuple(refused.value.members[n] for n in ("quota", "staged"))
    store.stage(FEED, call(), ONE, quota=2 * SIZE)
    store.stage(FEED, call(producer="q"), different(0, task=2), quota=2 * SIZE)
    assert store.commit(FEED, call(), declared(ONE, different(0, task=1)))[1]


def test_quota_counts_uploads_without_events(store: Store) -> None:
    """Each is kept, and so costs something."""
    quota = 3 * UPLOAD_BYTES
    for task in range(3):
        store.stage(FEED, call(), upload(task=task), quota=quota)
    with pytest.raises(Problem) as refused:
        store.stage(FEED, call(), upload(task=3), quota=quota)
    assert ("quota-exceeded", 507) == refusal(refused.value)
    assert 1 == store.release(FEED, "p", 0, "r1", (0, 0))
    store.stage(FEED, call(), upload(task=3), quota=quota)


def test_old_uploads_go_though_nobody_uploads_again(store: Store, clock: StoppedClock) -> None:
    """What a crashed job left does not fill the disk for ever."""
    store.stage(FEED, call(), ONE)
    clock.pass_hours(23)
    with Pruner(store, every_seconds=0.01):
        with pytest.raises(Problem, match="with other content"):
            store.stage(FEED, call(), different(0))
        clock.pass_hours(2)
        again = partial(store.stage, FEED, call(), different(0))
        until(lambda: attempted(again).exception() is None)


def test_quota_does_not_count_what_an_attempt_gave_back(store: Store) -> None:
    """A task that fails again and again at a bad row does not use up the quota (A8)."""
    for number in range(5):
        store.stage(FEED, call(), different(0, task=1), quota=2 * SIZE)
        tried = replace(ONE, attempt=number)
        store.stage(FEED, call(), tried, quota=2 * SIZE)
        assert 1 == store.release(FEED, "p", 0, "r1", (tried.task, number))


def test_quota_does_not_count_what_is_committed(store: Store) -> None:
    """Many batches one after the other need no more quota than one of them."""
    for number in range(5):
        store.stage(FEED, call(number), ONE, quota=SIZE)
        store.commit(FEED, call(number), declared(ONE))
    assert 5 == len(data(store))


def test_quota_does_not_count_next_batches_that_are_committed(store: Store) -> None:
    """Many loads one after the other need no more quota than one of them."""
    for number in range(5):
        by = call(None, run=f"r{number}")
        store.stage(FEED, by, ONE, quota=SIZE)
        store.commit(FEED, by, declared(ONE))
    assert 5 == len(data(store))


def test_full_quota_gives_the_room_of_crashed_runs(store: Store, clock: StoppedClock) -> None:
    """A job that crashed and starts again is not refused because of what it left (A8)."""
    store.stage(FEED, call(run="crashed"), ONE, quota=SIZE)
    with pytest.raises(Problem):
        store.stage(FEED, call(run="r2"), ONE, quota=SIZE)
    clock.pass_hours(0.2)
    store.stage(FEED, call(run="r2"), ONE, quota=SIZE)
    assert store.commit(FEED, call(run="r2"), declared(ONE))[1]


def test_full_quota_gives_the_room_of_committed_batches(store: Store) -> None:
    """Uploads of a committed batch do not count, even before they are cleaned up."""
    store.stage(FEED, call(0, run="twin"), ONE)
    commit(store, call(0), ONE)
    store.stage(FEED, call(1), different(1), quota=SIZE)
    assert store.commit(FEED, call(1), declared(different(1)))[1]
