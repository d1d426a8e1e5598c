"""Segments as bytes: each block comes back, and none but the right one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.service.segments.objects import DamagedObjectError
from zeh_spark.service.segments.segment_format import (
    TAIL_BYTES,
    Segment,
    checked_block,
    decode_index,
    encoded_index_place,
    folder_of,
    frames_in,
    new_name,
)

_ORIGIN = bytes(range(32))
_BLOCKS = st.dictionaries(st.integers(1, 2**53), st.binary(max_size=50), min_size=1, max_size=8)


def made(blocks: dict[int, bytes]) -> tuple[bytes, Segment]:
    segment = Segment(_ORIGIN, (5, "0a0b0c0d"), (9, "ffffffff"), [b"headers", b"of packs"])
    return b"".join(segment.parts(blocks.items())), segment


def index_of(whole: bytes):
    tail = whole[-TAIL_BYTES:]
    offset, length = encoded_index_place("one", tail, len(whole))
    return decode_index("one", whole[offset : offset + length], tail)


@given(_BLOCKS)
def test_each_block_comes_back(blocks: dict[int, bytes]) -> None:
    """The object alone tells what it has, and the store's index the same."""
    whole, segment = made(blocks)

    assert segment.index == index_of(whole) == decode_index("one", segment.index.encode())
    assert list(blocks) == [place.blob for place in segment.index.blocks]
    assert sum(map(len, blocks.values())) == segment.index.size
    for place in frames_in(segment.index, [*blocks, 0]):
        frame = whole[place.offset : place.offset + place.length]
        assert blocks[place.blob] == checked_block("one", place, frame)


@given(_BLOCKS, st.data())
def test_no_other_bytes_pass_for_a_segment(blocks: dict[int, bytes], data: st.DataObject) -> None:
    """A changed bit, a cut and another object are refused by name."""
    whole, segment = made(blocks)
    at = data.draw(st.integers(8, len(whole) - 1))
    changed = bytearray(whole)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    place = next(
        (each for each in segment.index.blocks if each.offset <= at < each.offset + each.length),
        None,
    )

    with pytest.raises(DamagedObjectError, match="one "):
        if place:
            frame = bytes(changed[place.offset : place.offset + place.length])
            checked_block("one", place, frame)
        else:
            index_of(bytes(changed))
    with pytest.raises(DamagedObjectError, match="one is no whole segment"):
        index_of(whole[:at].rjust(TAIL_BYTES, b"\0"))


def test_names_are_never_used_twice() -> None:
    """And say which feed they are of, whatever its name is."""
    one, two = new_name(_ORIGIN), new_name(_ORIGIN)

    assert one != two
    assert folder_of(_ORIGIN) == one.partition("/")[0] == two.partition("/")[0]
    assert folder_of(_ORIGIN) != folder_of(bytes(32))
