"""Deduplicate a stream by ids: what makes an id, and the rows that `ids_operator` judges.

Runs on the driver.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zeh_spark.spark.frames.stamping import has_stamps, stamp
from zeh_spark.spark.stateful import ids_operator, requirements, state_buckets
from zeh_spark.spark.stateful.ids_operator import IdProcessor
from zeh_spark.spark.stateful.row_codec import packed
from zeh_spark.wire import feed_identity, wire


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
    """Return what `ids_operator` passes on (arguments and errors as in `dedup.drop_seen`)."""
    span = requirements.milliseconds("window", "7 days" if window is None else str(window))
    most = -(-requirements.at_least("max_ids", max_ids, 1) // buckets)
    rows = _make_rows(df, requirements.text(df, "id", id), scope, content)
    processor = IdProcessor(span, buckets, most)
    return state_buckets.grouped(rows, "key", buckets, processor, ids_operator.COLUMNS, "none")


def _make_rows(
    df: DataFrame, name: Column, scope: str | Column | None, content: str | Column | None
) -> DataFrame:
    """Return each row as `key`, which chooses its bucket, and `row`, see `state_buckets.joined`.

    Id and content are hashes, as hexadecimal digits: 32 and 16. The id is empty if it is NULL.
    """
    belongs = F.lit("")
    if scope is not None:
        belongs = F.coalesce(requirements.text(df, "scope", scope), F.lit(""))
    elif has_stamps(df):
        feed = F.regexp_replace(stamp(df, feed_identity.HEADER), "~[0-9]+$", "")
        belongs = F.coalesce(feed, F.lit(""))
    whole = F.concat(F.char_length(belongs), F.lit(" "), belongs, name)
    said = packed(df, requirements.EVENT).select(
        F.coalesce(F.substring(F.sha2(whole, 256), 1, 32), F.lit("")).alias("key"),
        F.substring(F.sha2(requirements.content(df, "content", content), 256), 1, 16).alias(
            "content"
        ),
        _find_time(df).alias("time"),
        F.col(requirements.EVENT).alias("event"),
    )
    row = state_buckets.joined([F.col("time")], [F.col("key"), F.col("content"), F.col("event")])
    return said.select("key", row.alias("row"))


def _find_time(df: DataFrame) -> Column:
    """Return when an event was published, in ms since 1970; the batch's time if it is not known."""
    now = F.unix_millis(F.current_timestamp())
    if not has_stamps(df):
        return now
    told = stamp(df, wire.TIME_HEADER).try_cast("bigint")
    return F.greatest(F.least(F.coalesce(told, now), now), F.lit(0))
