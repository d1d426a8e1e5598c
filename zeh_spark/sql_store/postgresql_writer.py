"""How a process writes to a store in PostgreSQL: transactions that are repeated if others were in
the way, and commits of a feed together (`group_commit`).

Rule for editors: rows are locked in one order (`producers`), and settings are those of a
transaction, because a pooler may stand between.
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

from sqlalchemy import Connection, bindparam, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from zeh_spark.sql_store.chores import Chores
from zeh_spark.sql_store.dialect import A, Commits, Step, only
from zeh_spark.sql_store.group_commit import Asked, CommitQueues, Look, QueuedCommit
from zeh_spark.sql_store.postgresql_errors import is_in_the_way, reason_of
from zeh_spark.store.interface import StoreBusyError, StoreOutcomeUnknownError
from zeh_spark.store.outcome import attempted, failed, hand_on
from zeh_spark.store.problems import Problem

T = TypeVar("T")

UPLOADS = 2
"""Uploads that a process writes at a time, so that commits have room [with 12, each of 16 writers
waited 120 ms for its commit, and 80 ms with 2; all together they wrote as much].
"""

LOCK_SECONDS, IDLE_SECONDS, TURN_SECONDS = 10, 30, 10
"""How long to wait for a lock, for a process that stopped within a transaction, and for a free
connection.
"""

_RETRIES = 6

_BEGIN = text(
    "SELECT set_config('synchronous_commit', CASE WHEN NOT :durable THEN 'off'"
    " WHEN current_setting('synchronous_commit') = 'off' THEN 'on'"
    " ELSE current_setting('synchronous_commit') END, true),"
    f" set_config('lock_timeout', '{LOCK_SECONDS}s', true),"
    f" set_config('idle_in_transaction_session_timeout', '{IDLE_SECONDS}s', true)"
).bindparams(bindparam("durable"))


class Writer:
    """Transactions. What others were in the way of is done anew.

    Guarantee: what is returned is committed, and durable if that was asked for; what is raised was
    not done, except for an error of the commit itself, whose outcome nobody knows.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lanes = CommitQueues(self._do)
        self._uploads = threading.BoundedSemaphore(UPLOADS)
        self._chores = Chores(self.write)

    def write(self, work: Callable[[Connection], T], *, durable: bool = True) -> T:
        for tried in count(1):
            try:
                with self._engine.connect() as connection:
                    connection.execute(_BEGIN, {"durable": durable})
                    result = work(connection)
                    _commit(connection)
                    return result
            except DBAPIError as exc:
                if not is_in_the_way(exc) or tried > _RETRIES:
                    raise
            time.sleep(random.uniform(0, 0.005 * 2**tried))
        raise AssertionError("unreachable")

    def stage(self, work: Callable[[Connection], T], *, durable: bool) -> T:
        if not self._uploads.acquire(timeout=TURN_SECONDS):
            raise StoreBusyError("other uploads to the store take long; ask again")
        try:
            return self.write(work, durable=durable)
        finally:
            self._uploads.release()

    def commit(self, feed: str, about: A, work: Commits[A, T], share: float) -> T:
        result: T = self._lanes.of(feed).through(QueuedCommit(about, work, share))
        return result

    def consistent_read(self, feed: str, work: Callable[[Connection], T]) -> T:
        result: T = self._lanes.of(feed).through(Look(work))
        return result

    def tidy(self, step: Step) -> None:
        self._chores.add(step)

    def close(self) -> None:
        self._chores.close()

    def _do(self, group: Sequence[Asked]) -> None:
        """Together, if none stands against the others; else each as if it had come alone."""
        if len(group) > 1 and self._together(group):
            return
        for each in group:
            hand_on(_answer(each, attempted(partial(self._alone, each))), each.done)

    def _alone(self, asked: Asked) -> Any:
        if isinstance(asked, QueuedCommit):
            return self.write(lambda connection: only(asked.work(connection, [asked.about])))
        assert isinstance(asked, Look)
        return self.write(asked.work, durable=False)

    def _together(self, group: Sequence[Asked]) -> bool:
        """In one transaction; false if that has to be done otherwise. Nobody hears of a success
        before it is committed; a database that fails, fails for all.
        """
        commits = [each for each in group if isinstance(each, QueuedCommit)]
        looks = [each for each in group if isinstance(each, Look)]
        outcome = attempted(partial(self._transaction, commits, looks))
        failure = outcome.exception()
        if failure and not _fails_all(failure):
            return False  # each is done by itself next, and gets its own failure
        for at, each in enumerate((*commits, *looks)):
            if failure:
                hand_on(_answer(each, outcome), each.done)
            elif isinstance(answer := outcome.result()[at], Problem):
                each.done.set_exception(answer)
            else:
                each.done.set_result(answer)
        return True

    def _transaction(self, commits: Sequence[QueuedCommit], looks: Sequence[Look]) -> list[Any]:
        """An answer to each. A Problem is one, too."""
        answers: list[Any] = []
        with self._engine.connect() as connection:
            connection.execute(_BEGIN, {"durable": bool(commits)})
            # Commits first: they lock more than looks do [a look first, and both publishers would
            # wait for each other to give theirs up].
            if commits:
                answers += commits[0].work(connection, [each.about for each in commits])
            answers += [_seen(each, connection) for each in looks]
            if commits:
                _commit(connection)
        return answers


def _answer(asked: Asked, outcome: Future[Any]) -> Future[Any]:
    """The outcome as it concerns who asked: a look has nothing that could be unknown."""
    failure = outcome.exception()
    if isinstance(asked, Look) and isinstance(failure, StoreOutcomeUnknownError):
        busy = StoreBusyError("the store failed; ask again")
        busy.__cause__ = failure
        return failed(busy)
    return outcome


def _fails_all(failure: BaseException) -> bool:
    """Whether a group's failure is that of each of its members. Otherwise one of them may be to
    blame, or another transaction was in the way.
    """
    if isinstance(failure, DBAPIError):
        return not is_in_the_way(failure)
    return isinstance(failure, StoreOutcomeUnknownError | SQLAlchemyError)


def _seen(look: Look, connection: Connection) -> Any:
    """What a look brings. A Problem is an answer, too: it has changed nothing."""
    try:
        return look.work(connection)
    except Problem as problem:
        return problem


def _commit(connection: Connection) -> None:
    try:
        connection.commit()
    except DBAPIError as exc:
        raise StoreOutcomeUnknownError(
            f"the store failed while it committed ({reason_of(exc)}): whether it did is not known "
            f"yet; ask again"
        ) from exc
