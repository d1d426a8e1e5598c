"""How a process writes to a store in PostgreSQL.

Transactions are repeated if others were in the way. Commits of a feed that wait are done together
(`group_commit`).

Rule for editors: rows are locked in one order (`producers`). Settings hold for one transaction (see
`transactions`). Runs in the publisher and in commands that write.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from zeh_spark.service.postgresql.errors import is_in_the_way, reason_of
from zeh_spark.service.postgresql.group_commit import Asked, CommitQueues
from zeh_spark.service.postgresql.transactions import begun
from zeh_spark.service.sql.execution import A, Commits, attempted, failed, hand_on, only
from zeh_spark.service.sql.schema import VERSION
from zeh_spark.service.store.interface import StoreBusyError, StoreOutcomeUnknownError
from zeh_spark.service.store.problems import Problem

T = TypeVar("T")

UPLOADS = 2
"""How many uploads a process writes at a time, so that commits have room.

Measured: with 12, each of 16 writers waited 120 ms for its commit, and 80 ms with 2. All together
they wrote as much.
"""

LOCK_SECONDS, IDLE_SECONDS, TURN_SECONDS = 10, 30, 10
"""Seconds to wait for a lock, for a process that stopped inside a transaction, and for a turn.

A turn is a free connection, or room for an upload.
"""

_RETRIES = 6

_BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED;"
    f" SET LOCAL lock_timeout = '{LOCK_SECONDS}s';"
    f" SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS}s';"
    f" SET LOCAL zeroeventhub.version = '{VERSION}';"
)
_DURABLE = {
    True: "SELECT set_config('synchronous_commit', 'on', true)"
    " WHERE current_setting('synchronous_commit') = 'off'",
    False: "SET LOCAL synchronous_commit = off",
}


class Writer:
    """A process's transactions that write to a store in PostgreSQL (see `Writes`).

    Args:
        engine: its connections begin no transaction by themselves (AUTOCOMMIT).
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lanes = CommitQueues(self._do)
        self._uploads = threading.BoundedSemaphore(UPLOADS)

    def write(self, work: Callable[[Connection], T], *, durable: bool = True) -> T:
        for tried in count(1):
            try:
                with begun(self._engine, _BEGIN + _DURABLE[durable]) as (connection, _):
                    result = work(connection)
                    _commit(connection)
                    return result
            except DBAPIError as exc:
                if not is_in_the_way(exc) or tried > _RETRIES:
                    raise
            time.sleep(random.uniform(0, 0.005 * 2**tried))
        raise AssertionError("unreachable")

    def stage(self, work: Callable[[Connection], T], *, durable: bool) -> T:
        """Stage an upload; at most `UPLOADS` are staged at a time (see `Writes.stage`)."""
        if not self._uploads.acquire(timeout=TURN_SECONDS):
            raise StoreBusyError(
                f"other uploads to the store have taken more than {TURN_SECONDS} s. Try again in a "
                f"few seconds"
            )
        try:
            return self.write(work, durable=durable)
        finally:
            self._uploads.release()

    def commit(self, feed: str, about: A, work: Commits[A, T], share: float) -> T:
        result: T = self._lanes.of(feed).through(Asked(about, work, share))
        return result

    def consistent_read(self, feed: str, work: Callable[[Connection], T]) -> T:
        look = Asked(None, lambda connection, _: [_seen(work, connection)], changes=False)
        result: T = self._lanes.of(feed).through(look)
        return result

    def _do(self, group: Sequence[Asked]) -> None:
        """Do a group in one transaction; if one of them fails there, do each by itself."""
        if len(group) > 1 and self._together(group):
            return
        for each in group:
            hand_on(_answer(each, attempted(partial(self._alone, each))), each.done)

    def _alone(self, asked: Asked) -> Any:
        """Do one commit or look in a transaction of its own, and return its answer."""

        def work(connection: Connection) -> Any:
            return only(asked.work(connection, [asked.about]))

        return self.write(work, durable=asked.changes)

    def _together(self, group: Sequence[Asked]) -> bool:
        """Do a group in one transaction; return False if each has to be done by itself.

        No success is reported before it is committed. If the database itself fails, all get its
        error.
        """
        commits = [each for each in group if each.changes]
        looks = [each for each in group if not each.changes]
        outcome = attempted(partial(self._transaction, commits, looks))
        failure = outcome.exception()
        if failure and not _fails_all(failure):
            return False  # each is done by itself next, and gets its own failure
        for at, each in enumerate((*commits, *looks)):
            mine = outcome if failure else attempted(partial(only, outcome.result()[at : at + 1]))
            hand_on(_answer(each, mine), each.done)
        return True

    def _transaction(self, commits: Sequence[Asked], looks: Sequence[Asked]) -> list[Any]:
        """Return an answer, perhaps a Problem, to each: first to the commits, then to the looks."""
        answers: list[Any] = []
        with begun(self._engine, _BEGIN + _DURABLE[bool(commits)]) as (connection, _):
            # Commits first: they lock more than looks do. Rejected: looks first; two publishers
            # would wait for each other to release their locks.
            if commits:
                answers += commits[0].work(connection, [each.about for each in commits])
            for each in looks:
                answers += each.work(connection, [each.about])
            if commits:
                _commit(connection)
        return answers


def _answer(asked: Asked, outcome: Future[Any]) -> Future[Any]:
    """Return the outcome for one member of a group; the outcome of a read is never unknown."""
    failure = outcome.exception()
    if not asked.changes and isinstance(failure, StoreOutcomeUnknownError):
        busy = StoreBusyError("the store failed while it was read. Try again in a few seconds")
        busy.__cause__ = failure
        return failed(busy)
    return outcome


def _fails_all(failure: BaseException) -> bool:
    """Return whether a group's failure is the failure of each of its members.

    If not, one of them may be the cause, or another transaction was in the way.
    """
    if isinstance(failure, DBAPIError):
        return not is_in_the_way(failure)
    return isinstance(failure, StoreOutcomeUnknownError | SQLAlchemyError)


def _seen(work: Callable[[Connection], T], connection: Connection) -> T | Problem:
    """Return the result of a read. A Problem is an answer, too: a read has changed nothing."""
    try:
        return work(connection)
    except Problem as problem:
        return problem


def _commit(connection: Connection) -> None:
    """Commit; raise an error of COMMIT as a StoreOutcomeUnknownError."""
    try:
        connection.commit()
    except DBAPIError as exc:
        raise StoreOutcomeUnknownError(
            f"the store failed while it committed ({reason_of(exc)}), and whether the commit took "
            f"effect is not known yet. Ask again: the next answer says whether it did"
        ) from exc
