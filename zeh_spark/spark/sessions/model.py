"""The words of `session_decision`: a session, what arrives for it, and what becomes of that.

The module has no side effects. It runs in tasks; the driver uses `Policy` and the constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

OnGap = Literal["hold", "skip", "dead-letter"]
"""What happens to the events after a gap that is too old."""

OnConflict = Literal["drop", "dead-letter"]
"""What happens to an event whose number came before with other content."""

First = Literal[0, 1, "seen"]
"""A session's first number."""

CONTROL = "session-control"
"""The header in which an event says `close`, `release` or `replay`."""

DECISIONS = ("retry", "skip")
"""Control words about an event whose processing failed. They pass the ordering as they are."""

RECORDS = ("skipped", "stale", "unfinished")
"""Reasons of rows without an event, which report on the session itself."""

REASONS = ("gap", "late", "closed", "overflow", "invalid", "conflict", *RECORDS)
"""All reasons of the column `dead`."""


class Missing(NamedTuple):
    """Numbers that have not come, both ends included."""

    first: int
    last: int


class SessionEvent(NamedTuple):
    """An event as it arrives in its bucket.

    -1 and '' stand for missing values. `problem` says why it is invalid. A `clock` below zero
    belongs to an event whose own time is in the future: it is -1 minus the time that is used
    instead. `content` is a hash of what two events with one number are compared by.
    """

    session: str
    number: int
    clock: int
    event: str
    last: int
    control: str
    problem: str
    content: int = 0

    @classmethod
    def parted(cls, row: str) -> SessionEvent:
        """Return the event that `state_buckets.joined` made a text of.

        It is called for each row, so it has as few steps as possible.
        """
        number, clock, last, content, a, b, c, texts = row.split(" ", 7)
        session, control = int(a), int(a) + int(b)
        problem = control + int(c)
        return cls(
            texts[:session],
            int(number),
            int(clock),
            texts[problem:],
            int(last),
            texts[session:control],
            texts[control:problem],
            int(content),
        )


class Arrival(NamedTuple):
    """An event as far as the decision needs it.

    Attributes:
        clock: Its time, in milliseconds since 1970.
        last: The session's last number, if the event declares one.
    """

    number: int
    clock: int
    size: int
    last: int | None = None
    replay: bool = False


class Held(msgspec.Struct, array_like=True):
    """Events with the numbers `first` to `last` that wait.

    Attributes:
        last: The last number, included.
        since: When the first of them began to wait, in milliseconds since 1970.
    """

    first: int
    last: int
    since: int
    size: int

    @property
    def count(self) -> int:
        """The number of events."""
        return self.last - self.first + 1


class Session(msgspec.Struct, array_like=True):
    """What is kept of a session.

    Attributes:
        next: The number that is expected.
        seen: The newest time of its events, in milliseconds since 1970.
        held: Events after a gap, as runs.
        given_up: Runs of numbers before `next` that were not delivered.
        stale: Whether its gap was reported and waits for a control event.
        advanced: When it began, or last delivered an event, in milliseconds since 1970.
        reported: Whether it was reported since then that it does not advance.
        begun: When it began, in milliseconds since 1970; None if only replays came, which begin no
            session. It tells sessions apart that have one name, because the first was forgotten.
        contents: Hashes of the contents of its newest events by number, if they are compared.
        replayed: Runs of numbers that came as replays, before any other event with the number.
    """

    next: int
    seen: int = 0
    last: int | None = None
    held: list[Held] = []
    given_up: list[tuple[int, int]] = []
    stale: bool = False
    closed: bool = False
    advanced: int = 0
    reported: bool = False
    begun: int | None = 0
    contents: dict[int, int] = {}
    replayed: list[tuple[int, int]] = []

    @property
    def held_count(self) -> int:
        """The number of held events."""
        return sum(run.count for run in self.held)

    @property
    def held_size(self) -> int:
        """The bytes of held events."""
        return sum(run.size for run in self.held)

    @property
    def since(self) -> int | None:
        """When the oldest hold began, in milliseconds since 1970; None if nothing is held."""
        return min((run.since for run in self.held), default=None)

    @property
    def missing(self) -> Missing | None:
        """The first gap; None if nothing is held."""
        return Missing(self.next, self.held[0].first - 1) if self.held else None


class Deliver(NamedTuple):
    """Deliver the events with these numbers, both ends included.

    Attributes:
        known: Whether they are the session's own. Replays may be those of a forgotten one.
    """

    first: int
    last: int
    known: bool = True


class Dead(NamedTuple):
    """Events that cannot be ordered.

    Attributes:
        reason: One of REASONS.
        missing: The gap before them.
        since: Since when they waited, in milliseconds since 1970.
    """

    first: int
    last: int
    reason: str
    expected: int | None
    missing: Missing | None = None
    since: int | None = None
    detail: str | None = None


class SessionRecord(NamedTuple):
    """A report on the session, without an event.

    Attributes:
        reason: One of RECORDS.
        received: The number with which it continues; None if it has ended.
        missing: The gap; None if the session waits for its next event without one.
        since: Since when events waited, in milliseconds since 1970.
    """

    reason: str
    expected: int
    received: int | None
    missing: Missing | None
    since: int | None


class Hold(NamedTuple):
    """Keep this event until the events before it come."""

    number: int


class Duplicate(NamedTuple):
    """Drop an event of the batch.

    Attributes:
        passed: Whether no event of the batch with this number takes its place. They are decided in
            their order; of others with one number, the first is taken and the next is dropped.
    """

    number: int
    passed: bool = False


Outcome = Deliver | Dead | SessionRecord | Hold | Duplicate


@dataclass(frozen=True, slots=True)
class Policy:
    """How sessions are judged: arguments of `ordering.in_order`.

    Times are in milliseconds; None means never, or no limit.
    """

    gap_timeout: int | None = None
    on_gap: OnGap = "dead-letter"
    first: First = 0
    max_events: int = 10_000
    max_bytes: int = 16 << 20
    idle_timeout: int | None = None
    stale_timeout: int | None = None
    processing: bool = False
    on_conflict: OnConflict = "drop"
