"""How far a partition of the feed has been read ahead, and what of it is in no batch yet.

Rule for editors: the thread that changes a track holds the fetcher's lock. Runs on the driver.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from zeh_spark.client.http.feed_client import Page
from zeh_spark.client.polling.feed_end import Ending
from zeh_spark.client.polling.finite_read import FiniteRead
from zeh_spark.wire import wire
from zeh_spark.wire.page_headers import Standing


@dataclass(slots=True)
class Track:
    """One partition.

    Args:
        ready: the intervals that are in no batch yet.
        due: when to ask for the next page, in seconds of the monotonic clock.
        answered: whether the publisher gave events, or said that there are none. An answer that
            only moves the cursor counts after many of them, because events may follow.
        skipped: how many answers in a row only moved the cursor.
        held: the bytes of the page being read that wait for their checkpoint.
        unread: the events after `cursor`, as the newest page told; None if it did not.
        at_least: whether there may be more of them, because the publisher did not count all.
    """

    partition: int
    cursor: str
    ready: deque[wire.Interval] = field(default_factory=deque)
    due: float = 0.0
    busy: bool = False
    answered: bool = False
    skipped: int = 0
    held: int = 0
    ended: bool = False
    ending: Ending | None = None
    reading: Page | FiniteRead | None = None
    unread: int | None = None
    at_least: bool = False
    _oldest: float | None = None
    _oldest_of_ready: deque[float | None] = field(default_factory=deque)

    def hears(self, coming: int) -> Standing:
        """Note and return what the page tells of which so many events are to be added next.

        The age of the page's oldest event stands for that of all its events.
        """
        page = self.reading.page if isinstance(self.reading, FiniteRead) else self.reading
        assert page is not None
        self.unread = None
        if lag := page.lag:
            self.unread, self.at_least = lag.events + coming, lag.more
            self._oldest = None if lag.ms is None else time.monotonic() - lag.ms / 1000
        return page.standing

    def add(self, interval: wire.Interval) -> None:
        """Add the next interval. Of neighbouring ones without events only the newest is kept.

        A loss is kept until the next one, because a batch begins there.
        """
        if self.ready and not self.ready[-1].events and not interval.events:
            if isinstance(interval, wire.Loss) or not isinstance(self.ready[-1], wire.Loss):
                self.ready.pop()
                self._oldest_of_ready.pop()
        self.ready.append(interval)
        self._oldest_of_ready.append(self._oldest)
        self.cursor = interval.cursor
        if self.unread is not None:
            self.unread -= interval.events

    def take(self, count: int) -> list[wire.Interval]:
        """Return so many of the ready intervals, for a batch."""
        for _ in range(count):
            self._oldest_of_ready.popleft()
        return [self.ready.popleft() for _ in range(count)]

    def lag(self) -> tuple[int, float | None] | None:
        """Return how many events are in no batch, and the age of the oldest of them in seconds.

        It is None if no page told it. A partition that ended without a page has no more events. The
        age is None if the feed has no times, or there may be events that were not counted.
        """
        if self.unread is None:
            return (0, 0.0) if self.ended else None
        events = self.unread + sum(interval.events for interval in self.ready)
        if not events:
            return 0, None if self.at_least else 0.0
        ready = zip(self.ready, self._oldest_of_ready, strict=True)
        oldest = next((oldest for interval, oldest in ready if interval.events), self._oldest)
        return events, None if oldest is None else round(max(0.0, time.monotonic() - oldest), 3)
