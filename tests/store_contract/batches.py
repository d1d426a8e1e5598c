"""The contract for a producer's batches: staged by tasks, committed whole and once, in one order.

A code in a docstring, like F3 or KA-05, names the failure mode or promise that the test is about;
`tests/README.md` has their list.
"""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scratch_store import ScratchStore
from tests.store_contract.site import Opened
from tests.store_contract.writers import (
    FEED,
    call,
    chunk,
    commit,
    data,
    declared,
    everything,
    in_a_process,
    large,
    publish,
    publish_as,
    refusal,
    refused,
    upload,
)
from zeh_spark.publisher import Problem
from zeh_spark.service.store.batches import (
    Call,
    Declared,
    StagingResult,
    StoredReceipt,
    TaskAttempt,
)
from zeh_spark.service.store.commit_plan import JOINED_BYTES, SMALL_EVENTS
from zeh_spark.service.store.token_rights import Maker
from zeh_spark.wire.upload_format import Content
from zeh_spark.wire.wire import BATCH_INCARNATION


def test_uploads_are_invisible_before_their_commit(store):
    """No event of a batch is visible before the batch is complete (BQ-01, KA-05)."""
    store.stage(FEED, call(), upload(chunk(0, b"1")))
    assert (0, [], []) == (store.feed(FEED).head, everything(store), store.producers(FEED))


def test_committed_batch_survives_a_crash_of_the_publisher(site, store):
    """An acknowledged batch stays, with its receipt; others are published once (F3, F14, PU-01)."""
    store.stage(FEED, call(run="r1"), upload(chunk(0, b"1")))
    site.crash()
    receipt, _ = commit(site.open(), call(run="r2"), upload(chunk(0, b"1")))
    site.crash()
    again = site.open()
    assert (receipt, False) == commit(again, call(run="r2"), upload(chunk(0, b"1")))
    assert [b"1"] == data(again)


def test_batch_commits_once_and_answers_the_same_again(store):
    """I can repeat a commit whose answer was lost, also if Spark divides the rows into other tasks
    and shuffles them again, or if the feed's partitions have changed.

    (F4, F5, F10, F11, A10, EX-01, EX-02, KA-02, PU-09)
    """
    uploads = upload(chunk(0, b"1", b"2")), upload(chunk(1, b"3"), task=1)
    receipt, new = commit(store, call(), *uploads)
    other = upload(chunk(0, b"3")), upload(chunk(1, b"2", b"1"), task=1)
    elsewhere = upload(chunk(2, b"1", b"2", b"3"))
    again = [
        store.commit(FEED, call(), declared(*uploads)),
        store.commit(FEED, call(run="r2"), declared(*other)),
        store.commit(FEED, call(run="r2", partitions=3), declared(elsewhere)),
    ]
    assert (True, [(receipt, False)] * 3) == (new, again)
    assert [b"1", b"2", b"3"] == data(store)


@pytest.mark.parametrize("rows", [[b"1"], [b"1", b"3"], [b"1", b"2", b"3"], [b"1", b"1"], []])
def test_other_rows_under_a_committed_number_are_refused(store, rows):
    """My rows are never dropped without an error, nor doubled.

    (EX-03, EX-04, F9, F24, KA-01, PU-05)
    """
    receipt, _ = commit(store, call(), upload(chunk(0, b"1", b"2")))
    uploads = [upload(chunk(0, *rows))] if rows else []
    problem = refused(store.commit, FEED, call(run="r2"), declared(*uploads))
    assert ("batch-conflict", 409) == refusal(problem)
    assert {"events": 2, "digest": receipt.digest} == problem.members["published"]
    given = declared(*uploads).content
    assert {"events": len(rows), "digest": given.digest} == problem.members["given"]
    assert [b"1", b"2"] == data(store)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_sealed_attempt_can_never_be_committed(store, count):
    """An empty upload more than the commit names seals an attempt (F17).

    Its commit is refused, however late it and its uploads come. Another attempt continues under the
    same batch number.
    """
    first = [upload(chunk(0, b"%d" % at), number=at) for at in range(count)]
    second = [upload(chunk(0, b"%d" % at), number=at, attempt=1) for at in range(count)]
    content = declared(*first).content
    named, again = (Declared(content, (TaskAttempt(0, at, count, count),)) for at in (0, 1))
    for _ in range(3):
        for each in [*first, upload(number=count)]:
            store.stage(FEED, call(), each)
        assert ("upload-missing", 409) == refusal(refused(store.commit, FEED, call(), named))
    assert [] == data(store)
    for each in second:
        store.stage(FEED, call(), each)
    assert store.commit(FEED, call(), again)[1]
    assert not store.commit(FEED, call(), named)[1]
    assert count == len(data(store))


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_batch_with_a_missing_upload_is_refused_whole(store, missing):
    """A batch is never published in part, and can still be completed."""
    uploads = [upload(chunk(0, b"1")), upload(chunk(1, b"2"), number=1), upload(task=1)]
    for each in uploads[:missing] + uploads[missing + 1 :]:
        store.stage(FEED, call(), each)
    problem = refused(store.commit, FEED, call(), declared(*uploads))
    assert (("upload-missing", 409), []) == (refusal(problem), everything(store))
    assert commit(store, call(), *uploads)[1]


