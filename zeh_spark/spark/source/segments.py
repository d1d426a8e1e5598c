"""Segments: the bytes of a batch that one task decodes, and how they are sent to it.

A packed segment is a line of JSON that names its parts, then one zstd frame of all their lines.
Measured: the same bytes without compression cost Spark's transport five times the time, and its
heap ten times the memory.

Rule for editors: staged segments outlive an upgrade, so their format stays. Packed
on the driver, unpacked on executors; pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import zstandard


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
