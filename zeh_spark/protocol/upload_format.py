"""How events become chunks, chunks an upload, and a batch's content a number. Pure.

A chunk is one zstd frame of whole lines of one partition: at most 1,000 events and 1 MiB before
compression. Frames carry their content size, so that reading allocates once. An upload is the body
of one PUT: a line of JSON that lists its chunks, then their frames, one after the other.

The *rest* of a line is what follows `{"partition":P,`, without the newline. A batch's content
is told by its rests alone, so that task layout, row order and partition count may differ between
two attempts at the same batch. It is a sum, not XOR, which takes two equal events for none.

Runs in tasks, in commands that write, and in the publisher.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import xxhash
import zstandard

from zeh_spark.protocol import wire

CHUNK_EVENTS = 1000
CHUNK_BYTES = 1 << 20
UPLOAD_CHUNKS = 10_000
UPLOAD_UNPACKED = 64 << 20
"""What an upload may hold: chunks, and bytes of lines before compression."""

_INDEX_BYTES = 1 << 20

UPLOAD_BYTES = 4 << 20
"""The size of an upload's frames, about, if nobody asks for another one. A store writes one in one
transaction, for which others wait.
"""

OPEN_UPLOADS = 4
"""What the open chunks of all partitions may hold together, in sizes of an upload."""

LINE_BYTES = wire.MAX_LINE - wire.STAMP_BYTES
"""The longest line that a writer may store, without its newline."""

DIGEST_VERSION = 1
"""The version of how a content's sum is made; receipts keep it."""

_local = threading.local()


@dataclass(frozen=True, slots=True)
class Content:
    """What a batch, or a part of one, says: the number of its events, and the sum of the xxh3-128
    of their rests, modulo 2^128.
    """

    events: int = 0
    sum: int = 0

    def __add__(self, other: Content) -> Content:
        return Content(self.events + other.events, (self.sum + other.sum) % (1 << 128))

    @property
    def digest(self) -> str:
        return f"{self.sum:032x}"


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """A chunk before its commit. `size`: its lines' bytes; `sum`: its content's."""

    partition: int
    events: int
    size: int
    sum: int
    frame: bytes

    @property
    def content(self) -> Content:
        return Content(self.events, self.sum)

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.frame).digest()


def content_of(rests: Sequence[bytes]) -> Content:
    """Summed in columns of 32 bits: twice as fast as Python's integers."""
    digests = np.frombuffer(b"".join(map(xxhash.xxh3_128_digest, rests)), ">u4").reshape(-1, 4)
    total = 0
    for column in digests.sum(axis=0, dtype=np.uint64).tolist():
        total = (total << 32) + column
    return Content(len(rests), total % (1 << 128))


@functools.lru_cache(1 << 12)  # asked for several times for each event
def prefix(partition: int) -> bytes:
    """What each stored line of a partition begins with; its rest follows."""
    return b'{"partition":%d,' % partition


def frame_of(lines: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_content_size=True).compress(lines)


def lines_of(frame: bytes) -> bytes:
    """The lines of a frame, each ended by b"\\n"."""
    if not hasattr(_local, "decompress"):  # not to be shared between threads, and dear to make
        _local.decompress = zstandard.ZstdDecompressor().decompress
    lines: bytes = _local.decompress(frame, allow_extra_data=False)
    return lines


def checked_rest(partition: int, headers: Mapping[str, str], data: bytes) -> bytes:
    """An event as the rest of a line, see `rest_of`, if it may be stored in that partition.

    Raises ValueError for an event that cannot be published, or whose line is too long.
    """
    rest = rest_of(headers, data)
    size = len(prefix(partition)) + len(rest)
    if size > LINE_BYTES:
        raise ValueError(
            f"the event takes {size:,} bytes as a line of the feed; at most {LINE_BYTES:,} "
            f"are allowed"
        )
    return rest


def rest_of(headers: Mapping[str, str], data: bytes) -> bytes:
    """An event, whose data is JSON without newlines, as the rest of a line.

    Reserved headers are dropped. Raises ValueError for null, which some clients take for no event
    at all.
    """
    if data == b"null":
        raise ValueError("null cannot be an event's data")
    if headers:
        headers = {k: v for k, v in headers.items() if not k.startswith(wire.RESERVED_HEADER)}
    return wire.event_line(0, headers, data)[len(prefix(0)) :]


