"""What goes into a batch and into a segment: laws over any intervals."""

from hypothesis import given
from hypothesis import strategies as st

from tests.cases import each_case
from zeh_spark.spark.source.segments import SEGMENT_BYTES, segment_count, segments, take
from zeh_spark.wire.wire import Interval

MIB = 1 << 20


def interval(size, number=0):
    """An interval of `size` events of 10 bytes."""
    return Interval(b"%09d\n" % number * size, size, f"c{number}")


sizes = st.lists(st.integers(0, 8), max_size=8)
feeds = st.dictionaries(st.integers(0, 5), sizes, max_size=5).map(
    lambda feed: {p: [interval(n, i) for i, n in enumerate(each)] for p, each in feed.items()}
)
max_events = st.none() | st.integers(1, 30)
max_bytes = st.integers(1, 300)


def batches(ready, events, size):
    """What a query takes, batch by batch, until nothing is left that has events."""
    left, first = {partition: list(each) for partition, each in ready.items()}, 0
    while counts := take(left, events, size, first):
        first = next(iter(counts)) + 1
        yield {partition: left[partition][:count] for partition, count in counts.items()}
        left = {partition: each[counts.get(partition, 0) :] for partition, each in left.items()}


# Batches


@given(feeds, max_events, max_bytes)
def test_each_interval_goes_into_one_batch(ready, events, size):
    """Law: however batches are cut, each event is in one of them, in the order of its partition. A
    batch is above its limits only if it is one single interval that does not fit, and never made
    of cursors alone, which would make batches without end.
    """
    taken = {partition: [] for partition in ready}
    for batch in batches(ready, events, size):
        whole = [each for intervals in batch.values() for each in intervals if each.events]
        count = sum(each.events for each in whole)
        assert count
        fits = count <= (events or count) and sum(len(each.lines) for each in whole) <= size
        assert fits or len(whole) == 1
        for partition, intervals in batch.items():
            taken[partition] += intervals

    for partition, intervals in ready.items():
        rest = intervals[len(taken[partition]) :]
        assert taken[partition] == intervals[: len(taken[partition])]
        assert not any(each.events for each in rest)


@given(feeds)
def test_what_fits_is_taken_whole(ready):
    """Law: below the limits nothing is left, moved cursors included; without events they wait."""
    whole = {partition: len(each) for partition, each in ready.items() if each}
    events = any(each.events for intervals in ready.values() for each in intervals)

    assert (whole if events else {}) == take(ready, None, 1 << 30)


@each_case(
    ("ready", "most", "expected"),
    [
        ({each: [interval(1)] * 100 for each in range(4)}, 40, dict.fromkeys(range(4), 10)),
        ({0: [interval(30)] * 2, 1: [interval(1)] * 100}, 60, {0: 1, 1: 30}),
    ],
)
def test_intervals_are_shared_evenly(ready, most, expected):
    """By bytes: no partition takes all of a batch's room, and one that has had more waits."""
    assert expected == take(ready, most, 1 << 30)


@given(st.integers(2, 6), st.integers(1, 5))
def test_no_partition_starves(partitions, events):
    """Law: where one interval fills a batch, partitions take turns, although all have more."""
    ready = {partition: [interval(5)] for partition in range(partitions)}
    first, served = 0, []
    for _ in range(2 * partitions):
        (taken,) = take(ready, events, 1 << 30, first)
        served.append(taken)
        first = taken + 1

    assert [*range(partitions), *range(partitions)] == served


@given(st.integers(0, 7))
def test_turns_go_round_by_whatever_is_ready(first):
    """Law: the turn may be at a partition that has nothing, or is not there."""
    (taken,) = take({1: [interval(5)], 4: [interval(5)]}, 5, 1 << 30, first)

    assert taken == (4 if 1 < first <= 4 else 1)


# Segments


def lines(numbers):
    return b"".join(b"%d\n" % number for number in numbers)


blocks = st.dictionaries(
    st.integers(0, 4),
    st.lists(st.lists(st.integers(0, 10**12), min_size=1, max_size=20).map(lines), max_size=5),
    max_size=4,
)


@given(blocks, st.integers(1, 8))
def test_each_line_is_in_one_segment(each, count):
    """Law: segments hold every line once, in order, and never half of one. Partitions come in
    order, so a relay from feed to feed keeps the order of each. A task costs by itself, so there
    are not many more segments than wanted: lines that do not fit make at most as many again.
    """
    size = sum(len(block) for blocks in each.values() for block in blocks)
    cut = list(segments(each, size, count)) if size else []

    got = {partition: b"" for partition in each}
    for segment in cut:
        data = b"".join(segment.lines)
        for partition, length in segment.parts:
            part, data = data[:length], data[length:]
            assert part.endswith(b"\n")
            got[partition] += part
        assert not data

    assert {partition: b"".join(blocks) for partition, blocks in each.items()} == got
    partitions = [partition for segment in cut for partition, _ in segment.parts]
    assert sorted(partitions) == partitions
    assert len(cut) <= 2 * count


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(1, 6))
def test_no_segment_is_larger_than_its_share_and_a_line(widths, count):
    """Law: memory of a task is bounded: a segment above its share is one line."""
    block = b"".join(b"x" * width + b"\n" for width in widths)
    goal = -(-len(block) // count)

    for segment in segments({0: [block]}, len(block), count):
        assert segment.size <= goal or b"".join(segment.lines).count(b"\n") == 1


def test_small_batches_stay_in_one_task():
    """Dividing what takes milliseconds costs more than it gives."""
    assert [1, 1, 1, 2, 4, 4] == [
        segment_count(size, 4) for size in (0, 1, MIB, 2 * MIB, 4 * MIB, 100 * MIB)
    ]


@given(st.integers(0, 1 << 40), st.integers(1, 10_000))
def test_no_segment_is_too_large_for_a_task(size, wanted):
    """Law: at most 32 MiB before compression, however few cores there are."""
    assert size <= segment_count(size, wanted) * SEGMENT_BYTES
