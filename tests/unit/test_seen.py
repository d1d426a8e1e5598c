"""What was seen of a producer's numbers, against a set of all of them."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.seen import NEW, SEEN, UNKNOWN, Seen, runs_of

batches = st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=20), max_size=12)


def judged(seen, numbers, window):
    """One batch, as the operator does it, and through its bytes."""
    ascending = np.array(sorted(set(numbers)), np.int64)
    found = dict(zip(ascending.tolist(), seen.judged(ascending).tolist(), strict=True))
    seen.add(ascending, window)
    return found, msgspec.msgpack.decode(msgspec.msgpack.encode(seen), type=Seen)


@given(batches)
def test_within_the_window_each_number_is_new_once(given_batches):
    """In any order: only what was there is a duplicate."""
    seen, before = Seen(), set()
    for numbers in given_batches:
        found, seen = judged(seen, numbers, window=100)
        assert {n: SEEN if n in before else NEW for n in set(numbers)} == found
        before |= set(numbers)


@given(batches, st.integers(1, 30))
def test_behind_the_window_nothing_new_is_taken_for_seen(given_batches, window):
    """Nor anything that was seen for new; what is not known lies behind the window."""
    seen, before = Seen(), set()
    for numbers in given_batches:
        top = max(before, default=0)
        found, seen = judged(seen, numbers, window)
        for number, told in found.items():
            assert told == UNKNOWN or (told == SEEN) == (number in before)
            assert told != UNKNOWN or number <= top - window
        before |= set(numbers)


@given(st.permutations(range(40)), st.integers(1, 13))
def test_state_of_a_producer_without_gaps_is_one_number(order, size):
    seen = Seen()
    for begin in range(0, 40, size):
        _, seen = judged(seen, order[begin : begin + size], window=1000)

    assert Seen(39, 39, []) == seen


@given(batches, st.integers(1, 10))
def test_state_is_bounded_by_the_window(given_batches, window):
    seen = Seen()
    for numbers in given_batches:
        _, seen = judged(seen, numbers, window)

    assert len(seen.runs) <= window // 2 + 2


def test_runs_of_numbers():
    assert [(1, 2), (4, 4), (7, 9)] == runs_of(np.array([1, 2, 2, 4, 7, 8, 9]))
    assert [] == runs_of(np.array([], np.int64))
