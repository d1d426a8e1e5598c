"""The thread that writes to a SQLite store, and that keeps its write-ahead log short.

SQLite has one writer at a time, and its busy wait is neither fair nor short. So one thread with one
connection does all of a process's writes, and waits only for other processes. It does everything
that has come in meanwhile in one transaction (group commit), each piece of work under a savepoint
of its own. Durable work and all other work take turns.

While there is always a reader, the log cannot be emptied. So above LOG_BYTES the writer lets no new
reader in, waits until the others have ended, and empties the log. Rejected: to leave it alone; 32
readers made it 310 MiB. Rejected: checkpoints that wait for readers; they held the writer for 64 s.

Rule for editors: only the writer's thread uses the connection that writes. Runs in the publisher
and in commands that write.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from zeh_spark.errors import StoreError
from zeh_spark.service.sql.execution import A, Commits, attempted, hand_on, only
from zeh_spark.service.sql.schema import VERSION
from zeh_spark.service.sql.upgrades import upgraded_meanwhile
from zeh_spark.service.store.interface import StoreOutcomeUnknownError

log = logging.getLogger("zeh_spark.publisher")

T = TypeVar("T")

LOG_BYTES = 64 << 20
"""The size in bytes above which SQLite's write-ahead log is emptied."""

_GROUP = 32
"""How many pieces of work are in one transaction at most."""

_READERS_SECONDS = 2.0
"""Seconds to wait for reads to end before the log is emptied; then it is tried again later."""

Work = Callable[[Connection], Any]


class ReaderBarrier:
    """A barrier that lets readers in unless the writer has closed it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._closed = False

    @contextmanager
    def reader(self) -> Iterator[None]:
        """Be one of the readers; wait first while the barrier is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def closed(self, timeout: float) -> Iterator[bool]:
        """Keep new readers out; yield whether all others ended within `timeout` seconds."""
        with self._changed:
            self._closed = True
            alone = self._changed.wait_for(lambda: not self._readers, timeout)
        try:
            yield alone
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()


