"""Deduplicate a stream by ids: what makes an id, and Spark's side of `seen_ids`.

`IdProcessor` runs in tasks, the rest on the driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zeh_spark.errors import at_spark_border
from zeh_spark.spark.frames.stamping import has_stamps, stamp
from zeh_spark.spark.stateful import requirements, seen_ids, state_buckets
from zeh_spark.spark.stateful.row_codec import packed
from zeh_spark.spark.stateful.seen_ids import (
    CONFLICT,
    FEEDS,
    GIVEN,
    NEW,
    NOTHING,
    UNKNOWN,
    IdBucket,
    Ids,
)
from zeh_spark.spark.stateful.state_buckets import BucketProcessor, StateMap
from zeh_spark.wire import feed_identity, wire

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

SLICES = "zeh_id_slices"
COLUMNS = ("event", "dedup", "counts")
FLAGS = {NEW: "new", CONFLICT: "conflict", UNKNOWN: "unknown"}
"""The column `dedup` of events that pass and have an id."""

_json = msgspec.json.Encoder().encode


def drop_seen_ids(
    df: DataFrame,
    id: str | Column,
    scope: str | Column | None,
    content: str | Column | None,
    *,
    window: int | str | None,
    max_ids: int,
    buckets: int,
) -> DataFrame:
    """Return what `IdProcessor` passes on (arguments and errors as in `dedup.drop_seen`)."""
    span = requirements.milliseconds("window", "7 days" if window is None else str(window))
    most = -(-requirements.at_least("max_ids", max_ids, 1) // buckets)
    rows = _make_rows(df, requirements.text(df, "id", id), scope, content)
    processor = IdProcessor(span, buckets, most)
    return state_buckets.grouped(rows, "name", buckets, processor, COLUMNS, "none")


def _make_rows(
    df: DataFrame, name: Column, scope: str | Column | None, content: str | Column | None
) -> DataFrame:
    """Return each row as `name`, which chooses its bucket, and `row`, see `state_buckets.joined`.

    Id and content are hashes, as hexadecimal digits: 32 and 16. The id is empty if it is NULL. An
    id has one bucket in all scopes, which finds out if it belongs to another one than before.
    """
    belongs, kind = _find_scope(df, scope)
    whole = F.concat(F.char_length(belongs), F.lit(" "), belongs, name)
    said = packed(df, requirements.EVENT).select(
        F.coalesce(name, F.lit("")).alias("name"),
        kind.alias("scope"),
        F.coalesce(F.substring(F.sha2(whole, 256), 1, 32), F.lit("")).alias("key"),
        F.substring(F.sha2(requirements.content(df, "content", content), 256), 1, 16).alias(
            "content"
        ),
        _find_time(df).alias("time"),
        F.col(requirements.EVENT).alias("event"),
    )
    texts = [F.col("key"), F.col("content"), F.col("event")]
    row = state_buckets.joined([F.col("time"), F.col("scope")], texts)
    return said.select("name", row.alias("row"))


def _find_scope(df: DataFrame, scope: str | Column | None) -> tuple[Column, Column]:
    """Return what an id belongs to, as a text, and which of SCOPES that is."""
    if scope is not None:
        return F.coalesce(requirements.text(df, "scope", scope), F.lit("")), F.lit(GIVEN)
    if not has_stamps(df):
        return F.lit(""), F.lit(NOTHING)
    feed = F.regexp_replace(stamp(df, feed_identity.HEADER), "~[0-9]+$", "")
    return F.coalesce(feed, F.lit("")), F.when(feed.isNull(), NOTHING).otherwise(FEEDS)


def _find_time(df: DataFrame) -> Column:
    """Return when an event was published, in ms since 1970; the batch's time if it is not known."""
    now = F.unix_millis(F.current_timestamp())
    if not has_stamps(df):
        return now
    told = stamp(df, wire.TIME_HEADER).try_cast("bigint")
    return F.greatest(F.least(F.coalesce(told, now), now), F.lit(0))


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
            bucket.belong({row[4] for row in parted})
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
) -> tuple[list[str], list[tuple[str, int, str, str, str]]]:
    """Return the events without an id, and the others, sorted.

    These are (id, time, event, content, which of SCOPES).
    """
    without, found = [], []
    for row in state_buckets.rows(frames):
        time, scope, length, content, texts = row.split(" ", 4)
        end, after = int(length), int(length) + int(content)
        if end:
            found.append((texts[:end], int(time), texts[after:], texts[end:after], scope))
        else:
            without.append(texts[after:])
    found.sort()
    return without, found
