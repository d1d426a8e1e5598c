"""The contract for who may publish what: incarnations, runs, gaps, receipts, restores."""

from __future__ import annotations

import queue
import threading
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.store_contract.writers import (
    FEED,
    call,
    chunk,
    commit,
    data,
    declared,
    everything,
    publish_as,
    refusal,
    refused,
    upload,
)
from zeh_spark.publisher import Store
from zeh_spark.service.store import batches
from zeh_spark.service.store.batches import Call, ProducerState, StoredReceipt, chained
from zeh_spark.wire.wire import BATCH_INCARNATION


def put(store: Store, by: Call, *rows: bytes) -> tuple[StoredReceipt, bool]:
    """Publish rows to partition 0 as one upload; return what `Batches.commit` returns."""
    return commit(store, by, *[upload(chunk(0, *rows))] if rows else [])


@pytest.mark.parametrize(
    ("last", "next_batch", "option"), [(0, 2, "a@0:2"), (-1, 7, "a@-1:7")], ids=["gap", "unknown"]
)
def test_skipped_batch_is_a_gap(store, last, next_batch, option):
    """Batches that never came are detected at once (F18, EH-10, PU-13), and an emptied or exchanged
    store does not continue without an error (A1, KA-04).
    """
    for batch in range(last + 1):
        put(store, call(batch), b"1")
    problem = refused(put, store, call(next_batch), b"3")
    assert ("batch-gap", 409) == refusal(problem)
    assert {"acceptGap": option} == problem.members["option"]
    assert put(store, call(next_batch, accept_gap=option), b"3")[1]
    assert [*[b"1"] * (last + 1), b"3"] == data(store)


def test_new_checkpoint_is_refused_until_it_is_let_in(store):
    """A lost checkpoint neither doubles nor loses events without an error (F8, F12), and an
    override that is left in the code does not act again (A2).
    """
    put(store, call(0), b"1")
    problem = refused(put, store, call(0, incarnation="b"), b"1")
    assert ("incarnation-changed", 409) == refusal(problem)
    option = problem.members["option"]["replaceIncarnation"]
    assert "a@0:b" == option
    for batch, row in ((0, b"2"), (1, b"3")):
        assert put(store, call(batch, incarnation="b", replace_incarnation=option), row)[1]
    third = call(0, incarnation="c", run="r3", replace_incarnation=option)
    assert "incarnation-changed" == refused(put, store, third, b"1").name
    assert [b"1", b"2", b"3"] == data(store)


def test_numbers_go_on_across_incarnations(store):
    """A new checkpoint counts its batches from 0 again, but never its events (EH-16)."""
    put(store, call(0), b"1", b"2")
    put(store, call(0, incarnation="b", replace_incarnation="a@0:b"), b"3")
    assert [(0, 0), (0, 2)] == [(each.batch, each.sequence) for each in everything(store)]


def test_former_incarnation_goes_on_where_it_ended(store):
    """An old checkpoint that is found again is not taken for a new one (F12)."""
    for batch in (0, 1):
        put(store, call(batch), b"%d" % batch)
    put(store, call(0, incarnation="b", run="r2", replace_incarnation="a@1:b"), b"3")
    back: dict[str, Any] = {"incarnation": "a", "run": "r3", "replace_incarnation": "b@0:a"}
    assert not put(store, call(1, **back), b"1")[1]
    for batch, name in ((1, "batch-conflict"), (4, "batch-gap")):
        assert name == refused(put, store, call(batch, **back), b"2").name
    assert put(store, call(2, **back), b"4")[1]
    again = call(1, incarnation="b", run="r4", replace_incarnation="a@2:b")
    assert put(store, again, b"5")[1]
    assert [b"0", b"1", b"3", b"4", b"5"] == data(store)


def test_receipts_are_found_by_incarnation(store):
    """The same number means two batches in two checkpoints (EX-07)."""
    first, _ = put(store, call(0), b"1")
    second, _ = put(store, call(0, incarnation="b", replace_incarnation="a@0:b"), b"2")
    asked = [("p", 0, None), ("p", 0, "a"), ("p", 0, "b"), ("p", 0, "c"), ("p", 1, None)]
    found = [store.receipt(FEED, *each) for each in (*asked, ("q", 0, None))]
    assert [second, first, second, None, None, None] == found


def test_second_driver_is_named_and_the_first_one_ends(store):
    """Two drivers on one checkpoint are detected (F7, EH-11, DS-01). The zombie is refused even for
    batches that are there, unless it has published them itself.
    """
    receipt, _ = put(store, call(0, run="r1"), b"1")
    put(store, call(1, run="r2"), b"2")
    assert (receipt, False) == put(store, call(0, run="r1"), b"1")
    for batch, row in ((2, b"3"), (1, b"2"), (0, b"3")):
        problem = refused(put, store, call(batch, run="r1"), row)
        assert ("fenced", 403) == refusal(problem)
        assert {"run": "r2", "level": 2}.items() <= problem.members["current"].items()
    assert [b"1", b"2"] == data(store)


