"""What stores do around the decision is needed too, and plain append doubles under these faults."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from sqlalchemy import delete

from tests.contract.databases import commit_under_way
from tests.contract.mutants import without_content_check
from tests.contract.sites import PostgresqlSite
from tests.patience import eventually
from tests.store_contract.drivers import Execution, TaskLayout
from tests.store_contract.world import World, publish_batch
from tests.store_contract.writers import (
    FEED,
    call,
    chunk,
    commit,
    data,
    declared,
    everything,
    publish_as,
    upload,
)
from zeh_spark.publisher import Problem, Store
from zeh_spark.service.reads import reading
from zeh_spark.service.reads.feed import ChunkFeed
from zeh_spark.service.sql import commits as sql_commits
from zeh_spark.service.sql import producers as sql_producers
from zeh_spark.service.sql import uploads as sql_uploads
from zeh_spark.service.sql.schema import chunks, uploads
from zeh_spark.service.store import commit_decision
from zeh_spark.service.store.batches import Call, StoredReceipt
from zeh_spark.service.store.commit_plan import published
from zeh_spark.tools.loading.one_batch import next_batch

Scenario = Callable[[World], None]


def names(world: World) -> list[str]:
    """Of the anomalies, each once."""
    return list(dict.fromkeys(each.split(":")[0] for each in world.anomalies()))


def test_name_of_an_upload_that_is_taken_would_mix_attempts(world, monkeypatch):
    """Without upload-conflict an attempt is told that its rows are there when others' are."""
    _reuse_a_name(world)
    assert (["upload-conflict"], []) == (world.refusals, world.anomalies())
    monkeypatch.setattr(commit_decision, "decide", without_content_check)
    stage = world.store.stage

    def mutant(*given: Any) -> Any:
        try:
            return stage(*given)
        except Problem:
            return None

    monkeypatch.setattr(world.store, "stage", mutant)
    world.restart()
    _reuse_a_name(world)
    assert "torn" == names(world)[0]


def _reuse_a_name(world: World) -> None:
    world.honest.add("upload-conflict")
    first, second = (world._planned(world.drivers[0], TaskLayout(version=v)) for v in (0, 1))
    attempt = first.declared.attempts[0].attempt
    uploads = tuple(replace(each, attempt=attempt) for each in second.uploads)
    again = msgspec.structs.replace
    attempts = tuple(again(each, attempt=attempt) for each in second.declared.attempts)
    reused = replace(second, uploads=uploads, declared=replace(second.declared, attempts=attempts))
    world.deliver_again(first, 9)
    refused = len(world.refusals)
    world.deliver_again(reused, 9)
    if len(world.refusals) == refused:
        world.commit(reused)


def test_numbers_that_did_not_go_on_would_leave_gaps(world, monkeypatch):
    """The next number of each partition is kept with the producer (EH-04)."""
    world.run_batch(TaskLayout())
    assert [] == world.anomalies()

    def mutant(known: Any, call: Any, declared: Any, feed: Any, moved: Any, *given: Any) -> Any:
        return published(known, call, declared, feed, moved, {}, given[-1])

    monkeypatch.setattr(sql_commits, "published", mutant)
    world.run_batch(TaskLayout())
    assert ["sequence gap"] == names(world)


def test_release_that_undid_a_commit_would_lose_it(world, monkeypatch):
    """Spark aborts batches whose commit was done but not heard of (F6; D6 of sinks_sim.py)."""
    release = sql_uploads.release

    def undo(connection: Any, feed: int, *given: Any) -> int:
        connection.execute(delete(chunks).where(chunks.c.producer == "p", chunks.c.batch == 0))
        return release(connection, feed, *given)

    for mutant, anomaly in ((release, []), (undo, ["lost"])):
        monkeypatch.setattr(sql_uploads, "release", mutant)
        execution = world.execute(TaskLayout())
        assert execution
        world.commit(execution)
        world.release(execution)
        assert anomaly == names(world)[:1]


