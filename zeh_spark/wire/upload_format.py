"""The format of uploads: events become chunks, chunks an upload, and a batch's content a number.

A chunk is one zstd frame of whole lines of one partition: at most 1,000 events, and 1 MiB before
compression. Frames carry their content size, so that reading allocates once. An upload is the body
of one PUT: a line of JSON that lists its chunks, then their frames, one after the other.

The *rest* of a line is what follows `{"partition":P,`, without the newline. A batch's content
depends on its rests alone, so that task layout, row order and partition count may differ between
two attempts at the same batch. It is a sum. Rejected: XOR, by which two equal events count as none.

Rule for editors: the content of the same events must never change, because receipts keep it. Pure.
Runs in tasks, in commands that write, and in the publisher.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import zstandard
from msgspec import Raw

from zeh_spark.wire import event_key, wire
from zeh_spark.wire.hashes import sum_of
from zeh_spark.wire.phrases import counted, moment

CHUNK_EVENTS = 1000
CHUNK_BYTES = 1 << 20
UPLOAD_CHUNKS = 10_000
UPLOAD_UNPACKED = 64 << 20
"""The limits of an upload: the number of chunks, and bytes of lines before compression."""

_INDEX_BYTES = 1 << 20

UPLOAD_BYTES = 4 << 20
"""The default for the approximate size of an upload's frames, in bytes.

A store writes an upload in one transaction, for which others wait.
"""

OPEN_UPLOADS = 4
"""How much the open chunks of all partitions may hold together, in sizes of an upload."""

LINE_BYTES = wire.MAX_LINE - wire.STAMP_BYTES
"""The maximum bytes of a line that a writer may store, without its newline."""

DIGEST_VERSION = 1
"""The version of the method by which a content's sum is made; receipts keep it."""

_decode_json = msgspec.json.Decoder(Raw).decode
_local = threading.local()


class Published(Protocol):
    """What a receipt says of a batch's content, on both sides."""

    @property
    def events(self) -> int:
        """The number of events."""

    @property
    def digest(self) -> str:
        """The sum over the events, in hexadecimal digits."""

    @property
    def time(self) -> int:
        """The time of the commit, in ms since 1970."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a batch, or of a part of one.

    Args:
        sum: the sum of the xxh3-128 of their rests, modulo 2^128.
    """

    events: int = 0
    sum: int = 0

    def __add__(self, other: Content) -> Content:
        return Content(self.events + other.events, (self.sum + other.sum) % (1 << 128))

    def __sub__(self, other: Content) -> Content:
        return Content(self.events - other.events, (self.sum - other.sum) % (1 << 128))

    @property
    def digest(self) -> str:
        """The sum as 32 hex digits, as receipts and errors show it."""
        return f"{self.sum:032x}"

    def is_in(self, receipt: Published) -> bool:
        """Return whether this content is the one that a receipt confirms."""
        return (self.events, self.digest) == (receipt.events, receipt.digest)

    def dropped(self, option: str, kept: Published) -> str:
        """Return which events an override has dropped, and which it has kept.

        `option` is `keepFirst`, or that of the dead-letter feed. This content was given now.
        """
        return (
            f"{option} keeps the {counted(kept.events, 'event')} published under this name at "
            f"{moment(kept.time)} (content {kept.digest[:8]}); the "
            f"{counted(self.events, 'event')} given now (content {self.digest[:8]}) "
            f"{'was' if self.events == 1 else 'were'} dropped"
        )


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """A chunk before its commit.

    Args:
        size: the bytes of its lines.
        frame: its lines, compressed.
    """

    partition: int
    events: int
    size: int
    sum: int
    frame: bytes

    @property
    def content(self) -> Content:
        """The content of its events."""
        return Content(self.events, self.sum)

    @property
    def digest(self) -> bytes:
        """The SHA-256 of its frame."""
        return hashlib.sha256(self.frame).digest()


def content_of(rests: Sequence[bytes]) -> Content:
    """Return the content of events, given their rests."""
    return Content(len(rests), sum_of(rests))


@functools.lru_cache(1 << 12)  # called several times for each event
def prefix(partition: int) -> bytes:
    """Return the beginning of each stored line of a partition; its rest follows."""
    return b'{"partition":%d,' % partition


def frame_of(lines: bytes) -> bytes:
    """Return lines as one zstd frame."""
    return zstandard.ZstdCompressor(level=1, write_content_size=True, write_checksum=True).compress(
        lines
    )


def lines_of(frame: bytes) -> bytes:
    """Return the lines of a frame, each ended by b"\\n"."""
    if not hasattr(_local, "decompress"):  # threads must not share one, and it is slow to make
        _local.decompress = zstandard.ZstdDecompressor().decompress
    lines: bytes = _local.decompress(frame, allow_extra_data=False)
    return lines


