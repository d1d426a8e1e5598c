"""Pieces of answers, plain or compressed, of a good size to send.

Pieces are compressed one by one, so that each can be read as soon as it has arrived, and can be
kept for other answers. An answer is still one gzip stream: each piece is deflated without a look
at those before it, and ends on a byte (RFC 1951, 3.2.4). Only the stream's checksum is of all.
Rejected: a gzip member for each piece, which RFC 1952 allows, because httpx reads only the first
one and drops the others without an error.

The module has no side effects.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

SEND_BYTES = 256 << 10
"""Most bytes that are sent at a time."""

_POLYNOMIAL = 0xEDB88320  # of CRC-32, its bits reversed
_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"  # deflate, no name, no time, fast
_LAST_BLOCK = b"\x03\x00"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer's body.

    Attributes:
        sends: Its bytes, at most SEND_BYTES each.
        crc: Their CRC-32, if the piece is compressed.
        shift: What a CRC before them is multiplied with (see `combined`), if it is compressed.
    """

    sends: tuple[bytes, ...]
    size: int
    crc: int = 0
    shift: int = 0

    @property
    def cost(self) -> int:
        """The bytes of memory that it takes, about."""
        return sum(map(len, self.sends))


def plain_piece(text: bytes) -> Piece:
    return Piece(_cut(text), len(text))


def gzip_piece(text: bytes) -> Piece:
    """Return a piece compressed, to be sent by `gzip_stream`."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = compressor.compress(text) + compressor.flush(zlib.Z_SYNC_FLUSH)
    return Piece(_cut(packed), len(text), zlib.crc32(text), _shift(len(text)))


def plain_stream(pieces: Iterable[Piece]) -> Iterator[Sequence[bytes]]:
    for piece in pieces:
        yield piece.sends


def gzip_stream(pieces: Iterable[Piece]) -> Iterator[Sequence[bytes]]:
    """Yield the bytes of compressed pieces as one gzip stream, piece by piece."""
    crc, size = 0, 0
    head: tuple[bytes, ...] = (_GZIP_HEAD,)
    for piece in pieces:
        yield (*head, *piece.sends)
        head = ()
        crc, size = combined(crc, piece), size + piece.size
    yield (*head, _LAST_BLOCK + struct.pack("<II", crc, size % (1 << 32)))


def combined(before: int, piece: Piece) -> int:
    """Return the CRC-32 of some bytes and a piece after them, given that of the bytes."""
    return _times(before, piece.shift) ^ piece.crc


def _cut(text: bytes) -> tuple[bytes, ...]:
    return tuple(text[at : at + SEND_BYTES] for at in range(0, len(text), SEND_BYTES))


def _times(a: int, b: int) -> int:
    """Return the product of polynomials over GF(2), modulo the one of CRC-32."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _shift(size: int) -> int:
    """Return x to the power of 8 * size: what `size` bytes more do to a CRC before them."""
    product = 1 << 31  # 1
    power = 1 << 23  # x^8
    while size:
        if size & 1:
            product = _times(power, product)
        power = _times(power, power)
        size >>= 1
    return product