def test_uploads_verified_before_they_are_moved_would_be_torn(world, monkeypatch):
    """Another process's clean-up may come between (A6)."""
    move = sql_commits._move

    def clean_up(connection: Any) -> None:
        connection.execute(delete(uploads).where(uploads.c.task == 1))

    def compared_with_what_moved(connection: Any, *given: Any) -> Any:
        clean_up(connection)
        return move(connection, *given)

    def verified_first(connection: Any, *given: Any) -> Any:
        with connection.begin_nested() as nested:
            seen = move(connection, *given)
            nested.rollback()
        clean_up(connection)
        moved = move(connection, *given)
        return [(found, taken) for (found, _), (_, taken) in zip(seen, moved, strict=True)]

    monkeypatch.setattr(sql_commits, "_move", compared_with_what_moved)
    world.run_batch(TaskLayout(tasks=2))
    assert (["upload-missing"], []) == (world.refusals, world.anomalies())
    monkeypatch.setattr(sql_commits, "_move", verified_first)
    world.run_batch(TaskLayout(tasks=2))
    assert ["torn"] == names(world)


class Killed(Exception):
    """The publisher dies here."""


@pytest.mark.parametrize("whole", [True, False])
def test_commit_in_two_transactions_would_double(world, monkeypatch, whole):
    """Events and receipt become visible together, or a crash between doubles them (F14, DL-01)."""
    execution = world.execute(TaskLayout())
    assert execution
    real = sql_commits.commit

    def killed(*_: Any) -> None:
        raise Killed

    def first_half(connection: Any, *given: Any) -> list[object]:
        with pytest.raises(Killed):
            real(connection, *given)
        return [(None, True, None)]

    with monkeypatch.context() as patch:
        patch.setattr(sql_commits, "write_receipts", killed)
        if not whole:
            patch.setattr(sql_commits, "commit", first_half)
        with pytest.raises(Killed) if whole else nullcontext():
            world.store.commit(FEED, execution.call, execution.declared)
    world.crash_publisher()
    world.restart()
    world.run_batch(TaskLayout())
    assert len(data(world.store)) == (3 if whole else 6)
    assert bool(world.anomalies()) == (not whole)


def test_cursors_without_a_history_would_skip_in_silence(world, monkeypatch):
    """A restored feed that has grown past a reader's cursor goes on with other events (A5)."""
    world.run_batch(TaskLayout(length=2))
    backup, head = world.copy_store(), world.store.feed(FEED).head
    world.run_batch(TaskLayout(length=3))
    behind = {each.partition: each.cursor for each in everything(world.store)}
    world.restore_store(backup)
    world.lose_checkpoint(100)
    world.run_batch(TaskLayout())
    world.paste_remedy()
    for _ in range(3):
        world.run_batch(TaskLayout(length=3))
    with pytest.raises(Problem) as refused:
        list(ChunkFeed(world.store, FEED).page(behind, 2, None))
    assert "cursor-of-another-history" == refused.value.name

    monkeypatch.setattr(reading, "check_history", lambda *_, **__: None)
    read = sum(len(each.lines) for each in ChunkFeed(world.store, FEED).page(behind, 2, None))
    assert 0 < read < sum(each.size for each in everything(world.store) if each.g > head)


@pytest.mark.parametrize("upload_again", [True, False])
def test_commit_between_two_reads_is_no_other_driver(site, monkeypatch, upload_again):
    """A late task hears that its own batch is there, not that another driver runs (EH-12)."""
    store, other = site.open(), site.open()
    store.create(FEED, 2)
    commit(store, call(0, run="r0"), upload(chunk(0, b"1")))
    store.stage(FEED, call(1), sent := upload(chunk(0, b"2")))
    find, late = sql_producers._feed_row, iter([True])

    def found(*given: Any, **named: Any) -> Any:
        answer = find(*given, **named)
        if threading.current_thread() is me and next(late, False):
            committing = threading.Thread(
                target=other.commit, args=(FEED, call(1), declared(sent)), daemon=True
            )
            committing.start()
            committing.join(0.5 if upload_again else 20)  # SQLite's waits for a stage that writes
        return answer

    me = threading.current_thread()
    monkeypatch.setattr(sql_producers, "_feed_row", found)
    if upload_again:
        store.stage(FEED, call(1), sent)
    else:
        assert store.admit(FEED, call(1)) in (None, other.receipt(FEED, "p", 1, None))


