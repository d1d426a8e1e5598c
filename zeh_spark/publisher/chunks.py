"""How events become chunks and chunks become lines again. Pure.

A chunk is one zstd frame of whole lines of one partition: at most 1,000 events and 1 MiB before
compression. Frames carry their content size, so that reading allocates once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import zstandard

from zeh_spark import wire
from zeh_spark.publisher.store import StagedChunk

CHUNK_EVENTS = 1000
CHUNK_BYTES = 1 << 20
HELD_BYTES = 64 << 20
"""What the open chunks of all partitions may hold together."""

LINE_BYTES = wire.MAX_LINE - wire.STAMP_BYTES
"""The longest line that a writer may store, without its newline."""

_local = threading.local()


def frame_of(lines: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_content_size=True).compress(lines)


def lines_of(frame: bytes) -> bytes:
    """The lines of a frame, each ended by b"\\n"."""
    if not hasattr(_local, "decompress"):  # not to be shared between threads, and dear to make
        _local.decompress = zstandard.ZstdDecompressor().decompress
    lines: bytes = _local.decompress(frame)
    return lines


class Chunker:
    """Collects the lines of each partition; hands out chunks as they fill up."""

    def __init__(self) -> None:
        self.events = 0
        self.bytes = 0
        self._open: dict[int, list[bytes]] = {}
        self._sizes: dict[int, int] = {}
        self._held = 0

    def add(self, partition: int, headers: Mapping[str, str], data: bytes) -> list[StagedChunk]:
        """Take an event, whose data is JSON without newlines; returns what is full.

        Reserved headers are dropped. Raises ValueError for a line that is too long, and for null,
        which some clients take for no event at all.
        """
        if data == b"null":
            raise ValueError("null cannot be an event's data")
        if headers:
            headers = {k: v for k, v in headers.items() if not k.startswith(wire.RESERVED_HEADER)}
        line = wire.event_line(partition, headers, data) + b"\n"
        size = len(line)
        if size > LINE_BYTES + 1:
            raise ValueError(
                f"the event takes {size - 1:,} bytes as a line of the feed; at most {LINE_BYTES:,} "
                f"are allowed"
            )
        full = []
        if self._sizes.get(partition, 0) + size > CHUNK_BYTES:
            full.append(self._cut(partition))
        lines = self._open.setdefault(partition, [])
        lines.append(line)
        self._sizes[partition] = self._sizes.get(partition, 0) + size
        self._held += size
        self.events += 1
        self.bytes += size
        if len(lines) == CHUNK_EVENTS:
            full.append(self._cut(partition))
        elif self._held > HELD_BYTES:
            full.append(self._cut(max(self._sizes, key=self._sizes.__getitem__)))
        return full

    def close(self) -> list[StagedChunk]:
        """What is left."""
        return [self._cut(partition) for partition in sorted(self._open)]

    def _cut(self, partition: int) -> StagedChunk:
        lines = self._open.pop(partition)
        size = self._sizes.pop(partition)
        self._held -= size
        return StagedChunk(partition, len(lines), size, frame_of(b"".join(lines)))
