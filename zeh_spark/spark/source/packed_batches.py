"""Make the batches that the driver fetches, each while Spark works on the one before.

To make a batch is to take intervals from the `Fetcher` and to pack them for the tasks. A batch that
is as large as the limits allow is packed ahead. Any other one is made when Spark asks for it, so
that a single event does not wait for others.

Rule for editors: a batch that was packed ahead and that Spark never asks for is dropped together
with its fetcher; the next fetcher begins at the cursors that Spark has. Nothing of it may be kept
elsewhere, and nothing is staged before Spark asks.

Runs on the driver.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from zeh_spark.errors import OptionError
from zeh_spark.spark.source import planning
from zeh_spark.spark.source.offsets import Position
from zeh_spark.spark.source.options import cores
from zeh_spark.spark.source.planning import TriggerDelay
from zeh_spark.spark.source.prefetch import Fetcher
from zeh_spark.spark.source.segments import pack
from zeh_spark.wire import hashes, wire

_MAX_PAYLOAD = 96 << 20
"""Maximum bytes of a segment that is sent with its task. Spark refuses 128 MiB on a cluster."""


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """A batch that is ready for the tasks.

    Args:
        moved: for each partition that moved, where the batch ends, and the sum of what it has.
    """

    moved: Mapping[int, Position]
    payloads: Sequence[bytes]


class PackedBatches:
    """The batches of one fetcher, in their order."""

    def __init__(self, fetcher: Fetcher, parallelism: int) -> None:
        self.fetcher = fetcher
        self.has_more = True
        """Whether the feed holds more than the batches so far, as far as the fetcher knows."""
        self._parallelism = parallelism
        self._wanted = threading.Event()
        self._ahead: Future[PackedBatch | None] | None = None

    def next(
        self, *, first: bool, whole: bool = False, delay: TriggerDelay | None = None
    ) -> PackedBatch | None:
        """Return the next batch; None if there is nothing to read, or too little yet.

        `first` and `whole` are those of `Fetcher.wait`; with `whole` no other batch is made ahead.
        `delay` decides whether a batch that is not full waits for more events. It raises what a
        fetching thread raised.
        """
        batch = self._made_ahead()
        if batch is None:
            self.fetcher.wait(first=first, whole=whole, least=delay.least if delay else None)
            events, _ = self.fetcher.held()
            if delay and delay.left(events, time.monotonic()) and not self.fetcher.is_full():
                return None
            batch = self._packed(self.fetcher.take() or self.fetcher.take_advances())
        self.has_more = self.fetcher.has_more  # before the next batch is taken out of it
        if batch and not whole:
            self._make_ahead()
        return batch

    def report(self) -> dict[str, float]:
        """Return numbers for the query's progress: what reading took so far, and what is ready."""
        events, size = self.fetcher.held()
        statistics = self.fetcher.statistics
        return {
            "pages": statistics.pages,
            "retries": statistics.retries,
            "ignoredLines": statistics.ignored_lines,
            "fetchSeconds": round(statistics.seconds, 3),
            "readyEvents": events,
            "readyBytes": size,
        }

    def close(self) -> None:
        """End the fetcher, and with it what is made ahead. Does not wait for them."""
        self.fetcher.close()

    def _make_ahead(self) -> None:
        self._wanted.clear()
        made: Future[PackedBatch | None] = Future()

        def make() -> None:
            try:
                full = self.fetcher.wait_until_full(self._wanted)
                made.set_result(self._packed(self.fetcher.take()) if full else None)
            except BaseException as exc:  # noqa: BLE001 - raised again in Spark's thread
                made.set_exception(exc)

        threading.Thread(target=make, name="zeh-pack", daemon=True).start()
        self._ahead = made

    def _made_ahead(self) -> PackedBatch | None:
        """Return the batch that was packed ahead; None if there was too little for one."""
        made, self._ahead = self._ahead, None
        if made is None:
            return None
        self._wanted.set()
        self.fetcher.wake()
        return made.result()

    def _packed(self, taken: Mapping[int, Sequence[wire.Interval]]) -> PackedBatch | None:
        if not taken:
            return None
        moved = {partition: _position(intervals) for partition, intervals in taken.items()}
        lines = {
            partition: [interval.lines for interval in intervals if interval.events]
            for partition, intervals in taken.items()
        }
        return PackedBatch(moved, list(packed(lines, self._parallelism)))


def packed(lines: Mapping[int, Sequence[bytes]], parallelism: int) -> Iterator[bytes]:
    """Yield lines as packed segments, compressed on all cores."""
    size = sum(len(block) for blocks in lines.values() for block in blocks)
    if not size:
        return
    count = planning.segment_count(size, parallelism)
    with ThreadPoolExecutor(cores()) as pool:
        yield from pool.map(pack, list(planning.segments(lines, size, count)))


def checked(payload: bytes) -> bytes:
    """Return a payload that a task gets from Spark. Raises OptionError if it is too large."""
    if len(payload) > _MAX_PAYLOAD:
        raise OptionError(
            f"a single event takes {len(payload)} bytes compressed, more than Spark carries to a "
            f"task (spark.rpc.message.maxSize, 128 MiB). Set 'stagingLocation'",
            option="stagingLocation",
            anchor="a-single-event-is-more-than-spark-carries-to-a-task",
        )
    return payload


def _position(intervals: Sequence[wire.Interval]) -> Position:
    """Return where intervals lead, and the sum of what lies in them."""
    events = sum(interval.events for interval in intervals)
    size = sum(len(interval.lines) for interval in intervals)
    digest = hashes.in_hex(sum(interval.digest for interval in intervals)) if events else None
    lost = [interval.cursor for interval in intervals if isinstance(interval, planning.Loss)]
    return Position(intervals[-1].cursor, events, size, digest, lost[-1] if lost else None)
