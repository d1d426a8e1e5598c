"""Which intervals make a micro-batch, and which bytes make a segment: what one task decodes.

A packed segment is a line of JSON that names its parts, then one zstd frame of all their lines.
Measured: the same bytes without compression cost Spark's transport five times the time, and its
heap ten times the memory. A Python task costs 50-70 ms by itself. So there are only as many
segments as keep all cores busy. Rejected: one segment for each feed partition, because a feed of 32
partitions would cost two seconds a batch; and zstd's level -1, which saves 0.02-0.07 µs an event,
but makes 5-37 bytes more of it, for which Spark's transport needs 0.04-0.28 µs.

Rule for editors: these are pure functions. Each interval goes into exactly one batch, and each line
into exactly one segment, in feed order. A batch may exceed a limit by one interval, because only
whole intervals can be delivered. Staged segments outlive an upgrade, so their format stays.

Runs on the driver, but for `unpack`, which runs in tasks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import zstandard

from zeh_spark.wire.wire import Interval, Loss

SEGMENT_BYTES = 32 << 20
"""Maximum bytes of lines in a segment, before compression: a task must stay far below 128 MiB."""

SMALL_SEGMENT_BYTES = 1 << 20
"""A segment of fewer bytes is not divided to use more cores."""


def without_loss_after_events(ready: Iterable[Interval]) -> list[Interval]:
    """Return the beginning of a partition's intervals that has no events before a loss.

    A batch begins at one cursor, or it could not be repeated. So a loss begins a batch.
    """
    found: list[Interval] = []
    for interval in ready:
        if isinstance(interval, Loss) and any(each.events for each in found):
            break
        found.append(interval)
    return found


def take(
    ready: Mapping[int, Sequence[Interval]],
    max_events: int | None,
    max_bytes: int,
    first: int = 0,
) -> dict[int, int]:
    """Return how many of the ready intervals of each partition go into the next batch.

    The batch is divided evenly by bytes, and has at least one interval with events. `first` is the
    partition that comes first if not even one interval of each partition fits. The counts begin
    with the partition that was served first. They are empty if no ready interval has events.
    """
    events = sum(interval.events for each in ready.values() for interval in each)
    size = sum(len(interval.lines) for each in ready.values() for interval in each)
    if not events:
        return {}
    if size <= max_bytes and (max_events is None or events <= max_events):
        return {partition: len(intervals) for partition, intervals in ready.items() if intervals}
    order = sorted(ready, key=lambda partition: (partition < first, partition))
    limit = max_events if max_events is not None else events
    return _take_evenly({each: ready[each] for each in order}, limit, max_bytes)


def _take_evenly(
    ready: Mapping[int, Sequence[Interval]], max_events: int, max_bytes: int
) -> dict[int, int]:
    taken = dict.fromkeys(ready, 0)
    queues = {partition: list(intervals) for partition, intervals in ready.items()}
    events = size = 0
    turns = [(0, turn, each) for turn, (each, intervals) in enumerate(ready.items()) if intervals]
    heapq.heapify(turns)
    while turns:
        mine, turn, partition = heapq.heappop(turns)
        interval = queues[partition][taken[partition]]
        full = events + interval.events > max_events or size + len(interval.lines) > max_bytes
        if full and events and interval.events:
            continue  # this partition has its share; a smaller interval of another one may fit
        taken[partition] += 1
        events += interval.events
        size += len(interval.lines)
        if taken[partition] < len(queues[partition]):
            heapq.heappush(turns, (mine + len(interval.lines), turn, partition))
    return {partition: count for partition, count in taken.items() if count}


@dataclass(slots=True)
class Segment:
    """Consecutive lines for one task.

    Args:
        parts: for each part, the feed partition and the number of bytes.
    """

    parts: list[tuple[int, int]] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, partition: int, block: bytes) -> None:
        if self.parts and self.parts[-1][0] == partition:
            self.parts[-1] = (partition, self.parts[-1][1] + len(block))
        else:
            self.parts.append((partition, len(block)))
        self.lines.append(block)
        self.size += len(block)


def segment_count(size: int, min_partitions: int) -> int:
    """Return into how many segments `size` bytes are cut."""
    wanted = min(min_partitions, size // SMALL_SEGMENT_BYTES)
    return max(1, wanted, -(-size // SEGMENT_BYTES))


def segments(lines: Mapping[int, Iterable[bytes]], size: int, count: int) -> Iterator[Segment]:
    """Yield the lines as about `count` equal segments, in the order of partitions, cut at newlines.

    A feed partition's segments are consecutive, so that a query which publishes them again keeps
    their order. `size` are the bytes of all lines.
    """
    goal = -(-size // count)
    segment = Segment()
    for partition in sorted(lines):
        for block in lines[partition]:
            for piece in _pieces(block, goal, segment.size):
                if segment.size and segment.size + len(piece) > goal:
                    yield segment
                    segment = Segment()
                segment.add(partition, piece)
    if segment.size:
        yield segment


def _pieces(block: bytes, goal: int, filled: int) -> Iterator[bytes]:
    """Cut a block so that its first piece fills up a segment, and each other makes one."""
    begin, room = 0, goal - filled
    while len(block) - begin > max(room, 0):
        end = block.rfind(b"\n", begin, begin + max(room, 0)) + 1
        if not end and room >= goal:  # a line longer than a segment stays whole
            end = block.index(b"\n", begin) + 1
        if end:
            yield block[begin:end]
            begin = end
        room = goal
    if begin < len(block):
        yield block[begin:]


def pack(segment: Segment) -> bytes:
    """Return the segment as one compressed payload."""
    frame = zstandard.ZstdCompressor(level=1).compress(b"".join(segment.lines))
    return msgspec.json.encode(segment.parts) + b"\n" + frame


def unpack(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the feed partition and the lines of each part, in order."""
    header, _, frame = payload.partition(b"\n")
    lines = zstandard.ZstdDecompressor().decompress(frame)
    begin = 0
    for partition, size in msgspec.json.decode(header, type=list[tuple[int, int]]):
        yield partition, lines[begin : begin + size]
        begin += size
