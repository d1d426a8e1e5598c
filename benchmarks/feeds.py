"""Feeds to measure with: flights-like events of about 400 bytes, in SQLite, served by a process of
its own.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from zeh_spark.loading import load
from zeh_spark.protocol.batch_uploader import BatchUploader
from zeh_spark.protocol.upload_format import rest_of
from zeh_spark.publisher import open_store

PARTITIONS = 4


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


def build(folder: Path, events: int) -> str:
    """A store with the feed `flights`; gives the store's URL."""
    url = f"sqlite:///{folder}/bench-{events}.db"
    store = open_store(url)
    store.create("flights", PARTITIONS)

    def fill(batch: BatchUploader) -> None:
        for number in range(events):
            batch.add([rest_of(*event(number))], number % PARTITIONS)

    load.publish(store, "flights", load.next_batch(store, "flights", "bench"), fill)
    store.close()
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
    command = [sys.executable, "-m", "zeh_spark.cli", "serve", *given, "--port", "0"]
    pattern = rf"http://\S+/{feed}\b"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            found = next(filter(None, (re.search(pattern, s) for s in server.stdout)))
            yield found[0], server.pid
        finally:
            server.terminate()