def test_content_that_is_not_the_drivers_is_refused_whole(store):
    """A body that was changed on the way is detected."""
    found, given = (upload(chunk(0, each)) for each in (b"2", b"1"))
    store.stage(FEED, call(), found)
    problem = refused(store.commit, FEED, call(), declared(given))
    assert (("content-mismatch", 422), []) == (refusal(problem), everything(store))
    told = [problem.members[each]["digest"] for each in ("found", "given")]
    assert [found.content.digest, given.content.digest] == told


def test_order_is_partition_task_upload_and_row(store):
    """A task's rows keep their order, tasks theirs, however they arrive (EH-07, EH-08, PU-06)."""
    uploads = [
        upload(large(0, b"5"), task=1, number=1),
        upload(large(1, b"7"), large(0, b"4"), task=1),
        upload(large(0, b"3"), task=0, number=1),
        upload(large(0, b"1"), large(1, b"6"), large(0, b"2"), task=0, attempt=9),
    ]
    uploads[2] = replace(uploads[2], attempt=9)
    commit(store, call(), *uploads)
    assert b"1234567" == b"".join(each for each in data(store) if each != b"0")


def test_only_the_attempts_that_are_named_are_published(store):
    """Failed attempts and speculative ones leave no events (F1, F2)."""
    for attempt, number in ((0, 0), (0, 1), (2, 0), (2, 1)):
        store.stage(FEED, call(), upload(chunk(0, b"1"), attempt=attempt, number=number))
    store.stage(FEED, call(), upload(chunk(0, b"1"), task=1))
    commit(store, call(), upload(chunk(0, b"2"), attempt=1))
    assert [b"2"] == data(store)


def test_upload_may_be_sent_again(store):
    """A lost answer does no harm (F5); two attempts of a task that have one name do not mix."""
    answers = [store.stage(FEED, call(), upload(chunk(0, b"1"))) for _ in range(2)]
    other = refused(store.stage, FEED, call(), upload(chunk(0, b"2")))
    commit(store, call(), upload(chunk(0, b"1")))
    assert [StagingResult.NEW, StagingResult.SAME] == answers
    assert (("upload-conflict", 409), [b"1"]) == (refusal(other), data(store))


def test_upload_of_a_committed_batch_gets_the_receipt(store):
    """A late task need not send its rows (F2)."""
    receipt, _ = commit(store, call(), upload(chunk(0, b"1")))
    late = call(run="r2")
    assert [receipt, receipt] == [
        store.stage(FEED, late, upload(chunk(0, b"1"))),
        store.admit(FEED, late),
    ]
    assert 0 == store.release(FEED, "p", 0, "r2")


def test_admit_keeps_nothing(store):
    """To ask whether an upload is wanted changes nothing."""
    assert store.admit(FEED, call()) is None
    assert "batch-gap" == refused(store.admit, FEED, call(3)).name
    assert [] == store.producers(FEED)


