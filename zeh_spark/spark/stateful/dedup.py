"""Deduplicate a stream by sequence numbers, with state that grows with producers, not with events.

    once = dedup.drop_seen(df)                                  # by the stamps of our publisher
    once = dedup.drop_seen(df, producer="device", sequence="counter")
    once = dedup.drop_seen(df, origin=True)                     # by the origin of relayed events
    once = dedup.drop_seen(df, id="headers['id']", window="7 days")     # state grows with events

Rule for editors: a number belongs to a feed (an epoch of it, see `wire.feed_identity`), a
producer and a stored partition. It never belongs to the reader's `partition` column, which may hold
several stored partitions, each with numbers of its own.

The function runs on the driver, the processor in tasks.
"""

from __future__ import annotations

import re
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
from zeh_spark.spark.stateful import dedup_state, ids_operator, plans, requirements, state_buckets
from zeh_spark.spark.stateful.dedup_state import NO_FEED, SeenBucket
from zeh_spark.spark.stateful.ids_operator import IdProcessor
from zeh_spark.spark.stateful.processors import BucketProcessor
from zeh_spark.spark.stateful.row_codec import packed, unpacked
from zeh_spark.spark.stateful.seen import NEW, UNKNOWN, Seen, reused
from zeh_spark.wire import event_origin, feed_identity, wire

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray
    from pyspark.sql.streaming.stateful_processor import TimerValues

FLAGS = ("new", "unknown", "unstamped")
_COLUMNS = ("event", "dedup", "counts")


