"""The body of an answer: events as they are served, in pieces of a good size to send.

Pieces are compressed one by one, so that each can be read as soon as it has arrived, and can be
kept for other answers. An answer is still one gzip stream: each piece is deflated without a look
at those before it, and ends on a byte (RFC 1951, 3.2.4). Only the stream's checksum is of all.
Rejected: a gzip member for each piece, which RFC 1952 allows, because httpx reads only the first
one and drops the others without an error.

Rule for editors: parts of a store's feed are kept by everything that their bytes depend on: the
chunks, the number of partitions of the reader, the wanted headers, the selected events, and the
coding. What is added to `part_renderer` belongs into the key, too. `entity_tag` does the same for a
page as it is sent.

Runs in the publisher's worker threads.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import zeh_spark
from zeh_spark import _zlib
from zeh_spark.service.reads.answer_cache import AnswerCache, key_of
from zeh_spark.service.reads.pages import Part
from zeh_spark.service.store.log import Chunk, Log
from zeh_spark.service.telemetry.exchange import Tally
from zeh_spark.wire import wire
from zeh_spark.wire.served_lines import Block, Render, Selection, renderer

WRITE_BYTES = 256 << 10
"""Least bytes of a piece of an answer, except for its last piece."""

SEND_BYTES = 256 << 10
"""Most bytes that are sent at a time."""

_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"  # deflate, no name, no time, fast
_LAST_BLOCK = b"\x03\x00"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer's body.

    Attributes:
        size: The bytes of its text, before compression.
        events: How many events it has.
        crc: The text's CRC-32, if the piece is compressed.
    """

    sent: bytes
    size: int
    events: int
    crc: int = 0

    @property
    def cost(self) -> int:
        """The bytes of memory that it takes, about."""
        return len(self.sent)


def part_renderer(
    n: int,
    headers: tuple[str, ...],
    only: Selection | None,
    cache: AnswerCache,
    *,
    gzip: bool,
    tally: Tally,
) -> Callable[[Part], Piece]:
    """Return what makes a piece of a part of a page, which is kept for the next readers."""
    encode = gzip_piece if gzip else plain_piece
    render = renderer(headers, only)
    selected = only and only.text

    def made(part: Part) -> Piece:
        found = Tally()
        text = b"".join(_rendered(part.blocks(), n, render, found))
        return encode(text, found.events)

    def rendered(part: Part) -> Piece:
        if not part.chunks:
            return made(part)
        key = key_of("page", part.log.state.origin, part.chunks, n, headers, selected, gzip)
        piece = cache.get(key, partial(made, part))
        tally.add(piece.events)
        return piece

    return rendered


def entity_tag(log: Log, chunks: Sequence[Chunk], *how: object) -> str:
    """Return the ETag of a page with these chunks, from the index alone. `how` is the request."""
    made = log.identity.epochs[-1].id, _zlib.VERSION, zeh_spark.__version__
    return f'"{key_of("answer", log.state.origin, chunks, made, *how).hex()[:32]}"'


def with_fields(tag: str, fields: Mapping[str, str]) -> str:
    """Return the ETag of a page that is sent with header fields that tell of the feed."""
    return f'"{key_of(tag, b"", (), sorted(fields.items())).hex()[:32]}"'


def render_blocks(
    blocks: Iterable[Block],
    n: int,
    headers: tuple[str, ...],
    *,
    gzip: bool,
    tally: Tally,
) -> Iterator[Piece]:
    """Yield a page of a feed of any kind.

    Raises Problem if the page is refused, before the first piece or in the middle.
    """
    encode: Callable[[bytes], Piece] = gzip_piece if gzip else plain_piece
    yield from map(encode, body(blocks, n, renderer(headers), tally))


def body(blocks: Iterable[Block], n: int, render: Render, tally: Tally) -> Iterator[bytes]:
    """Yield the body of an answer in large pieces: each block's events, then its checkpoint."""
    pieces: list[bytes] = []
    size = 0
    for block in blocks:
        pieces += _rendered([block], n, render, tally)
        size += len(block.lines)
        if size >= WRITE_BYTES:
            whole = b"".join(pieces)
            pieces, size = [], 0
            yield whole
    if pieces:
        yield b"".join(pieces)


def _rendered(blocks: Iterable[Block], n: int, render: Render, tally: Tally) -> Iterator[bytes]:
    """Yield the events of each block, which are counted, and its checkpoint."""
    for block in blocks:
        partition = block.partition % n
        if block.lines:
            lines = render(block, partition)
            tally.add(lines.count(b"\n"))
            yield lines
        yield wire.checkpoint_line(partition, block.cursor)


def plain_piece(text: bytes, events: int = 0) -> Piece:
    return Piece(text, len(text), events)


def gzip_piece(text: bytes, events: int = 0) -> Piece:
    """Return a piece compressed, to be sent by `gzip_stream`."""
    compressor = _zlib.library.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = compressor.compress(text) + compressor.flush(zlib.Z_SYNC_FLUSH)
    return Piece(packed, len(text), events, _zlib.library.crc32(text))


def plain_stream(pieces: Iterable[Piece]) -> Iterator[Sequence[bytes]]:
    for piece in pieces:
        yield (piece.sent,)


def gzip_stream(pieces: Iterable[Piece]) -> Iterator[Sequence[bytes]]:
    """Yield the bytes of compressed pieces as one gzip stream, piece by piece."""
    combine = getattr(_zlib.library, "crc32_combine", _combined)
    crc, size = 0, 0
    head: tuple[bytes, ...] = (_GZIP_HEAD,)
    for piece in pieces:
        yield (*head, piece.sent)
        head = ()
        crc, size = combine(crc, piece.crc, piece.size), size + piece.size
    yield (*head, _LAST_BLOCK + struct.pack("<II", crc, size % (1 << 32)))


def _combined(before: int, crc: int, size: int) -> int:
    """Return the CRC-32 of a text and one of `size` bytes behind it, given those of both.

    Both change a CRC by XOR, so the second text may be put in place of as many zeros. isal has this
    function, and zlib has not.
    """
    zeros = bytes(size)
    return zlib.crc32(zeros, before) ^ zlib.crc32(zeros) ^ crc
