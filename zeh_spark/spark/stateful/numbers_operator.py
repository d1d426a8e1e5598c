"""Spark's side of `seen` and `dedup_state`: rows in, rows out, and the state of a bucket.

Runs in tasks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from zeh_spark.errors import at_spark_border
from zeh_spark.spark.stateful import dedup_state, state_buckets
from zeh_spark.spark.stateful.dedup_state import NO_FEED, SeenBucket
from zeh_spark.spark.stateful.processors import BucketProcessor
from zeh_spark.spark.stateful.seen import NEW, UNKNOWN, Seen, reused

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray
    from pyspark.sql.streaming.stateful_processor import TimerValues

COLUMNS = ("event", "dedup", "counts")

_json = msgspec.json.Encoder().encode


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
        feeds: how many feeds the query reads; None if numbers do not belong to feeds.
    """

    STATE, COLUMN = "zeh_seen", "seen"

    def __init__(self, window: int, count: int, feeds: int | None) -> None:
        self._window = window
        self._count = count
        self._feeds = feeds

    def empty(self) -> bytes:
        return dedup_state.FORMAT.write(SeenBucket(self._count))

    @at_spark_border
    def handleInputRows(
        self, key: Any, rows: Iterator[Any], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        bucket = dedup_state.FORMAT.open(self.blob(), self._count)
        unstamped, slots = _read_rows(rows)
        if self._feeds is not None:
            bucket.claim(slots, self._feeds)
        # The bucket refuses whatever it has to refuse before it passes any event on.
        judged = [(_check_numbers(bucket, group), group) for group in _group_rows(bucket, slots)]
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
            bucket.put(group.feed, group.key, seen)
        self._state.update((dedup_state.FORMAT.write(bucket),))
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


def _group_rows(bucket: SeenBucket, slots: dict[tuple[str, str], _Rows]) -> Iterator[_Group]:
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


def _check_numbers(bucket: SeenBucket, group: _Group) -> Seen:
    """Return what was seen. Raises PublisherError if the publisher has used a number again."""
    seen = bucket.get(group.feed, group.key)
    if reuse := reused(seen, group.numbers, group.times):
        raise dedup_state.used_again(group.feed or bucket.owner, group.key, reuse)
    return seen


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
