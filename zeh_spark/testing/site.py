"""Where a store's data is, for the contract: what can be opened, crashed, copied and put back. Who
writes a store writes a Site.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from zeh_spark.publisher import Store
from zeh_spark.store.batches import RECEIPTS
from zeh_spark.store.interface import Clock, now_ms

Opened = Callable[[], Store]


class Site(Protocol):
    """A place where a store's data is, in a directory of its own. Empty at first.

    `slowness`: examples that random histories have are divided by it; 2 for a store in memory.
    `receipts`: as given.
    """

    slowness: int
    receipts: int

    def __init__(
        self, directory: Path, clock: Clock = now_ms, receipts: int = RECEIPTS
    ) -> None: ...

    def open(self) -> Store:
        """The store, or another connection to it, with the site's `clock` and `receipts`. Closed by
        `close`.
        """

    def opener(self) -> Opened | None:
        """For other processes, to which it is pickled, with the system's clock; None if only this
        process reaches the store.
        """

    def crash(self) -> None:
        """End all that is open, as kill -9 would; `open` then finds what was written."""

    def copy(self) -> Any:
        """A backup, as of now."""

    def restore(self, backup: Any) -> None:
        """Put a backup in the place of what is there. It stays."""

    def settle(self) -> None:
        """Wait until cleaning up is done."""

    def close(self) -> None:
        """And leave nothing behind."""


class StoppedClock:
    """What a store takes for the time, in ms: it stands still until a test changes it."""

    def __init__(self) -> None:
        self.now = now_ms()

    def __call__(self) -> int:
        return self.now

    def pass_hours(self, hours: float) -> None:
        self.now += int(hours * 3_600_000)
