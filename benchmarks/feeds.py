"""Feeds to measure with: flights-like events of about 400 bytes, in SQLite, served by a process of
its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from zeh_spark.publisher import open_store
from zeh_spark.service.store.commit_plan import tag
from zeh_spark.tools.loading import one_batch
from zeh_spark.wire.batch_uploader import BatchUploader
from zeh_spark.wire.upload_format import CHUNK_EVENTS, frame_of, prefix, rest_of

PARTITIONS = 4
_MINUTE_MS = 60_000
_INSERT_BLOB = "INSERT INTO blobs (id, frame) VALUES (?, ?)"
_INSERT_CHUNK = "INSERT INTO recent_chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'bench', ?, ?)"
_AT_A_TIME = 50_000


def event(number: int) -> tuple[dict[str, str], bytes]:
    """A flight: two headers, 19 fields in nested data, different in each event."""
    data = {
        "flight": {"carrier": "UA", "number": number, "tailnum": f"N{number % 99999}"},
        "scheduled": {"year": 2013, "month": 1 + number % 12, "day": 1 + number % 28},
        "route": {"origin": "EWR", "dest": "IAH", "distance": 1400, "air_time": 227.0},
        "departure": {"time": 517 + number % 900, "planned": 515, "delay": number % 60 - 5.5},
        "arrival": {"time": 830.0, "planned": 819, "delay": number % 90 - 9.5},
        "at": {"hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z"},
    }
    return {"id": str(number), "type": "flight"}, json.dumps(data, separators=(",", ":")).encode()


def build(
    folder: Path, events: int, event: Callable[[int], tuple[dict[str, str], bytes]] = event
) -> str:
    """A store with the feed `flights`; gives the store's URL."""
    url = f"sqlite:///{folder}/bench-{events}.db"
    store = open_store(url)
    store.create("flights", PARTITIONS)

    def fill(batch: BatchUploader) -> None:
        for number in range(events):
            batch.add([rest_of(*event(number))], number % PARTITIONS)

    one_batch.publish(store, "flights", one_batch.next_batch(store, "flights", "bench"), fill)
    store.close()
    return url


class Filling(NamedTuple):
    """What a chunk is made of: its stored partition, and the lines as they are stored."""

    partition: int
    events: int
    size: int
    frame: bytes


def filling(partition: int, numbers: Iterable[int]) -> Filling:
    """A chunk of the flights with these numbers."""
    lines = [prefix(partition) + rest_of(*event(number)) + b"\n" for number in numbers]
    text = b"".join(lines)
    return Filling(partition, len(lines), len(text), frame_of(text))


def flights(events: int) -> Iterator[Filling]:
    """Full chunks of so many flights in PARTITIONS partitions, of which each 100,000 are the same:
    they are made in a second, and read as any others are.
    """
    made = [
        filling(each % PARTITIONS, range(each * CHUNK_EVENTS, (each + 1) * CHUNK_EVENTS))
        for each in range(100)
    ]
    yield from itertools.islice(itertools.cycle(made), events // CHUNK_EVENTS)


def fill(
    folder: Path, name: str, partitions: int, chunks: Iterable[Filling], minutes: int = 1
) -> str:
    """A store whose feed `flights` has these chunks, put into SQLite row by row: a million take
    seconds. Positions, history, tags and sequence numbers are those that commits of one chunk each
    would have made, so many minutes ago: a publisher packs what is older than ten. There are no
    receipts. Gives the store's URL.
    """
    file = folder / f"{name}.db"
    url = f"sqlite:///{file}"
    store = open_store(url)
    history = store.create("flights", partitions).origin
    store.close()
    following = [0] * partitions
    begun = int(time.time() * 1000) - minutes * _MINUTE_MS
    g, rows, frames = 0, [], []
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA synchronous = OFF")
        (feed,) = database.execute("SELECT id FROM feeds").fetchone()

        def write() -> None:
            database.executemany(_INSERT_BLOB, frames)
            database.executemany(_INSERT_CHUNK, rows)
            events, size = (sum(row[each] for row in rows) for each in (3, 4))
            database.execute(
                "UPDATE feeds SET head = ?, history = ?, time = ?, events = events + ?,"
                " size = size + ?",
                (g, history, begun + g // 1000, events, size),
            )
            database.commit()
            rows.clear()
            frames.clear()

        for g, (partition, events, size, frame) in enumerate(chunks, 1):
            link = history + partition.to_bytes(4, "big") + hashlib.sha256(frame).digest()
            history = hashlib.sha256(link).digest()
            moment = begun + g // 1000
            numbers = partition, events, size, moment, tag(history), g, g, following[partition]
            rows.append((feed, g, *numbers))
            frames.append((g, frame))
            following[partition] += events
            if len(rows) == _AT_A_TIME:
                write()
        write()
    return url


@contextlib.contextmanager
def serving(store: str, environment: dict[str, str] | None = None) -> Iterator[tuple[str, int]]:
    """`zeh-spark serve`; gives the feed's URL and the process id."""
    with served(["--store", store], "flights", environment) as found:
        yield found


@contextlib.contextmanager
def served(
    given: list[str], feed: str, environment: dict[str, str] | None = None
) -> Iterator[tuple[str, int]]:
    """The same for any feed, with these options."""
    command = [sys.executable, "-m", "zeh_spark", "serve", *given, "--port", "0"]
    pattern = rf"http://\S+/{feed}\b"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            found = next(filter(None, (re.search(pattern, s) for s in server.stdout)))
            yield found[0], server.pid
        finally:
            server.terminate()
