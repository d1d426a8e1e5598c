"""Loops of cursors are found, and legal ones are not."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.client.polling.cursor_loops import CursorRounds
from zeh_spark.errors import PublisherError


def follow(cursors, events=1):
    """How many cursors are followed, of those that come with so many events each."""
    rounds = CursorRounds(3, "start")
    for place, cursor in enumerate(cursors):
        try:
            rounds.follow(cursor, events)
        except PublisherError:
            return place
    return None


@given(st.integers(0, 5_000), st.integers(2, 3_000))
def test_a_round_is_found_wherever_it_begins(before, length):
    """Before it is found it was gone through a few times, whatever its length."""
    way = (f"a{number}" for number in range(before))
    cursors = itertools.chain(way, itertools.cycle([f"k{number}" for number in range(length)]))

    found = follow(itertools.islice(cursors, 3 * (before + length) + 10))

    assert found is not None


def test_a_short_round_is_found_soon_after_a_long_way():
    """A million checkpoints before it do not make it a million longer."""
    way = (f"a{number}" for number in range(100_000))

    found = follow(itertools.chain(way, itertools.islice(itertools.cycle("ab"), 10_000)))

    assert found and found < 100_000 + 1_010


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2))))
def test_a_cursor_that_stays_is_no_round(steps):
    """A partition without news keeps its cursor, and one cursor may name several events."""
    rounds, place = CursorRounds(0, "0"), 0
    for moves, events in steps:
        place += moves
        rounds.follow(str(place), events)


def test_two_names_of_one_place_are_no_round():
    """Two copies of a feed may name its end differently, as long as nothing comes twice; and
    several events of one moment may share a cursor that is made of the time.
    """
    assert follow(["a", "b"] * 100, events=0) is None
    assert follow(["a"] * 2_000 + ["b"] * 2_000) is None
