"""Segments travel packed and come out as they went in."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.spark.source.segments import Segment, pack, unpack

parts = st.lists(st.tuples(st.integers(0, 3), st.binary(min_size=1, max_size=30)))


@given(parts)
def test_what_is_packed_comes_out(blocks):
    """Law: every byte of every partition, in order; neighbours of one partition joined."""
    segment = Segment()
    for partition, block in blocks:
        segment.add(partition, block)

    got = list(unpack(pack(segment)))

    assert [p for p, block in blocks for _ in block] == [p for p, block in got for _ in block]
    assert b"".join(block for _, block in blocks) == b"".join(block for _, block in got)
    assert all(one[0] != other[0] for one, other in pairwise(got))


def test_packing_makes_it_small():
    """Events repeat themselves, and Spark's transport is slow. Segments are cut by their size."""
    block = b'{"partition":0,"headers":{},"data":{"id":1}}\n' * 10_000
    segment = Segment()
    segment.add(0, block)
    segment.add(1, b"de")

    assert ([(0, len(block)), (1, 2)], len(block) + 2) == (segment.parts, segment.size)
    assert len(pack(segment)) < segment.size / 20
