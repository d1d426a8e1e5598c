"""Several publishers and several tasks at work on one store in PostgreSQL at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from tests.contract.databases import commit_under_way, in_threads, site, stopped_at, store
from tests.patience import eventually
from tests.store_contract.writers import (
    FEED,
    call,
    chunk,
    data,
    declared,
    everything,
    publish,
    upload,
)
from zeh_spark.publisher import Problem
from zeh_spark.service.sql import uploads as sql_uploads
from zeh_spark.service.sql.store import SqlStore

__all__ = ["site", "store"]


def test_commits_of_two_feeds_do_not_wait_for_each_other(store):
    """A long commit on one feed holds up no other feed, and no upload of its own."""
    store.create("other", 2)
    store.stage(FEED, call(0), one := upload(chunk(0, b"1")))
    with commit_under_way(store, call(0), one):
        publish(store, chunk(0, b"2"), feed="other")
        store.stage(FEED, call(0, producer="q"), upload(chunk(0, b"3")))
    assert [b"1"] == data(store)


def test_an_epoch_waits_for_the_commit_that_is_under_way(store, site):
    """Its event is of the epoch before, although the epoch was asked for before it was there."""
    store.stage(FEED, call(0), one := upload(chunk(0, b"1")))
    with ThreadPoolExecutor(1) as thread, commit_under_way(store, call(0), one):
        beginning = thread.submit(site.open().begin_epoch, FEED)
        eventually(site.somebody_waits_for_a_lock)
    assert beginning.result() == (identity := store.identity(FEED))
    assert identity.epochs[0].id == identity.at(everything(store)[0].time)


def test_a_batch_is_not_denied_while_its_first_commit_is_under_way(store):
    """ "Not committed" is only said when nobody is about to commit it (PU-03)."""
    store.stage(FEED, call(0), one := upload(chunk(0, b"1")))
    with ThreadPoolExecutor(2) as threads, commit_under_way(store, call(0), one):
        receipt = threads.submit(store.receipt, FEED, "p", 0, None)
        producer = threads.submit(store.producer, FEED, "p")
        eventually(lambda: len(lane_of(store)._waiting) == 2)
        assert not receipt.done() and not producer.done()
    assert receipt.result() is not None
    assert 0 == producer.result().last


def lane_of(store: SqlStore) -> Any:
    return store._database.writes._lanes.of(FEED)  # type: ignore[attr-defined] # PostgreSQL's


def test_uploads_of_a_batch_do_not_wait_for_each_other(store):
    """Tasks write at the same time: the row they share is locked at the end only."""
    store.stage(FEED, call(0), upload(chunk(0, b"0")))
    one, two = (upload(chunk(0, b"%d" % task), task=task) for task in (1, 2))
    with stopped_at("_touch", lambda: store.stage(FEED, call(0), one)):
        store.stage(FEED, call(0), two)
    store.commit(FEED, call(0), declared(one, two))
    assert [b"1", b"2"] == data(store)


def test_first_uploads_of_a_batch_may_come_at_once(store):
    """Also the same one twice, as after a lost answer."""
    sent = [upload(chunk(0, b"%d" % task), task=task) for task in range(8)]
    assert [] == in_threads(16, lambda number: store.stage(FEED, call(0), sent[number % 8]))
    store.commit(FEED, call(0), declared(*sent))
    assert [b"%d" % task for task in range(8)] == data(store)


def test_nothing_is_published_behind_the_deletion_of_a_producer(store, site):
    """Also where a named batch of it was under way: the deletion waits for that."""
    by = call(0, producer="p#day")
    store.stage(FEED, by, one := upload(chunk(0, b"1")))
    with ThreadPoolExecutor(1) as thread, commit_under_way(store, by, one):
        thread.submit(store.delete_producer, FEED, "p")
        eventually(site.somebody_waits_for_a_lock)
    assert [b"1"] == data(store)
    with pytest.raises(Problem, match="deleted"):
        store.stage(FEED, call(0, producer="p#other"), one)


def test_refusal_of_one_commit_is_that_one_s_alone(store):
    """Others that were committed together with it are there."""
    lane, sent = lane_of(store), upload(chunk(0, b"1"))
    for number in range(6):
        store.stage(FEED, call(0, producer=f"p{number}"), sent)
    batches = [call(0 if number % 3 else 7, producer=f"p{number}") for number in range(6)]
    with ThreadPoolExecutor(6) as threads, lane.lead():
        commits = [threads.submit(store.commit, FEED, each, declared(sent)) for each in batches]
        eventually(lambda: len(lane._waiting) == 6)
    raised = [getattr(each.exception(), "name", None) for each in commits]
    assert ["batch-gap", None, None] * 2 == raised
    assert [b"1"] * 4 == data(store)


def test_a_look_that_is_refused_holds_up_nobody(store):
    """Who is overtaken asks again and again; what is committed beside that is committed at once."""
    publish(store, chunk(0, b"0"))
    store.stage(FEED, call(0, producer="q"), sent := upload(chunk(0, b"1")))
    lane = lane_of(store)
    commits: list[threading.Thread] = []

    def ask() -> None:
        with pytest.raises(Problem):
            store._look(FEED, lambda connection, _: sql_uploads.admit(connection, FEED, call(7)))

    asks = [ask, lambda: store.commit(FEED, call(0, producer="q"), declared(sent))]
    threads = [threading.Thread(target=each) for each in asks]

    def note(_: Connection) -> None:
        commits.append(threading.current_thread())

    event.listen(Engine, "commit", note)
    try:
        with lane.lead():
            for at, each in enumerate(threads, 1):
                each.start()
                eventually(lambda at=at: len(lane._waiting) == at)
            commits.clear()
        for each in threads:
            each.join()
    finally:
        event.remove(Engine, "commit", note)
    assert 2 == len(data(store))
    assert 1 == sum(each in threads for each in commits)  # others clean up
