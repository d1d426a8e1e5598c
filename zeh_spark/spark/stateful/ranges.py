"""Sets of whole numbers, kept as runs: [(first, last), …], ascending, with gaps between them.

The sequence numbers that were seen are mostly one run, however many there are. The module has no
side effects.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

Run = tuple[int, int]
Runs = list[Run]


MAX_NUMBER = 2**63 - 2
"""The highest number of an event, because the next number has to be a BIGINT too."""


def contains(runs: Sequence[Run], number: int) -> bool:
    at = bisect_right(runs, number, key=_first) - 1
    return at >= 0 and number <= runs[at][1]


def united(*several: Iterable[Run]) -> Runs:
    found: Runs = []
    for first, last in sorted(run for runs in several for run in runs):
        if found and first <= found[-1][1] + 1:
            if last > found[-1][1]:
                found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return found


def without(runs: Iterable[Run], number: int) -> Runs:
    found: Runs = []
    for first, last in runs:
        if first <= number <= last:
            found += [(first, number - 1)] if first < number else []
            found += [(number + 1, last)] if number < last else []
        else:
            found.append((first, last))
    return found


def difference(runs: Iterable[Run], numbers: Sequence[int]) -> Runs:
    """Return the set without some numbers, which ascend."""
    found: Runs = []
    for first, last in runs:
        begin = first
        for number in numbers[bisect_left(numbers, first) : bisect_right(numbers, last)]:
            found += [(begin, number - 1)] if begin < number else []
            begin = number + 1
        found += [(begin, last)] if begin <= last else []
    return found


def _first(run: Run) -> int:
    return run[0]
