"""Packs: many neighbouring chunks of a feed as one row, their lines in a few frames.

A chunk costs a row, an index entry and a frame of its own, however small it is. So what is older
than a few minutes can be packed: at most PACK_CHUNKS consecutive chunks of all stored partitions,
with at most PACK_BYTES of lines. Nothing that a reader sees depends on it. A pack has

- *headers*, everything that `Chunk` tells of its chunks, by columns: about 7 bytes for a chunk;
- *blocks*, the lines as they were stored, in the order of partition and position. A block is one
  frame of about BLOCK_BYTES, and may hold several partitions. A chunk that has a block of its own
  keeps its frame;
- *totals* of each stored partition, of all packs up to this one. So what is before a pack is known
  without the others: cursors that nobody moves, and how much lies between two positions.

Pure; runs in the publisher and in commands that write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
import zstandard

from zeh_spark.service.store.log import COLUMNS, Anchor, Chunk, Frame, Run, damaged
from zeh_spark.wire import direct_reads
from zeh_spark.wire.direct_reads import HEADERS, name_hash
from zeh_spark.wire.upload_format import count_lines, lines_of

PACK_CHUNKS, PACK_BYTES = 1024, 4 << 20
"""Most chunks of a pack, and most bytes of its lines."""

SEALED_AFTER_MS = 600_000
"""The age in ms from which chunks are packed. Most readers have read them by then, one by one."""

BLOCK_BYTES, ENDING_BYTES, OWN_BYTES = 128 << 10, 32 << 10, 256 << 10
"""Bytes of lines from which a block is full, from which it ends where another partition begins, and
from which a chunk has a block of its own.

