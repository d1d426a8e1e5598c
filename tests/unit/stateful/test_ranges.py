"""Runs of numbers are sets of numbers, written shorter."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.spark.stateful.ranges import Run, Runs, contains, united, without

numbers = st.integers(-3, 40)
run = st.tuples(numbers, st.integers(0, 8)).map(lambda each: (each[0], each[0] + each[1]))
many = st.lists(run, max_size=8)
"""In any order, touching and overlapping."""


def members(runs: list[Run]) -> set[int]:
    return {number for first, last in runs for number in range(first, last + 1)}


def in_shortest_form(runs: Runs) -> bool:
    apart = all(one[1] + 1 < other[0] for one, other in pairwise(runs))
    return apart and all(first <= last for first, last in runs)


@given(st.lists(many, max_size=4))
def test_united_has_the_numbers_of_all_ascending_and_apart(several):
    """Law: one set has one form, whatever it was made of. What is given is not changed."""
    before = [list(each) for each in several]

    got = united(*several)

    assert set().union(*map(members, several)) == members(got)
    assert in_shortest_form(got)
    assert united(got) == got
    assert before == several


@given(many, numbers)
def test_without_a_number_all_others_stay(runs, number):
    """A number is contained if it is in a run. What is given is not changed."""
    whole = united(runs)
    before = list(whole)

    got = without(whole, number)

    assert before == whole
    assert (number in members(runs)) == contains(whole, number)
    assert members(runs) - {number} == members(got)
    assert in_shortest_form(got)


def test_the_largest_numbers_are_as_good_as_others():
    """A run costs the same however long it is."""
    largest = 2**63 - 1
    runs = united([(0, largest - 2)], [(largest, largest)])

    assert contains(runs, largest)
    assert not contains(runs, largest - 1)
    assert [(0, largest)] == united(runs, [(largest - 1, largest - 1)])
    assert [(0, 4), (6, largest - 2)] == without(runs, 5)[:2]
