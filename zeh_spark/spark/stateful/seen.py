"""Which numbers of a producer were seen, so that a second event with one is a duplicate.

    0 ━━━━━━ certain ?????? floor  ━━━  ━━━━━━  ━
      seen             unknown     runs that were seen

Up to `certain` all were seen. For a producer that counts without gaps, as those of this package do,
there is nothing else. Above `floor`, every run is known. Between them are holes that were closed,
because they lay `window` numbers below the highest one: whether such a number was seen is no longer
known.

A number between them is reported, and not dropped. Rejected: keeping only the highest number, as
Pulsar does. Rows of one batch come from several tasks, in any order, and the late ones would be
lost.

The time of the highest number is kept too. It shows numbers that are used again: a producer's
numbers and the times of its commits ascend together (see `reused`). The module has no side effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from zeh_spark.spark.stateful import ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEW, UNKNOWN, SEEN = 0, 1, 2
"""What is known of a number: not seen, not known any more, seen."""


class Seen(msgspec.Struct, array_like=True):
    """The numbers that were seen: `certain` <= `floor` < all of `runs`.

    Attributes:
        top: The highest number whose time is known; -1 if there is none.
        time: The time of `top`, in milliseconds since 1970; -1 if there is none.
    """

    certain: int = -1
    floor: int = -1
    runs: list[tuple[int, int]] = []
    top: int = -1
    time: int = -1

    def judged(self, numbers: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return for each number whether it is NEW, SEEN or UNKNOWN, as if it were alone."""
        found = np.where(numbers <= self.certain, SEEN, UNKNOWN).astype(np.int8)
        above = numbers > self.floor
        found[above] = np.where(self._in_runs(numbers[above]), SEEN, NEW)
        return found

    def add(self, numbers: NDArray[np.int64], window: int) -> None:
        """Add ascending numbers, then close the holes that lie below the window."""
        self.runs = ranges.united(self.runs, runs_of(numbers[numbers > self.floor]))
        self._absorb()
        if self.runs:
            self._close_holes(self.runs[-1][1] - window)

    def keep_time(self, numbers: NDArray[np.int64], times: NDArray[np.int64]) -> None:
        """Keep the time of the highest of some ascending numbers; a time of -1 is not known."""
        timed = np.flatnonzero(times >= 0)
        if len(timed) and numbers[timed[-1]] >= self.top:
            self.top, self.time = int(numbers[timed[-1]]), int(times[timed[-1]])

    def _absorb(self) -> None:
        """Move runs that follow the certain numbers without a gap to those."""
        while self.certain == self.floor and self.runs and self.runs[0][0] == self.floor + 1:
            self.certain = self.floor = self.runs.pop(0)[1]

    def _close_holes(self, limit: int) -> None:
        """Close the holes up to a number. Runs between them stay known as long as possible."""
        while self.floor < limit:
            first, last = self.runs[0]
            if first > self.floor + 1:
                self.floor = min(first - 1, limit)
            elif last < limit and len(self.runs) > 1:  # the next hole is after this run
                self.floor = last
                self.runs.pop(0)
            else:
                return

    def _in_runs(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        if not self.runs:
            return np.zeros(len(numbers), bool)
        firsts, lasts = np.array(self.runs, np.int64).T
        at = np.searchsorted(firsts, numbers, "right") - 1
        return np.asarray((at >= 0) & (numbers <= lasts[at]))


@dataclass(frozen=True, slots=True)
class Reuse:
    """Proof that a number was used again: it is not above `other`, and its `time` is later.

    Times are in ms since 1970.
    """

    number: int
    time: int
    other: int
    other_time: int


def reused(seen: Seen, numbers: NDArray[np.int64], times: NDArray[np.int64]) -> Reuse | None:
    """Return a proof that one of these numbers was used for two events, None if there is none.

    A producer gets its numbers in the order of its commits, and a feed's times never go down. So a
    <= b implies time(a) <= time(b), among the numbers of the batch and the highest one before. A
    publisher that was restored from a backup counts on from there, at later times. The `numbers`
    are ascending; events with one number may be in any order. The `times` are those of their
    commits, in milliseconds since 1970; -1 for an event without a time, which is not judged.
    """
    if len(times) and times.min() < 0:
        numbers, times = numbers[times >= 0], times[times >= 0]
    if not len(numbers):
        return None
    later = np.diff(times)
    ascend = not np.any((later < 0) | ((later != 0) & (np.diff(numbers) == 0)))
    if ascend and (numbers[0] > seen.top and times[0] >= seen.time):
        return None
    if seen.top >= 0:
        numbers, times = np.append(numbers, seen.top), np.append(times, seen.time)
    # Of events with one number the latest comes first, so that any other time after it is earlier.
    order = np.lexsort((-times, numbers))
    numbers, times = numbers[order], times[order]
    wrong = np.flatnonzero(np.diff(times) < 0)
    if not len(wrong):
        return None
    at = int(wrong[0])
    return Reuse(int(numbers[at]), int(times[at]), int(numbers[at + 1]), int(times[at + 1]))


def runs_of(numbers: NDArray[np.int64]) -> ranges.Runs:
    """Return the runs of ascending numbers, which may repeat."""
    if not len(numbers):
        return []
    ends = np.flatnonzero(np.diff(numbers) > 1)
    firsts = numbers[np.concatenate(([0], ends + 1))]
    lasts = numbers[np.concatenate((ends, [len(numbers) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
