"""What is kept of the sessions of a bucket from batch to batch: its value, parts and segments.

The value tells what a batch has to know of all sessions. They are in parts (`state_parts`), of
which a batch reads those that it needs; what it does not touch there stays packed. A part's tables:

    OPEN        name -> Stored: the session, and the events that it holds
    WAITS       name -> Wait: those that hold something or have a time
    a time      name -> Session: closed ones, which are forgotten then, in milliseconds since 1970

A session that holds more than `SPILL` events or `SPILL_BYTES` keeps them outside, in segments of
`SEGMENT` numbers each. So a session with a million of them costs the others nothing.

Runs in tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import Raw

from zeh_spark.errors import CheckpointError
from zeh_spark.spark.sessions.model import Policy, Session, SessionEvent
from zeh_spark.spark.sessions.sources import SourceClock
from zeh_spark.spark.stateful import state_buckets
from zeh_spark.spark.stateful.state_parts import Layout, Part

OPEN, WAITS = "open", "waits"
"""The tables of a part that are not those of closed sessions."""

SPILL = 100
"""Most events of a session that are kept in the bucket itself."""

SPILL_BYTES = 64 << 10
"""Most bytes of a session's events that are kept in the bucket itself."""

SEGMENT = 100
"""How many numbers a segment covers."""

CONTENTS = 10_000
"""Most events of a session whose contents are kept, as hashes: those with the highest numbers."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of `ordering.in_order`. Times are in milliseconds.

    `steps` are by the kind of session, and empty if steps are numbers. `columns` are those of an
    event, with their types.
    """

    policy: Policy
    buckets: int
    keep_closed: int
    steps: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sources: Sequence[str] = ()
    idle_source: int | None = None
    delay: int = 0
    max_sessions: int | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


class Stored(msgspec.Struct, array_like=True):
    """A session with its events, unless they are `spilled` to segments."""

    session: Session
    events: dict[int, str] = {}
    spilled: bool = False


class Wait(msgspec.Struct, array_like=True):
    """What a part has to know of a session without unpacking it.

    Attributes:
        since: Since when the oldest waits, in milliseconds since 1970.
        due: When the session has to be judged, in milliseconds since 1970.
    """

    held: int
    since: int | None
    due: int | None
    stale: bool


class Gauges(msgspec.Struct, array_like=True):
    """What a bucket has to know of a part without reading it. Times are in ms since 1970.

    Attributes:
        since: Since when the oldest event waits.
        due: When a session has to be judged.
        forgets: When closed sessions are forgotten.
        closed: How many closed sessions are remembered.
    """

    open: int = 0
    held: int = 0
    stale: int = 0
    since: int | None = None
    due: int | None = None
    forgets: int | None = None
    closed: int = 0


class SessionBucket(msgspec.Struct, array_like=True):
    """The value of a bucket.

    Attributes:
        buckets: The number of buckets. It and `first` never change in a checkpoint.
        timer: When Spark's timer fires, in milliseconds since 1970.
        judging: The part of the policy by which `waits` were computed.
        steps: The names of steps by kind, as far as they were ever given. They never change,
            because events that wait have their numbers.
        clock: The clock of several sources; None if time is Spark's watermark. Which of the two it
            is never changes in a checkpoint, whose watermark is the batch's time in the first case.
        gauges: Those of each part.
        columns: Those of the events that wait, with their types.
    """

    buckets: int
    first: Literal[0, 1, "seen"]
    timer: int | None = None
    judging: list[int | str | None] = []
    steps: dict[str, list[str]] = {}
    clock: SourceClock | None = None
    layout: Layout = msgspec.field(default_factory=Layout)
    gauges: list[Gauges] = msgspec.field(default_factory=lambda: [Gauges()])
    columns: dict[str, str] = {}


FORMAT = state_buckets.BucketFormat(SessionBucket, version=6)

Segments = MutableMapping[tuple[str, int], bytes]
"""The events that do not fit into a bucket, by session and segment."""

_encode = msgspec.msgpack.Encoder().encode
stored_of = msgspec.msgpack.Decoder(Stored).decode
session_of = msgspec.msgpack.Decoder(Session).decode
wait_of = msgspec.msgpack.Decoder(Wait).decode
_segment = msgspec.msgpack.Decoder(dict[int, str]).decode


def raw_of(value: Session | Stored | Wait) -> Raw:
    return Raw(_encode(value))


def sessions_of(part: Part) -> Iterator[tuple[str, Session]]:
    """Yield all sessions that a part has by name."""
    for table, entries in part.items():
        for name, raw in entries.items():
            if table != WAITS:
                yield name, stored_of(raw).session if table == OPEN else session_of(raw)


def tombstones(part: Part) -> Iterator[tuple[int, dict[str, Raw]]]:
    """Yield the closed sessions of a part, with the time when they are forgotten."""
    for table, entries in part.items():
        if table not in (OPEN, WAITS):
            yield int(table), entries


def gauges_of(part: Part) -> Gauges:
    waits = [wait_of(raw) for raw in part.get(WAITS, {}).values()]
    return Gauges(
        len(part.get(OPEN, ())),
        sum(wait.held for wait in waits),
        sum(wait.stale for wait in waits),
        min((wait.since for wait in waits if wait.since is not None), default=None),
        min((wait.due for wait in waits if wait.due is not None), default=None),
        min((expires for expires, _ in tombstones(part)), default=None),
        sum(len(names) for _, names in tombstones(part)),
    )


