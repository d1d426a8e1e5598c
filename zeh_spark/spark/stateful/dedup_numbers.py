"""Deduplicate a stream by numbers: who numbers a row, and the rows that `numbers_operator` judges.

Rule for editors: a number belongs to a feed (an epoch of it, see `wire.feed_identity`), a
producer and a stored partition. It never belongs to the reader's `partition` column, which may hold
several stored partitions, each with numbers of its own.

Runs on the driver.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zeh_spark.errors import OptionError
from zeh_spark.spark.frames.stamping import has_headers, has_stamps, stamp
from zeh_spark.spark.stateful import numbers_operator, plans, requirements, state_buckets
from zeh_spark.spark.stateful.dedup_state import NO_FEED
from zeh_spark.spark.stateful.numbers_operator import NumberProcessor
from zeh_spark.spark.stateful.row_codec import packed
from zeh_spark.wire import event_origin, feed_identity, wire


@dataclass(frozen=True, slots=True)
class _Numbering:
    """How rows are numbered, as columns of texts.

    Args:
        key: who numbers a row; NULL if that is not known.
        number: its number there; NULL if it has none.
        feed: the feed of the number; `NO_FEED` if that is not known.
        time: when the event was committed, BIGINT, in ms since 1970; -1 if that is not known.
    """

    key: Column
    number: Column
    feed: Column
    time: Column


def drop_seen_numbers(
    df: DataFrame,
    producer: str | Column | None,
    sequence: str | Column | None,
    partition: str | Column | None,
    feed: str | Column | None,
    *,
    window: int | str | None,
    buckets: int,
) -> DataFrame:
    """Return what `numbers_operator` passes on, by stamps or by numbers that columns have.

    Arguments and errors are those of `dedup.drop_seen`.
    """
    kept = _check_window(window, 1_000_000)
    key, number = _find_key(df, producer, sequence, partition)
    time = F.lit(-1)
    if producer is None:
        time = F.coalesce(stamp(df, wire.TIME_HEADER).try_cast("bigint"), time)
        feed = stamp(df, feed_identity.HEADER) if feed is None else feed
    numbering = _Numbering(key, number, _find_feed(df, feed), time)
    return _drop_seen(df, numbering, kept, buckets, has_feeds=feed is not None)


def drop_seen_origins(df: DataFrame, *, window: int | str | None, buckets: int) -> DataFrame:
    """Return what `numbers_operator` passes on, by where events were first published.

    Arguments and errors are those of `dedup.drop_seen`.
    """
    kept = _check_window(window, 100_000)
    return _drop_seen(df, _find_origin(df), kept, buckets, has_feeds=True)


def _drop_seen(
    df: DataFrame, numbering: _Numbering, window: int, buckets: int, *, has_feeds: bool
) -> DataFrame:
    processor = NumberProcessor(window, buckets, plans.feeds_read(df) if has_feeds else None)
    rows = _make_rows(df, numbering)
    return state_buckets.grouped(rows, "key", buckets, processor, numbers_operator.COLUMNS, "none")


def _check_window(window: int | str | None, usual: int) -> int:
    """Return the window, or the usual one. Raises OptionError if it is no number of numbers."""
    if isinstance(window, str):
        raise OptionError(
            f"window={window!r} must be a number of sequence numbers; durations are for id=",
            option="window",
        )
    return requirements.at_least("window", usual if window is None else window, 1)


def _make_rows(df: DataFrame, numbering: _Numbering) -> DataFrame:
    """Return each row as `key`, which chooses its bucket, and `row`, see `state_buckets.joined`.

    The feed does not take part in choosing the bucket: events of a key may tell their feed or not.
    Feed and key are one text in `row`, which is empty if there is no key or no number.
    """
    # Each step is a projection of its own: a named expression is computed once for a row.
    said = packed(df, requirements.EVENT).select(
        numbering.key.alias("key"),
        numbering.number.alias("sequence"),
        numbering.feed.alias("feed"),
        numbering.time.alias("time"),
        F.col(requirements.EVENT).alias("event"),
    )
    numbered = said.withColumn("number", requirements.number("sequence"))
    stamped = (F.col("key") != "") & F.col("number").isNotNull()
    slot = F.concat(F.char_length("feed"), F.lit(" "), "feed", "key")
    keyed = numbered.select(
        F.when(stamped, F.col("key")).otherwise(F.lit("")).alias("key"),
        F.when(stamped, F.col("number")).otherwise(F.lit(-1)).alias("number"),
        F.when(stamped, slot).otherwise(F.lit("")).alias("slot"),
        "time",
        "event",
    )
    numbers = [F.col("number"), F.col("time")]
    row = state_buckets.joined(numbers, [F.col("slot"), F.col("event")])
    return keyed.select("key", row.alias("row"))


def _find_key(
    df: DataFrame,
    producer: str | Column | None,
    sequence: str | Column | None,
    partition: str | Column | None,
) -> tuple[Column, Column]:
    """Return who numbers a row, and its number, as texts; NULL if there is none."""
    if producer is None and sequence is None and partition is None:
        if not has_stamps(df):
            raise OptionError(
                "the frame has no column 'headers', which has the stamps of our publisher, and not "
                "all typed columns of stamps=columns. Call drop_seen before they are dropped, or "
                "give producer= and sequence=",
                option="producer",
            )
        producer, sequence, partition = (
            stamp(df, f"zeh-{name}") for name in ("producer", "sequence", "partition")
        )
    if producer is None or sequence is None:
        missing = "producer" if producer is None else "sequence"
        raise OptionError(
            "producer= and sequence= need each other. Give both, or neither", option=missing
        )
    who = requirements.text(df, "producer", producer)
    if partition is not None:
        where = requirements.text(df, "partition", partition)
        who = F.concat(F.char_length(who), F.lit(" "), who, F.coalesce(where, F.lit("")))
    return who, requirements.text(df, "sequence", sequence)


def _find_origin(df: DataFrame) -> _Numbering:
    """Return how events were numbered where they were first published.

    The number of a part belongs to the producer, so that each part has numbers of its own.
    """
    if not has_headers(df):
        raise OptionError(
            "the frame has no column 'headers', which has the origin of events. Call drop_seen "
            "before headers are dropped",
            option="origin",
        )
    headers = F.col("headers")
    feed = F.replace(stamp(df, feed_identity.HEADER), F.lit("%"), F.lit("%25"))
    stamps = [stamp(df, f"zeh-{name}") for name in ("producer", "partition", "sequence", "time")]
    slash = F.lit("/")
    parts = [part for stamp in stamps for part in (slash, stamp)]
    own = F.concat(F.replace(feed, slash, F.lit("%2F")), *parts)
    found = F.coalesce(headers[event_origin.HEADER], own)
    members = F.split(F.when(found.rlike(event_origin.FORM), found), "/")
    feed, producer, partition, sequence, time, part = (F.get(members, n) for n in range(6))
    producer = F.concat(producer, F.coalesce(F.concat(slash, part), F.lit("")))
    key, number = _find_key(df, producer, sequence, partition)
    time = F.coalesce(time.cast("bigint"), F.lit(-1))
    return _Numbering(key, number, _find_feed(df, feed), time)


def _find_feed(df: DataFrame, feed: str | Column | None) -> Column:
    return F.coalesce(requirements.text(df, "feed", feed), F.lit(NO_FEED))
