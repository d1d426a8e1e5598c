"""Segments as bytes: each block comes back, and none but the right one."""

from __future__ import annotations

import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.service.segments.segment_format import (
    MAGIC,
    Index,
    checked_block,
    decode_index,
    new_name,
)
from zeh_spark.service.store.interface import DamagedObjectError
from zeh_spark.service.store.log import BlockPlace

_ORIGIN = bytes(range(32))
_BLOCKS = st.dictionaries(st.integers(1, 2**53), st.binary(max_size=50), min_size=1, max_size=8)


def made(blocks: dict[int, bytes]) -> tuple[bytes, Index]:
    index = Index(_ORIGIN, (5, "0a0b0c0d"), (9, "ffffffff"), b"digest of headers")
    return b"".join(index.parts(blocks.items())), index


def index_of(whole: bytes) -> Index:
    """What an object itself says of its content."""
    length, digest, magic = struct.unpack(">IQ8s", whole[-20:])
    encoded = whole[-20 - length : -20]
    assert (xxhash.xxh3_64_intdigest(encoded), MAGIC) == (digest, magic)
    return decode_index(encoded)


@given(_BLOCKS)
def test_each_block_comes_back(blocks: dict[int, bytes]) -> None:
    """The object alone tells what it has, and the store's index the same."""
    whole, index = made(blocks)

    assert index == index_of(whole) == decode_index(index.encode())
    assert list(blocks) == [place.blob for place in index.blocks]
    for place in index.blocks:
        frame = whole[place.offset : place.offset + place.length]
        assert blocks[place.blob] == checked_block("one", BlockPlace("", "one", *place[1:]), frame)


@given(st.binary(min_size=1, max_size=50), st.integers(0, 399), st.integers(0, 7))
def test_no_other_bytes_pass_for_a_block(frame: bytes, at: int, bit: int) -> None:
    """A changed bit is refused, and the object is named."""
    _, index = made({1: frame})
    (place,) = index.blocks
    changed = bytearray(frame)
    changed[at % len(frame)] ^= 1 << bit

    with pytest.raises(DamagedObjectError, match="one was changed, or is another object"):
        checked_block("one", BlockPlace("", "one", *place[1:]), bytes(changed))


def test_names_are_never_used_twice() -> None:
    """And say which feed they are of, whatever its name is."""
    one, two = new_name(_ORIGIN), new_name(_ORIGIN)

    assert one != two
    folders = [each.partition("/")[0] for each in (one, two, new_name(bytes(32)))]
    assert folders[0] == folders[1] != folders[2]