def checked_rest(
    partition: int, headers: Mapping[str, str], data: bytes, kept_key: str | None = None
) -> bytes:
    """Return an event as the rest of a line, as in `rest_of`.

    Raises ValueError if the event cannot be published, or its line is too long in that partition.
    """
    rest = rest_of(headers, data, kept_key)
    size = len(prefix(partition)) + len(rest)
    if size > LINE_BYTES:
        raise ValueError(
            f"the event takes {size:,} bytes as a line of the feed; at most {LINE_BYTES:,} "
            f"are allowed"
        )
    return rest


def rest_of(headers: Mapping[str, str], data: bytes, kept_key: str | None = None) -> bytes:
    """Return an event as the rest of a line. Reserved headers are dropped.

    `data` is JSON without newlines. `kept_key` stays with the event in the header `zeh-key`. Raises
    ValueError if the data is null, which some clients treat as no event, or the key is too long.
    """
    if data == b"null":
        raise ValueError("null cannot be an event's data")
    if headers:
        headers = {k: v for k, v in headers.items() if not k.startswith(wire.RESERVED_HEADER)}
    if kept_key is not None:
        if fault := event_key.fault(kept_key):
            raise ValueError(f"key: {fault}")
        headers = {**headers, event_key.HEADER: kept_key}
    return wire.event_line(0, headers, data)[len(prefix(0)) :]


def validated_json(text: bytes) -> bytes:
    """Return JSON text as it fits into a line: newlines between tokens become spaces.

    Raises ValueError if it is no JSON, or nested too deeply. The reason depends on the text alone,
    and not on how deep a parser comes. Otherwise a repeated batch would make another dead letter.
    """
    check_depth(text)
    try:
        _decode_json(text)
        text.decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise ValueError(f"not JSON: {wire.why_not(text, exc)}") from None
    return text.strip().replace(b"\r", b" ").replace(b"\n", b" ")


def check_depth(text: bytes) -> None:
    """Raise ValueError for JSON that is nested deeper than wire.MAX_DEPTH."""
    if text.count(b"{") + text.count(b"[") <= wire.MAX_DEPTH:
        return
    bare = np.frombuffer(wire.STRING.sub(b"", text), np.uint8) | 0x20  # [ and ] become { and }
    steps = (bare == ord("{")).astype(np.int32) - (bare == ord("}"))
    if (depth := np.cumsum(steps).max(initial=0)) > wire.MAX_DEPTH:
        raise ValueError(f"it is nested {depth} deep; at most {wire.MAX_DEPTH} are allowed")


def may_be_deep(lines: bytes, ends: np.ndarray) -> bool:
    """Return whether a line could be nested deeper than wire.MAX_DEPTH.

    It could if it is long enough and has enough brackets. `ends` are the offsets where the lines
    end.
    """
    if np.diff(ends, prepend=0).max(initial=0) < 2 * wire.MAX_DEPTH:
        return False
    opened = np.flatnonzero((np.frombuffer(lines, np.uint8) | 0x20) == ord("{"))  # also [
    return bool(np.diff(np.searchsorted(opened, ends), prepend=0).max(initial=0) > wire.MAX_DEPTH)


def count_lines(block: bytes) -> int:
    """Return the number of newlines. Measured: four times as fast as bytes.count."""
    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))


class Chunker:
    """Collects the rests of each partition, and returns chunks as they fill up.

    Args:
        held_bytes: how much open chunks may hold together, in bytes.

    Attributes:
        content: the content of all chunks that were returned, or only counted.
        bytes: the bytes of all lines.
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
        """Add an event; return the chunks that are full. Raises ValueError as `checked_rest`."""
        return self.extend(partition, [checked_rest(partition, headers, data)])

    def extend(self, partition: int, rests: Sequence[bytes]) -> list[StagedChunk]:
        """Add events whose rests were checked; return the chunks that are full."""
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
        """Put as many as fit well into the open chunk; return how many, 0 if it is full."""
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
        """Return no more chunks, and only count, because the publisher has these events already."""
        for rests in self._open.values():
            self.content += content_of(rests)
        self._open, self._sizes, self._held, self._counting = {}, {}, 0, True

    def close(self) -> list[StagedChunk]:
        """Return the chunks that are left."""
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
    """A chunk in the first line of an upload.

    Args:
        size: the bytes of its lines.
        bytes: the bytes of its frame.
    """

    partition: int
    events: int
    size: int
    bytes: int


_decode_index = msgspec.json.Decoder(list[IndexEntry]).decode


def upload_body(chunks: Sequence[StagedChunk]) -> bytes:
    """Return the body of an upload of these chunks."""
    index = [IndexEntry(c.partition, c.events, c.size, len(c.frame)) for c in chunks]
    return b"".join((msgspec.json.encode(index), b"\n", *(c.frame for c in chunks)))


EMPTY_UPLOAD = upload_body([])


def parse_upload(body: bytes) -> list[tuple[IndexEntry, bytes]]:
    """Return the chunks of an upload as its writer describes them, each with its frame.

    The frames are not looked into. Raises ValueError if the body is not an upload.
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
