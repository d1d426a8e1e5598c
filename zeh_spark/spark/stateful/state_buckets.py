"""State in buckets: all keys with one hash share a value of Spark's state.

Access by key costs a round trip to the JVM for each key, which reduces the rate to a twentieth. So
a query has a fixed number of buckets, and each batch reads and writes the value of a bucket once.

The first batch gives each bucket a value, with the settings that never change in the checkpoint. A
bucket without a value, or with other settings, belongs to a query that was built differently, and
is refused: its keys would be looked for in the wrong places.

`grouped` and `observed` run on the driver, the rest in tasks.
"""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from zeh_spark.errors import CheckpointError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import (
        MapState,
        StatefulProcessorHandle,
        TimerValues,
    )

FRAME = 10_000
"""Most rows in a frame that a task returns."""

_RARELY = (50_000, 50, 100)
"""Thresholds of Python's search for unreachable cycles while a task takes a batch.

The events of a batch are some objects each, which stay until the batch leaves, so that a search
finds nothing. By default there is one after 700 new objects, or 2,000 in newer versions of Python.
Measured: that took a sixth of Python's time in sessions.
"""


class _Counted(Protocol):
    buckets: int


Bucket = TypeVar("Bucket", bound=_Counted)
"""A bucket that knows how many the query has."""


def bucket_of(key: str, buckets: int) -> Column:
    """Return the column `bucket`: the bucket of each row, INT, by the column of its key."""
    return F.pmod(F.xxhash64(key), F.lit(buckets)).cast("int").alias("bucket")


def grouped(
    rows: DataFrame,
    by: str,
    buckets: int,
    processor: StatefulProcessor,
    columns: Sequence[str],
    time: str,
) -> DataFrame:
    """Return what a processor makes of the column `row` (see `joined`).

    All columns of the result are STRING. `by` names the key's column; or is "bucket", a column as
    `bucket_of` makes it. The last of `columns` is `counts`. `time` is Spark's timeMode.
    """
    all_buckets = rows.sparkSession.range(buckets).select(F.col("id").cast("int").alias("bucket"))
    bucket = F.col("bucket") if by == "bucket" else bucket_of(by, buckets)
    return (
        rows.select(bucket, "row")
        .groupBy("bucket")
        .transformWithStateInPandas(
            processor,
            ", ".join(f"{name} STRING" for name in columns),
            "append",
            time,
            initialState=all_buckets.groupBy("bucket"),
        )
    )


def observed(given: DataFrame, metrics: str, aggregates: Mapping[str, Column]) -> DataFrame:
    """Return the rows without their counts, which a listener finds under `metrics`.

    `aggregates` are expressions over BIGINT columns with the names of the members of `counts`.
    """
    schema = ", ".join(f"{name} BIGINT" for name in aggregates)
    counts = F.from_json("counts", schema, {"mode": "FAILFAST"})
    found = [column.alias(name) for name, column in aggregates.items()]
    return (
        given.withColumn("counts", counts)
        .observe(metrics, *found)
        .where("counts IS NULL")
        .drop("counts")
    )


def total(name: str) -> Column:
    """Return the sum of a member of `counts`; 0 without rows."""
    return F.coalesce(F.sum(F.col("counts")[name]), F.lit(0))


def joined(numbers: Sequence[Column], texts: Sequence[Column]) -> Column:
    """Return a row in one text.

    "12 34 5 1 abcdex…" has the numbers 12 and 34, and the texts "abcde", "x" and the rest. A
    separate column would cost the worker a microsecond a row. No part may be NULL.
    """
    lengths = [F.char_length(text) for text in texts[:-1]]
    heads = [part for each in (*numbers, *lengths) for part in (each.cast("string"), F.lit(" "))]
    return F.concat(*heads, *texts)


def rows(frames: Iterable[pd.DataFrame]) -> Iterator[str]:
    for frame in frames:
        yield from frame["row"].tolist()