class Writer:
    """The thread that writes, from the first work until `close` (see `Writes`).

    Args:
        engine: connections whose transactions begin with BEGIN IMMEDIATE.
    """

    def __init__(self, engine: Engine, log: Path, gate: ReaderBarrier) -> None:
        self._engine = engine
        self._log = log
        self._gate = gate
        self._news = threading.Condition()
        self._durable: deque[tuple[Work, Future[Any]]] = deque()
        self._uploads: deque[tuple[Work, Future[Any]]] = deque()
        self._thread: threading.Thread | None = None
        self._ended = False
        self._uploads_next = False
        self._limit = LOG_BYTES

    def write(self, work: Callable[[Connection], T], *, durable: bool = True) -> T:
        done: Future[T] = Future()
        with self._news:
            if self._ended:
                raise StoreError("the store is closed. Open it again")
            (self._durable if durable else self._uploads).append((work, done))
            self._wake()
        return done.result()

    def stage(self, work: Callable[[Connection], T], *, durable: bool) -> T:
        return self.write(work, durable=durable)

    def commit(self, _feed: str, about: A, work: Commits[A, T], _share: float) -> T:
        return self.write(lambda connection: only(work(connection, [about])))

    def consistent_read(self, _feed: str, work: Callable[[Connection], T]) -> T:
        return self.write(work)

    def is_behind(self) -> bool:
        """Return whether the write-ahead log is longer than its limit."""
        return self._log_bytes() > LOG_BYTES

    def close(self) -> None:
        """End the thread; wait until it has done all work that was begun."""
        with self._news:
            self._ended = True
            self._news.notify()
        if self._thread:
            self._thread.join()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="zeh-writer", daemon=True)
            self._thread.start()
        self._news.notify()

    def _run(self) -> None:
        """Do work until the end, whatever fails.

        Threads that wait get the failure, and the next work gets a new connection.
        """
        while group := self._next():
            if failure := attempted(partial(self._connected, *group)).exception():
                log.error("the store's writer failed", exc_info=failure)
                for _, done in group[0]:
                    if not done.done():
                        done.set_exception(failure)

    def _connected(self, group: list[tuple[Work, Future[Any]]], durable: bool) -> None:
        with self._engine.connect() as connection:
            self._do(connection, group, durable)
            self._keep_the_log_short(connection)

    def _next(self) -> tuple[list[tuple[Work, Future[Any]]], bool] | None:
        """Return what to do in the next transaction, and whether it has to be durable.

        Durable work and uploads take turns if both wait. Returns None at the end.
        """
        with self._news:
            self._news.wait_for(lambda: self._durable or self._uploads or self._ended)
            durable = bool(self._durable) and not (self._uploads_next and self._uploads)
            self._uploads_next = durable
            queue = self._durable if durable else self._uploads
            group = [queue.popleft() for _ in range(min(len(queue), _GROUP))]
            return (group, durable) if group else None

    def _do(
        self, connection: Connection, group: list[tuple[Work, Future[Any]]], durable: bool
    ) -> None:
        """Do a group in one transaction; report no success before it is committed."""
        works = [work for work, _ in group]
        together = attempted(partial(_transaction, connection, works, durable))
        connection.rollback()  # what a failed COMMIT left: SQLAlchemy's transaction and SQLite's
        _sqlite(connection).rollback()
        outcomes = [together] * len(group) if together.exception() else together.result()
        for outcome, (_, done) in zip(outcomes, group, strict=True):
            hand_on(outcome, done)

    def _log_bytes(self) -> int:
        return os.path.getsize(self._log) if self._log.exists() else 0

    def _keep_the_log_short(self, connection: Connection) -> None:
        """Empty the write-ahead log if it is longer than its limit."""
        if (size := self._log_bytes()) <= self._limit:
            return
        sqlite = _sqlite(connection)
        (waits,) = sqlite.execute("PRAGMA busy_timeout").fetchone()
        with self._gate.closed(_READERS_SECONDS):
            try:
                sqlite.execute("PRAGMA busy_timeout = 200")  # for readers in other processes
                (busy, *_) = sqlite.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.Error as exc:
                log.warning("the store's log, of %d bytes, cannot be emptied: %s", size, exc)
                busy = True
            finally:
                sqlite.execute(f"PRAGMA busy_timeout = {waits}")
        self._limit = size + LOG_BYTES // 8 if busy else LOG_BYTES


def _sqlite(connection: Connection) -> Any:
    """Return the connection of sqlite3: SQLAlchemy's would begin a transaction for a PRAGMA."""
    return connection.connection.driver_connection


def _transaction(connection: Connection, works: Sequence[Work], durable: bool) -> list[Future[Any]]:
    """Do several pieces of work, commit them, and return the outcome of each.

    Raises the error if all of them failed together.
    """
    # Uploads need no fsync. A commit comes after its uploads in the log, so that its fsync writes
    # them, too; and it notices if a power cut has undone one of them before.
    _sqlite(connection).execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    with connection.begin() as transaction:
        (version,) = _sqlite(connection).execute("PRAGMA user_version").fetchone()
        if version != VERSION:
            raise upgraded_meanwhile()
        outcomes = [_under_savepoint(connection, work) for work in works]
        try:
            transaction.commit()
        except DBAPIError as exc:
            raise StoreOutcomeUnknownError(
                f"the store failed while it committed ({exc.orig}), and whether the commit took "
                f"effect is not known yet. Ask again: the next answer says whether it did"
            ) from exc
    return outcomes


def _under_savepoint(connection: Connection, work: Work) -> Future[Any]:
    """Do a piece of work under a savepoint and return its outcome.

    Raises the error if SQLite gave up the whole transaction, for instance because of a full disk.
    """

    def nested() -> Any:
        savepoint = connection.begin_nested()
        try:
            result = work(connection)
        except BaseException:  # raised again
            if _sqlite(connection).in_transaction:
                savepoint.rollback()
            raise
        savepoint.commit()
        return result

    outcome = attempted(nested)
    if outcome.exception() and not _sqlite(connection).in_transaction:
        outcome.result()  # raises the error
    return outcome
