"""Look at sessions from outside: their state in a checkpoint, and what a feed has of a gap.

Functions run on the driver, and what they give to `mapInArrow` runs in tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from zeh_spark.errors import CheckpointError
from zeh_spark.spark.sessions import state
from zeh_spark.spark.sessions.model import Session
from zeh_spark.spark.sessions.operator import SessionProcessor
from zeh_spark.spark.sessions.steps import Key, Names, Steps, checked, key
from zeh_spark.spark.source.batch import last_cursors
from zeh_spark.spark.stateful import ranges, requirements
from zeh_spark.spark.stateful.state_parts import unpack

_RANGE = pa.struct({"first": pa.int64(), "last": pa.int64()})
_SESSIONS = pa.schema(
    {
        "session": pa.string(),
        "status": pa.string(),
        **dict.fromkeys(("expected", "last", "held", "held_bytes"), pa.int64()),
        "missing": _RANGE,
        **dict.fromkeys(("held_since", "newest"), pa.timestamp("us", "UTC")),
        "given_up": pa.list_(_RANGE),
    }
)


def inspect(spark: SparkSession, checkpoint: str) -> DataFrame:
    """Return the sessions in a query's checkpoint, as its last committed batch left them.

    The query may be running.

    Args:
        spark: The Spark session.
        checkpoint: The query's checkpointLocation.

    Returns:
        A frame with the columns session; status: "open", "waiting" (it holds events), "stale" (it
        was reported: its gap with `on_gap="hold"`, or that it does not advance with
        `stale_timeout`; the gauge `stale_sessions` counts these) or "closed" (remembered for a
        while); expected, the next number; last, if it is known; held and held_bytes; missing, the
        first gap; held_since; newest, the time of its newest event; given_up, numbers without which
        it continued.

    Raises:
        CheckpointError: The checkpoint cannot be read, or has no sessions.
    """
    kept = spark.read.format("statestore").options(**_operator(spark, checkpoint))
    parts = kept.option("stateVarName", SessionProcessor.PARTS).load()
    parts = parts.select(f"user_map_value.{SessionProcessor.COLUMN}")
    buckets = kept.option("stateVarName", SessionProcessor.STATE).load()
    buckets = buckets.select(f"value.{SessionProcessor.COLUMN}")
    shown = from_arrow_schema(_SESSIONS)
    return parts.mapInArrow(_sessions, shown).union(buckets.mapInArrow(_whole, shown))


def _operator(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    """Return options of the state's source: where the state is, as of the last batch."""
    try:
        found = spark.read.format("state-metadata").load(checkpoint).collect()
    except Exception as exc:
        raise CheckpointError(f"{checkpoint!r} is no checkpoint that can be read: {exc}") from exc
    for row in found:
        properties = orjson.loads(row.operatorProperties or "{}")
        variables = properties.get("stateVariables") or []
        if any(each.get("stateName") == SessionProcessor.STATE for each in variables):
            where = {"operatorId": row.operatorId, "batchId": row.maxBatchId}
            return {"path": checkpoint, **{name: str(value) for name, value in where.items()}}
    names = sorted({row.operatorName for row in found})
    raise CheckpointError(
        f"{checkpoint!r} has no state of sessions.in_order (its operators: {names}): is there such "
        f"a checkpoint, and has a batch of it ended?",
        got=names,
    )


def _sessions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return _rows(blob for batch in batches for blob in batch.column(0).to_pylist())


