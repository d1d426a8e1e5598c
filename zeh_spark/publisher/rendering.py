"""The body of a page: blocks as they are served, in pieces of a good size.

The module has no side effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from zeh_spark.protocol import wire
from zeh_spark.protocol.served_lines import Block, Render

WRITE_BYTES = 256 << 10
"""Least bytes of a piece of an answer, except for its last piece."""


def body(blocks: Iterable[Block], n: int, render: Render) -> Iterator[bytes]:
    """Yield the body of an answer in large pieces: each block's events, then its checkpoint."""
    pieces: list[bytes] = []
    size = 0
    for block in blocks:
        partition = block.partition % n
        if block.lines:
            pieces.append(render(block, partition))
        pieces.append(wire.checkpoint_line(partition, block.cursor))
        size += len(block.lines)
        if size >= WRITE_BYTES:
            whole = b"".join(pieces)
            pieces, size = [], 0
            yield whole
    if pieces:
        yield b"".join(pieces)