def test_run_gets_its_level_with_its_first_commit_only(store):
    """Uploads and repetitions of a zombie do not lock me out (A3, EX-08, F17)."""
    put(store, call(0, run="r1"), b"1")
    store.stage(FEED, call(1, run="r2"), upload(chunk(0, b"2")))
    assert not put(store, call(0, run="r2"), b"1")[1]
    receipt, new = put(store, call(1, run="r1"), b"2")
    assert (True, 1) == (new, receipt.level)


def test_deleted_producer_publishes_no_more(store):
    """Late requests do not bring it back; what it has published stays (F16, F17). None of its named
    batches is published either, and a name can be blocked before anybody uses it.
    """
    put(store, call(0), b"1")
    put(store, named("k"), b"2")
    store.stage(FEED, call(1), upload(chunk(0, b"2")))
    for producer in ("p", "never"):
        store.delete_producer(FEED, producer)
    sent = declared(upload(chunk(0, b"2")))
    for by in (
        *(call(0), call(1), call(0, incarnation="b", replace_incarnation="a@0:b"), call(None)),
        *(named("k"), named("new"), call(0, producer="never")),
    ):
        problem = refused(store.commit, FEED, by, sent)
        assert ("producer-deleted", 410) == refusal(problem)
    assert ([b"1", b"2"], True) == (data(store), store.producer(FEED, "p").deleted)
    assert put(store, call(0, producer="q"), b"1")[1]


def named(name: str, **overrides: str) -> Call:
    """Return the call of a batch of `p` with a name."""
    return call(0, producer=f"p#{name}", incarnation=BATCH_INCARNATION, **overrides)


def test_producer_tells_how_far_it_is(store):
    """I can ask for the state of each producer (EH-12, EX-07)."""
    assert ProducerState("p") == store.producer(FEED, "p")
    receipt, _ = put(store, call(0), b"1")
    expected = ProducerState("p", "a", 1, "r1", 0, 1, receipt.hash, receipt.time)
    assert (expected, [expected]) == (store.producer(FEED, "p"), store.producers(FEED))


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.producer(FEED, "p").last == 0,
        lambda store: store.receipt(FEED, "p", 0, "a") is not None,
    ],
    ids=["the producer", "the receipt"],
)
def test_what_is_committed_is_told_after_commits_under_way(store, clock, ask):
    """A writer that lost the answer to its commit learns for certain what became of it (PU-03)."""
    store.stage(FEED, call(0), one := upload(chunk(0, b"1")))
    answers: queue.Queue[bool] = queue.Queue()
    commits = threading.Thread(target=store.commit, args=(FEED, call(0), declared(one)))
    asks = threading.Thread(target=lambda: answers.put(ask(store)))
    with clock.held() as asked:
        commits.start()
        assert asked.wait(30)
        asks.start()
        with pytest.raises(queue.Empty):
            answers.get(timeout=0.3)
    for each in (commits, asks):
        each.join(30)
    assert answers.get(timeout=30)


def test_receipts_are_chained(store):
    """A change of what was published is detected; a page is as long as I ask for, newest first."""
    for batch in range(4):
        put(store, call(batch), b"%d" % batch)
    found = store.receipts(FEED, "p", 99, 99)
    assert [4, 3, 2, 1] == [each.number for each in found]
    assert [found[:2], found[2:], []] == [
        store.receipts(FEED, "p", below, 2) for below in (99, 3, 1)
    ]
    assert [] == store.receipts(FEED, "q", 99, 2)
    assert [each.hash for each in found] == [chained(each) for each in found]
    assert [*(each.hash for each in found[1:]), ""] == [each.previous for each in found]
    forged = msgspec.structs.replace(found[1], events=7)
    assert chained(forged) != forged.hash


@pytest.mark.parametrize("receipts", [3])
def test_batch_beyond_the_receipts_is_neither_confirmed_nor_denied(store):
    """A checkpoint that was rolled back too far gets an error (F13, F16, KA-03)."""
    assert 1000 == batches.RECEIPTS
    for batch in range(5):
        put(store, call(batch), b"%d" % batch)
    assert not put(store, call(2), b"2")[1]
    for row in (b"1", b"7"):
        assert ("batch-expired", 410) == refusal(refused(put, store, call(1), row))
    assert (3, 5) == (len(store.receipts(FEED, "p", 99, 99)), len(data(store)))


