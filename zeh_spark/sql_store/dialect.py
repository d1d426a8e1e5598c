"""What a dialect brings to a store in a SQL database: how it reads, how it writes, and what its
errors mean.

Rule for editors: nothing here knows what is written; `store` asks for it, `sqlite` and
`postgresql` give it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from zeh_spark.errors import StoreError
from zeh_spark.store.problems import Problem

T = TypeVar("T")
A = TypeVar("A", contravariant=True)
Commits = Callable[[Connection, Sequence[A]], Sequence[T | Problem]]
"""Several commits in a transaction, with an answer to each. A Problem has changed nothing; one
that is raised stands against all of them.
"""

Step = Callable[[Connection], bool]
"""Work in a transaction; true if there may be more to do."""


class Writes(Protocol):
    """How a dialect writes. Each call has a transaction of its own, or the part of one, and is not
    to be made from inside another one. Where others are in the way, work is done anew: it must
    change nothing but the database.
    """

    def write(self, work: Callable[[Connection], T], *, durable: bool = True) -> T:
        """On disk when it returns, unless it need not be `durable`."""

    def stage(self, work: Callable[[Connection], T], *, durable: bool) -> T:
        """As `write`, for an upload: it leaves commits room."""

    def commit(self, feed: str, about: A, work: Commits[A, T], share: float) -> T:
        """Durable; in the order in which a feed's commits and looks come to this process, perhaps
        with others in one transaction, whose `share` is at most 1. `work` is the same for all.
        """

    def consistent_read(self, feed: str, work: Callable[[Connection], T]) -> T:
        """In the same order, so that no commit is under way. Changes nothing."""

    def tidy(self, step: Step) -> None:
        """Repeat a step in transactions of its own, when there is time, until it returns false."""


@dataclass(frozen=True, slots=True)
class Database:
    """What a dialect brings. `explained`: an error in our words; one that may pass by itself is a
    StoreBusyError.
    """

    read: Callable[[], AbstractContextManager[Connection]]
    writes: Writes
    version: Callable[[], int]
    explained: Callable[[DBAPIError], StoreError]
    close: Callable[[], None]


def only(answers: Sequence[T | Problem]) -> T:
    """The answer to one. Raises Problem."""
    (answer,) = answers
    if isinstance(answer, Problem):
        raise answer
    return answer
