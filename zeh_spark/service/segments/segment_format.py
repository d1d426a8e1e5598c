"""The format of a segment: the blocks of neighbouring packs, byte for byte, and an index of them.

    MAGIC, the blocks one after the other, the index, its length (4 bytes), its xxh3-64, MAGIC

The store keeps the index, too. So a block is read with one request, and compared with the hash that
the store has: an object that was cut, changed or exchanged is never taken for the right one. The
index in the object is for people who have only the object. Pure; runs in the publisher.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import xxhash

from zeh_spark.service.store.interface import DamagedObjectError
from zeh_spark.service.store.log import BlockPlace

SEGMENT_BYTES = 64 << 20
"""Most bytes of a segment's blocks, unless a single pack has more."""

SUFFIX = ".segment"
"""What the name of each object has at its end."""

VERSION = 1
MAGIC = b"ZEHSEG\n\x01"
_TAIL = struct.Struct(">IQ8s")


class Place(NamedTuple):
    """Where a block is in its object; `blob` is the number that its frame had in the store."""

    blob: int
    offset: int
    length: int
    digest: bytes


class Index(msgspec.Struct, frozen=True, array_like=True):
    """What is in a segment.

    Attributes:
        origin: The feed's origin (`FeedState.origin`).
        first: Position and tag of the first chunk.
        last: Position and tag of the last chunk.
        headers: The xxh3-128 of the headers of its packs, as the store has them.
        blocks: The places of the blocks, once all `parts` were taken.
    """

    origin: bytes
    first: tuple[int, str]
    last: tuple[int, str]
    headers: bytes
    version: int = VERSION
    blocks: list[Place] = []

    def parts(self, blocks: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
        """Yield the object's bytes in parts, given its frames with their numbers in the store."""
        yield MAGIC
        offset = len(MAGIC)
        for blob, frame in blocks:
            self.blocks.append(Place(blob, offset, len(frame), xxhash.xxh3_128_digest(frame)))
            offset += len(frame)
            yield frame
        encoded = self.encode()
        yield encoded + _TAIL.pack(len(encoded), xxhash.xxh3_64_intdigest(encoded), MAGIC)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)


decode_index = msgspec.msgpack.Decoder(Index).decode
"""Decode an index (`Index.encode`)."""


def new_name(origin: bytes) -> str:
    """Return a name that no object has, in a folder of the feed's own: its name may be another's.

    Rejected: names made of content. A second attempt has the same, and the first one's clean-up
    deletes what the second one has written.
    """
    return f"{origin[:16].hex()}/{secrets.token_hex(16)}{SUFFIX}"


def checked_block(name: str, place: BlockPlace, frame: bytes) -> bytes:
    """Return a block that was read from an object. Raises DamagedObjectError if it is another."""
    if xxhash.xxh3_128_digest(frame) == place.digest:
        return frame
    raise DamagedObjectError(
        f"{name} was changed, or is another object: its {place.length} bytes at {place.offset} are "
        f"not those that were written. Put the object back that was there"
    )