A reader of one chunk unpacks a block. Measured: blocks of 1 MiB are no smaller, but for events that
are repeated word for word.
"""

TOTALS = np.dtype(
    [
        ("g", "<i8"), ("tag", "<u4"), ("chunks", "<i8"), ("events", "<i8"), ("bytes", "<i8"),
        ("digest", "<u8", 2),
    ]
)  # fmt: skip
"""The last chunk of a stored partition (0 if there is none), and what there was up to it."""


class _Block(NamedTuple):
    blob: int
    chunks: int


class _Stored(msgspec.Struct, array_like=True):
    producers: list[str]
    blocks: list[_Block]
    columns: bytes


class Place(NamedTuple):
    """A `Frame` that was not read yet: its number in the store takes the place of its bytes."""

    blob: int
    chunks: Sequence[int]
    offsets: Sequence[int] | None


@dataclass(frozen=True)
class Pack:
    """The chunks of a pack, which follow each other without a gap, and its blocks.

    Attributes:
        blocks: In the order of partition and position.
    """

    run: Run
    blocks: Sequence[_Block]

    @cached_property
    def first(self) -> int:
        return int(self.run.headers["g"][0])

    @cached_property
    def last(self) -> int:
        return self.first + len(self.run.headers) - 1

    def wanted(self, after: np.ndarray, upto: int) -> Run:
        """Return the chunks after the position of their stored partition, up to g = `upto`."""
        headers = self.run.headers[: max(0, upto + 1 - self.first)]
        return self.run.part(np.flatnonzero(headers["g"] > after[headers["partition"]]))

    def last_of(self, partition: int, upto: int) -> Anchor | None:
        """Return the place of the last chunk of a stored partition, up to g = `upto`."""
        headers = self.run.headers[: max(0, upto + 1 - self.first)]
        found = np.flatnonzero(headers["partition"] == partition)
        return self.place(int(found[-1]) + self.first) if len(found) else None

    def place(self, g: int) -> Anchor:
        """Return the position of a chunk with its tag."""
        return Anchor(g, f"{self.run.headers['tag'][g - self.first]:08x}")

    def frames(self, which: Sequence[int]) -> Iterator[Place]:
        """Yield the frames of the chunks at some positions."""
        numbers, offsets = self._places
        places = np.array(which, np.int64) - self.first
        blocks = numbers[places]
        order = np.argsort(blocks, kind="stable")
        found, begins = np.unique(blocks[order], return_index=True)
        for number, some in zip(found.tolist(), np.split(order, begins[1:]), strict=True):
            blob, chunks = self.blocks[number]
            at = offsets[places[some]].tolist() if chunks > 1 else None
            yield Place(blob, some.tolist(), at)

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """For each chunk the number of its block, and its offset in that."""
        order = _stored_order(self.run.headers)
        counts = [each.chunks for each in self.blocks]
        in_order = np.repeat(np.arange(len(counts)), counts)
        ends = np.cumsum(self.run.headers["size"][order], dtype=np.int64)
        begins = np.concatenate(([0], ends))
        firsts = np.concatenate(([0], np.cumsum(counts)[:-1]))
        numbers, offsets = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
        numbers[order] = in_order
        offsets[order] = begins[:-1] - begins[firsts][in_order]
        return numbers, offsets


class Totals:
    """The totals up to some position: an array of TOTALS, by stored partition."""

    def __init__(self, table: np.ndarray) -> None:
        self.table = table

    @classmethod
    def none(cls, partitions: int) -> Totals:
        return cls(np.zeros(partitions, TOTALS))

    @classmethod
    def decode(cls, stored: bytes) -> Totals:
        return cls(np.frombuffer(_unpacked(stored), TOTALS))

    def encode(self) -> bytes:
        return block_of([self.table.tobytes()])

    def last_of(self, partition: int) -> Anchor | None:
        """Return the place of the last chunk of a stored partition; None if there is none."""
        return self.place(partition) if self.table["g"][partition] else None

    def place(self, partition: int) -> Anchor:
        """Return the same of a stored partition that has one."""
        g, tag = (self.table[name][partition] for name in ("g", "tag"))
        return Anchor(int(g), f"{tag:08x}")

    def tags(self) -> dict[int, str]:
        """Return the tags of the last chunks, by their positions."""
        found = self.table[self.table["g"] > 0]
        tags = [f"{each:08x}" for each in found["tag"].tolist()]
        return dict(zip(found["g"].tolist(), tags, strict=True))

    def since(self, before: Totals) -> dict[int, direct_reads.Totals]:
        """Return what there was after other totals, by stored partition with something."""
        more = np.flatnonzero(self.table["chunks"] != before.table["chunks"])
        return {
            each: direct_reads.totals_between(_sums(self, each), _sums(before, each))
            for each in more.tolist()
        }

    def after(self, headers: np.ndarray) -> Totals:
        """Return the totals after more chunks, which follow in the order of g."""
        table = self.table.copy()
        for partition in np.unique(headers["partition"]).tolist():
            some = headers[headers["partition"] == partition]
            sums = _sums(self, partition) + direct_reads.totals(some)
            digest = sums.digest.to_bytes(16, "little")
            table[partition] = (
                some["g"][-1], some["tag"][-1], sums.chunks, sums.events, sums.bytes,
                np.frombuffer(digest, "<u8"),
            )  # fmt: skip
        return Totals(table)


def _sums(totals: Totals, partition: int) -> direct_reads.Totals:
    _, _, chunks, events, size, digest = totals.table[partition]
    number = int.from_bytes(digest.tobytes(), "little")
    return direct_reads.Totals(int(chunks), int(events), int(size), number)


def sealable(oldest: Sequence[Chunk], before: int) -> Sequence[Chunk]:
    """Return the chunks of the next pack; none if it would not be full.

    `oldest` are the first chunks that are in no pack, in order; more than a pack can hold, if
    there are as many. They are packed only if all were committed before a time, in ms since 1970.
    """
    size = 0
    for at, chunk in enumerate(oldest):
        size += chunk.size
        if at == PACK_CHUNKS or size > PACK_BYTES:
            return oldest[:at]
        if chunk.time >= before:
            break
    return ()


def blocks_of(chunks: Sequence[Chunk]) -> list[list[Chunk]]:
    """Return the chunks of a pack by the blocks that they get."""
    found: list[list[Chunk]] = []
    size = 0
    for chunk in sorted(chunks, key=lambda each: (each.partition, each.g)):
        last = found[-1][-1] if found else chunk
        full = BLOCK_BYTES if last.partition == chunk.partition else ENDING_BYTES
        if not found or size >= full or OWN_BYTES <= max(last.size, chunk.size):
            found.append([])
            size = 0
        found[-1].append(chunk)
        size += chunk.size
    return found


def checked_lines(chunk: Chunk, frame: bytes) -> bytes:
    """Return the lines of a chunk that is not packed yet. Raises StoreError if they are others."""
    lines = lines_of(frame)
    if (len(lines), count_lines(lines)) != (chunk.size, chunk.events):
        raise damaged(f"the frame of position {chunk.g} has other lines than its chunk")
    return lines


def block_of(lines: Iterable[bytes]) -> bytes:
    """Return the frame of a block, given the lines of its chunks; with it, a checksum of them."""
    made: bytes = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(b"".join(lines))
    return made


def lines_in(sizes: Sequence[int], frames: Iterable[Frame]) -> list[bytes]:
    """Return the lines of chunks of these sizes in bytes, which are in these frames."""
    found = [b""] * len(sizes)
    for each in frames:
        for at, lines in zip(each.chunks, cut(sizes, each), strict=True):
            found[at] = lines
    return found


def cut(sizes: Sequence[int], frame: Frame) -> Iterator[bytes]:
    """Yield the lines of the chunks of a frame. Raises StoreError if they are not there."""
    block = lines_of(frame.packed)
    for at, offset in zip(frame.chunks, frame.offsets or [0], strict=True):
        lines = block[offset : offset + sizes[at]] if frame.offsets else block
        if len(lines) != sizes[at] or lines[-1:] != b"\n":
            raise damaged("a frame does not have the lines of its chunks")
        yield lines


def encode(headers: Run, blocks: Iterable[tuple[int, int]]) -> bytes:
    """Return the headers of a pack, as they are stored.

    `blocks` are the id of each block's frame, and the number of its chunks.
    """
    order = _stored_order(headers.headers)
    columns = [*(headers.headers[name].astype(np.int64)[order] for name in COLUMNS)]
    raw = b"".join(_delta(each).tobytes() for each in (*columns, headers.of[order]))
    raw += headers.headers["tag"][order].tobytes()
    stored = _Stored([*headers.producers], [_Block(*each) for each in blocks], raw)
    return block_of([msgspec.msgpack.encode(stored)])


@lru_cache(64)
def decode(encoded: bytes) -> Pack:
    """Return the pack whose headers these are. Raises StoreError if they were changed.

    Those that were used last are kept: each of a feed's partitions is read by itself.
    """
    stored = msgspec.msgpack.decode(_unpacked(encoded), type=_Stored)
    count = sum(each.chunks for each in stored.blocks)
    table = np.frombuffer(stored.columns, "<i8", (len(COLUMNS) + 1) * count)
    *columns, of = np.cumsum(table.reshape(-1, count), axis=1)
    tags = np.frombuffer(stored.columns, "<u4", count, table.nbytes)
    order = np.argsort(columns[0])
    headers = np.empty(count, HEADERS)
    for name, column in zip(COLUMNS, columns, strict=True):
        headers[name] = column[order]
    headers["tag"] = tags[order]
    hashes = np.array([name_hash(each) for each in stored.producers], np.uint64)
    headers["producer"] = hashes[of[order]]
    return Pack(Run(headers, stored.producers, of[order], [0] * count), stored.blocks)


def _unpacked(stored: bytes) -> bytes:
    try:
        return lines_of(stored)
    except zstandard.ZstdError as exc:
        raise damaged(f"the row of a pack was changed ({exc})") from exc


def _stored_order(headers: np.ndarray) -> np.ndarray:
    return np.lexsort((headers["g"], headers["partition"]))


def _delta(column: np.ndarray) -> np.ndarray:
    return np.diff(column, prepend=0)
