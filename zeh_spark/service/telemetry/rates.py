"""The events of each feed in the last hour, for the small charts of the console.

A feed has a ring of slots for what was published, and one for what was read. Counting adds to the
slot of the current time, so that no thread has to take samples.

Rejected: samples of the store, because retention removes events, and a difference of two numbers of
events would then be wrong. Counts are those of this process, since it started.

Belongs to the publisher's event loop.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass

SLOTS, SLOT_SECONDS = 60, 60
"""How many slots there are, and the seconds of each: an hour, by minutes. A feed takes 1 KB."""


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
        self._rings: dict[str, tuple[_Ring, _Ring]] = {}

    def add(self, feed: str, published: int, served: int) -> None:
        slot = self._slot()
        rings = self._rings.get(feed)
        if rings is None:
            rings = self._rings[feed] = _Ring(slot), _Ring(slot)
        rings[0].add(slot, published)
        rings[1].add(slot, served)

    def of(self, feed: str) -> Rate:
        rings = self._rings.get(feed)
        if rings is None:
            return Rate()
        slot = self._slot()
        return Rate(*(each.upto(slot) for each in rings))

    def _slot(self) -> int:
        return int(self._clock() // SLOT_SECONDS)


class _Ring:
    def __init__(self, slot: int) -> None:
        self._counts = array("q", bytes(8 * SLOTS))
        self._newest = slot

    def add(self, slot: int, count: int) -> None:
        self._turn(slot)
        self._counts[slot % SLOTS] += count

    def upto(self, slot: int) -> tuple[int, ...]:
        self._turn(slot)
        at = (slot + 1) % SLOTS
        return tuple(self._counts[at:] + self._counts[:at])

    def _turn(self, slot: int) -> None:
        for each in range(max(self._newest + 1, slot - SLOTS + 1), slot + 1):
            self._counts[each % SLOTS] = 0
        self._newest = max(self._newest, slot)
