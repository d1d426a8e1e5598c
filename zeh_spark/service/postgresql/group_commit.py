"""Group commit in PostgreSQL: commits of one feed that wait are done in one transaction.

Without it they would wait for each other at the feed's row, and each for its own fsync. So the
first thread to come leads: it does everything that has come in meanwhile. Most of that takes as
many statements as one commit takes.

Rule for editors: a queue belongs to one process. The lock on the feed's row, which all processes
take, keeps processes apart. A thread that has its answer leaves at once, whichever thread leads
next. Rejected: to wait until nobody leads as well; 16 writers then spent 30 of 50 ms waiting for
commits that were not theirs. Runs in the publisher and in commands that write, on their threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from zeh_spark.service.sql.execution import Commits
from zeh_spark.service.store.interface import StoreOutcomeUnknownError

GROUP = 32
"""How many commits and looks are in one transaction at most."""


@dataclass(frozen=True, eq=False, slots=True)
class Asked:
    """What a thread waits for: a commit, or a read of the feed while no commit is under way.

    Args:
        about: the commit, as `work` takes it; None for a read.
        share: how much of a transaction it fills; 1 is a full one.
    """

    about: Any
    work: Commits[Any, Any]
    share: float = 0.0
    changes: bool = True
    done: Future[Any] = field(default_factory=Future, init=False)


class CommitQueue:
    """The commits and looks of one feed that wait in this process.

    Guarantee: what is asked for is done in the order in which it came, each once.

    Args:
        do: does a group in one transaction, and sets the outcome of each. It raises only what
            interrupts it.
    """

    def __init__(self, do: Callable[[Sequence[Asked]], None]) -> None:
        self._do = do
        self._waiting: deque[Asked] = deque()
        self._changed = threading.Condition()
        self._led = False

    def through(self, asked: Asked) -> Any:
        """Wait until a commit or look is done; return its answer, or raise the error it met."""
        with self._changed:
            self._waiting.append(asked)
        while not asked.done.done():
            with self.lead(lambda: not asked.done.done()) as mine:
                if mine:
                    self._next()
        return asked.done.result()

    @contextmanager
    def lead(self, still_wanted: Callable[[], bool] = lambda: True) -> Iterator[bool]:
        """Hold leadership; yield False if `still_wanted` turned false while waiting.

        While one thread holds it, no other thread does anything for this feed.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._led or not still_wanted())
            mine = still_wanted()
            self._led = self._led or mine
        try:
            yield mine
        finally:
            if mine:
                with self._changed:
                    self._led = False
                    self._changed.notify_all()

    def _next(self) -> None:
        group: list[Asked] = []
        try:
            share = 0.0
            while self._waiting and len(group) < GROUP:
                share += self._waiting[0].share
                if group and share > 1:
                    break
                group.append(self._waiting.popleft())
            self._do(group)
        except BaseException:
            for each in group:
                if not each.done.done():
                    unknown = (
                        "the commit was interrupted, and whether it took effect is not known. Ask "
                        "again: the next answer says whether it did"
                    )
                    each.done.set_exception(StoreOutcomeUnknownError(unknown))
            raise


class CommitQueues:
    """A queue for each feed, kept while a thread uses it."""

    def __init__(self, do: Callable[[Sequence[Asked]], None]) -> None:
        self._do = do
        self._lock = threading.Lock()
        self._lanes: WeakValueDictionary[str, CommitQueue] = WeakValueDictionary()

    def of(self, feed: str) -> CommitQueue:
        """Return the feed's queue; all threads that wait for one feed get the same."""
        with self._lock:
            return self._lanes.setdefault(feed, CommitQueue(self._do))
