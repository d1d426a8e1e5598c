"""What writers notice while a publisher packs: commits beside it, and after it."""

from __future__ import annotations

import http.client
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.feeds import PARTITIONS, fill, serving
from benchmarks.growth import tiny
from benchmarks.queries import peak_memory
from benchmarks.rows import MIB, Row, ratio
from benchmarks.stores import prepared, publish

CHUNKS, REMAINDER, BATCH = 60_000, 5_000, 10_000
"""Chunks of one event that are packed, those that are left for longer, and events of a large batch.
"""

SMALL = 20
"""Batches of one event between two large ones."""


def measured(work: Path, _events: int) -> Iterator[Row]:
    """Small and large batches by turns, while chunks are packed, and as many again afterwards."""
    url = fill(work, "sealing", PARTITIONS, tiny(PARTITIONS, CHUNKS), minutes=60)
    with (
        serving(url) as (base, publisher),
        closing(sqlite3.connect(work / "sealing.db", isolation_level=None)) as database,
    ):

        def unpacked() -> int:
            (count,) = database.execute("SELECT count(*) FROM recent_chunks").fetchone()
            return int(count)

        began = time.monotonic()
        beside, fast = published(base, "beside", lambda turn: unpacked() > REMAINDER + turn * SMALL)
        took, peak = time.monotonic() - began, peak_memory(publisher)
        turns = len(beside) // SMALL
        after, fastest = published(base, "after", lambda turn: turn < turns)
    yield "chunks packed, beside writers", f"{CHUNKS / took:,.0f} a second", ""
    for name, seconds in (("beside", beside), ("after", after)):
        told = f"{statistics.median(seconds) * 1000:.1f}, {p99(seconds) * 1000:.1f} ms"
        yield f"commits {name} packing, median and 99th of a hundred", told, ""
    yield ratio("99th of a hundred, beside / after packing", p99(beside) / p99(after), "<= 1.5")
    yield ratio("throughput, beside / after packing", fast / fastest, ">= 0.9")
    yield "publisher's memory while it packs", f"{peak / MIB:.0f} MiB", "<= 300 MiB"


def published(
    base: str, producer: str, goes_on: Callable[[int], bool]
) -> tuple[list[float], float]:
    """The seconds of the commits of small batches, and the events of large ones in a second."""
    address = urlsplit(base)
    connection = http.client.HTTPConnection(address.netloc, timeout=120)
    small, large = prepared(1), prepared(BATCH)
    seconds: list[float] = []
    took, turn = 0.0, 0
    while goes_on(turn):
        path = f"{address.path}/producers/{producer}"
        for each in range(SMALL):
            seconds.append(publish(connection, f"{path}-1/batches/{turn * SMALL + each}", small))
        began = time.perf_counter()
        publish(connection, f"{path}-{BATCH}/batches/{turn}", large)
        took += time.perf_counter() - began
        turn += 1
    return seconds, turn * BATCH / took


def p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]
