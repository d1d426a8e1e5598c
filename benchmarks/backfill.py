"""A large feed of many partitions, read by a cluster from its beginning: how fast, and the memory
of each process.

The store is put into SQLite row by row (`feeds.fill`). A batch of the stream has about 5,000
chunks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from benchmarks import queries
from benchmarks.feeds import Filling, fill, filling, serving
from benchmarks.rows import MIB, Row, rate
from tests import standalone
from zeh_spark.wire.upload_format import CHUNK_EVENTS

PARTITIONS = 256
EVENT_BYTES = 409
JVMS = {"SparkSubmit": "driver's JVM", "CoarseGrainedExecutorBackend": "executor's JVM"}
BATCH = "2g"
"""Of a trigger: chunks have 1,000 events, so that is about 5,000 of them."""


def chunks(events: int) -> Iterator[Filling]:
    """Full chunks of flights, one partition after the other."""
    made = [
        filling(each, range(each * CHUNK_EVENTS, (each + 1) * CHUNK_EVENTS))
        for each in range(PARTITIONS)
    ]
    yield from itertools.islice(itertools.cycle(made), events // CHUNK_EVENTS)


def measured(work: Path, _events: int, gigabytes: float = 20) -> Iterator[Row]:
    """A stream and a batch read of a feed of so many GB, with two workers of one core."""
    events = int(gigabytes * 1e9 / EVENT_BYTES) // CHUNK_EVENTS * CHUNK_EVENTS
    store = fill(work, "backfill", PARTITIONS, chunks(events))
    with serving(store) as (url, publisher), standalone.cluster(work, 2) as (master, _):
        spark = queries.session(master=master)
        runs: list[queries.Run] = []
        frame = queries.feed(spark, url, maxBytesPerTrigger=BATCH)
        peaks = queries.peaks_of(lambda: runs.append(queries.stream(frame)), JVMS)
        peaks["publisher"] = queries.peak_memory(publisher)
        read = spark.read.format("zeroeventhub").load(url)
        runs.append(queries.batch(read, events))
        counted = read.count()
        spark.stop()
    if {runs[0].events, counted} != {events}:
        raise AssertionError(f"{events} events; the stream had {runs[0].events}, count {counted}")
    yield f"events of {gigabytes:g} GB in {PARTITIONS} partitions", f"{events:,}", "all read"
    yield "largest batch of the stream", f"{runs[0].largest / CHUNK_EVENTS:,.0f} chunks", ""
    yield rate("stream from the beginning, two workers of one core", runs[0].rate)
    yield rate("batch read", runs[1].rate)
    for name, peak in peaks.items():
        yield f"memory of the stream's {name}", f"{peak / MIB:,.0f} MiB", ""
