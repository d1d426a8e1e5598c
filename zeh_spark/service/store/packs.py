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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import msgspec
import numpy as np
import zstandard

from zeh_spark.service.store.interface import Anchor, Chunk, Frame, damaged
from zeh_spark.wire.direct_reads import HEADERS, name_hash
from zeh_spark.wire.upload_format import count_lines, lines_of

PACK_CHUNKS, PACK_BYTES = 1024, 8 << 20
"""Most chunks of a pack, and most bytes of its lines."""

SEALED_AFTER_MS = 600_000
"""The age in ms from which chunks are packed. Most readers have read them by then, one by one."""

BLOCK_BYTES, OWN_BYTES = 1 << 20, 256 << 10
"""Bytes of lines from which a block is full, and from which a chunk has a block of its own."""

TOTALS = np.dtype(
    [("g", "<i8"), ("tag", "<u4"), ("chunks", "<i8"), ("events", "<i8"), ("bytes", "<i8")]
)
"""The last chunk of a stored partition (0 if there is none), and what there was up to it."""

_COLUMNS = ("g", "partition", "events", "size", "time", "batch", "sequence")


class _Block(NamedTuple):
    blob: int
    chunks: int


class _Stored(msgspec.Struct, array_like=True):
    producers: list[str]
    blocks: list[_Block]
    columns: bytes


@dataclass(frozen=True)
class Pack:
    """The chunks of a pack.

    Attributes:
        first: The position of the first one. The others follow without a gap.
        headers: What they are, in the order of g: an array of HEADERS.
        producers: The names of their producers.
        of: For each chunk the number of its producer.
        blocks: The blocks, in the order of partition and position.
    """

    first: int
    headers: np.ndarray
    producers: Sequence[str]
    of: np.ndarray
    blocks: Sequence[_Block]

    @cached_property
    def last(self) -> int:
        """The position of the last chunk."""
        return self.first + len(self.headers) - 1

    def chunks(self, after: int, upto: int) -> list[Chunk]:
        """Return the chunks with `after` < g <= `upto`, in order."""
        return self._made(slice(max(0, after + 1 - self.first), max(0, upto + 1 - self.first)))

    def chunks_of(self, partition: int, after: int, upto: int, limit: int) -> list[Chunk]:
        """Return the first chunks of a stored partition with `after` < g <= `upto`, in order."""
        places = self._places(partition)
        begin, end = np.searchsorted(places, [after + 1 - self.first, upto + 1 - self.first])
        return self._made(places[begin : min(end, begin + limit)])

    def last_of(self, partition: int, upto: int) -> Anchor | None:
        """Return the place of the last chunk of a stored partition, up to g = `upto`."""
        places = self._places(partition)
        end = int(np.searchsorted(places, upto + 1 - self.first))
        if not end:
            return None
        g = self.first + int(places[end - 1])
        return Anchor(g, self.tag(g))

    def tag(self, g: int) -> str:
        """Return the tag of a chunk."""
        return f"{self.headers['tag'][g - self.first]:08x}"

    def place(self, g: int) -> tuple[int, int | None]:
        """Return the frame (`Chunk.blob`) that has a chunk's lines, and their offset (`Frame`)."""
        return self._places_in_blocks[g - self.first]

    @cached_property
    def _order(self) -> np.ndarray:
        return _stored_order(self.headers)

    @cached_property
    def _places_in_blocks(self) -> Sequence[tuple[int, int | None]]:
        found: list[tuple[int, int | None]] = [(0, None)] * len(self.headers)
        order, sizes = iter(self._order.tolist()), self.headers["size"].tolist()
        for blob, chunks in self.blocks:
            offset = 0
            for at in islice(order, chunks):
                found[at] = blob, offset if chunks > 1 else None
                offset += sizes[at]
        return found

    def _places(self, partition: int) -> np.ndarray:
        """Return the chunks of a stored partition as indices, ascending."""
        partitions = self.headers["partition"][self._order]
        begin, end = np.searchsorted(partitions, [partition, partition + 1])
        return self._order[begin:end]

    def _made(self, which: slice | np.ndarray) -> list[Chunk]:
        some, of = self.headers[which], self.of[which].tolist()
        columns = {name: some[name].tolist() for name in (*_COLUMNS, "tag")}
        columns["tag"] = [f"{each:08x}" for each in columns["tag"]]
        columns["producer"] = [self.producers[each] for each in of]
        columns["blob"] = [0] * len(of)
        rows = zip(*(columns[name] for name in Chunk._fields), strict=True)
        return list(map(Chunk._make, rows))


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
        g, tag = (self.table[name][partition] for name in ("g", "tag"))
        return Anchor(int(g), f"{tag:08x}") if g else None

    def tags(self) -> dict[int, str]:
        """Return the tags of the last chunks, by their positions."""
        found = self.table[self.table["g"] > 0]
        tags = [f"{each:08x}" for each in found["tag"].tolist()]
        return dict(zip(found["g"].tolist(), tags, strict=True))

    def after(self, chunks: Iterable[Chunk]) -> Totals:
        """Return the totals after more chunks, which follow in the order of g."""
        table = self.table.copy()
        for each in chunks:
            at = table[each.partition]
            at["g"], at["tag"] = each.g, int(each.tag, 16)
            at["chunks"] += 1
            at["events"] += each.events
            at["bytes"] += each.size
        return Totals(table)