def test_empty_batches_count(store):
    """A trigger without rows leaves no gap (F19)."""
    receipt, new = commit(store, call(0))
    commit(store, call(1), upload(chunk(0, b"1")))
    assert (True, 0, (), None) == (new, receipt.events, receipt.ranges, receipt.positions)
    assert [b"1"] == data(store)


def test_batch_made_for_another_number_of_partitions_is_refused(store):
    """Keys keep their partition, and no event goes into one that nobody reads (F11, ZE-05)."""
    for problem in (
        refused(store.stage, FEED, call(partitions=3), upload(chunk(0, b"1"))),
        refused(store.commit, FEED, call(partitions=3), declared()),
    ):
        assert ("layout-changed", 409) == refusal(problem)
        assert 2 == problem.members["partitionCount"]
    refused(commit, store, call(), upload(chunk(0, b"1"), chunk(2, b"2")))
    assert [] == everything(store)


def test_receipt_tells_ranges_and_positions(store):
    """I know where each batch is on the feed (EH-05)."""
    commit(store, call(0), upload(chunk(0, b"1", b"2"), chunk(1, b"3")))
    receipt, _ = commit(store, call(1), upload(chunk(1, b"4", b"5")))
    (only,) = receipt.ranges
    cursor = everything(store)[2].cursor
    assert (1, 1, 2, cursor) == (only.partition, only.first, only.last, only.cursor)
    assert ((3, 3), 2) == (receipt.positions, receipt.events)
    assert receipt == store.receipt(FEED, "p", 1, None)


def test_chunks_know_their_producer_batch_and_number(store):
    """Each event has its number, per producer and partition, from 0, without gaps (EH-04)."""
    commit(store, call(0), upload(chunk(0, b"1", b"2"), chunk(1, b"3")))
    publish(store, chunk(0, b"4"))
    commit(store, call(1), upload(chunk(0, b"5"), chunk(1, b"6")))
    found = [(c.producer, c.batch, c.partition, c.sequence) for c in everything(store)]
    expected = [("p", 0, 0, 0), ("p", 0, 1, 0), ("test", 0, 0, 0), ("p", 1, 0, 2), ("p", 1, 1, 1)]
    assert expected == found


sizes = st.sampled_from([1, 3, 199, 200, 201, 700])


@given(st.lists(st.tuples(st.integers(0, 2), sizes), max_size=12))
def test_packing_keeps_order_and_numbers(cut):
    """However tasks divide the rows, the feed has all in order, with numbers without gaps."""
    store = ScratchStore(orders=3)
    uploads = [
        upload(chunk(partition, *(b'"%d.%d"' % (task, row) for row in range(rows))), task=task)
        for task, (partition, rows) in enumerate(cut)
    ]
    commit(store, call(partitions=3), *uploads)
    tasks = sorted((partition, task, rows) for task, (partition, rows) in enumerate(cut))
    expected = [b'"%d.%d"' % (task, row) for _, task, rows in tasks for row in range(rows)]
    assert expected == data(store)
    for partition in range(3):
        log = [each for each in everything(store) if each.partition == partition]
        before = [sum(each.events for each in log[:at]) for at in range(len(log))]
        assert before == [each.sequence for each in log]
        for one, other in pairwise(log):
            assert one.events + other.events > 1000 or max(one.events, other.events) > SMALL_EVENTS


