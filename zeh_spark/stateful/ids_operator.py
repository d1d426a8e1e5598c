"""Spark's side of `seen_ids`: rows in, rows out, and the state of a bucket. Runs in tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from zeh_spark.errors import at_spark_border
from zeh_spark.stateful import seen_ids, state_buckets
from zeh_spark.stateful.cycles import RareCollection
from zeh_spark.stateful.seen_ids import CONFLICT, NEW, UNKNOWN, IdBucket, Ids

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import (
        MapState,
        StatefulProcessorHandle,
        TimerValues,
    )

STATE = "zeh_ids"
SLICES = "zeh_id_slices"
COLUMNS = ("event", "dedup", "counts")
FLAGS = {NEW: "new", CONFLICT: "conflict", UNKNOWN: "unknown"}
"""The column `dedup` of events that pass and have an id."""

_json = msgspec.json.Encoder().encode


class IdProcessor(StatefulProcessor):
    """Passes each id on once; equal batches give an equal result, in any order of their rows.

    Args:
        window: For how long an id is remembered, in milliseconds.
        most: The most ids in a bucket.
    """

    def __init__(self, window: int, count: int, most: int) -> None:
        self._window = window
        self._count = count
        self._most = most

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state (see `StatefulProcessor`)."""
        self._collection = RareCollection()
        self._state = handle.getValueState(STATE, "bucket BINARY")
        self._slices = _Slices(handle.getMapState(SLICES, "begin BIGINT", "ids BINARY"))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        """Give a bucket its first value, in the first batch."""
        self._state.update((seen_ids.encoded(IdBucket(self._count)),))

    @at_spark_border
    def handleInputRows(
        self, key: Any, rows: Iterator[Any], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        """Take the rows of a batch (see `StatefulProcessor`)."""
        value = self._state.get()
        bucket = seen_ids.opened(bytes(value[0]) if value else None, self._count)
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
        self._state.update((seen_ids.encoded(bucket),))
        said = _json({**counts, "ids": bucket.count, "buckets": 1}).decode()
        yield from state_buckets.frames([(None, None, said)], COLUMNS)

    def close(self) -> None:
        """End the task (see `StatefulProcessor`)."""
        self._collection.end()


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


class _Slices:
    """Spark's map state as `seen_ids.IdSlices`."""

    def __init__(self, state: MapState) -> None:
        self._state = state

    def get(self, begin: int) -> bytes:
        value = self._state.getValue((begin,))
        assert value is not None, f"the state has no slice {begin}"
        return bytes(value[0])

    def put(self, begin: int, value: bytes) -> None:
        self._state.updateValue((begin,), (value,))

    def remove(self, begin: int) -> None:
        self._state.removeKey((begin,))