def test_kept_first_of_a_named_batch_keeps_nothing_else(store):
    """An override left in the code drops no other rows, under that name or another (A2)."""
    receipt, _ = put(store, named("k"), b"1")
    option = refused(put, store, named("k"), b"2").members["option"]["keepFirst"]
    assert (receipt, False) == put(store, named("k", keep_first=option), b"2")
    put(store, named("l", keep_first=option), b"1")
    for name, row in (("k", b"3"), ("l", b"2")):
        problem = refused(put, store, named(name, keep_first=option), row)
        assert "batch-conflict" == problem.name


def test_named_batch_can_be_deleted_by_itself(store):
    """It can be deleted whether it was published or not; its producer continues."""
    put(store, named("k"), b"1")
    for name in ("k", "new"):
        store.delete_producer(FEED, f"p#{name}")
        assert "producer-deleted" == refused(put, store, named(name), b"2").name
    assert put(store, call(0), b"3")[1]
    assert [b"1", b"3"] == data(store)


def test_kept_first_answers_with_the_first(store):
    """If a query is not repeatable, I keep what is published, once (F9), whatever comes later."""
    receipt, _ = put(store, call(0), b"1")
    option = refused(put, store, call(0), b"2").members["option"]["keepFirst"]
    for rows in ([b"2"], [b"2", b"5"]):
        assert (receipt, False) == put(store, call(0, keep_first=option), *rows)
    put(store, call(1, keep_first=option), b"3")
    assert "batch-conflict" == refused(put, store, call(1, keep_first=option), b"4").name
    assert [b"1", b"3"] == data(store)


@pytest.mark.parametrize("kept", [1, 0])
def test_restored_publisher_refuses_to_go_on_over_the_gap(site, store, kept):
    """Batches that a restore undid are reported as missing, also those before the first one of a
    backup (F15, DL-03, A1).
    """
    for batch in range(kept):
        put(store, call(batch), b"%d" % batch)
    backup = site.copy()
    put(store, call(kept), b"%d" % kept)
    site.restore(backup)
    store = site.open()
    assert "batch-gap" == refused(put, store, call(kept + 1), b"2").name
    assert kept == len(data(store))
    for batch in (kept, kept + 1):
        assert put(store, call(batch), b"%d" % batch)[1]
    assert [b"%d" % batch for batch in range(kept + 2)] == data(store)


def test_other_history_after_a_restore_has_other_tags(site, store):
    """A cursor of undone events is not taken for one of the events that came instead (A5)."""
    backup = site.copy()
    put(store, call(0), b"0")
    undone = everything(store)[0]
    site.restore(backup)
    store = site.open()
    put(store, call(0), b"1")
    (found,) = everything(store)
    assert (undone.g, True) == (found.g, undone.tag != found.tag)


# Starting numbers


def starting(batch: int, *numbers: tuple[int, int], run: str = "r1") -> Call:
    """Return a call that says with which numbers its producer begins."""
    return replace(call(batch, run=run), starting=numbers)


def test_producer_begins_with_the_numbers_that_it_is_given(opened, store, site):
    """It continues the numbers of another system, also if it is started again (EH-13)."""
    publish_as(store, starting(0, (0, 1000)), chunk(0, b"1"), chunk(1, b"2"))
    site.crash()
    store = opened()
    assert not publish_as(store, starting(0, (0, 1000)), chunk(0, b"1"), chunk(1, b"2"))[1]
    receipt, _ = publish_as(store, starting(1, (0, 1000)), chunk(0, b"3"))
    publish_as(store, call(2), chunk(0, b"4"))

    assert [(0, 1001, 1001)] == [(e.partition, e.first, e.last) for e in receipt.ranges]
    assert {0: (1000, 1003), 1: (0, 1)} == store.sequences(FEED, "p")
    found = {data(store, [each])[0]: each.sequence for each in everything(store)}
    assert {b"1": 1000, b"2": 0, b"3": 1001, b"4": 1002} == found


@pytest.mark.parametrize("numbers", [(0, 1001), (0, 0), (1, 5)])
def test_other_starting_numbers_than_those_it_began_with_are_refused(store, numbers):
    """Nothing is published then."""
    publish_as(store, starting(0, (0, 1000)), chunk(0, b"1"), chunk(1, b"2"))
    by = starting(1, numbers)
    for problem in (
        refused(store.admit, FEED, by),
        refused(publish_as, store, by, chunk(0, b"3")),
    ):
        assert ("starting-sequence", 409) == refusal(problem)
        assert f"is to begin with number {numbers[1]} in partition {numbers[0]}" in problem.detail
    assert [b"1", b"2"] == data(store)
