"""The events of each feed, and the lag of each consumer, in the last hour, by minutes.

They are for the small charts of the console. A feed has a slot for each minute in which something
was published or read. Counting adds to the slot of the current time, so that no thread has to take
samples. A consumer has the lag that a scrape of the metrics, or a page, found last in a minute.

Rejected: samples of the store, because retention removes events, and a difference of two numbers of
events would then be wrong. Counts are those of this process, since it started.

Belongs to the publisher's event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import nlargest
from operator import itemgetter

from zeh_spark.service.telemetry.lag import Lag

SLOTS, SLOT_SECONDS = 60, 60
"""How many slots there are, and the seconds of each: an hour, by minutes. A feed takes 15 KB."""

CONSUMERS = 1000
"""Most consumers whose lag is noted in a minute, those with the largest one. They take 10 MB."""


@dataclass(frozen=True, slots=True)
class Rate:
    """The events of a feed in each minute, the oldest first. The last minute is not over yet.

    Attributes:
        published: Events that were committed by this process.
        served: Events in answers of this process.
    """

    published: tuple[int, ...] = (0,) * SLOTS
    served: tuple[int, ...] = (0,) * SLOTS


class Rates:
    """Counts events by feed and time, and notes lags. Its caller bounds the number of feeds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slots: dict[str, dict[int, list[int]]] = {}
        self._lags: dict[int, dict[tuple[str, str, int], int]] = {}

    def add(self, feed: str, published: int, served: int) -> None:
        slots, slot = self._slots.setdefault(feed, {}), self._slot()
        if slot not in slots:
            slots[slot] = [0, 0]
            for old in [each for each in slots if each <= slot - SLOTS]:
                del slots[old]
        slots[slot][0] += published
        slots[slot][1] += served

    def of(self, feed: str) -> Rate:
        slots = self._slots.get(feed, {})
        counts = [slots.get(each, (0, 0)) for each in self._hour()]
        return Rate(tuple(each for each, _ in counts), tuple(each for _, each in counts))

    def note_lags(self, lags: Iterable[tuple[str, Lag]]) -> None:
        """Note the lags of consumers, with their feeds, as those of this minute."""
        slot = self._slot()
        found = {(feed, lag.name, lag.n): lag.events for feed, lag in lags}
        noted = self._lags.get(slot, {}) | found
        self._lags[slot] = dict(nlargest(CONSUMERS, noted.items(), key=itemgetter(1)))
        for old in [each for each in self._lags if each <= slot - SLOTS]:
            del self._lags[old]

    def lags_of(self, feed: str, lag: Lag) -> tuple[int | None, ...]:
        """Return the events that a consumer was behind in each minute; None if nobody looked."""
        key = (feed, lag.name, lag.n)
        return tuple(self._lags.get(each, {}).get(key) for each in self._hour())

    def _hour(self) -> range:
        slot = self._slot()
        return range(slot - SLOTS + 1, slot + 1)

    def _slot(self) -> int:
        return int(self._clock() // SLOT_SECONDS)