def check_open(count: int, settings: Settings) -> None:
    """Raise CheckpointError if a bucket has more open sessions than its share of max_sessions."""
    total, buckets = settings.max_sessions, settings.buckets
    if total is not None and count > (share := -(-total // buckets)):
        raise CheckpointError(
            f"sessions.in_order: a bucket of the state would have {count} open sessions, and "
            f"max_sessions={total} allows {share} for each of the {buckets} buckets. The batch is "
            f"not committed. Raise max_sessions, and start the query again, which repeats it. So "
            f"that sessions end, give last= or idle_timeout=, or use zeh-spark sessions end",
            expected=share,
            got=count,
            anchor="the-state-would-have-too-many-sessions",
        )


def empty(settings: Settings) -> bytes:
    """Return the value of a bucket without sessions."""
    steps = {kind: list(names) for kind, names in settings.steps.items()}
    clock = SourceClock() if settings.sources else None
    return FORMAT.write(
        SessionBucket(settings.buckets, settings.policy.first, steps=steps, clock=clock)
    )


def opened(blob: bytes | None, settings: Settings) -> SessionBucket:
    """Return a bucket. Raises CheckpointError for other settings or another version."""
    bucket = FORMAT.open(blob, settings.buckets)
    state_buckets.same("first", settings.policy.first, bucket.first)
    _keep_steps(bucket, settings.steps)
    sources, known = tuple(settings.sources) or None, bucket.clock and tuple(bucket.clock.sources)
    if (sources is None) != (known is None):  # which sources there are may change
        state_buckets.same("sources", sources, known)
    if bucket.clock:
        bucket.clock.declare(settings.sources)
    _check_columns(bucket.columns, settings.columns)
    return bucket


def _check_columns(known: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Raise CheckpointError if events wait with a column that is not there now, or is another."""
    for name, kind in known.items():
        if given.get(name) != kind:
            now = f"has the type {given[name]}" if name in given else "is missing"
            raise CheckpointError(
                f"sessions.in_order: the column {name!r} {now}, and events wait in the "
                f"checkpoint's state that have it with the type {kind}. Give in_order that column "
                f"until no event waits, and change it in the frame that in_order returns",
                expected=kind,
                got=given.get(name),
                anchor="events-wait-with-other-columns",
            )


def _keep_steps(bucket: SessionBucket, steps: Mapping[str, Sequence[str]]) -> None:
    """Add the steps of new kinds. Raises CheckpointError for other steps of a known kind.

    A single list is of the kind "". Steps by number are no kind: sessions that wait for them would
    wait for others from then on.
    """
    if bool(steps) != bool(bucket.steps) or ("" in steps) != ("" in bucket.steps):
        state_buckets.same("steps", dict(steps) or None, bucket.steps or None)
    for kind, names in steps.items():
        known = bucket.steps.setdefault(kind, list(names))
        name = f"steps[{kind!r}]" if kind else "steps"
        state_buckets.same(name, list(names), known)


@dataclass(eq=False, slots=True)
class Kept:
    """The events of a session: those that it holds, and those of the batch.

    Args:
        arrived: The events of the batch, by number.
    """

    name: str
    stored: Stored
    segments: Segments
    arrived: dict[int, list[SessionEvent]]
    compare: bool = field(default=False, kw_only=True)
    _open: dict[int, dict[int, str]] = field(default_factory=dict, init=False)

    def hold(self, number: int) -> None:
        self._home(number)[number] = self._next(number)

    def drop(self, number: int, *, first: bool) -> tuple[str, str]:
        """Drop the first or the second event of the batch that has this number.

        It returns the event, and a text if the one that is kept or was delivered has other content,
        or content that is not known any more.
        """
        arrived = self.arrived[number]
        event = arrived.pop(0 if first else 1)
        known = self.stored.session.contents.get(number)
        if known is None and arrived and not first:
            known = arrived[0].content
        if not self.compare or known == event.content:
            return event.event, ""
        other = "; its content is not known any more" if known is None else ", with other content"
        return event.event, f"an event with number {number} came before{other}"

    def pop(self, number: int) -> str:
        """Return an event that leaves the session: one of the batch, or else a held one."""
        if self.arrived.get(number):
            return self._next(number)
        home = self._home(number)
        event = home.pop(number)
        if not home and self.stored.spilled:
            del self._open[number // SEGMENT]
            del self.segments[self.name, number // SEGMENT]
        return event

    def _next(self, number: int) -> str:
        """Take the first event of the batch that has this number."""
        event = self.arrived[number].pop(0)
        if self.compare:
            self.stored.session.contents[number] = event.content
        return event.event

    def save(self) -> None:
        """Keep the held events, in segments if there are many."""
        stored = self.stored
        _trim(stored.session, CONTENTS if self.compare else 0)
        if len(stored.events) > SPILL or (stored.events and stored.session.held_size > SPILL_BYTES):
            stored.spilled = True
            for number, event in stored.events.items():
                self._home(number)[number] = event
            stored.events = {}
        for segment, events in self._open.items():
            self.segments[self.name, segment] = _encode(events)
        stored.spilled = stored.spilled and bool(stored.session.held)

    def _home(self, number: int) -> dict[int, str]:
        if not self.stored.spilled:
            return self.stored.events
        segment = number // SEGMENT
        if segment not in self._open:
            blob = self.segments.get((self.name, segment))
            self._open[segment] = _segment(blob) if blob else {}
        return self._open[segment]


def _trim(session: Session, most: int) -> None:
    """Forget contents of the events with the lowest numbers. Some more may stay, to save time."""
    contents = session.contents
    if len(contents) > most + most // 10:
        kept = sorted(contents)[len(contents) - most :]
        session.contents = {number: contents[number] for number in kept}
