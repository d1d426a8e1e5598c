"""Runs of numbers are sets of numbers, written shorter."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.stateful.ranges import Run, Runs, contains, united, without

numbers = st.integers(-3, 40)
run = st.tuples(numbers, st.integers(0, 8)).map(lambda each: (each[0], each[0] + each[1]))
many = st.lists(run, max_size=8)
"""In any order, touching and overlapping."""


def members(runs: list[Run]) -> set[int]:
    return {number for first, last in runs for number in range(first, last + 1)}


def in_shortest_form(runs: Runs) -> bool:
    apart = all(one[1] + 1 < other[0] for one, other in pairwise(runs))
    return apart and all(first <= last for first, last in runs)


@given(many, many)
def test_united_has_the_numbers_of_all(one, other):
    got = united(one, other)

    assert members(one) | members(other) == members(got)


@given(st.lists(many, max_size=4))
def test_united_are_ascending_and_apart(several):
    """Law: one set has one form, whatever it was made of."""
    got = united(*several)

    assert in_shortest_form(got)
    assert united(got) == got


@given(many, numbers)
def test_a_number_is_contained_if_it_is_in_a_run(runs, number):
    assert (number in members(runs)) == contains(united(runs), number)


@given(many, numbers)
def test_without_a_number_all_others_stay(runs, number):
    got = without(united(runs), number)

    assert members(runs) - {number} == members(got)
    assert in_shortest_form(got)


@given(many, numbers)
def test_what_is_given_is_not_changed(runs, number):
    given_before = list(runs)

    united(runs)
    without(runs, number)

    assert given_before == runs


def test_none_are_no_numbers():
    assert ([], [], False) == (united(), without([], 1), contains([], 1))


def test_the_largest_numbers_are_as_good_as_others():
    """A run costs the same however long it is."""
    largest = 2**63 - 1
    runs = united([(0, largest - 2)], [(largest, largest)])

    assert contains(runs, largest)
    assert not contains(runs, largest - 1)
    assert [(0, largest)] == united(runs, [(largest - 1, largest - 1)])
    assert [(0, 4), (6, largest - 2)] == without(runs, 5)[:2]