class Chunker:
    """Collects the rests of each partition; hands out chunks as they fill up.

    `content` is that of all chunks handed out, or only counted; `bytes`, the length of all lines.
    `held_bytes`: what open chunks may hold together.
    """

    def __init__(self, held_bytes: int = OPEN_UPLOADS * UPLOAD_BYTES) -> None:
        self.content = Content()
        self.bytes = 0
        self._open: dict[int, list[bytes]] = {}
        self._sizes: dict[int, int] = {}
        self._held = 0
        self._most = held_bytes
        self._counting = False

    def add(self, partition: int, headers: Mapping[str, str], data: bytes) -> list[StagedChunk]:
        """One event; returns what is full. Raises ValueError, see `checked_rest`."""
        return self.extend(partition, [checked_rest(partition, headers, data)])

    def extend(self, partition: int, rests: Sequence[bytes]) -> list[StagedChunk]:
        """Events whose rests are known to be right; returns what is full."""
        full: list[StagedChunk] = []
        if self._counting:
            self.content += content_of(rests)
            self.bytes += sum(map(len, rests)) + (len(prefix(partition)) + 1) * len(rests)
            return full
        while rests:
            taken = self._take(partition, rests)
            if not taken or len(self._open[partition]) == CHUNK_EVENTS:
                full.append(self._cut(partition))
            rests = rests[taken:]
        while self._held > self._most:
            full.append(self._cut(max(self._sizes, key=self._sizes.__getitem__)))
        return full

    def _take(self, partition: int, rests: Sequence[bytes]) -> int:
        """Put as many as fit well into the open chunk; returns how many, 0 if it is full."""
        lines = self._open.setdefault(partition, [])
        some = rests[: CHUNK_EVENTS - len(lines)]
        room = CHUNK_BYTES - self._sizes.get(partition, 0)
        extra = len(prefix(partition)) + 1
        while (size := sum(map(len, some)) + extra * len(some)) > room:
            if len(some) == 1:
                return 0
            some = some[: len(some) // 2]
        lines += some
        self._sizes[partition] = self._sizes.get(partition, 0) + size
        self._held += size
        self.bytes += size
        return len(some)

    def only_count(self) -> None:
        """Hand out no more chunks: what they hold is known already where they would go."""
        for rests in self._open.values():
            self.content += content_of(rests)
        self._open, self._sizes, self._held, self._counting = {}, {}, 0, True

    def close(self) -> list[StagedChunk]:
        """What is left."""
        return [self._cut(partition) for partition in sorted(self._open)]

    def _cut(self, partition: int) -> StagedChunk:
        rests = self._open.pop(partition)
        size = self._sizes.pop(partition)
        self._held -= size
        begin = prefix(partition)
        lines = b"".join((begin, (b"\n" + begin).join(rests), b"\n"))
        content = content_of(rests)
        self.content += content
        return StagedChunk(partition, len(rests), size, content.sum, frame_of(lines))


class IndexEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chunk in the first line of an upload. `bytes`: of its frame; `size`: of its lines."""

    partition: int
    events: int
    size: int
    bytes: int


_decode_index = msgspec.json.Decoder(list[IndexEntry]).decode


def upload_body(chunks: Sequence[StagedChunk]) -> bytes:
    index = [IndexEntry(c.partition, c.events, c.size, len(c.frame)) for c in chunks]
    return b"".join((msgspec.json.encode(index), b"\n", *(c.frame for c in chunks)))


EMPTY_UPLOAD = upload_body([])


def parse_upload(body: bytes) -> list[tuple[IndexEntry, bytes]]:
    """The chunks of an upload as its writer describes them, and their frames, not looked into.

    Raises ValueError for a body that is not an upload.
    """
    end = body.find(b"\n", 0, _INDEX_BYTES)
    if end < 0:
        raise ValueError(f"its first line has no end, or is longer than {_INDEX_BYTES:,} bytes")
    head = body[:end]
    try:
        index = _decode_index(head)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise ValueError(f"its first line is no list of chunks: {exc}") from None
    frames = sum(each.bytes for each in index)
    wrong = any(each.bytes < 0 or each.size < 0 for each in index)
    if wrong or len(head) + 1 + frames != len(body):
        raise ValueError(
            f"its first line, of {len(head)} bytes, lists {frames:,} bytes of frames, but the body "
            f"has {len(body):,} bytes"
        )
    chunks, begin = [], len(head) + 1
    for each in index:
        chunks.append((each, body[begin : begin + each.bytes]))
        begin += each.bytes
    return chunks
