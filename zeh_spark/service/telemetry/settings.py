"""The settings of health checks, metrics and the log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LEAST_FREE = 256 << 20
"""Bytes of the store's disk that have to be free, by default, to be ready and to take uploads."""


@dataclass(frozen=True, slots=True)
class Check:
    """One of the things that a publisher needs in order to be ready.

    Attributes:
        vital: Whether the publisher is unready without it.
    """

    name: str
    ok: bool
    detail: str
    vital: bool = True


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a publisher tells about itself, and where it looks.

    Attributes:
        store_file: The file of a SQLite store; None for any other store.
        least_free: Bytes that have to be free on the disk of that file, to be ready and to take
            uploads; half of it for all else that grows (see `access.disk`).
        clock: Looks whether the clock is right, in a worker thread; None if nobody looks.
        connections: Returns the number of open connections; None if the server does not count.
        seconds: Returns the seconds, from any beginning, by which events of the last hour are
            counted.
    """

    store_file: Path | None = None
    least_free: int = LEAST_FREE
    clock: Callable[[], Check] | None = None
    connections: Callable[[], int] | None = None
    access_log: bool = False
    seconds: Callable[[], float] = time.monotonic