def _whole(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    buckets = (state.FORMAT.read(blob) for each in batches for blob in each.column(0).to_pylist())
    return _rows(bucket.layout.whole for bucket in buckets)


def _rows(parts: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    for part in filter(None, parts):
        rows = [_row(name, session) for name, session in state.sessions_of(unpack(part))]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, _SESSIONS)


def _row(name: str, session: Session) -> dict[str, Any]:
    waiting = "waiting" if session.held else "open"
    stale = session.stale or session.reported  # as the gauge counts them
    status = "closed" if session.closed else "stale" if stale else waiting
    return {
        "session": name,
        "status": status,
        "expected": session.next,
        "last": session.last,
        "held": session.held_count,
        "held_bytes": session.held_size,
        "missing": session.missing._asdict() if session.missing else None,
        "held_since": None if session.since is None else 1000 * session.since,
        "newest": 1000 * session.seen or None,
        "given_up": [{"first": first, "last": last} for first, last in session.given_up],
    }


# Gaps


def explain(
    dead: DataFrame,
    url: str,
    session: Key,
    sequence: str | Column,
    *,
    steps: Names | None = None,
    kind: str | Column | None = None,
    **options: str,
) -> DataFrame:
    """Return which of the numbers that dead letters missed are on the feed now.

    The feed is read to its end. The gaps are collected on the driver.

    Args:
        dead: A frame with the column `dead`, as `route` gave it.
        url: The address of the feed.
        session: As for `in_order`, on the columns of the feed as it is read.
        sequence: As for `in_order`, on the columns of the feed as it is read.
        steps: As for `in_order`.
        kind: As for `in_order`, on the columns of the feed as it is read.
        **options: Options of the source, like `token`.

    Returns:
        A frame with the columns session, first, last, partition, position, explanation. Each
        missing number on the feed has a row with its partition and its position there, counted from
        0 at the oldest event that the feed has. Each run of numbers that are not on the feed has a
        row without them.

    Raises:
        OptionError: `session`, `sequence` or an option of the source is not valid.
        PublisherError: The publisher refuses, or breaks the protocol.
        UnavailableError: The publisher did not answer within `retryTimeout`.
    """
    spark = dead.sparkSession
    head = last_cursors(url, **options)
    wanted = dead.select("dead.session", "dead.missing.first", "dead.missing.last")
    gaps = wanted.where("session IS NOT NULL AND first IS NOT NULL").distinct()
    # Page by page, so that a task reads one partition from its beginning.
    given = {**options, "endingCursors": head, "fetch": "driver"}
    feed = spark.read.format("zeroeventhub").options(**given).load(url)
    named = checked(feed, steps, kind)
    events = feed.select(
        key(feed, session, named.key_part).alias("session"),
        requirements.text(feed, "sequence", sequence).alias("sequence"),
        F.coalesce(named.kind, F.lit("")).alias("kind"),
        "partition",
    )
    number = Steps(named.lists, F.col("kind")).number("sequence")
    placed = events.select("session", number, "partition").mapInArrow(
        _placed, "session STRING, number BIGINT, partition INT, position BIGINT"
    )
    found = placed.join(F.broadcast(gaps), "session").where("number BETWEEN first AND last")
    rows = _explained(gaps.collect(), found.distinct().collect(), head)
    return spark.createDataFrame(
        rows,
        "session STRING, first BIGINT, last BIGINT, partition INT, position BIGINT, "
        "explanation STRING",
    )


def _placed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add the position of each event in its partition, of which a task reads all, in order."""
    position = 0
    for batch in batches:
        places = pa.array(range(position, position + batch.num_rows), pa.int64())
        position += batch.num_rows
        yield batch.append_column("position", places)


def _explained(gaps: list[Any], found: list[Any], head: str) -> list[tuple[Any, ...]]:
    numbers = defaultdict(set)
    rows: set[tuple[Any, ...]] = set()
    for each in found:
        numbers[each.session].add(each.number)
        text = f"is at position {each.position} of partition {each.partition}"
        rows.add((each.session, each.number, each.number, each.partition, each.position, text))
    wanted = defaultdict(list)
    for gap in gaps:
        wanted[gap.session].append((gap.first, gap.last))
    for name, runs in wanted.items():
        for first, last in ranges.difference(ranges.united(runs), sorted(numbers[name])):
            rows.add((name, first, last, None, None, f"not on the feed up to head {head}"))
    return sorted(rows, key=lambda row: row[:3])
