"""The format of a segment: the blocks of neighbouring packs, byte for byte, and an index of them.

    MAGIC, the blocks one after the other, the index, its length (4 bytes), its xxh3-64, MAGIC

The store keeps the index, too. So a block is read with one request, and compared with the hash that
the store has: an object that was cut, changed or exchanged is never taken for the right one. What
the object itself says of its content is for `check`, and for people who have only the object.

Pure; runs in the publisher and in commands.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import xxhash

from zeh_spark.service.segments.objects import DamagedObjectError

SEGMENT_BYTES = 64 << 20
"""Most bytes of a segment's blocks, unless a single pack has more."""

VERSION = 1
MAGIC = b"ZEHSEG\n\x01"
_TAIL = struct.Struct(">IQ8s")
TAIL_BYTES = _TAIL.size


class Place(NamedTuple):
    """Where a block is in its object.

    Attributes:
        blob: The number that its frame had in the store. Packs name their blocks by it.
        digest: The xxh3-128 of the frame.
    """

    blob: int
    offset: int
    length: int
    digest: bytes


class Index(msgspec.Struct, frozen=True, array_like=True):
    """What is in a segment.

    Attributes:
        origin: The feed's origin (`FeedState.origin`).
        first: The position of its first chunk.
        last: The position of its last chunk.
        first_tag: The tag of the first chunk.
        headers: The xxh3-128 of the headers of its packs, as the store has them.
    """

    version: int
    origin: bytes
    first: int
    first_tag: str
    last: int
    last_tag: str
    headers: bytes
    blocks: list[Place]

    @property
    def size(self) -> int:
        """The bytes of its blocks."""
        return sum(each.length for each in self.blocks)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


_decode = msgspec.msgpack.Decoder(Index).decode


class Segment:
    """A segment that is being written. `index` is there once all `parts` were taken."""

    def __init__(
        self, origin: bytes, first: tuple[int, str], last: tuple[int, str], headers: Iterable[bytes]
    ) -> None:
        digest = xxhash.xxh3_128()
        for each in headers:
            digest.update(each)
        self.index = Index(VERSION, origin, *first, *last, digest.digest(), [])

    def parts(self, blocks: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
        """Yield the object's bytes in parts, given its frames with their numbers in the store."""
        yield MAGIC
        offset = len(MAGIC)
        for blob, frame in blocks:
            digest = xxhash.xxh3_128_digest(frame)
            self.index.blocks.append(Place(blob, offset, len(frame), digest))
            offset += len(frame)
            yield frame
        encoded = self.index.encode()
        yield encoded + _TAIL.pack(len(encoded), xxhash.xxh3_64_intdigest(encoded), MAGIC)


def new_name(origin: bytes) -> str:
    """Return a name that no object has, below a folder of the feed's own.

    Rejected: names made of content. A second attempt has the same, and the first one's clean-up
    deletes what the second one has written.
    """
    return f"{folder_of(origin)}/{secrets.token_hex(16)}.segment"


def folder_of(origin: bytes) -> str:
    """Return the folder of a feed's objects, by its origin: a feed of the same name has another."""
    return origin[:16].hex()


def checked_block(name: str, place: Place, frame: bytes) -> bytes:
    """Return a block that was read from an object. Raises DamagedObjectError if it is another."""
    if xxhash.xxh3_128_digest(frame) == place.digest:
        return frame
    raise DamagedObjectError(
        f"{name} was changed, or is another object: its {place.length} bytes at {place.offset} are "
        f"not those that were written. Put the object back that was there"
    )


def encoded_index_place(name: str, tail: bytes, size: int) -> tuple[int, int]:
    """Return offset and length of an object's index, given its end and its size in bytes."""
    length, _, magic = _TAIL.unpack(tail)
    offset = size - TAIL_BYTES - length
    if magic != MAGIC or offset < len(MAGIC):
        raise _no_segment(name)
    return offset, length


def decode_index(name: str, encoded: bytes, tail: bytes | None = None) -> Index:
    """Return an index; `tail` is the end of the object that it was read from."""
    try:
        if tail and _TAIL.unpack(tail)[1] != xxhash.xxh3_64_intdigest(encoded):
            raise _no_segment(name)
        return _decode(encoded)
    except msgspec.DecodeError:
        raise _no_segment(name) from None


def frames_in(index: Index, wanted: Iterable[int]) -> Sequence[Place]:
    """Return the places of the blocks with these numbers, as far as the segment has them."""
    numbers = set(wanted)
    return [each for each in index.blocks if each.blob in numbers]


def _no_segment(name: str) -> DamagedObjectError:
    return DamagedObjectError(
        f"{name} is no whole segment: it was cut off, changed, or is another object. Put the "
        f"object back that was there"
    )
