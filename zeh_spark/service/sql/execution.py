"""What a database brings to a SQL store: how it reads and writes, and what its errors mean.

The functions turn the failure of work into a value, for the thread that waits for it, or for the
log.

Rule for editors: nothing here knows what is written. `store` uses these interfaces; `sqlite`
and `postgresql` implement them. The only broad `except` of the stores is here: a caller of
`attempted` raises the failure, passes it on, or logs it, and never drops it. Runs in the publisher
and in commands that write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from zeh_spark.errors import StoreError
from zeh_spark.service.store.problems import Problem

Rows = Sequence[Sequence[Any]]

T = TypeVar("T")
A = TypeVar("A", contravariant=True)
Commits = Callable[[Connection, Sequence[A]], Sequence[T | Problem]]
"""Several commits in a transaction, with an answer to each.

A commit whose answer is a Problem has changed nothing. A Problem that is raised refuses all of
them.
"""


class Writes(Protocol):
    """How a database writes.

    Each call has a transaction of its own, or a part of one. No call may be made from inside
    another one. If other transactions are in the way, the work is done again: it must change
    nothing but the database.

    Guarantee: if a call returns, its work is committed, and durable if that was asked for. If it
    raises, nothing was done, except after a StoreOutcomeUnknownError: COMMIT itself failed, and
    whether it took effect is not known.
    """

    def write(self, work: Callable[[Connection], T], *, durable: bool = True) -> T:
        """Run `work` in a transaction and return its result.

        If it is `durable`, the transaction is on disk (fsync) when this returns.
        """

    def stage(self, work: Callable[[Connection], T], *, durable: bool) -> T:
        """Run `work`, which stages an upload, as `write` does; it leaves commits room."""

    def commit(self, feed: str, about: A, work: Commits[A, T], share: float) -> T:
        """Do a commit, durably; perhaps together with other commits in one transaction.

        A process does a feed's commits and consistent reads in the order in which they come.
        `about` is the commit as `work` takes it, which is the same for all commits. `share` is how
        much of a transaction the commit fills: commits are done together if their shares are at
        most 1 in total. It returns the answer of `work` to this commit, or raises its Problem.
        """

    def consistent_read(self, feed: str, work: Callable[[Connection], T]) -> T:
        """Run `work`, which changes nothing, serialized with the feed's commits."""


@dataclass(frozen=True, slots=True)
class Database:
    """What a database brings.

    Args:
        snapshot: begins a read transaction in which all statements see the same moment, and runs
            `log.opening` in it, for a feed and some positions; its rows come with the connection.
        explained: a database's error as a StoreError; an error that may pass by itself as a
            StoreBusyError.
        free_bytes: bytes that can be written before the database's file grows, as far as known.
        replica_lag: how far a replica is behind, in ms; None for what is not a replica.
        skew: reads the database's clock again, if it has one; by how many ms this machine's clock
            is ahead of it.
        owner: a text that this database has, and no copy of it.
        is_behind: whether so much is waiting to be written down that upkeep should wait.
    """

    read: Callable[[], AbstractContextManager[Connection]]
    snapshot: Callable[[str, Iterable[int]], AbstractContextManager[tuple[Connection, Rows]]]
    writes: Writes
    version: Callable[[], int]
    stored_version: Callable[[Connection], int]
    explained: Callable[[DBAPIError], StoreError]
    close: Callable[[], None]
    owner: Callable[[Connection], str]
    free_bytes: Callable[[Connection], int] = lambda _: 0
    replica_lag: Callable[[Connection], int | None] = lambda _: None
    skew: Callable[[Connection], int] = lambda _: 0
    lineage: Callable[[str], object | None] = lambda _: None
    is_behind: Callable[[], bool] = lambda: False


def only(answers: Sequence[T | Problem]) -> T:
    """Return the only answer, or raise it if it is a Problem."""
    (answer,) = answers
    if isinstance(answer, Problem):
        raise answer
    return answer


def attempted(work: Callable[[], T]) -> Future[T]:
    """Do work in this thread, and return a finished future.

    The future has what the work returned, or the Exception that it raised.
    """
    try:
        result = work()
    except Exception as exc:  # noqa: BLE001 - the future raises it in `result`
        return failed(exc)
    done: Future[T] = Future()
    done.set_result(result)
    return done


def failed(exc: BaseException) -> Future[T]:
    done: Future[T] = Future()
    done.set_exception(exc)
    return done


def hand_on(outcome: Future[T], waiting: Future[T]) -> None:
    """Give a waiting future the outcome of a finished one."""
    if exc := outcome.exception():
        waiting.set_exception(exc)
    else:
        waiting.set_result(outcome.result())


def logged(log: logging.Logger, consequence: str, work: Callable[[], T]) -> T | None:
    """Do work in a thread that continues whatever fails, and log a failure with its consequence.

    It returns what the work returned; None if it failed.

    What a database or a store may raise at any time is a warning of one line. Anything else is a
    bug: an error with its traceback.
    """
    done = attempted(work)
    failure = done.exception()
    if isinstance(failure, SQLAlchemyError | StoreError):
        log.warning("%s: %s", consequence, str(failure).partition("\n")[0])
    elif failure:
        log.error(consequence, exc_info=failure)
    return None if failure else done.result()
