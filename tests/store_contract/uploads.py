"""The contract for uploads: how long they are kept, and what drops them, but never a commit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from tests.patience import eventually
from tests.store_contract.writers import (
    FEED,
    call,
    chunk,
    commit,
    data,
    declared,
    publish,
    refusal,
    refused,
    upload,
)
from zeh_spark.publisher import Problem
from zeh_spark.service.retention.pruner import Pruner
from zeh_spark.service.sql.execution import attempted
from zeh_spark.service.store.batches import UPLOAD_BYTES, TaskAttempt, Upload

ONE = upload(chunk(0, b"1"))
SIZE = ONE.bytes


def different(number: int, *, task: int = 0) -> Upload:
    """Return an upload with other data for each number, and always of the same size."""
    return upload(chunk(0, b"%d" % (number + 2)), task=task)


def test_released_batch_cannot_be_committed(store):
    """A batch that I gave up is never published."""
    store.stage(FEED, call(), ONE)
    assert 1 == store.release(FEED, "p", 0, "r1")
    problem = refused(store.commit, FEED, call(), declared(ONE))
    assert (("upload-missing", 409), []) == (refusal(problem), data(store))


def test_release_of_an_attempt_leaves_the_others(store):
    """A task that fails removes what it has sent, and nothing of other tasks (F1)."""
    for task in (0, 1):
        store.stage(FEED, call(), different(task, task=task))
    assert (0, 1) == tuple(store.release(FEED, "p", 0, "r1", (1, each)) for each in (7, 0))
    assert store.commit(FEED, call(), declared(different(0)))[1]


def test_staged_bytes_are_told_by_feed(store):
    """The operator sees what is uploaded and not committed."""
    store.create("other", 1)
    before = store.staged()
    store.stage(FEED, call(), ONE)
    store.stage(FEED, call(run="r2"), ONE)
    staged = store.staged()
    store.release(FEED, "p", 0, "r2")
    store.commit(FEED, call(), declared(ONE))
    assert ({}, {FEED: 2 * SIZE}, {}) == (before, staged, store.staged())


def test_quota_bounds_what_a_producer_has_staged(store):
    """One job cannot fill the disk for everybody; what it has sent already stays."""
    first, second, third = ONE, different(0, task=1), different(0, task=2)
    for each in (first, second):
        store.stage(FEED, call(), each, quota=2 * SIZE)
    problem = refused(store.stage, FEED, call(), third, quota=2 * SIZE)
    assert ("quota-exceeded", 507) == refusal(problem)
    assert {"quota": 2 * SIZE, "staged": 2 * SIZE}.items() <= problem.members.items()
    store.stage(FEED, call(), first, quota=2 * SIZE)
    store.stage(FEED, call(producer="q"), third, quota=2 * SIZE)
    assert store.commit(FEED, call(), declared(first, second))[1]


def test_named_batches_share_a_quota(store):
    """A job that fails each time under a new name does not fill the disk (F16)."""
    first, second, third = (call(producer=f"p#{each}", incarnation="batch") for each in "abc")
    for by in (first, second):
        store.stage(FEED, by, ONE, 2 * SIZE)
    problem = refused(store.stage, FEED, third, ONE, 2 * SIZE)
    assert ("quota-exceeded", 507) == refusal(problem)


def test_quota_counts_uploads_without_events(store):
    """Each is kept, and so costs something."""
    quota = 3 * UPLOAD_BYTES
    for task in range(3):
        store.stage(FEED, call(), upload(task=task), quota=quota)
    problem = refused(store.stage, FEED, call(), upload(task=3), quota=quota)
    assert ("quota-exceeded", 507) == refusal(problem)
    assert 1 == store.release(FEED, "p", 0, "r1", (0, 0))
    store.stage(FEED, call(), upload(task=3), quota=quota)


def test_staged_chunks_are_those_of_the_attempts_that_count(store):
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


def test_release_after_the_commit_undoes_nothing(store):
    """Spark may abort a batch that was committed, if it did not get the answer (F6)."""
    receipt, _ = commit(store, call(), ONE)
    assert 0 == store.release(FEED, "p", 0, "r1")
    assert ([b"1"], receipt) == (data(store), store.receipt(FEED, "p", 0, None))


def test_release_drops_only_what_the_run_itself_sent(store):
    """A zombie that gives up does not remove my rows (F6, F7)."""
    mine = call(0, run="r1"), call(0, run="r1", producer="q")
    for by in (*mine, call(0, run="r2")):
        store.stage(FEED, by, ONE)
    assert 1 == store.release(FEED, "p", 0, "r2")
    assert all(store.commit(FEED, by, declared(ONE))[1] for by in mine)


def test_release_of_many_uploads_drops_all_of_them(store):
    """Giving up a large batch leaves nothing, of any incarnation: a run is known by its name."""
    for task in range(150):
        store.stage(FEED, call(), upload(chunk(0, b"1"), task=task))
    store.stage(FEED, call(incarnation="b"), ONE)
    assert [151, 0] == [store.release(FEED, "p", 0, "r1") for _ in range(2)]


def test_uploads_of_no_more_use_are_dropped(store, site):
    """Those of attempts that failed (F1, A8), and those of a zombie for later batches (F7)."""
    store.stage(FEED, call(run="r0"), ONE)
    store.stage(FEED, call(), upload(chunk(0, b"2"), attempt=7))
    commit(store, call(), ONE)
    store.stage(FEED, call(1), ONE)
    commit(store, call(1, run="r2"), ONE)
    store.stage(FEED, call(2, run="r2"), ONE)
    commit(store, call(0, producer="q"), ONE)
    site.settle()
    sent = ((0, "r0"), (0, "r1"), (1, "r1"), (2, "r2"))
    assert [0, 0, 0, 1] == [store.release(FEED, "p", *at) for at in sent]


def test_batches_left_for_a_day_are_dropped(store, site, clock):
    """Crashed jobs do not fill the disk for ever (A8). What was dropped can be sent again: how long
    it is kept is a question of cost, not of safety (F3).
    """
    store.stage(FEED, call(run="crashed"), ONE)
    store.stage(FEED, call(None, run="crashed"), ONE)
    clock.pass_hours(25)
    store.stage(FEED, call(run="slow"), ONE)
    publish(store, chunk(0, b"1"))
    site.settle()
    sent = ((0, "crashed"), (None, "crashed"), (0, "slow"))
    left = [store.release(FEED, "p", batch, run) for batch, run in sent]
    assert [0, 0, 1] == left
    problem = refused(store.commit, FEED, call(run="crashed"), declared(ONE))
    assert ("upload-missing", 409) == refusal(problem)
    assert commit(store, call(run="crashed"), ONE)[1]


def test_batch_that_takes_longer_than_a_day_is_kept(store, site, clock):
    """A batch lives as long as its tasks send something (A8)."""
    uploads = [upload(chunk(0, b"%d" % task), task=task) for task in range(1, 5)]
    for each in uploads:
        store.stage(FEED, call(), each)
        clock.pass_hours(20)
        publish(store, chunk(1, b"0"))
        site.settle()
    assert store.commit(FEED, call(), declared(*uploads))[1]


def test_old_uploads_go_though_nobody_uploads_again(store, clock):
    """What a crashed job left does not fill the disk for ever."""
    store.stage(FEED, call(), ONE)
    clock.pass_hours(23)
    with Pruner(store, every_seconds=0.01):
        with pytest.raises(Problem, match="with other content"):
            store.stage(FEED, call(), different(0))
        clock.pass_hours(2)
        again = partial(store.stage, FEED, call(), different(0))
        eventually(lambda: attempted(again).exception() is None)


def test_quota_does_not_count_what_an_attempt_gave_back(store):
    """A task that fails again and again at a bad row does not use up the quota (A8)."""
    for number in range(5):
        store.stage(FEED, call(), different(0, task=1), quota=2 * SIZE)
        store.stage(FEED, call(), replace(ONE, attempt=number), quota=2 * SIZE)
        assert 1 == store.release(FEED, "p", 0, "r1", (0, number))


@pytest.mark.parametrize("is_numbered", [True, False])
def test_quota_does_not_count_what_is_committed(store, is_numbered):
    """Many batches or loads one after the other need no more quota than one of them."""
    for number in range(5):
        by = call(number) if is_numbered else call(None, run=f"r{number}")
        store.stage(FEED, by, ONE, quota=SIZE)
        store.commit(FEED, by, declared(ONE))
    assert 5 == len(data(store))


def test_full_quota_gives_the_room_of_crashed_runs(store, clock):
    """A job that crashed and starts again is not refused because of what it left (A8)."""
    store.stage(FEED, call(run="crashed"), ONE, quota=SIZE)
    refused(store.stage, FEED, call(run="r2"), ONE, quota=SIZE)
    clock.pass_hours(0.2)
    store.stage(FEED, call(run="r2"), ONE, quota=SIZE)
    assert store.commit(FEED, call(run="r2"), declared(ONE))[1]


def test_full_quota_takes_nothing_of_the_batch_that_is_uploaded(store, clock):
    """A batch whose tasks send nothing for ten minutes keeps what was acknowledged (A8)."""
    uploads = [different(0, task=task) for task in range(3)]
    for each in uploads[:2]:
        store.stage(FEED, call(), each, quota=2 * SIZE)
    clock.pass_hours(0.2)
    problem = refused(store.stage, FEED, call(), uploads[2], quota=2 * SIZE)
    assert ("quota-exceeded", 507) == refusal(problem)
    assert store.commit(FEED, call(), declared(*uploads[:2]))[1]


def test_full_quota_gives_the_room_of_committed_batches(store):
    """Uploads of a committed batch do not count, even before they are cleaned up."""
    store.stage(FEED, call(0, run="twin"), ONE)
    commit(store, call(0), ONE)
    store.stage(FEED, call(1), different(1), quota=SIZE)
    assert store.commit(FEED, call(1), declared(different(1)))[1]
