"""Locks and time limits in PostgreSQL: a statement that waits too long makes a busy store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import psycopg
import pytest
from sqlalchemy import Connection, text

from tests.contract.databases import in_threads, site, store
from tests.contract.sites import PostgresqlSite
from tests.patience import eventually
from tests.store_contract.writers import FEED, chunk, data, everything, publish
from zeh_spark.service.postgresql import transactions as postgresql_reads
from zeh_spark.service.postgresql import writer as postgresql_writer
from zeh_spark.service.postgresql.store import READERS
from zeh_spark.service.sql.execution import attempted
from zeh_spark.service.store.interface import StoreBusyError

__all__ = ["site", "store"]


def test_deadlock_is_tried_again(store):
    """Two who lock in the opposite order both get through (A7)."""
    store.create("other", 2)
    both = threading.Barrier(2)
    tries = []

    def locked(first: str, second: str) -> Callable[[Connection], None]:
        def work(db: Connection) -> None:
            tries.append(first)
            db.execute(text(_LOCK), {"name": first})
            if tries.count(first) == 1:
                both.wait(20)
            db.execute(text(_LOCK), {"name": second})

        return work

    orders = [(FEED, "other"), ("other", FEED)]
    assert [] == in_threads(2, lambda number: store._write(locked(*orders[number])))
    assert 3 <= len(tries)  # more, if the second try meets the other one's first again


_LOCK = "SELECT 1 FROM zeroeventhub.feeds WHERE name = :name FOR UPDATE"


def set_lock_timeout(monkeypatch: pytest.MonkeyPatch, timeout: str) -> None:
    begin = postgresql_writer._BEGIN.replace(f"{postgresql_writer.LOCK_SECONDS}s", timeout, 1)
    monkeypatch.setattr(postgresql_writer, "_BEGIN", begin)


def test_statement_timeout_is_a_busy_store(store):
    """The database's own limits make me wait, and nothing is half done."""

    def slow(db: Connection) -> None:
        db.execute(text("UPDATE zeroeventhub.feeds SET time = 99"))
        db.execute(text("SET LOCAL statement_timeout = 20"))
        db.execute(text("SELECT pg_sleep(10)"))

    with pytest.raises(StoreBusyError, match="statement timeout"):
        store._write(slow)
    assert 0 == store.feed(FEED).time


def test_lock_that_does_not_come_is_a_busy_store(store, site, monkeypatch):
    """A publisher that hangs within a commit does not hang the others for ever."""
    set_lock_timeout(monkeypatch, "50ms")
    with feed_locked(site), pytest.raises(StoreBusyError, match="lock timeout"):
        publish(store, chunk(0, b"1"))
    publish(store, chunk(0, b"1"))


@contextmanager
def locked(site: PostgresqlSite, statement: str) -> Iterator[None]:
    """By another program that takes a lock with a statement, and does not end."""
    with psycopg.connect(site.url.replace("+psycopg", "")) as other, other.transaction():
        other.execute(statement.encode())
        yield


def table_locked(site: PostgresqlSite, table: str) -> AbstractContextManager[None]:
    """As by an ALTER TABLE."""
    return locked(site, f"LOCK TABLE zeroeventhub.{table} IN ACCESS EXCLUSIVE MODE")


def feed_locked(site: PostgresqlSite) -> AbstractContextManager[None]:
    """As by a publisher that hangs within a commit."""
    return locked(site, f"SELECT 1 FROM zeroeventhub.feeds WHERE name = '{FEED}' FOR UPDATE")


def test_reads_behind_a_lock_end_and_others_go_on(store, site):
    """More reads than there are connections wait for one table: the process does not stop."""
    publish(store, chunk(0, b"1"))
    with table_locked(site, "recent_chunks"):
        with ThreadPoolExecutor(READERS) as pool:
            stuck = [pool.submit(everything, store) for _ in range(READERS)]
            assert [] == store.tokens()
            raised = [each.exception() for each in stuck]
    assert [StoreBusyError] * READERS == [type(each) for each in raised]
    assert all("lock timeout" in str(each) for each in raised)
    assert [b"1"] == data(store)


def test_a_look_for_commits_behind_a_lock_ends(store, site):
    """Readers that wait for events are told, and wait again when the lock is gone."""
    with table_locked(site, "feeds"), pytest.raises(StoreBusyError, match="lock timeout"):
        store.version()
    seen = store.version()
    with table_locked(site, "feeds"):
        eventually(lambda: isinstance(attempted(store.version).exception(), StoreBusyError))
    eventually(lambda: attempted(store.version).exception() is None)
    publish(store, chunk(0, b"1"))
    eventually(lambda: store.version() != seen)


def test_a_read_that_takes_too_long_is_a_busy_store(store, monkeypatch):
    """A statement that the database does not finish does not hold its connection for ever."""
    begin = postgresql_reads._BEGIN.replace(f"{postgresql_reads.STATEMENT_SECONDS}s", "50ms")
    monkeypatch.setattr(postgresql_reads, "_BEGIN", begin)
    with pytest.raises(StoreBusyError, match="statement timeout"), store._reading() as connection:
        connection.execute(text("SELECT pg_sleep(10)"))
    assert 0 == store.feed(FEED).time


def test_the_bounds_of_a_read_end_with_it(store):
    """A pooler may give the connection to others, who have not asked for bounds."""
    with store._reading() as connection:
        assert "2s" == connection.scalar(text("SHOW lock_timeout"))
        driver = connection.connection.driver_connection
    assert driver is not None
    assert ("0",) == driver.execute("SHOW lock_timeout").fetchone()


def test_failure_of_the_database_is_told_to_a_whole_group_at_once(store, site, monkeypatch):
    """Twenty commits that wait for a lock that does not come wait for it together."""
    set_lock_timeout(monkeypatch, "1s")
    with feed_locked(site):
        began = time.monotonic()
        raised = in_threads(20, lambda number: store.producer(FEED, f"p{number}"))
    assert [StoreBusyError] * 20 == [type(each) for each in raised]
    assert time.monotonic() - began < 10  # and not 20
