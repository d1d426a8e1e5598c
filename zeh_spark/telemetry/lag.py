"""The lag of consumers, computed from running totals of a feed's chunks.

A `Backlog` keeps, for each stored partition, the number of events up to each position. Each look
adds only the chunks that are new since the last look, so that its cost does not depend on the size
of the feed. Old positions are kept more sparsely: near the head the lag is exact; far behind it may
be too high by two percent, because it counts from a position before the cursor.

Rejected: sum up the chunks after a cursor at each look, because the cost grows with the lag. No
I/O, no clock.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zeh_spark.store.cursor_sets import CursorSet
from zeh_spark.store.interface import Anchor, Chunk
from zeh_spark.store.reading import covered

POSITIONS = 1024
"""Positions that are kept of a partition before some are merged: 24 bytes each."""

PRECISION = 64
"""The largest relative error of a lag; it is never too low."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a cursor set is behind.

    Attributes:
        name: The cursor set.
        n: How many partitions its reader works with.
        events: Events that it has not passed.
        since: When the oldest of them was committed, in ms since 1970; None if there is none.
    """

    name: str
    n: int
    events: int
    since: int | None


class Backlog:
    """The running totals of a feed's chunks, up to each position.

    Attributes:
        head: The position up to which chunks were added.
        tag: The tag of the chunk there; empty if there is none.

    Args:
        partitions: The number of stored partitions.
    """

    def __init__(self, partitions: int) -> None:
        self.head = 0
        self.tag = ""
        self._partitions = [_Sums() for _ in range(partitions)]

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Add the chunks after the head, in the order of g."""
        for each in chunks:
            self._partitions[each.partition].add(each)
            self.head, self.tag = each.g, each.tag

    def lags(self, cursor_set: CursorSet, anchors: Mapping[int, Anchor]) -> Iterable[Lag]:
        """Yield the lag of a cursor set, for each n under which it has cursors.

        Args:
            cursor_set: The cursor set. Partitions of which it has no cursor do not count.
            anchors: What retention has removed last, by stored partition: nobody reads it any more.
        """
        for n, cursors in cursor_set.cursors.items():
            events, times = 0, []
            for partition, cursor in cursors.items():
                for stored in covered(partition, n, len(self._partitions)):
                    after = max(_position(cursor), anchors[stored].g if stored in anchors else 0)
                    more, since = self._partitions[stored].after(after)
                    events += more
                    times += [since] if since is not None else []
            yield Lag(cursor_set.name, n, events, min(times, default=None))


class _Sums:
    """Positions of a partition in ascending order, and the sum of its events up to each.

    Between two positions that are kept there may be chunks that were merged into the later one.
    """

    def __init__(self) -> None:
        self._positions = array("q")
        self._totals = array("q")
        self._times = array("q")

    def add(self, chunk: Chunk) -> None:
        self._positions.append(chunk.g)
        self._totals.append((self._totals[-1] if self._totals else 0) + chunk.events)
        self._times.append(chunk.time)
        if len(self._positions) > POSITIONS:
            self._thin()

    def after(self, position: int) -> tuple[int, int | None]:
        """Return the events after a position, and when the first of them was committed."""
        at = bisect_right(self._positions, position)
        if at == len(self._positions):
            return 0, None
        return self._totals[-1] - (self._totals[at - 1] if at else 0), self._times[at]

    def _thin(self) -> None:
        """Merge neighbours that have few events together, compared with those after them."""
        positions, totals, times = array("q"), array("q"), array("q")
        last, before = self._totals[-1], 0
        since: int | None = None
        for at, total in enumerate(self._totals):
            since = self._times[at] if since is None else since
            following = self._totals[at + 1] if at + 1 < len(self._totals) else None
            if following is None or following - before > (last - following) / PRECISION:
                positions.append(self._positions[at])
                totals.append(total)
                times.append(since)
                before, since = total, None
        self._positions, self._totals, self._times = positions, totals, times


def _position(cursor: str) -> int:
    number = cursor.partition(".")[0]
    return int(number) if number.isdecimal() else 0
