"""Detect loops of cursors: a publisher leads a partition back to a checkpoint that it passed.

A faulty publisher may answer k1 with k2, and k2 with k1, each time with events. A finite read
would follow it for ever, and deliver the same events each time.

Rule for editors: a cursor that repeats is legal as long as no event comes in between, because a
partition without news may stay where it is, or be given several names for one place. Memory is the
same after any number of cursors.

Runs on the driver and in tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from zeh_spark.errors import PublisherError
from zeh_spark.wire import wire
from zeh_spark.wire.phrases import counted

_NEAR = 1_000


@dataclass(slots=True)
class _Mark:
    """A cursor to which the partition must not come back."""

    cursor: str
    events: int = 0
    age: int = 0

    def set(self, cursor: str) -> None:
        self.cursor, self.events, self.age = cursor, 0, 0


class CursorRounds:
    """Finds rounds of cursors as R. P. Brent does, with two marks.

    One mark moves on after twice as many cursors each time, so that it finds a round of any length.
    The other one moves on after every thousand, so that a short round is found soon, however many
    cursors came before it. Rejected: a set of all cursors, which grows with the feed.
    """

    def __init__(self, partition: int, cursor: str) -> None:
        self._partition = partition
        self._last = cursor
        self._far, self._near = _Mark(cursor), _Mark(cursor)
        self._reach = 1

    def checked(self, intervals: Iterable[wire.Interval]) -> Iterator[wire.Interval]:
        """Yield the next intervals of the read (errors as in `follow`)."""
        for interval in intervals:
            self.follow(interval.cursor, interval.events)
            yield interval

    def follow(self, cursor: str, events: int) -> None:
        """Note the next cursor of the read, and how many events came before it.

        Raises PublisherError if the cursor was passed before, and events came since then.
        """
        moved = cursor != self._last
        for mark in (self._far, self._near):
            mark.events += events
            if moved and cursor == mark.cursor and mark.events:
                raise self._round(mark)
        if moved:
            self._move_marks(cursor)
            self._last = cursor

    def _move_marks(self, cursor: str) -> None:
        for mark in (self._far, self._near):
            mark.age += 1
        if self._far.age == self._reach:
            self._reach *= 2
            self._far.set(cursor)
        if self._near.age == _NEAR:
            self._near.set(cursor)

    def _round(self, mark: _Mark) -> PublisherError:
        return PublisherError(
            f"partition {self._partition}: the publisher's cursors form a loop: {mark.age + 1} "
            f"checkpoints and {counted(mark.events, 'event')} after the cursor {mark.cursor!r}, "
            f"the checkpoint after {self._last!r} is {mark.cursor!r} again. The read would never "
            f"end: tell the publisher's owner",
            partition=self._partition,
            cursor=mark.cursor,
            anchor="the-publishers-cursors-form-a-loop",
        )
