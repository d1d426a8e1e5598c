"""Commits of one feed, in PostgreSQL: one after the other, those that wait in one transaction.

They would wait for each other anyway, at the feed's row, and each for its own fsync. So whoever is
first does what has come in meanwhile, in as many statements as for one.

Rule for editors: a lane is one process's; what keeps processes apart is the lock on the feed's row,
which all take.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection

from zeh_spark.publisher.sql import Commits

T = TypeVar("T")

GROUP = 32
"""Commits and looks in one transaction, at most."""


@dataclass(frozen=True, eq=False, slots=True)
class Asked:
    """What somebody waits for: a commit, which may be done with others, or a look at the feed."""

    done: Future[Any] = field(default_factory=Future, init=False)


@dataclass(frozen=True, eq=False, slots=True)
class Commit(Asked):
    """`work` is the same for all commits of a feed."""

    about: Any
    work: Commits[Any, Any]


@dataclass(frozen=True, eq=False, slots=True)
class Look(Asked):
    """It changes nothing."""

    work: Callable[[Connection], Any]


class Lane:
    """Guarantee: what is asked is done in the order in which it came, each once."""

    def __init__(self, do: Callable[[Sequence[Asked]], None]) -> None:
        """`do`: does them and tells their outcome; what it raises is the outcome of the rest."""
        self._do = do
        self._waiting: deque[Asked] = deque()
        self._turn = threading.Lock()

    def through(self, asked: Asked) -> Any:
        """Its answer; raises what stands against it."""
        self._waiting.append(asked)
        while not asked.done.done():
            with self._turn:
                if not asked.done.done():
                    self._next()
        return asked.done.result()

    def _next(self) -> None:
        count = min(len(self._waiting), GROUP)
        group = [self._waiting.popleft() for _ in range(count)]
        try:
            self._do(group)
        except BaseException as exc:  # noqa: BLE001 - raised where it is waited for
            for each in group:
                if not each.done.done():
                    each.done.set_exception(exc)


class Lanes:
    """One for each feed, made when it is wanted."""

    def __init__(self, do: Callable[[Sequence[Asked]], None]) -> None:
        self._do = do
        self._lock = threading.Lock()
        self._lanes: dict[str, Lane] = {}

    def of(self, feed: str) -> Lane:
        with self._lock:
            return self._lanes.setdefault(feed, Lane(self._do))