def frames(rows: Iterable[Sequence[str | None]], columns: Sequence[str]) -> Iterator[pd.DataFrame]:
    import pandas as pd

    left = iter(rows)
    while part := list(islice(left, FRAME)):
        yield pd.DataFrame(part, columns=list(columns), dtype=object)


class BucketFormat(Generic[Bucket]):
    """How buckets of one kind are values of Spark's state: a byte for the version, then msgpack."""

    def __init__(self, kind: type[Bucket], version: int) -> None:
        self.version = version
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def write(self, bucket: Bucket) -> bytes:
        return bytes([self.version]) + msgspec.msgpack.encode(bucket)

    def read(self, value: bytes) -> Bucket:
        """Return the bucket of a value, which is not checked."""
        return self._decode(memoryview(value)[1:])

    def open(self, value: bytes | None, buckets: int) -> Bucket:
        """Return the bucket of a value.

        Raises CheckpointError if there is no value, or it has another version or another number of
        buckets.
        """
        if value is None:
            raise CheckpointError(
                f"the checkpoint's state has fewer buckets than buckets={buckets}. Give the number "
                f"that it was made with, or take a new checkpoint",
                got=buckets,
                anchor="the-state-was-made-with-another-option",
            )
        found, why = value[0] if value else 0, "of another version of zeh_spark"
        try:
            if found == self.version:
                bucket = self.read(value)
                same("buckets", buckets, bucket.buckets)
                return bucket
        except msgspec.DecodeError as exc:
            why = f"and cannot be read ({exc})"
        raise CheckpointError(
            f"the checkpoint's state has format {found}, {why}; this one knows {self.version}. "
            f"Continue with the version that wrote it, or take a new checkpoint",
            expected=self.version,
            got=found,
            anchor="the-state-was-made-with-another-option",
        )


class BucketProcessor(StatefulProcessor):
    """A processor that keeps a value for each bucket (`STATE`), and parts if `PARTS` names them."""

    STATE = PARTS = COLUMN = ""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*_RARELY)
        column = f"{self.COLUMN} BINARY"
        self._state = handle.getValueState(self.STATE, column)
        if self.PARTS:
            self._parts = StateMap(handle.getMapState(self.PARTS, "part INT", column))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        """Give a bucket its first value, in the first batch.

        So a bucket without a value shows that the number of buckets was changed.
        """
        self._state.update((self.empty(),))

    @abstractmethod
    def empty(self) -> bytes:
        """Return the value of a bucket that has taken nothing."""

    def blob(self) -> bytes | None:
        """Return the value of the bucket; None if the number of buckets was changed."""
        value = self._state.get()
        return bytes(value[0]) if value else None

    def close(self) -> None:
        """Search for cycles as often as before: other tasks use the worker again."""
        gc.set_threshold(*self._thresholds)


class StateMap(MutableMapping[Any, bytes]):
    """Spark's map state of a bucket, by the tuple of its key's columns."""

    def __init__(self, state: MapState) -> None:
        self._state = state

    def __getitem__(self, key: Any) -> bytes:
        value = self._state.getValue(key)
        if value is None:
            raise KeyError(key)
        return bytes(value[0])

    def __setitem__(self, key: Any, value: bytes) -> None:
        self._state.updateValue(key, (value,))

    def __delitem__(self, key: Any) -> None:
        self._state.removeKey(key)

    def __iter__(self) -> Iterator[Any]:
        return self._state.keys()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        self._state.clear()


def same(name: str, mine: object, theirs: object) -> None:
    """Raise CheckpointError if a setting is not the one with which the state was made."""
    if mine != theirs:
        raise CheckpointError(
            f"{name}={mine!r}, and the checkpoint's state was made with {name}={theirs!r}. Give "
            f"that value again, or take a new checkpoint",
            expected=theirs,
            got=mine,
            anchor="the-state-was-made-with-another-option",
        )
