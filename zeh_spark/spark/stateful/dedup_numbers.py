"""Deduplicate a stream by numbers: who numbers a row, and Spark's side of `seen`, `dedup_state`.

Rule for editors: a number belongs to a feed (an epoch of it, see `wire.feed_identity`), a
producer and a stored partition. It never belongs to the reader's `partition` column, which may hold
several stored partitions, each with numbers of its own.

`NumberProcessor` runs in tasks, with what is below it; the rest runs on the driver.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from zeh_spark.errors import OptionError, at_spark_border
from zeh_spark.spark.frames.stamping import has_headers, has_stamps, stamp
from zeh_spark.spark.stateful import dedup_state, plans, requirements, state_buckets
from zeh_spark.spark.stateful.dedup_state import NO_FEED, SeenBucket, SeenNumbers
from zeh_spark.spark.stateful.row_codec import packed
from zeh_spark.spark.stateful.seen import NEW, UNKNOWN, Seen, reused
from zeh_spark.spark.stateful.state_buckets import BucketProcessor
from zeh_spark.spark.stateful.state_parts import Parts
from zeh_spark.wire import event_origin, feed_identity, wire

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray
    from pyspark.sql.streaming.stateful_processor import TimerValues

COLUMNS = ("event", "dedup", "counts")

_json = msgspec.json.Encoder().encode


_Numbering: TypeAlias = tuple[Column, Column, Column, Column]
"""Who numbers a row, and its number there, both texts, or NULL if it is not known; the feed of the
number, or `NO_FEED`; and when the event was committed, BIGINT, in ms since 1970, or -1."""


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
    """Return what `NumberProcessor` passes on, by stamps or by numbers that columns have.

    Arguments and errors are those of `dedup.drop_seen`.
    """
    kept = _check_window(window, 1_000_000)
    given = {"producer": producer, "sequence": sequence, "partition": partition, "feed": feed}
    arguments = [name for name, value in given.items() if value is not None]
    key, number = _find_key(df, producer, sequence, partition)
    time = F.lit(-1)
    if producer is None:
        time = F.coalesce(stamp(df, wire.TIME_HEADER).try_cast("bigint"), time)
        feed = stamp(df, feed_identity.HEADER) if feed is None else feed
    numbering = key, number, _find_feed(df, feed), time
    return _drop_seen(df, numbering, kept, buckets, arguments, has_feeds=feed is not None)


def drop_seen_origins(df: DataFrame, *, window: int | str | None, buckets: int) -> DataFrame:
    """Return what `NumberProcessor` passes on, by where events were first published.

    Arguments and errors are those of `dedup.drop_seen`.
    """
    kept = _check_window(window, 100_000)
    return _drop_seen(df, _find_origin(df), kept, buckets, ["origin"], has_feeds=True)


def _drop_seen(
    df: DataFrame,
    numbering: _Numbering,
    window: int,
    buckets: int,
    arguments: list[str],
    *,
    has_feeds: bool,
) -> DataFrame:
    feeds = plans.feeds_read(df) if has_feeds else None
    processor = NumberProcessor(window, buckets, arguments, feeds)
    rows = _make_rows(df, numbering)
    return state_buckets.grouped(rows, "key", buckets, processor, COLUMNS, "none")


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
    names = "key", "sequence", "feed", "time"
    # Each step is a projection of its own: a named expression is computed once for a row.
    said = packed(df, requirements.EVENT).select(
        *(each.alias(name) for each, name in zip(numbering, names, strict=True)),
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
    return key, number, _find_feed(df, feed), time


def _find_feed(df: DataFrame, feed: str | Column | None) -> Column:
    return F.coalesce(requirements.text(df, "feed", feed), F.lit(NO_FEED))


@dataclass(frozen=True, slots=True)
class _Group:
    """The events of a batch whose numbers are kept together, ordered by their numbers."""

    feed: str
    key: str
    numbers: NDArray[np.int64]
    times: NDArray[np.int64]
    events: NDArray[Any]


class NumberProcessor(BucketProcessor):
    """Passes each number on once; equal batches give an equal result, in any order of their rows.

    Args:
        window: as in `dedup.drop_seen`.
        count: the number of buckets.
        arguments: those that say what numbers belong to.
        feeds: how many feeds the query reads; None if numbers do not belong to feeds.
    """

    STATE, PARTS, COLUMN = "zeh_seen", "zeh_seen_parts", "seen"

    def __init__(self, window: int, count: int, arguments: list[str], feeds: int | None) -> None:
        self._window = window
        self._count = count
        self._arguments = arguments
        self._feeds = feeds

    def empty(self) -> bytes:
        return dedup_state.FORMAT.write(SeenBucket(self._count, arguments=self._arguments))

    @at_spark_border
    def handleInputRows(
        self, key: Any, rows: Iterator[Any], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        bucket = dedup_state.FORMAT.open(self.blob(), self._count)
        bucket.belong(self._arguments)
        known = SeenNumbers(bucket, Parts(self._parts, bucket.layout))
        unstamped, slots = _read_rows(rows)
        if self._feeds is not None:
            known.claim(slots, self._feeds)
        # The bucket refuses whatever it has to refuse before it passes any event on.
        judged = []
        for group in _group_rows(known, slots):
            seen = known.get(group.feed, group.key)
            if reuse := reused(seen, group.numbers, group.times):
                raise dedup_state.used_again(group.feed or bucket.owner, group.key, reuse)
            judged.append((seen, group))
        counts: Counter[str] = Counter(unstamped=len(unstamped))
        yield from _make_frames(np.sort(np.array(unstamped, object)), "unstamped")
        for seen, group in judged:
            given = _judge_events(seen, group.numbers, group.events)
            for flag, some in given.items():
                counts[flag] += len(some)
                yield from _make_frames(some, flag)
            counts["dropped"] += len(group.numbers) - sum(map(len, given.values()))
            seen.add(group.numbers, self._window)
            seen.keep_time(group.numbers, group.times)
            known.put(group.feed, group.key, seen)
        self._state.update((known.save(),))
        told = _json({**counts, "producers": bucket.keys, "buckets": 1}).decode()
        yield from state_buckets.frames([(None, None, told)], COLUMNS)


_Rows: TypeAlias = tuple[list[int], list[int], list[str]]
"""Numbers, times in ms since 1970, and events."""


def _read_rows(frames: Iterator[pd.DataFrame]) -> tuple[list[str], dict[tuple[str, str], _Rows]]:
    """Return the events without a number, and by (feed, key) those that have one."""
    found: dict[str, _Rows] = defaultdict(lambda: ([], [], []))
    for row in state_buckets.rows(frames):
        number, time, length, texts = row.split(" ", 3)
        end = int(length)
        numbers, times, events = found[texts[:end]]
        numbers.append(int(number))
        times.append(int(time))
        events.append(texts[end:])
    unstamped = found.pop("", ([], [], []))[2]
    return unstamped, {dedup_state.split_pair(name): rows for name, rows in found.items()}


def _group_rows(known: SeenNumbers, slots: dict[tuple[str, str], _Rows]) -> Iterator[_Group]:
    untold = {key for feed, key in slots if feed == NO_FEED}
    found: dict[tuple[str, str], _Rows] = {}
    for (feed, key), rows in slots.items():
        mine = found.setdefault(known.slot(feed, key, untold), rows)
        if mine is not rows:  # some of these events have their feed, some do not
            mine[0].extend(rows[0])
            mine[1].extend(rows[1])
            mine[2].extend(rows[2])
    for feed, key in sorted(found):
        numbers, times, events = found[feed, key]
        ascending = np.array(numbers, np.int64)
        order = np.argsort(ascending, kind="stable")
        timed, texts = np.array(times, np.int64), np.array(events, object)
        yield _Group(feed, key, ascending[order], timed[order], texts[order])


def _judge_events(
    seen: Seen, numbers: NDArray[np.int64], events: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """Return the events that were not there before, and those that may have been, by their flag.

    `numbers` ascend. If several events have one number, the first of them as text is kept, so that
    a repeated batch gives the same event.
    """
    judged = seen.judged(numbers)
    flags = {"unknown": judged == UNKNOWN, "new": judged == NEW}
    return {flag: _keep_firsts(numbers[some], events[some]) for flag, some in flags.items()}


def _keep_firsts(numbers: NDArray[np.int64], events: NDArray[Any]) -> NDArray[Any]:
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    if len(starts) == len(numbers):
        return events
    return np.array([min(group) for group in np.split(events, starts[1:])], object)


def _make_frames(events: NDArray[Any], flag: str) -> Iterator[pd.DataFrame]:
    import pandas as pd

    for begin in range(0, len(events), state_buckets.FRAME):
        some = events[begin : begin + state_buckets.FRAME]
        yield pd.DataFrame({"event": some, "dedup": flag, "counts": None})
