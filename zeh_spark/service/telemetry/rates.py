"""The events of each feed in the last hour, for the small charts of the console.

A feed has a slot for each minute in which something was published or read. Counting adds to the
slot of the current time, so that no thread has to take samples.

Rejected: samples of the store, because retention removes events, and a difference of two numbers of
events would then be wrong. Counts are those of this process, since it started.

Belongs to the publisher's event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

SLOTS, SLOT_SECONDS = 60, 60
"""How many slots there are, and the seconds of each: an hour, by minutes. A feed takes 15 KB."""


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
    """Counts events by feed and time. Its caller bounds the number of feeds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slots: dict[str, dict[int, list[int]]] = {}

    def add(self, feed: str, published: int, served: int) -> None:
        slots, slot = self._slots.setdefault(feed, {}), self._slot()
        if slot not in slots:
            slots[slot] = [0, 0]
            for old in [each for each in slots if each <= slot - SLOTS]:
                del slots[old]
        slots[slot][0] += published
        slots[slot][1] += served

    def of(self, feed: str) -> Rate:
        slots, slot = self._slots.get(feed, {}), self._slot()
        counts = [slots.get(each, (0, 0)) for each in range(slot - SLOTS + 1, slot + 1)]
        return Rate(tuple(each for each, _ in counts), tuple(each for _, each in counts))

    def _slot(self) -> int:
        return int(self._clock() // SLOT_SECONDS)