def drop_seen(
    df: DataFrame,
    producer: str | Column | None = None,
    sequence: str | Column | None = None,
    partition: str | Column | None = None,
    *,
    feed: str | Column | None = None,
    window: int | str | None = None,
    origin: bool = False,
    id: str | Column | None = None,
    scope: str | Column | None = None,
    content: str | Column | None = None,
    max_ids: int = 10_000_000,
    buckets: int = 16,
    metrics: str = "dedup",
) -> DataFrame:
    """Return the rows of a stream whose (feed, producer, partition, sequence), or id, is new.

    Only rows that were certainly seen before are dropped; `metrics` counts them. If several rows
    of a micro-batch have the same number, one is kept. The rows of a producer come in the order
    of their numbers.

    With `id`, rows are identified by ids that are not numbers. Each id takes 24 bytes for the time
    of the window.

    Args:
        df: a streaming frame. It needs the column `headers`, or the typed columns of
            `stamps=columns`, unless `producer` and `sequence` are given.
        producer: an SQL expression or a column; by default the header `zeh-producer`. Where a
            header is named here, the typed column is taken if the frame has them.
        sequence: the producer's numbers, from 0; by default the header `zeh-sequence`. Give it
            together with `producer`.
        partition: what else the numbers belong to; by default the header `zeh-partition`, and
            nothing if `producer` is given.
        feed: the feed that the numbers belong to; by default the header `zeh-feed`, and nothing if
            `producer` is given. A row in which it is NULL belongs to the query's only feed.
        window: how far below a producer's highest number gaps are remembered, in numbers;
            1,000,000 by default, and 100,000 with `origin`, because a relay that filters leaves
            many gaps. Older gaps are closed, to limit the state. With `id`, how long an
            id is remembered, like "7 days", which is the default then. The clock is the time at
            which events were published, `zeh-time`; the time of the batch for events without it.
        origin: identify events by where they were first published: by the header `zeh-origin`,
            which the sink's option `keepOrigin` writes, or by their stamps if they were not
            relayed. It excludes `producer`, `sequence`, `partition`, `feed` and `id`.
        id: an SQL expression or a column, the event's id. It excludes `producer`, `sequence`,
            `partition`, `feed` and `origin`.
        scope: what an id belongs to, with `id`; by default the feed, if its publisher tells its id.
        content: what must be equal in two rows with one id; by default the column `data`, or all
            columns except `headers` and `partition` if there is none.
        max_ids: how many ids the state may have, with `id`. The query fails before there are more.
        buckets: in how many values the state is kept; fixed for the life of a checkpoint.
        metrics: the name under which the counts are among the query's observed metrics.

    Returns:
        A streaming frame with the columns of `df` and the column `dedup`. It is "new"; or "unknown"
        if the number is in a gap that was closed, so that it may have been seen before; or
        "unstamped" if the row has no producer or no number. With `id`, "unknown" is an event that
        is older than the window, "unstamped" one without an id, and "conflict" one whose id was
        seen with other content.

    Raises:
        OptionError: an argument does not fit the frame or the session.
        CheckpointError: in the running query: its state may have mixed the numbers of several
            feeds, or would have more than `max_ids` ids.
        PublisherError: in the running query: the publisher uses numbers again, as it does after a
            restore. The header `zeh-time` shows it, so this is checked without `producer` only.
    """
    requirements.check(df, "dedup.drop_seen")
    _check_order(df)
    requirements.at_least("buckets", buckets, 1)
    requirements.check_free(df, ["dedup"])
    if id is not None:
        numbers = {"producer": producer, "sequence": sequence, "partition": partition}
        others: dict[str, object] = {**numbers, "feed": feed, "origin": origin or None}
        _check_absent(others, "id= is another way to know it")
        span = requirements.milliseconds("window", "7 days" if window is None else str(window))
        most = -(-requirements.at_least("max_ids", max_ids, 1) // buckets)
        rows = _rows_with_ids(df, requirements.text(df, "id", id), scope, content)
        given = state_buckets.grouped(
            rows, "key", buckets, IdProcessor(span, buckets, most), ids_operator.COLUMNS, "none"
        )
        return _passed(given, df, metrics, (*FLAGS, "conflict", "dropped", "ids", "buckets"))
    _check_absent({"scope": scope, "content": content}, "it is for id=")
    if isinstance(window, str):
        raise OptionError(
            f"window={window!r} must be a number of sequence numbers; durations are for id=",
            option="window",
        )
    usual = 100_000 if origin else 1_000_000
    numbers_kept = requirements.at_least("window", usual if window is None else window, 1)
    time = _time(df) if producer is None else F.lit(-1)
    if origin:
        others = {"producer": producer, "sequence": sequence, "partition": partition}
        _check_absent({**others, "feed": feed}, "origin= is another way to know it")
        feed, producer, partition, sequence, time = _origin(df)
    key, text = _key(df, producer, sequence, partition)
    told = feed is not None or producer is None
    rows = _rows(df, key, text, _feed(df, feed, told), time)
    processor = _Processor(numbers_kept, buckets, plans.feeds_read(df) if told else None)
    given = state_buckets.grouped(rows, "key", buckets, processor, _COLUMNS, "none")
    return _passed(given, df, metrics, (*FLAGS, "dropped", "producers", "buckets"))


def _passed(given: DataFrame, df: DataFrame, metrics: str, counts: tuple[str, ...]) -> DataFrame:
    """Return the rows that a processor passed on, with the columns of the frame."""
    sums = {name: state_buckets.total(name) for name in counts}
    found = state_buckets.observed(given, metrics, sums)
    return found.select(*unpacked(F.col("event"), df.schema), "dedup")


def _check_absent(options: dict[str, object], why: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise OptionError(f"{name}={value!r} cannot be given here: {why}", option=name)


def _check_order(df: DataFrame) -> None:
    """Refuse a frame of `in_order`: `drop_seen` orders rows by producers' numbers, not sessions."""
    if re.search(rf"EventTimeWatermark .*{requirements.CLOCK}", plans.text(df)):
        raise OptionError(
            "dedup.drop_seen: the frame is that of sessions.in_order, and its order would be lost. "
            "Call drop_seen before in_order",
            anchor="the-frame-is-that-of-sessionsin_order",
        )


def _rows_with_ids(
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
        _published(df).alias("time"),
        F.col(requirements.EVENT).alias("event"),
    )
    row = state_buckets.joined([F.col("time")], [F.col("key"), F.col("content"), F.col("event")])
    return said.select("key", row.alias("row"))


def _published(df: DataFrame) -> Column:
    """Return when an event was published, in ms since 1970; the batch's time if it is not known."""
    now = F.unix_millis(F.current_timestamp())
    if not has_stamps(df):
        return now
    told = stamp(df, wire.TIME_HEADER).try_cast("bigint")
    return F.greatest(F.least(F.coalesce(told, now), now), F.lit(0))


def _rows(df: DataFrame, key: Column, sequence: Column, feed: Column, time: Column) -> DataFrame:
    """Return each row as `key`, which chooses its bucket, and `row`, see `state_buckets.joined`.

    The feed does not take part in choosing the bucket: events of a key may tell their feed or not.
    Feed and key are one text in `row`, which is empty if there is no key or no number.
    """
    # Each step is a projection of its own: a named expression is computed once for a row.
    said = packed(df, requirements.EVENT).select(
        key.alias("key"),
        sequence.alias("sequence"),
        feed.alias("feed"),
        time.alias("time"),
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


def _key(
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


def _origin(df: DataFrame) -> tuple[Column, Column, Column, Column, Column]:
    """Return feed, producer, partition, number and time of where events were first published.

    All are NULL if that is not known. The number of a part belongs to the producer, so that each
    part has numbers of its own.
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
    return feed, producer, partition, sequence, F.coalesce(time.cast("bigint"), F.lit(-1))


def _feed(df: DataFrame, feed: str | Column | None, told: bool) -> Column:
    if not told:
        return F.lit(NO_FEED)
    given = feed if feed is not None else stamp(df, feed_identity.HEADER)
    return F.coalesce(requirements.text(df, "feed", given), F.lit(NO_FEED))


def _time(df: DataFrame) -> Column:
    """Return when an event was committed, in ms since 1970; -1 if it does not say so."""
    return F.coalesce(stamp(df, wire.TIME_HEADER).try_cast("bigint"), F.lit(-1))


_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Group:
    """The events of a batch whose numbers are kept together, ordered by their numbers."""

    feed: str
    key: str
    numbers: NDArray[np.int64]
    times: NDArray[np.int64]
    events: NDArray[Any]


class _Processor(BucketProcessor):
    """Passes each number on once; equal batches give an equal result, in any order of their rows.

    Args:
        window: as in `drop_seen`.
        count: the number of buckets.
        feeds: how many feeds the query reads; None if numbers do not belong to feeds.
    """

    STATE, COLUMN = "zeh_seen", "seen"

    def __init__(self, window: int, count: int, feeds: int | None) -> None:
        self._window = window
        self._count = count
        self._feeds = feeds

    def empty(self) -> bytes:
        return dedup_state.encoded(SeenBucket(self._count))

    @at_spark_border
    def handleInputRows(
        self, key: Any, rows: Iterator[Any], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        bucket = dedup_state.opened(self.blob(), self._count)
        unstamped, slots = _read(rows)
        if self._feeds is not None:
            bucket.claim(slots, self._feeds)
        # The bucket refuses whatever it has to refuse before it passes any event on.
        judged = [(_checked(bucket, group), group) for group in _groups(bucket, slots)]
        counts: Counter[str] = Counter(unstamped=len(unstamped))
        yield from _frames(np.sort(np.array(unstamped, object)), "unstamped")
        for seen, group in judged:
            given = _judged(seen, group.numbers, group.events)
            for flag, some in given.items():
                counts[flag] += len(some)
                yield from _frames(some, flag)
            counts["dropped"] += len(group.numbers) - sum(map(len, given.values()))
            seen.add(group.numbers, self._window)
            seen.keep_time(group.numbers, group.times)
            bucket.put(group.feed, group.key, seen)
        self._state.update((dedup_state.encoded(bucket),))
        told = _json({**counts, "producers": bucket.keys, "buckets": 1}).decode()
        yield from state_buckets.frames([(None, None, told)], _COLUMNS)


_Rows: TypeAlias = tuple[list[int], list[int], list[str]]
"""Numbers, times in ms since 1970, and events."""


def _read(frames: Iterator[pd.DataFrame]) -> tuple[list[str], dict[tuple[str, str], _Rows]]:
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
    return unstamped, {_slot(name): rows for name, rows in found.items()}


def _slot(name: str) -> tuple[str, str]:
    length, _, texts = name.partition(" ")
    return texts[: int(length)], texts[int(length) :]


def _groups(bucket: SeenBucket, slots: dict[tuple[str, str], _Rows]) -> Iterator[_Group]:
    untold = {key for feed, key in slots if feed == NO_FEED}
    found: dict[tuple[str, str], _Rows] = {}
    for (feed, key), rows in slots.items():
        mine = found.setdefault(bucket.slot(feed, key, untold), rows)
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


def _checked(bucket: SeenBucket, group: _Group) -> Seen:
    """Return what was seen. Raises PublisherError if the publisher has used a number again."""
    seen = bucket.get(group.feed, group.key)
    if reuse := reused(seen, group.numbers, group.times):
        raise dedup_state.used_again(group.feed or bucket.owner, group.key, reuse)
    return seen


def _judged(
    seen: Seen, numbers: NDArray[np.int64], events: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """Return the events that were not there before, and those that may have been, by their flag.

    `numbers` ascend. If several events have one number, the first of them as text is kept, so that
    a repeated batch gives the same event.
    """
    judged = seen.judged(numbers)
    flags = {"unknown": judged == UNKNOWN, "new": judged == NEW}
    return {flag: _firsts(numbers[some], events[some]) for flag, some in flags.items()}


def _firsts(numbers: NDArray[np.int64], events: NDArray[Any]) -> NDArray[Any]:
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    if len(starts) == len(numbers):
        return events
    return np.array([min(group) for group in np.split(events, starts[1:])], object)


def _frames(events: NDArray[Any], flag: str) -> Iterator[pd.DataFrame]:
    import pandas as pd

    for begin in range(0, len(events), state_buckets.FRAME):
        some = events[begin : begin + state_buckets.FRAME]
        yield pd.DataFrame({"event": some, "dedup": flag, "counts": None})