def header_records(chunks: Sequence[Chunk]) -> np.ndarray:
    """Return the header records of chunks: an array of HEADERS."""
    found = np.empty(len(chunks), HEADERS)
    if not chunks:
        return found
    columns = dict(zip(Chunk._fields, zip(*chunks, strict=True), strict=True))
    hashes = {name: name_hash(name) for name in set(columns["producer"])}
    for name in ("g", "time", "batch", "sequence", "partition", "events", "size"):
        found[name] = columns[name]
    found["producer"] = [hashes[each] for each in columns["producer"]]
    found["tag"] = np.frombuffer(bytes.fromhex("".join(columns["tag"])), ">u4")
    return found


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
    found: list[list[Chunk]] = [[]]
    size = 0
    for chunk in sorted(chunks, key=lambda each: (each.partition, each.g)):
        if found[-1] and (size >= BLOCK_BYTES or chunk.size >= OWN_BYTES or size < 0):
            found.append([])
            size = 0
        found[-1].append(chunk)
        size = -1 if chunk.size >= OWN_BYTES else size + chunk.size
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


def lines_in(chunks: Sequence[Chunk], frames: Sequence[Frame]) -> list[bytes]:
    """Return the lines of chunks, which are in these frames. Each frame is unpacked once."""
    found = [b""] * len(chunks)
    of: dict[int, list[int]] = {}
    for at, (packed, _) in enumerate(frames):
        of.setdefault(id(packed), []).append(at)
    for places in of.values():  # one block is unpacked at a time: they may be of as many packs
        block = lines_of(frames[places[0]].packed)
        for at in places:
            chunk, offset = chunks[at], frames[at].offset
            lines = block if offset is None else block[offset : offset + chunk.size]
            if offset is not None and (len(lines) != chunk.size or lines[-1:] != b"\n"):
                raise damaged(f"the block of position {chunk.g} does not have its lines")
            found[at] = lines
    return found


def encode(chunks: Sequence[Chunk], blocks: Iterable[tuple[int, int]]) -> bytes:
    """Return the headers of a pack, as they are stored.

    `chunks` are in the order of g. `blocks` are the id of each block's frame, and the number of its
    chunks.
    """
    headers = header_records(chunks)
    order = _stored_order(headers)
    producers = sorted({each.producer for each in chunks})
    numbers = {name: at for at, name in enumerate(producers)}
    of = np.array([numbers[each.producer] for each in chunks], np.int64)
    columns = [*(headers[name].astype(np.int64)[order] for name in _COLUMNS), of[order]]
    raw = b"".join(_delta(each).tobytes() for each in columns)
    raw += headers["tag"][order].tobytes()
    stored = _Stored(producers, [_Block(*each) for each in blocks], raw)
    return block_of([msgspec.msgpack.encode(stored)])


def decode(encoded: bytes) -> Pack:
    """Return the pack whose headers these are. Raises StoreError if they were changed."""
    stored = msgspec.msgpack.decode(_unpacked(encoded), type=_Stored)
    count = sum(each.chunks for each in stored.blocks)
    table = np.frombuffer(stored.columns, "<i8", (len(_COLUMNS) + 1) * count)
    *columns, of = np.cumsum(table.reshape(-1, count), axis=1)
    tags = np.frombuffer(stored.columns, "<u4", count, table.nbytes)
    order = np.argsort(columns[0])
    headers = np.empty(count, HEADERS)
    for name, column in zip(_COLUMNS, columns, strict=True):
        headers[name] = column[order]
    headers["tag"] = tags[order]
    hashes = np.array([name_hash(each) for each in stored.producers], np.uint64)
    headers["producer"] = hashes[of[order]]
    return Pack(int(headers["g"][0]), headers, stored.producers, of[order], stored.blocks)


def _unpacked(stored: bytes) -> bytes:
    try:
        return lines_of(stored)
    except zstandard.ZstdError as exc:
        raise damaged(f"the row of a pack was changed ({exc})") from exc


def _stored_order(headers: np.ndarray) -> np.ndarray:
    return np.lexsort((headers["g"], headers["partition"]))


def _delta(column: np.ndarray) -> np.ndarray:
    return np.diff(column, prepend=0)
