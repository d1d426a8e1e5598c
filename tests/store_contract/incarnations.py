"""The contract for who may publish what: incarnations, runs, gaps, receipts, restores."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.store_contract.site import Opened, Site, StoppedClock
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
    upload,
)
from zeh_spark.publisher import Problem, Store
from zeh_spark.store import batches
from zeh_spark.store.batches import Call, Declared, ProducerState, StoredReceipt, chained


def put(store: Store, by: Call, *rows: bytes) -> tuple[StoredReceipt, bool]:
    """Publish rows to partition 0 as one upload; return what `Store.commit` returns."""
    return commit(store, by, *[upload(chunk(0, *rows))] if rows else [])


def refused(work: Callable[[], object]) -> Problem:
    """Return the refusal of some work; fail if it is not refused."""
    with pytest.raises(Problem) as found:
        work()
    return found.value


def test_skipped_batch_is_a_gap(store: Store) -> None:
    """Batches that never came are detected at once (F18, EH-10, PU-13)."""
    put(store, call(0), b"1")
    problem = refused(lambda: put(store, call(2), b"3"))
    assert ("batch-gap", 409) == refusal(problem)
    put(store, call(2, accept_gap=problem.members["option"]["acceptGap"]), b"3")
    assert [b"1", b"3"] == data(store)


def test_unknown_producer_begins_with_batch_0(store: Store) -> None:
    """An emptied or exchanged store does not continue without an error (A1, KA-04)."""
    problem = refused(lambda: put(store, call(7), b"1"))
    assert (("batch-gap", 409), {"acceptGap": "a@-1:7"}) == (
        refusal(problem),
        problem.members["option"],
    )
    assert put(store, call(7, accept_gap="a@-1:7"), b"1")[1]


def test_new_checkpoint_is_refused_until_it_is_let_in(store: Store) -> None:
    """A lost checkpoint neither doubles nor loses events without an error (F8, F12, A2)."""
    put(store, call(0), b"1")
    problem = refused(lambda: put(store, call(0, incarnation="b"), b"1"))
    assert ("incarnation-changed", 409) == refusal(problem)
    option = problem.members["option"]["replaceIncarnation"]
    assert put(store, call(0, incarnation="b", replace_incarnation=option), b"2")[1]
    assert put(store, call(1, incarnation="b", replace_incarnation=option), b"3")[1]
    assert [b"1", b"2", b"3"] == data(store)


def test_standing_replacement_lets_in_no_third_checkpoint(store: Store) -> None:
    """An override that is left in the code does not act again (A2)."""
    put(store, call(0), b"1")
    put(store, call(0, incarnation="b", replace_incarnation="a@0:b"), b"2")
    third = call(0, incarnation="c", run="r3", replace_incarnation="a@0:b")
    assert "incarnation-changed" == refused(lambda: put(store, third, b"1")).name


def test_numbers_go_on_across_incarnations(store: Store) -> None:
    """A new checkpoint counts its batches from 0 again, but never its events (EH-16)."""
    put(store, call(0), b"1", b"2")
    put(store, call(0, incarnation="b", replace_incarnation="a@0:b"), b"3")
    assert [(0, 0), (0, 2)] == [(each.batch, each.sequence) for each in everything(store)]


def test_former_incarnation_goes_on_where_it_ended(store: Store) -> None:
    """An old checkpoint that is found again is not taken for a new one (F12)."""
    for batch in (0, 1):
        put(store, call(batch), b"%d" % batch)
    put(store, call(0, incarnation="b", run="r2", replace_incarnation="a@1:b"), b"3")
    back: dict[str, Any] = {"incarnation": "a", "run": "r3", "replace_incarnation": "b@0:a"}
    assert not put(store, call(1, **back), b"1")[1]
    assert "batch-conflict" == refused(lambda: put(store, call(1, **back), b"2")).name
    assert "batch-gap" == refused(lambda: put(store, call(4, **back), b"2")).name
    assert put(store, call(2, **back), b"4")[1]
    again: dict[str, Any] = {"incarnation": "b", "run": "r4", "replace_incarnation": "a@2:b"}
    assert put(store, call(1, **again), b"5")[1]
    assert [b"0", b"1", b"3", b"4", b"5"] == data(store)


def test_receipts_are_found_by_incarnation(store: Store) -> None:
    """The same number means two batches in two checkpoints (EX-07)."""
    first, _ = put(store, call(0), b"1")
    second, _ = put(store, call(0, incarnation="b", replace_incarnation="a@0:b"), b"2")
    found = [store.receipt(FEED, "p", 0, each) for each in (None, "a", "b", "c")]
    assert [second, first, second, None] == found
    assert [None, None] == [
        store.receipt(FEED, "p", 1, None),
        store.receipt(FEED, "q", 0, None),
    ]


def test_second_driver_is_named_and_the_first_one_ends(store: Store) -> None:
    """Two drivers on one checkpoint are detected (F7, EH-11, DS-01)."""
    put(store, call(0, run="r1"), b"1")
    put(store, call(1, run="r2"), b"2")
    problem = refused(lambda: put(store, call(2, run="r1"), b"3"))
    assert (("fenced", 403), "r2", 2) == (
        refusal(problem),
        problem.members["current"]["run"],
        problem.members["current"]["level"],
    )
    assert [b"1", b"2"] == data(store)


def test_run_gets_its_level_with_its_first_commit_only(store: Store) -> None:
    """Uploads and repetitions of a zombie do not lock me out (A3, EX-08)."""
    put(store, call(0, run="r1"), b"1")
    store.stage(FEED, call(1, run="r2"), upload(chunk(0, b"2")))
    assert not put(store, call(0, run="r2"), b"1")[1]
    receipt, new = put(store, call(1, run="r1"), b"2")
    assert (True, 1) == (new, receipt.level)


def test_overtaken_run_gets_no_answer_that_looks_like_success(store: Store) -> None:
    """A zombie is refused even for batches that are there, unless it has published them itself."""
    receipt, _ = put(store, call(0, run="r1"), b"1")
    put(store, call(1, run="r2"), b"2")
    assert (receipt, False) == put(store, call(0, run="r1"), b"1")
    assert "fenced" == refused(lambda: put(store, call(1, run="r1"), b"2")).name
    assert "fenced" == refused(lambda: put(store, call(0, run="r1"), b"3")).name


def test_deleted_producer_publishes_no_more(store: Store) -> None:
    """Late requests do not bring it back; what it has published stays (F16, F17)."""
    put(store, call(0), b"1")
    store.stage(FEED, call(1), upload(chunk(0, b"2")))
    store.delete_producer(FEED, "p")
    for by in (call(0), call(1), call(0, incarnation="b", replace_incarnation="a@0:b"), call(None)):
        sent = declared(upload(chunk(0, b"2")))
        problem = refused(partial(store.commit, FEED, by, sent))
        assert ("producer-deleted", 410) == refusal(problem)
    assert ([b"1"], True) == (data(store), store.producer(FEED, "p").deleted)


def test_producer_that_never_published_can_be_deleted(store: Store) -> None:
    """A name can be blocked before anybody uses it."""
    store.delete_producer(FEED, "p")
    assert "producer-deleted" == refused(lambda: put(store, call(0), b"1")).name
    assert put(store, call(0, producer="q"), b"1")[1]


def test_producer_tells_how_far_it_is(store: Store) -> None:
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
def test_what_is_committed_is_told_after_commits_under_way(
    store: Store, clock: StoppedClock, ask: Callable[[Store], bool]
) -> None:
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


def test_receipts_are_chained(store: Store) -> None:
    """A change of the record of what was published is detected."""
    for batch in range(3):
        put(store, call(batch), b"%d" % batch)
    found = store.receipts(FEED, "p", 99, 99)
    assert [3, 2, 1] == [each.number for each in found]
    assert [each.hash for each in found] == [chained(each) for each in found]
    assert [*(each.hash for each in found[1:]), ""] == [each.previous for each in found]
    forged = msgspec.structs.replace(found[1], events=7)
    assert chained(forged) != forged.hash


def test_receipts_come_newest_first_in_pages(store: Store) -> None:
    """A page of the list of receipts is as long as I ask for."""
    for batch in range(4):
        put(store, call(batch), b"%d" % batch)
    pages = [store.receipts(FEED, "p", below, 2) for below in (99, 3, 1)]
    assert [[4, 3], [2, 1], []] == [[each.number for each in page] for page in pages]
    assert [] == store.receipts(FEED, "q", 99, 2)


@pytest.mark.parametrize("receipts", [3])
def test_batch_beyond_the_receipts_is_neither_confirmed_nor_denied(store: Store) -> None:
    """A checkpoint that was rolled back too far gets an error (F13, F16, KA-03)."""
    assert 1000 == batches.RECEIPTS
    for batch in range(5):
        put(store, call(batch), b"%d" % batch)
    assert not put(store, call(2), b"2")[1]
    for rows in ([b"1"], [b"7"]):
        problem = refused(partial(put, store, call(1), *rows))
        assert ("batch-expired", 410) == refusal(problem)
    assert (3, 5) == (len(store.receipts(FEED, "p", 99, 99)), len(data(store)))


def test_other_digest_version_is_no_conflict(store: Store) -> None:
    """After an upgrade I learn that contents cannot be compared, not that they differ (A10)."""
    put(store, call(0), b"1")
    sent = declared(upload(chunk(0, b"1")))
    later = Declared(sent.content, sent.attempts, digest_version=2)
    problem = refused(lambda: store.commit(FEED, call(0), later))
    assert ("digest-version", 409) == refusal(problem)


def test_kept_first_of_a_named_batch_keeps_nothing_else(store: Store) -> None:
    """An override left in the code drops no other rows, under that name or another (A2)."""
    named: dict[str, Any] = {"producer": "p#k", "incarnation": "batch"}
    receipt, _ = put(store, call(0, **named), b"1")
    option = refused(lambda: put(store, call(0, **named), b"2")).members["option"]["keepFirst"]
    kept = call(0, **named, keep_first=option)
    assert (receipt, False) == put(store, kept, b"2")
    assert "batch-conflict" == refused(lambda: put(store, kept, b"3")).name
    other = call(0, producer="p#l", incarnation="batch", keep_first=option)
    put(store, other, b"1")
    assert "batch-conflict" == refused(lambda: put(store, other, b"2")).name


def test_deleted_producer_publishes_no_named_batch_either(store: Store) -> None:
    """All its named batches are deleted with it, those that are there and those to come."""
    put(store, call(0, producer="p#k", incarnation="batch"), b"1")
    store.delete_producer(FEED, "p")
    for name in ("p#k", "p#new"):
        late = call(0, producer=name, incarnation="batch")
        assert "producer-deleted" == refused(partial(put, store, late, b"2")).name
    assert [b"1"] == data(store)


def test_named_batch_can_be_deleted_by_itself(store: Store) -> None:
    """It can be deleted whether it was published or not; its producer continues."""
    put(store, call(0, producer="p#k", incarnation="batch"), b"1")
    for name in ("p#k", "p#new"):
        store.delete_producer(FEED, name)
        late = call(0, producer=name, incarnation="batch")
        assert "producer-deleted" == refused(partial(put, store, late, b"2")).name
    assert put(store, call(0), b"3")[1]
    assert [b"1", b"3"] == data(store)


def test_kept_first_answers_with_the_first(store: Store) -> None:
    """If a query is not repeatable, I can keep what is published, once (F9)."""
    receipt, _ = put(store, call(0), b"1")
    problem = refused(lambda: put(store, call(0), b"2"))
    option = problem.members["option"]["keepFirst"]
    assert (receipt, False) == put(store, call(0, keep_first=option), b"2")
    put(store, call(1, keep_first=option), b"3")
    assert "batch-conflict" == refused(lambda: put(store, call(1, keep_first=option), b"4")).name
    assert [b"1", b"3"] == data(store)


def test_restored_publisher_refuses_to_go_on_over_the_gap(site: Site, store: Store) -> None:
    """Batches that a restore undid are reported as missing (F15, DL-03)."""
    put(store, call(0), b"0")
    backup = site.copy()
    put(store, call(1), b"1")
    site.restore(backup)
    store = site.open()
    assert "batch-gap" == refused(lambda: put(store, call(2), b"2")).name
    assert put(store, call(1), b"1")[1]
    assert put(store, call(2), b"2")[1]
    assert [b"0", b"1", b"2"] == data(store)


def test_publisher_restored_to_before_the_producer_refuses_to_go_on(
    site: Site, store: Store
) -> None:
    """An older backup is detected as well as a newer one (A1)."""
    backup = site.copy()
    put(store, call(0), b"0")
    site.restore(backup)
    store = site.open()
    assert "batch-gap" == refused(lambda: put(store, call(1), b"1")).name
    assert [] == data(store)


def test_other_history_after_a_restore_has_other_tags(site: Site, store: Store) -> None:
    """A cursor of undone events is not taken for one of the events that came instead (A5)."""
    backup = site.copy()
    put(store, call(0), b"0")
    undone = everything(store)[0]
    site.restore(backup)
    store = site.open()
    put(store, call(0), b"1")
    assert (undone.g, True) == (everything(store)[0].g, undone.tag != everything(store)[0].tag)


def test_late_commit_of_an_older_run_changes_nothing(store: Store) -> None:
    """A late request names its run and batch, and gets the receipt or is refused (F17)."""
    store.stage(FEED, call(0, run="r1"), upload(chunk(0, b"1")))
    put(store, call(0, run="r2"), b"1")
    put(store, call(1, run="r2"), b"2")
    late = store.commit(FEED, call(0, run="r1"), declared(upload(chunk(0, b"1"))))
    assert (False, [b"1", b"2"]) == (late[1], data(store))


# Starting numbers


def starting(batch: int, *numbers: tuple[int, int], run: str = "r1") -> Call:
    """Return a call that says with which numbers its producer begins."""
    return replace(call(batch, run=run), starting=numbers)


def test_producer_begins_with_the_numbers_that_it_is_given(
    opened: Opened, store: Store, site: Site
) -> None:
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
def test_other_starting_numbers_than_those_it_began_with_are_refused(
    store: Store, numbers: tuple[int, int]
) -> None:
    """Nothing is published then."""
    publish_as(store, starting(0, (0, 1000)), chunk(0, b"1"), chunk(1, b"2"))
    for work in (
        lambda: store.admit(FEED, starting(1, numbers)),
        lambda: publish_as(store, starting(1, numbers), chunk(0, b"3")),
    ):
        problem = refused(work)
        assert ("starting-sequence", 409) == refusal(problem)
        assert f"is to begin with number {numbers[1]} in partition {numbers[0]}" in problem.detail
    assert [b"1", b"2"] == data(store)
