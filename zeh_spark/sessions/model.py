"""What a session is, what comes to it and what becomes of it: the words of `logic`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

OnGap = Literal["hold", "skip", "dead-letter"]
First = Literal[0, 1, "seen"]

CONTROL = "session-control"
"""The header in which an event says `close`, `release` or `replay`."""

RECORDS = ("skipped", "stale", "unfinished")
"""Reasons without an event: what happened to the session itself."""

REASONS = ("gap", "late", "closed", "overflow", "invalid", *RECORDS)


class Missing(NamedTuple):
    """Numbers that were waited for, both ends included."""

    first: int
    last: int


class Arrival(NamedTuple):
    """An event as far as the decision needs it. `clock` is its time in ms; `last` the session's
    last number, if it declares one; `replay` whether somebody sends it again on purpose.
    """

    number: int
    clock: int
    size: int
    last: int | None = None
    replay: bool = False


class Held(msgspec.Struct, array_like=True):
    """Events with the numbers first to last. `since`: ms, the first of them."""

    first: int
    last: int
    since: int
    size: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1


class Session(msgspec.Struct, array_like=True):
    """`given_up`: runs of numbers before `next` that were not delivered. `seen`: the newest time of
    its events, ms. `stale`: its gap was reported and waits for somebody.
    """

    next: int
    seen: int = 0
    last: int | None = None
    held: list[Held] = []
    given_up: list[tuple[int, int]] = []
    stale: bool = False
    closed: bool = False

    @property
    def held_count(self) -> int:
        return sum(run.count for run in self.held)

    @property
    def held_size(self) -> int:
        return sum(run.size for run in self.held)

    @property
    def since(self) -> int | None:
        """When the oldest hold began."""
        return min((run.since for run in self.held), default=None)

    @property
    def missing(self) -> Missing | None:
        """The first gap."""
        return Missing(self.next, self.held[0].first - 1) if self.held else None


class Deliver(NamedTuple):
    first: int
    last: int


class Dead(NamedTuple):
    """Events that cannot be ordered. `expected` is the number that the session waited for."""

    first: int
    last: int
    reason: str
    expected: int | None
    missing: Missing | None = None
    since: int | None = None
    detail: str | None = None


class SessionRecord(NamedTuple):
    """Something about the session that has no event. `received`: with which number it continues."""

    reason: str
    expected: int
    received: int | None
    missing: Missing
    since: int | None


class Hold(NamedTuple):
    """Keep this event."""

    number: int


class Duplicate(NamedTuple):
    """Drop an event of the batch; of several with this number, the last."""

    number: int


Outcome = Deliver | Dead | SessionRecord | Hold | Duplicate


@dataclass(frozen=True, slots=True)
class Policy:
    """Times in ms. `first`: a session's first number. None: no limit, or never."""

    gap_timeout: int | None = None
    on_gap: OnGap = "dead-letter"
    first: First = 0
    max_events: int = 10_000
    max_bytes: int = 16 << 20
    idle_timeout: int | None = None