def test_commit_packs_a_bounded_number_of_bytes(store, monkeypatch):
    """A commit stays short; chunks that are left over are kept as they came."""
    monkeypatch.setattr("zeh_spark.service.store.commit_plan.JOINED_BYTES", 100)
    assert JOINED_BYTES > 100
    uploads = [upload(chunk(0, b'"%s"' % (b"x" * 20)), task=t) for t in range(4)]
    size = uploads[0].chunks[0].size
    commit(store, call(), *uploads)
    assert [100 // size, *[1] * (4 - 100 // size)] == [each.events for each in everything(store)]


def test_feeds_and_producers_do_not_know_each_other(store):
    """Each producer counts its own batches, separately on each feed."""
    store.create("copies", 2)
    for feed, producer in ((FEED, "p"), (FEED, "q"), ("copies", "p")):
        assert publish_as(store, call(producer=producer), chunk(0, b"1"), feed=feed)[1]
    names = [[each.name for each in store.producers(feed)] for feed in (FEED, "copies")]
    assert [["p", "q"], ["p"]] == names


def test_next_batch_takes_its_number_at_the_commit(store):
    """Loads that run at the same time do not disturb each other."""
    uploads = {run: upload(chunk(0, b'"%s"' % run.encode())) for run in ("r1", "r2")}
    calls = {run: call(None, run=run) for run in uploads}
    for run, each in uploads.items():
        store.stage(FEED, calls[run], each)
    done = [store.commit(FEED, calls[run], declared(uploads[run]))[0] for run in ("r2", "r1")]
    assert ([0, 1], [b'"r2"', b'"r1"']) == ([each.batch for each in done], data(store))


def test_a_client_may_begin_only_so_many_producers(opened, store, clock, site):
    """The names that one token may begin are limited. Producers that it has begun continue, also
    with named batches, and other tokens may still begin new ones.
    """
    store.create("another", 2)

    def begin(name: str, client: str = "mine", feed: str = FEED, batch: int = 0) -> bool:
        incarnation = BATCH_INCARNATION if "#" in name else "a"
        by = call(batch, producer=name, incarnation=incarnation)
        by = replace(by, maker=Maker(client, 3))
        return store.commit(feed, by, Declared(Content(), ()))[1]

    def is_refused(name: str) -> None:
        new = replace(call(producer=name), maker=Maker("mine", 3))
        for problem in (
            refused(begin, name),
            refused(store.stage, FEED, new, upload(chunk(0, b"1"))),
        ):
            assert re.search(r"has begun 3 .*--most-producers", str(problem))
            assert ("too-many-producers", 507) == refusal(problem)
            assert not problem.type.is_transient

    assert all([begin("a"), begin("b#1"), begin("a", feed="another")])
    is_refused("c")
    site.crash()
    store = opened()
    is_refused("c")
    assert all([begin("a", batch=1), *(begin(f"b#{each}") for each in range(2, 5))])
    assert begin("c", client="another")
    assert commit(store, call(producer="operators"), upload(chunk(0, b"1")))[1]
    store.delete_producer(FEED, "b")
    assert begin("d")
    is_refused("e")
    clock.pass_hours(1)
    assert 4 == store.expire_producers(FEED, store.now(), 9)
    assert begin("e")


def test_same_batch_committed_by_many_threads_is_there_once(opened):
    """Drivers that are started twice at the same moment publish once (F7)."""
    opened().create(FEED, 2)
    start, both = threading.Barrier(8), (chunk(0, b"1"), chunk(1, b"2"))

    def work(number: int) -> tuple[StoredReceipt, bool]:
        start.wait()
        return commit(opened(), call(run=f"r{number}"), upload(*both[:: number % 2 or -1]))

    with ThreadPoolExecutor(8) as threads:
        answers = [*threads.map(work, range(8))]
    assert [False] * 7 + [True] == sorted(new for _, new in answers)
    assert 1 == len({receipt.hash for receipt, _ in answers})
    assert [b"1", b"2"] == data(opened())


def test_processes_that_commit_at_once_lose_and_double_nothing(site):
    """Two publishers over one database (F7), for batches that both send and loads of their own."""
    store = site.open()
    store.create(FEED, 2)
    for each in [in_a_process(_commit_batches, site.opener(), f"r{n}") for n in range(2)]:
        each.join()
    found = everything(store)
    same, loads = ([e for e in found if e.producer == name] for name in ("p", "test"))
    assert [b"%d" % batch for batch in range(20)] == data(store, same)
    assert list(range(1, 61)) == [each.g for each in found]
    assert list(range(40)) == [each.sequence for each in loads]


def _commit_batches(opened: Opened, run: str) -> None:
    """Commit 20 batches, each with a load; continue as another run when overtaken."""
    store, starts, batch = opened(), 0, 0
    while batch < 20:
        by: Call = call(batch, run=f"{run}.{starts}")
        try:
            commit(store, by, upload(chunk(0, b"%d" % batch)))
        except Problem as problem:
            assert problem.name == "fenced"
            starts += 1
        else:
            publish(store, chunk(1, b"0"))
            batch += 1
    store.close()
