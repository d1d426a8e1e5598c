"""The body of a page: events as they are served, in pieces.

Rule for editors: parts of a store's feed are kept by everything that their bytes depend on: the
chunks, the number of partitions of the reader, the wanted headers, and the coding. What is added to
`render_parts` belongs into the key, too.

Runs in the publisher's worker threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from zeh_spark.service.app.pieces import Piece, gzip_piece, plain_piece
from zeh_spark.service.store.answer_cache import AnswerCache, key_of
from zeh_spark.service.store.feed import ChunkFeed, Outline, Part
from zeh_spark.service.telemetry.exchange import Tally
from zeh_spark.wire import wire
from zeh_spark.wire.served_lines import Block, Render, renderer

WRITE_BYTES = 256 << 10
"""Least bytes of a piece of an answer, except for its last piece."""


def render_parts(
    feed: ChunkFeed,
    outline: Outline,
    n: int,
    headers: tuple[str, ...],
    cache: AnswerCache,
    *,
    gzip: bool,
    tally: Tally,
) -> Iterator[Piece]:
    """Yield a page of a store's feed: a piece for each part, which is kept for the next readers.

    Raises Problem if the page is refused, before the first piece or in the middle.
    """
    encode = gzip_piece if gzip else plain_piece
    render = renderer(headers)

    def made(part: Part) -> Piece:
        return encode(b"".join(_rendered(feed.read(part), n, render)))

    for part in outline.parts:
        tally.add(sum(each.events for each in part.chunks))
        if part.chunks:
            key = key_of("page", outline.feed.origin, part.chunks, n, headers, gzip)
            yield cache.get(key, lambda part=part: made(part))  # type: ignore[misc]
        else:
            yield made(part)


def render_blocks(
    blocks: Iterable[Block],
    n: int,
    headers: tuple[str, ...],
    *,
    gzip: bool,
    tally: Tally,
) -> Iterator[Piece]:
    """Yield a page of a feed of any kind (see `render_parts`)."""
    encode: Callable[[bytes], Piece] = gzip_piece if gzip else plain_piece
    yield from map(encode, body(_counted(blocks, tally), n, renderer(headers)))


def _counted(blocks: Iterable[Block], tally: Tally) -> Iterator[Block]:
    for block in blocks:
        tally.add(block.lines.count(b"\n"))
        yield block


def body(blocks: Iterable[Block], n: int, render: Render) -> Iterator[bytes]:
    """Yield the body of an answer in large pieces: each block's events, then its checkpoint."""
    pieces: list[bytes] = []
    size = 0
    for block in blocks:
        pieces += _rendered([block], n, render)
        size += len(block.lines)
        if size >= WRITE_BYTES:
            whole = b"".join(pieces)
            pieces, size = [], 0
            yield whole
    if pieces:
        yield b"".join(pieces)


def _rendered(blocks: Iterable[Block], n: int, render: Render) -> Iterator[bytes]:
    for block in blocks:
        partition = block.partition % n
        if block.lines:
            yield render(block, partition)
        yield wire.checkpoint_line(partition, block.cursor)
