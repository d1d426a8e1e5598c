"""`drop_seen`: each number of a producer once, with state that grows with producers, not events.

    once = dedup.drop_seen(df)                                  # by the stamps of our publisher
    once = dedup.drop_seen(df, producer="device", sequence="counter")

A key is a producer, with the stored partition where there is one: never the reader's `partition`
column, in which several stored ones may be together, each with numbers of its own.

The function runs on the driver, the processor in tasks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import Raw
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from zeh_spark import bucketing, stateful
from zeh_spark.errors import OptionError
from zeh_spark.packing import packed, unpacked
from zeh_spark.seen import NEW, UNKNOWN, Seen

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

STATE = "zeh_seen"
VERSION = 1
FLAGS = ("new", "unknown", "unstamped")
_COLUMNS = ("event", "dedup", "counts")


def drop_seen(
    df: DataFrame,
    producer: str | Column | None = None,
    sequence: str | Column | None = None,
    partition: str | Column | None = None,
    *,
    window: int = 1_000_000,
    buckets: int = 16,
    metrics: str = "dedup",
) -> DataFrame:
    """The rows of a stream whose (producer, partition, sequence) was not there before.

    The arguments are SQL expressions or columns; without any, the headers `zeh-producer`,
    `zeh-partition` and `zeh-sequence`. The result has the frame's columns and `dedup`: "new"; or
    "unknown" for a number in a hole that was closed because the producer is `window` numbers
    further, so that it may have been there; or "unstamped" for rows without a producer or a number.
    Only those that surely were there are dropped, and counted in `metrics`.

    Of rows with one number in a batch, one is left. Rows of a producer come in the order of their
    numbers. Raises OptionError for what does not fit the frame or the session.
    """
    stateful.check(df, "dedup.drop_seen")
    stateful.at_least("window", window, 1)
    stateful.at_least("buckets", buckets, 1)
    stateful.check_free(df, ["dedup"])
    key, text = _key(df, producer, sequence, partition)
    # In steps, each a projection of its own: what is named once is computed once for a row.
    said = packed(df, stateful.EVENT).select(
        key.alias("key"), text.alias("sequence"), F.col(stateful.EVENT).alias("event")
    )
    numbered = said.withColumn("number", stateful.number("sequence"))
    stamped = F.col("key").isNotNull() & F.col("number").isNotNull()
    keyed = numbered.select(
        F.when(stamped, F.col("key")).otherwise(F.lit("")).alias("key"),
        F.when(stamped, F.col("number")).otherwise(F.lit(-1)).alias("number"),
        "event",
    )
    row = bucketing.joined([F.col("number")], [F.col("key"), F.col("event")])
    rows = keyed.select("key", row.alias("row"))
    processor = _Processor(window, buckets)
    given = bucketing.grouped(rows, "key", buckets, processor, _COLUMNS, "none")
    sums = {name: bucketing.total(name) for name in (*FLAGS, "dropped", "producers", "buckets")}
    found = bucketing.observed(given, metrics, sums)
    return found.select(*unpacked(F.col("event"), df.schema), "dedup")


def _key(
    df: DataFrame,
    producer: str | Column | None,
    sequence: str | Column | None,
    partition: str | Column | None,
) -> tuple[Column, Column]:
    """Who counts, and its number, as texts; NULL where there is none."""
    if producer is None and sequence is None and partition is None:
        if not stateful.has_headers(df):
            raise OptionError(
                "the frame has no column 'headers', which has the stamps of our publisher: call "
                "drop_seen before headers are dropped, or give producer= and sequence=",
                option="producer",
            )
        producer, sequence, partition = (
            f"headers['zeh-{name}']" for name in ("producer", "sequence", "partition")
        )
    if producer is None or sequence is None:
        missing = "producer" if producer is None else "sequence"
        raise OptionError("producer= and sequence= need each other", option=missing)
    who = stateful.text(df, "producer", producer)
    if partition is not None:
        where = stateful.text(df, "partition", partition)
        who = F.concat(F.char_length(who), F.lit(" "), who, F.coalesce(where, F.lit("")))
    return who, stateful.text(df, "sequence", sequence)


class _Bucket(msgspec.Struct, array_like=True):
    buckets: int
    keys: dict[str, Raw] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Bucket).decode
_seen = msgspec.msgpack.Decoder(Seen).decode
_json = msgspec.json.Encoder().encode


class _Processor(StatefulProcessor):
    """Gives each number once; the same for the same batches, whatever the order of their rows."""

    def __init__(self, window: int, count: int) -> None:
        self._window = window
        self._count = count

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState(STATE, "seen BINARY")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: TimerValues) -> None:
        self._save(_Bucket(self._count))

    def handleInputRows(
        self, key: Any, rows: Iterator[Any], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        bucket = self._opened()
        counts: Counter[str] = Counter()
        for name, numbers, events in _by_key(rows):
            seen = _seen(bucket.keys[name]) if name in bucket.keys else Seen()
            given = _judged(seen, numbers, events) if name else {"unstamped": np.sort(events)}
            for flag, some in given.items():
                counts[flag] += len(some)
                yield from _frames(some, flag)
            counts["dropped"] += len(numbers) - sum(map(len, given.values()))
            if name:
                seen.add(numbers, self._window)
                bucket.keys[name] = Raw(_encode(seen))
        self._save(bucket)
        told = _json({**counts, "producers": len(bucket.keys), "buckets": 1}).decode()
        yield from bucketing.frames([(None, None, told)], _COLUMNS)

    def close(self) -> None:
        pass

    def _opened(self) -> _Bucket:
        value = self._state.get()
        blob = bytes(value[0]) if value else None
        bucket = _decode(bucketing.opened(blob, VERSION, self._count))
        bucketing.same("buckets", self._count, bucket.buckets)
        return bucket

    def _save(self, bucket: _Bucket) -> None:
        self._state.update((bytes([VERSION]) + _encode(bucket),))


def _by_key(
    frames: Iterator[pd.DataFrame],
) -> Iterator[tuple[str, NDArray[np.int64], NDArray[Any]]]:
    """Each key's numbers, ascending, and their events."""
    found: dict[str, tuple[list[int], list[str]]] = defaultdict(lambda: ([], []))
    for row in bucketing.rows(frames):
        number, length, texts = row.split(" ", 2)
        key = found[texts[: int(length)]]
        key[0].append(int(number))
        key[1].append(texts[int(length) :])
    for name in sorted(found):
        ascending, events = np.array(found[name][0], np.int64), np.array(found[name][1], object)
        order = np.argsort(ascending, kind="stable")
        yield name, ascending[order], events[order]


def _judged(
    seen: Seen, numbers: NDArray[np.int64], events: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """Of a key's ascending numbers, the events that were not there before, and that may have been.

    Of several with one number that event is left which is the first as text, so that a repeated
    batch gives the same one.
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

    for begin in range(0, len(events), bucketing.FRAME):
        some = events[begin : begin + bucketing.FRAME]
        yield pd.DataFrame({"event": some, "dedup": flag, "counts": None})
