"""Where a store's data is, for the contract: what can be opened, crashed, copied and put back. Who
writes a store writes a Site.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from zeh_spark.publisher import Store
from zeh_spark.store import batches
from zeh_spark.store import interface as stores

Opened = Callable[[], Store]


class Site(Protocol):
    """A place where a store's data is, in a directory of its own. Empty at first.

    `slowness`: examples that random histories have are divided by it; 2 for a store in memory.
    """

    slowness: int

    def __init__(self, directory: Path) -> None: ...

    def open(self) -> Store:
        """The store, or another connection to it. Closed by `close`."""

    def opener(self) -> Opened | None:
        """For other processes, to which it is pickled; None if only this one reaches the store."""

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


class Clock:
    """What the store takes for the time, in ms."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now

    def pass_hours(self, hours: float) -> None:
        self.now += int(hours * 3_600_000)


def set_clock(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], int]) -> None:
    """Wherever `store.now_ms` was imported."""
    _set_everywhere(monkeypatch, "now_ms", stores.now_ms, clock)


def set_receipts(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """How many are kept, wherever `batches.RECEIPTS` was imported."""
    _set_everywhere(monkeypatch, "RECEIPTS", batches.RECEIPTS, count)


def _set_everywhere(monkeypatch: pytest.MonkeyPatch, name: str, old: object, new: object) -> None:
    for module in list(sys.modules.values()):
        if vars(module).get(name) is old:
            monkeypatch.setattr(module, name, new)
