"""Batches of any publisher: the driver follows the cursors, and packs the events for the tasks.

The driver reads every page once, because only reading tells where a batch may end. It passes the
bytes to the tasks, which decode them (see docs/explanation/how-it-works.md).

To make a batch is to take intervals from the `Fetcher` and to pack them. A batch that is as large
as the limits allow is packed ahead, while Spark works on the one before. Any other one is made when
Spark asks for it, so that a single event does not wait for others.

Rule for editors: a batch that was packed ahead and that Spark never asks for is dropped together
with its fetcher; the next fetcher begins at the cursors that Spark has. Nothing of it may be kept
elsewhere, and nothing is staged before Spark asks.

Runs on the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias

from zeh_spark.client.http.feed_client import FeedClient
from zeh_spark.client.http.lag import Lag
from zeh_spark.errors import OptionError
from zeh_spark.spark.source import segments
from zeh_spark.spark.source.batch_source import (
    Batch,
    Limits,
    Report,
    check_position,
    in_thread,
)
from zeh_spark.spark.source.offsets import Offset, Position
from zeh_spark.spark.source.options import SourceOptions, cores
from zeh_spark.spark.source.prefetch import Fetcher
from zeh_spark.spark.source.replay import read_again
from zeh_spark.spark.source.staging import Staging, new_stage, staged_segments
from zeh_spark.spark.source.tasks import CarriedSegment, FeedTask
from zeh_spark.wire import hashes, wire

_MAX_PAYLOAD = 96 << 20
"""Maximum bytes of a segment that is sent with its task. Spark refuses 128 MiB on a cluster."""


_Packed: TypeAlias = tuple[Mapping[int, Position], Sequence[bytes]]
"""For each partition that moved, where a batch ends; and the payloads of its tasks."""


@dataclass(eq=False)
class PagedSource:
    """Makes batches of the pages that a fetcher reads ahead.

    Args:
        tells: returns whether pages tell where the feed stands, as far as is known.

    Guarantee: a batch has the events up to a checkpoint of each partition, and the same when it is
    repeated, from memory, from its stage, or read again and compared.
    """

    client: FeedClient
    options: SourceOptions
    tells: Callable[[], bool]

    def __post_init__(self) -> None:
        self._fetcher: Fetcher | None = None
        self._at: Mapping[int, str] | None = None  # where the fetcher's batches so far end
        self._ahead: Future[_Packed | None] | None = None
        self._wanted = threading.Event()
        self._lag: tuple[str | None, Lag | None] = (None, None)
        self._staging: Staging | None = None

    def next(self, after: Offset, limits: Limits) -> Batch | None:
        try:
            fetcher = self._fetcher_at(after, limits)
            packed = self._made_ahead(fetcher)
            if packed is None and fetcher.wait(limits):
                packed = self._packed(fetcher.take())
        except BaseException:
            self.close()  # it may have taken events that are in no batch
            raise
        more = fetcher.has_more  # before the next batch is taken out of it
        if packed:
            self._lag = fetcher.lag()
        if limits.factor > 1:  # the next batch has the usual limits, and all partitions
            self.close()
        if not packed:
            return None
        moved, payloads = packed
        positions = {
            partition: moved.get(partition, position.unmoved())
            for partition, position in after.positions.items()
        }
        epochs, is_undecided = fetcher.epochs(), fetcher.is_undecided
        if self._at is not None:
            self._at = {each: position.cursor for each, position in positions.items()}
            self._make_ahead(fetcher)
        headers = self.options.requested_headers
        staged = self._staging.keep(payloads, headers) if self._staging else None
        tasks = (
            staged_segments(self._staging, staged)
            if self._staging and staged
            else _carried(payloads)
        )
        return Batch(positions, tasks, epochs, staged=staged, more=more, is_undecided=is_undecided)

    def _fetcher_at(self, after: Offset, limits: Limits) -> Fetcher:
        if self._fetcher and self._at == after.cursors:
            return self._fetcher
        self.close()
        self._staging = self._staging_of(after.staged.stage if after.staged else new_stage())
        if self._staging:
            self._staging.begin(after.staged)
        size = limits.factor * self.options.driver_bytes
        options = replace(self.options, max_bytes_per_trigger=size)
        finite = limits.finite or limits.factor > 1
        tell, n = self.tells(), after.partition_count or 0
        fetcher = Fetcher(self.client, options, after.cursors, n, finite=finite, tell=tell)
        fetcher.start()
        self._fetcher, self._at, self._ahead = fetcher, after.cursors, None
        return fetcher

    def _make_ahead(self, fetcher: Fetcher) -> None:
        self._wanted.clear()

        def make() -> _Packed | None:
            return self._packed(fetcher.take()) if fetcher.wait_until_full(self._wanted) else None

        self._ahead = in_thread("zeh-pack", make)

    def _made_ahead(self, fetcher: Fetcher) -> _Packed | None:
        """Return the batch that was packed ahead; None if there was too little for one."""
        made, self._ahead = self._ahead, None
        if made is None:
            return None
        self._wanted.set()
        fetcher.wake()
        return made.result()

    def _packed(self, taken: Mapping[int, Sequence[wire.Interval]]) -> _Packed | None:
        if not taken:
            return None
        moved = {partition: _position(intervals) for partition, intervals in taken.items()}
        lines = {
            partition: [interval.lines for interval in intervals if interval.events]
            for partition, intervals in taken.items()
        }
        return moved, list(_pack_lines(lines, self.options.parallelism))

    def again(self, start: Mapping[int, Position], end: Offset) -> Batch:
        """Return a batch as it was staged; if it was not, read it again, and compare.

        The digests of a batch that tasks fetched are others, so its numbers of events are compared.
        """
        check_position(self.options)
        staging = self._staging_of(end.staged.stage) if end.staged else None
        fits = end.staged and end.staged.has(self.options.requested_headers)
        if staging and end.staged and fits and staging.has(end.staged):
            return Batch(end.positions, staged_segments(staging, end.staged))
        compare = end.direct is None
        lines = read_again(self.client, self.options, start, end, compare=compare)
        return Batch(end.positions, _carried(_pack_lines(lines, self.options.parallelism)))

    def forget(self, end: Offset) -> None:
        """Delete what is staged of the batch that ends at `end`."""
        if end.staged and (staging := self._staging_of(end.staged.stage)):
            staging.forget(end.staged.batch)

    def report(self) -> Report:
        if self._fetcher is None:
            return Report(None, None, {})
        events, size = self._fetcher.held()
        statistics = self._fetcher.statistics
        numbers = {
            "pages": statistics.pages,
            "retries": statistics.retries,
            "ignoredLines": statistics.ignored_lines,
            "fetchSeconds": round(statistics.seconds, 3),
            "readyEvents": events,
            "readyBytes": size,
        }
        return Report(*self._lag, numbers)

    def close(self) -> None:
        self._at = None
        if self._fetcher:
            self._fetcher.close()

    def _staging_of(self, stage: str) -> Staging | None:
        location = self.options.staging_location
        return Staging(location, stage) if location else None


def _pack_lines(lines: Mapping[int, Sequence[bytes]], parallelism: int) -> Iterator[bytes]:
    """Yield lines as packed segments, compressed on all cores."""
    size = sum(len(block) for blocks in lines.values() for block in blocks)
    if not size:
        return
    count = segments.segment_count(size, parallelism)
    with ThreadPoolExecutor(cores()) as pool:
        yield from pool.map(segments.pack, list(segments.segments(lines, size, count)))


def _carried(payloads: Iterable[bytes]) -> list[FeedTask]:
    """Return tasks that get their payloads from Spark. Raises OptionError if one is too large."""
    tasks: list[FeedTask] = []
    for payload in payloads:
        if len(payload) > _MAX_PAYLOAD:
            raise OptionError(
                f"a single event takes {len(payload)} bytes compressed, more than Spark carries to "
                f"a task (spark.rpc.message.maxSize, 128 MiB). Set 'stagingLocation'",
                option="stagingLocation",
                anchor="a-single-event-is-more-than-spark-carries-to-a-task",
            )
        tasks.append(CarriedSegment(payload))
    return tasks


def _position(intervals: Sequence[wire.Interval]) -> Position:
    """Return where intervals lead, and the sum of what lies in them."""
    events = sum(interval.events for interval in intervals)
    size = sum(len(interval.lines) for interval in intervals)
    digest = hashes.in_hex(sum(interval.digest for interval in intervals)) if events else None
    lost = [interval.cursor for interval in intervals if isinstance(interval, wire.Loss)]
    return Position(intervals[-1].cursor, events, size, digest, lost[-1] if lost else None)