@pytest.mark.postgresql
def test_commits_without_the_feeds_lock_would_be_forgotten(monkeypatch, tmp_path):
    """Two commit at once: an empty batch that knows an older head would put it back (A7)."""
    heads = {}
    for lock in (sql_producers.Lock.CHANGE, None):
        with closing(PostgresqlSite(tmp_path)) as site:
            site.open().create(FEED, 2)
            heads[lock] = _commit_at_once(site, monkeypatch, lock)
    assert {sql_producers.Lock.CHANGE: 1, None: 0} == heads


def _commit_at_once(site: PostgresqlSite, monkeypatch: pytest.MonkeyPatch, lock: Any) -> int:
    """The head behind a batch of one chunk and an empty one that begins as the first one ends."""
    one, other = site.open(), site.open()
    one.stage(FEED, call(0), sent := upload(chunk(0, b"1")))
    find = sql_commits.find_feed

    def found(connection: Any, name: str, _: Any = None) -> Any:
        return find(connection, name, lock)

    with monkeypatch.context() as patch:
        patch.setattr(sql_commits, "find_feed", found)
        with ThreadPoolExecutor(1) as second, commit_under_way(one, call(0), sent):
            empty = second.submit(other.commit, FEED, call(0, producer="q"), declared())
            eventually(site.somebody_waits_for_a_lock)
    empty.result()
    return one.feed(FEED).head


# The control


def _append(store: Store, call: Call, execution: Execution) -> tuple[StoredReceipt, bool]:
    """What sinks do that are at least once: each attempt is its own producer."""
    chunks = [chunk for each in execution.uploads for chunk in each.chunks]
    fresh = next_batch(store, FEED, f"{call.run}.{len(store.producers(FEED))}")
    receipt, new = publish_as(store, fresh, *chunks)
    assert call.batch is not None
    mine = {"incarnation": call.incarnation, "batch": call.batch}
    return msgspec.structs.replace(receipt, **mine), new


def _commit_unheard(world: World) -> Execution:
    execution = world.execute(TaskLayout())
    assert execution
    world.commit(execution, heard=False)
    return execution


def _commit_twice(world: World) -> None:
    world.commit(_commit_unheard(world))


def _crash_after_the_commit(world: World) -> None:
    _commit_unheard(world)
    world.restart()
    world.run_batch(TaskLayout(tasks=2, seed=7))


def _two_drivers_at_once(world: World) -> None:
    world.start_a_second_driver()
    for which in (0, 1):
        world.run_batch(TaskLayout(tasks=which + 1, seed=which), which)


def _roll_back(world: World) -> None:
    world.run_batch(TaskLayout())
    world.roll_back(1, recut=False)
    world.run_batch(TaskLayout())


FAULTS = [_commit_twice, _crash_after_the_commit, _two_drivers_at_once, _roll_back]


@pytest.mark.parametrize("publish", [publish_batch, _append], ids=["batches", "append"])
@pytest.mark.parametrize("fault", FAULTS)
def test_plain_append_doubles_and_batches_do_not(site, fault, publish):
    """The faults of these tests are real ones (EX-01, F3, F4, F5, F7, F13)."""
    site.open().create(FEED, 2)
    world = World(site, publish=publish)
    fault(world)
    rows = data(world.store)
    if publish is _append:
        assert len(rows) > len(set(rows))
        assert "duplicate" in names(world)
    else:
        assert (3, 3, []) == (len(rows), len(set(rows)), world.anomalies())
