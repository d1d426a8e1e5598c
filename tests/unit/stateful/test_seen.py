"""What was seen of a producer's numbers, against a set of all of them."""

import random

import msgspec
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from zeh_spark.spark.stateful.seen import SEEN, UNKNOWN, Seen, reused, runs_of

batches = st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=20), max_size=12)


def judged(seen, numbers, window):
    """One batch, as the operator does it, and through its bytes."""
    ascending = np.array(sorted(set(numbers)), np.int64)
    found = dict(zip(ascending.tolist(), seen.judged(ascending).tolist(), strict=True))
    seen.add(ascending, window)
    return found, msgspec.msgpack.decode(msgspec.msgpack.encode(seen), type=Seen)


@given(batches, st.integers(1, 100))
def test_nothing_new_is_taken_for_seen_nor_what_was_seen_for_new(given_batches, window):
    """Numbers may come in any order; only numbers behind the window cannot be judged."""
    seen, before = Seen(), set()
    for numbers in given_batches:
        top = max(before, default=0)
        found, seen = judged(seen, numbers, window)
        for number, told in found.items():
            assert told == UNKNOWN or (told == SEEN) == (number in before)
            assert told != UNKNOWN or number <= top - window
        before |= set(numbers)
        assert len(seen.runs) <= window // 2 + 2


@given(st.permutations(range(40)), st.integers(1, 13))
def test_state_of_a_producer_without_gaps_is_one_number(order, size):
    seen = Seen()
    for begin in range(0, 40, size):
        _, seen = judged(seen, order[begin : begin + size], window=1000)

    assert Seen(39, 39, []) == seen


def test_runs_of_numbers():
    assert [(1, 2), (4, 4), (7, 9)] == runs_of(np.array([1, 2, 2, 4, 7, 8, 9]))
    assert [] == runs_of(np.array([], np.int64))


# Numbers that are used again

stamps = st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 9)), min_size=1, max_size=9)


def proof(seen, events):
    """What a batch of (number, time) proves, in the order in which its rows came."""
    numbers = np.array([number for number, _ in events], np.int64)
    times = np.array([time for _, time in events], np.int64)
    order = np.argsort(numbers, kind="stable")
    return reused(seen, numbers[order], times[order])


def kept(events):
    """What is kept of a batch's (number, time)."""
    seen = Seen()
    ascending = sorted(events)
    seen.keep_time(np.array([n for n, _ in ascending]), np.array([t for _, t in ascending]))
    return seen


@given(stamps | st.just([(0, -1)]), stamps, st.randoms())
@example([(0, -1)], [(5, 1), (5, 2)], random.Random(1))
def test_a_batch_is_refused_if_it_contradicts_the_highest_number_before(before, events, chance):
    """Numbers and times of one history ascend together; what has no time is not judged. The order
    of rows makes no difference, nor to what the error says: two events prove it. The number that
    was used again is not above the other, and its time is later.
    """
    highest = max([each for each in before if each[1] >= 0], default=None)
    timed = [each for each in [*events, *([highest] if highest else [])] if each[1] >= 0]
    lawful = all(t <= u for a, t in timed for b, u in timed if a <= b)
    shuffled = list(events)
    chance.shuffle(shuffled)

    found = proof(kept(before), events)

    assert lawful == (found is None)
    assert found == proof(kept(before), shuffled)
    if found is not None:
        told = {(found.number, found.time), (found.other, found.other_time)}
        assert told <= {*before, *events}
        assert found.number <= found.other
        assert found.time > found.other_time
