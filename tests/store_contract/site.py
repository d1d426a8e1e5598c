"""Where a store keeps its data, for the contract: to open, crash, copy and restore it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from hypothesis import settings

from zeh_spark.publisher import Store
from zeh_spark.service.store.batches import RECEIPTS
from zeh_spark.service.store.interface import Clock, now_ms

Opened = Callable[[], Store]
"""A function that opens a store."""


class Site(Protocol):
    """A place where a store keeps its data. It is empty at first, as is its own directory."""

    slowness: int
    """By how much to divide the number of random histories."""
    receipts: int
    """How many receipts of a producer its stores keep."""

    def __init__(
        self, directory: Path, clock: Clock = now_ms, receipts: int = RECEIPTS
    ) -> None: ...

    def open(self) -> Store:
        """Open the store: at a second call another connection to the same data."""

    def opener(self) -> Opened:
        """Return what opens the store in another process, to which it is sent by pickle."""

    def crash(self) -> None:
        """End everything that is open, as kill -9 would; `open` then finds what was written."""

    def copy(self) -> Any:
        """Return a backup of the data as of now, for `restore`."""

    def restore(self, backup: Any) -> None:
        """Replace the data with that of a backup, which can be used again."""

    def settle(self) -> None:
        """Wait until the store has cleaned up."""

    def close(self) -> None:
        """Close all stores that were opened, and leave nothing in the directory."""


def histories(site: type[Site]) -> int:
    """Return how many random histories to try: a few in `make test`, and many in a campaign."""
    return max(3, settings().max_examples // site.slowness)


class StoppedClock:
    """A clock of a store, in ms since 1970, that stands still until a test changes it."""

    def __init__(self) -> None:
        self.now = now_ms()
        self._asked, self._told = threading.Event(), threading.Event()
        self._told.set()

    def __call__(self) -> int:
        self._asked.set()
        self._told.wait()
        return self.now

    @contextmanager
    def held(self) -> Iterator[threading.Event]:
        """Let everything that asks for the time wait until the end of the block.

        The event is set when something waits: a commit is then under way.
        """
        self._asked.clear()
        self._told.clear()
        try:
            yield self._asked
        finally:
            self._told.set()

    def pass_hours(self, hours: float) -> None:
        """Move the clock by some hours, back if they are negative."""
        self.now += int(hours * 3_600_000)
