"""Spark's side of `seen_ids`: rows in, rows out, and the state of a bucket. Runs in tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from zeh_spark.errors import at_spark_border
from zeh_spark.spark.stateful import seen_ids, state_buckets
from zeh_spark.spark.stateful.processors import BucketProcessor, StateMap
from zeh_spark.spark.stateful.seen_ids import CONFLICT, NEW, UNKNOWN, IdBucket, Ids

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

SLICES = "zeh_id_slices"
COLUMNS = ("event", "dedup", "counts")
FLAGS = {NEW: "new", CONFLICT: "conflict", UNKNOWN: "unknown"}
"""The column `dedup` of events that pass and have an id."""

_json = msgspec.json.Encoder().encode


class IdProcessor(BucketProcessor):
    """Passes each id on once; equal batches give an equal result, in any order of their rows.

    Args:
        window: For how long an id is remembered, in milliseconds.
        most: The most ids in a bucket.
    """

    STATE, COLUMN = "zeh_ids", "bucket"

    def __init__(self, window: int, count: int, most: int) -> None:
        self._window = window
        self._count = count
        self._most = most

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self._slices = StateMap(handle.getMapState(SLICES, "begin BIGINT", "ids BINARY"))

    def empty(self) -> bytes:
        return seen_ids.FORMAT.write(IdBucket(self._count))

    @at_spark_border
    def handleInputRows(
        self, key: Any, rows: Iterator[Any], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        bucket = seen_ids.FORMAT.open(self.blob(), self._count)
        without, parted = _parted(rows)
        counts: Counter[str] = Counter(unstamped=len(without))
        found = [(event, "unstamped", None) for event in sorted(without)]
        if parted:
            ids = Ids.of_hex([row[0] for row in parted], [row[3] for row in parted])
            times = np.array([row[1] for row in parted], np.int64)
            judged = seen_ids.judge(bucket, self._slices, ids, times, self._window, self._most)
            for row, told in zip(parted, judged.tolist(), strict=True):
                counts[FLAGS.get(told, "dropped")] += 1
                if told in FLAGS:
                    found.append((row[2], FLAGS[told], None))
        yield from state_buckets.frames(found, COLUMNS)
        self._state.update((seen_ids.FORMAT.write(bucket),))
        said = _json({**counts, "ids": bucket.count, "buckets": 1}).decode()
        yield from state_buckets.frames([(None, None, said)], COLUMNS)


def _parted(
    frames: Iterator[pd.DataFrame],
) -> tuple[list[str], list[tuple[str, int, str, str]]]:
    """Return the events without an id; and (id, time, event, content) of the others, sorted."""
    without, found = [], []
    for row in state_buckets.rows(frames):
        time, length, content, texts = row.split(" ", 3)
        end, after = int(length), int(length) + int(content)
        if end:
            found.append((texts[:end], int(time), texts[after:], texts[end:after]))
        else:
            without.append(texts[after:])
    found.sort()
    return without, found
