"""Detects what other processes commit to a PostgreSQL database, for readers that wait.

Rule for editors: a notification only says that it is worth to look. What `Look` returns decides,
and it is asked regularly as well, because notifications may get lost. Runs in the publisher, also
for tables of a service's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from zeh_spark.service.sql.execution import attempted

POLL_SECONDS = 1.0
"""Seconds between looks if nothing is notified.

A pooler that hands out connections by transaction loses notifications.
"""

STANDBY_SECONDS = 0.1
"""Seconds between looks on a standby, which notifies of nothing."""

V = TypeVar("V")

Look = Callable[[Connection], tuple[V, float]]
"""Returns a value that changes with each commit, and the most seconds to wait before a new look."""


class Watch(Generic[V]):
    """A thread with one connection that listens for commits, from the first call of `version`.

    The connection is taken out of the engine's pool.
    """

    def __init__(self, engine: Engine, channel: str, look: Look[V]) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._channel = channel
        self._look = look
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._version: V | None = None
        self._failure: DBAPIError | None = None

    def version(self) -> V:
        """Return what the last check found. Raises DBAPIError while the database is silent."""
        with self._lock:
            if self._version is None:
                with self._engine.connect() as connection:
                    self._version, _ = self._look(connection)
                threading.Thread(target=self._run, name="zeh-listener", daemon=True).start()
        if failure := self._failure:
            raise failure
        return self._version

    def close(self) -> None:
        """End the thread after its next check; does not wait for it."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            failure = attempted(self._listen).exception()
            if isinstance(failure, DBAPIError):
                self._failure = failure
            elif failure:
                self._failure = OperationalError("LISTEN", None, failure)
            self._ended.wait(POLL_SECONDS)

    def _listen(self) -> None:
        with self._engine.connect() as connection:
            connection.detach()
            driver: Any = connection.connection.dbapi_connection
            listens = False
            while not self._ended.is_set():
                if not listens:  # a standby notifies of nothing until it is promoted
                    standby = connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar()
                    listens = not standby
                    if listens:
                        driver.execute(f"LISTEN {self._channel}")
                self._version, patience = self._look(connection)
                self._failure = None
                if listens:
                    for _ in driver.notifies(timeout=patience, stop_after=1):
                        pass
                else:
                    self._ended.wait(min(patience, STANDBY_SECONDS))
