"""Plans become a batch."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.spark.source.planned_batch import PlannedBatch
from zeh_spark.wire.direct_reads import Plan, PlannedRange, Totals

MIB = 1 << 20


def planned(sizes, first):
    """Ranges of one partition that follow each other, one for each size."""
    return [
        PlannedRange(0, f"{at}.aaaaaaaa", f"{at + 1}.aaaaaaaa", 1, 2, size, f"{size:032x}")
        for at, size in enumerate(sizes, first)
    ]


@given(st.lists(st.lists(st.integers(1, 2 * MIB), max_size=5), max_size=4))
def test_small_ranges_that_follow_each_other_become_one(plans):
    """A batch of many small plans is not many requests, and has the same chunks."""
    batch = PlannedBatch(1, {0: "0.aaaaaaaa"}, {0: []})
    every = [size for sizes in plans for size in sizes]
    at = 0
    for sizes in plans:
        end = f"{at + len(sizes)}.aaaaaaaa"
        plan = Plan({"0": end}, more=True, head=end, time=0, behind=0, ranges=[])
        batch.add(plan, {0: planned(sizes, at)})
        at += len(sizes)

    ranges = batch.ranges[0]
    steps = [each.from_ for each in ranges[1:]]
    assert Totals(len(every), 2 * len(every), sum(every), sum(every)) == batch.totals(0)
    assert steps == [each.to for each in ranges[:-1]]
    assert all(a.bytes + b.bytes > MIB for a, b in pairwise(ranges))
