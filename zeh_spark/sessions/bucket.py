"""The sessions of one bucket through a batch: their state in and out, and the rows to give. Pure
but for the state that it is handed.

All sessions of a bucket are one value of Spark's state, read once and written once for each batch:
access by session costs a round trip each. What of it is not touched stays packed.

    Bucket     sessions    name -> Stored: the session, and the events that it holds
               waits       name -> Wait: those that hold something or have a time
               closed      slices of tombstones, by when they are forgotten

A session that holds more than `SPILL` events or `SPILL_BYTES` keeps them outside, in segments of
`SEGMENT` numbers each, so that one with a million of them costs the others nothing.

Runs in tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple, Protocol

import msgspec
from msgspec import Raw

from zeh_spark import bucketing
from zeh_spark.sessions.logic import SessionLogic
from zeh_spark.sessions.model import (
    Arrival,
    Dead,
    Deliver,
    Duplicate,
    Hold,
    Missing,
    Outcome,
    Policy,
    Record,
    Session,
)

VERSION = 1
SPILL = 100
SPILL_BYTES = 64 << 10
SEGMENT = 100
_SLICES = 8
"""Of tombstones, in the time for which they are kept."""


class Row(NamedTuple):
    """An event as it comes to its bucket. -1 and '' are none; `problem` says why it is invalid."""

    session: str
    number: int
    clock: int
    event: str
    last: int
    control: str
    problem: str

    @classmethod
    def parted(cls, row: str) -> Row:
        """As `bucketing.joined` put it together; for each row, so in as few steps as can be."""
        number, clock, last, a, b, c, texts = row.split(" ", 6)
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
        )


class Given(NamedTuple):
    """A row that leaves: an event, and why it is dead, as JSON; or the batch's counts, as JSON."""

    event: str | None
    dead: str | None
    counts: str | None = None


class Stored(msgspec.Struct, array_like=True):
    session: Session
    events: dict[int, str] = {}
    spilled: bool = False


class Wait(msgspec.Struct, array_like=True):
    """`since`: of its oldest hold, ms. `due`: when it has to be judged, ms."""

    held: int
    since: int | None
    due: int | None
    stale: bool


class Slice(msgspec.Struct, array_like=True):
    expires: int
    sessions: dict[str, Raw]


class Bucket(msgspec.Struct, array_like=True):
    """`buckets` and `first` are the checkpoint's for ever; `judging` is what `waits` go by."""

    buckets: int
    first: Literal[0, 1, "seen"]
    timer: int | None = None
    sessions: dict[str, Raw] = {}
    waits: dict[str, Wait] = {}
    closed: list[Slice] = []
    judging: list[int | str | None] = []


class DeadInfo(msgspec.Struct):
    """The column `dead`, as JSON. `held_since` in ms."""

    reason: str
    session: str | None = None
    expected: int | None = None
    received: int | None = None
    missing: dict[str, int] | None = None
    held_since: int | None = None
    detail: str | None = None


class Segments(Protocol):
    """The events that do not fit into a bucket: (session, segment) -> bytes."""

    def get(self, session: str, segment: int) -> bytes | None: ...
    def put(self, session: str, segment: int, value: bytes) -> None: ...
    def remove(self, session: str, segment: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """`keep_closed`: ms for which a closed session is remembered."""

    policy: Policy
    buckets: int
    keep_closed: int


_encode = msgspec.msgpack.Encoder().encode
_bucket = msgspec.msgpack.Decoder(Bucket).decode
_stored = msgspec.msgpack.Decoder(Stored).decode
_session = msgspec.msgpack.Decoder(Session).decode
_segment = msgspec.msgpack.Decoder(dict[int, str]).decode
_json = msgspec.json.Encoder().encode


def encoded(bucket: Bucket) -> bytes:
    return bytes([VERSION]) + _encode(bucket)


def decoded(blob: bytes) -> Bucket:
    return _bucket(memoryview(blob)[1:])


def sessions_of(blob: bytes) -> Iterator[tuple[str, Session]]:
    """All that a bucket knows, the closed ones last."""
    bucket = decoded(blob)
    for name, raw in bucket.sessions.items():
        yield name, _stored(raw).session
    for part in bucket.closed:
        for name, raw in part.sessions.items():
            yield name, _session(raw)


def empty(settings: Settings) -> bytes:
    return encoded(Bucket(settings.buckets, settings.policy.first))


def opened(blob: bytes | None, settings: Settings) -> Bucket:
    """Raises CheckpointError for the state of other settings, or of another version."""
    bucket = _bucket(bucketing.opened(blob, VERSION, settings.buckets))
    bucketing.same("buckets", settings.buckets, bucket.buckets)
    bucketing.same("first", settings.policy.first, bucket.first)
    return bucket


class Batch:
    """One bucket in one batch. Give it rows or the time, then `save` what is left."""

    def __init__(self, blob: bytes | None, settings: Settings, segments: Segments) -> None:
        self._bucket = opened(blob, settings)
        self._settings = settings
        self._logic = SessionLogic(settings.policy)
        self._segments = segments
        self._counts: Counter[str] = Counter()
        self._before = self._gauges()
        self._adopt(settings.policy)

    @property
    def timer(self) -> int | None:
        return self._bucket.timer

    def take(self, rows: list[Row], now: int) -> Iterator[Given]:
        """The rows of a batch, in any order. `now`: what the clock had reached before, ms."""
        self._forget(now)
        for name, group in groupby(sorted(rows), key=itemgetter(0)):
            yield from self._take(name, list(group), now)

    def judge(self, now: int) -> Iterator[Given]:
        """All sessions that are due."""
        waits = self._bucket.waits
        for name in sorted(waits):
            due = waits[name].due
            if due is not None and due <= now:
                stored = _stored(self._bucket.sessions[name])
                _, outcomes = self._logic.judge(stored.session, now)
                yield from self._carry_out(name, stored, outcomes, {})
                self._store(name, stored, now)

    def save(self, *, again: bool = False) -> tuple[bytes, Given]:
        """The new state, with the time of its timer; and the batch's counts. `again`: the bucket
        has given its counts in this batch, so these say what has changed.
        """
        waits = self._bucket.waits.values()
        self._bucket.timer = min((w.due for w in waits if w.due is not None), default=None)
        counts: dict[str, int | None] = {**self._counts, **self._gauges(), "buckets": 1}
        if again:
            counts |= {name: value - self._before[name] for name, value in self._gauges().items()}
            counts["buckets"] = 0
        counts["oldest_hold"] = min((w.since for w in waits if w.since is not None), default=None)
        return encoded(self._bucket), Given(None, None, _json(counts).decode())

    def _gauges(self) -> dict[str, int]:
        waits = self._bucket.waits.values()
        return {
            "held": sum(wait.held for wait in waits),
            "open_sessions": len(self._bucket.sessions),
            "stale_sessions": sum(wait.stale for wait in waits),
        }

    def _adopt(self, policy: Policy) -> None:
        """Another policy than that of the batch before is for sessions that wait already, too."""
        judging: list[int | str | None] = [policy.gap_timeout, policy.on_gap, policy.idle_timeout]
        if self._bucket.judging == judging:
            return
        self._bucket.judging = judging
        for name, raw in list(self._bucket.sessions.items()):
            stored = _stored(raw)
            stored.session.stale = stored.session.stale and policy.on_gap == "hold"
            self._keep(name, stored)

    # One session

    def _take(self, name: str, rows: Sequence[Row], now: int) -> Iterator[Given]:
        arrivals: list[Arrival] = []
        events: dict[int, list[str]] = {}
        controls: list[str] = []
        for row in rows:
            if row.problem:
                yield self._invalid(name, row)
                continue
            if row.control in ("close", "release"):
                controls.append(row.control)
            if row.number >= 0:
                arrivals.append(_arrival(row))
                events.setdefault(row.number, []).append(row.event)
        if not arrivals and not controls:  # invalid ones, and heartbeats
            return
        self._counts["controls"] += len(controls)
        closed = self._tombstone(name)
        stored = self._stored(name, closed)
        known = stored.session if stored else None
        session, outcomes = self._logic.take(known, arrivals, controls, now)
        stored = stored or Stored(session or Session(0))
        yield from self._carry_out(name, stored, outcomes, events)
        if session is not None:
            self._store(name, stored, max(now, *(row.clock for row in rows)))

    def _stored(self, name: str, closed: Slice | None) -> Stored | None:
        if (raw := self._bucket.sessions.get(name)) is not None:
            return _stored(raw)
        return Stored(_session(closed.sessions[name])) if closed else None

    def _carry_out(
        self,
        name: str,
        stored: Stored,
        outcomes: Iterable[Outcome],
        events: dict[int, list[str]],
    ) -> Iterator[Given]:
        kept = _Kept(name, stored, self._segments, events)
        for outcome in outcomes:
            match outcome:
                case Deliver(first, last):
                    self._counts["ordered"] += last - first + 1
                    for number in range(first, last + 1):
                        yield Given(kept.pop(number), None)
                case Hold(number):
                    kept.hold(number)
                case Duplicate(number):
                    self._counts["duplicates"] += 1
                    kept.drop(number)
                case Dead():
                    self._counts[outcome.reason] += outcome.last - outcome.first + 1
                    for number in range(outcome.first, outcome.last + 1):
                        yield Given(kept.pop(number), _dead(name, outcome, number))
                case Record():
                    self._counts[outcome.reason] += 1
                    yield Given(None, _record(name, outcome))
        kept.save()

    def _store(self, name: str, stored: Stored, now: int) -> None:
        session = stored.session
        self._bucket.waits.pop(name, None)
        if session.closed:
            self._bucket.sessions.pop(name, None)
            self._bury(name, session, now)
        else:
            self._keep(name, stored)

    def _keep(self, name: str, stored: Stored) -> None:
        session = stored.session
        self._bucket.waits.pop(name, None)
        self._bucket.sessions[name] = Raw(_encode(stored))
        due = self._logic.due(session)
        if session.held or due is not None:
            self._bucket.waits[name] = Wait(session.held_count, session.since, due, session.stale)

    def _invalid(self, name: str, row: Row) -> Given:
        self._counts["invalid"] += 1
        received = row.number if row.number >= 0 else None
        info = DeadInfo("invalid", name or None, received=received, detail=row.problem)
        return Given(row.event, _json(info).decode())

    # Tombstones

    def _tombstone(self, name: str) -> Slice | None:
        return next((each for each in self._bucket.closed if name in each.sessions), None)

    def _bury(self, name: str, session: Session, now: int) -> None:
        raw = Raw(_encode(session))
        if known := self._tombstone(name):
            known.sessions[name] = raw
            return
        step = max(1, self._settings.keep_closed // _SLICES)
        expires = -(-max(session.seen, now) // step) * step + self._settings.keep_closed
        for each in self._bucket.closed:
            if each.expires == expires:
                each.sessions[name] = raw
                return
        self._bucket.closed.append(Slice(expires, {name: raw}))

    def _forget(self, now: int) -> None:
        self._bucket.closed = [each for each in self._bucket.closed if each.expires > now]


class _Kept:
    """The events of a session: those that it holds, and those of the batch."""

    def __init__(
        self, name: str, stored: Stored, segments: Segments, arrived: dict[int, list[str]]
    ) -> None:
        self._name = name
        self._stored = stored
        self._arrived = arrived
        self._segments = segments
        self._open: dict[int, dict[int, str]] = {}

    def hold(self, number: int) -> None:
        self._home(number)[number] = self._arrived[number].pop(0)

    def drop(self, number: int) -> None:
        self._arrived[number].pop()

    def pop(self, number: int) -> str:
        if arrived := self._arrived.get(number):
            return arrived.pop(0)
        home = self._home(number)
        event = home.pop(number)
        if not home and self._stored.spilled:
            del self._open[number // SEGMENT]
            self._segments.remove(self._name, number // SEGMENT)
        return event

    def save(self) -> None:
        stored = self._stored
        if len(stored.events) > SPILL or (stored.events and stored.session.held_size > SPILL_BYTES):
            stored.spilled = True
            for number, event in stored.events.items():
                self._home(number)[number] = event
            stored.events = {}
        for segment, events in self._open.items():
            self._segments.put(self._name, segment, _encode(events))
        stored.spilled = stored.spilled and bool(stored.session.held)

    def _home(self, number: int) -> dict[int, str]:
        if not self._stored.spilled:
            return self._stored.events
        segment = number // SEGMENT
        if segment not in self._open:
            blob = self._segments.get(self._name, segment)
            self._open[segment] = _segment(blob) if blob else {}
        return self._open[segment]


def _arrival(row: Row) -> Arrival:
    event = row.event
    size = len(event) if event.isascii() else len(event.encode())
    last = row.last if row.last >= 0 else None
    return Arrival(row.number, row.clock, size, last, row.control == "replay")


def _dead(name: str, outcome: Dead, number: int) -> str:
    missing = _range(outcome.missing)
    info = DeadInfo(
        outcome.reason, name, outcome.expected, number, missing, outcome.since, outcome.detail
    )
    return _json(info).decode()


def _record(name: str, outcome: Record) -> str:
    missing = _range(outcome.missing)
    info = DeadInfo(
        outcome.reason, name, outcome.expected, outcome.received, missing, outcome.since
    )
    return _json(info).decode()


def _range(missing: Missing | None) -> dict[str, int] | None:
    return missing._asdict() if missing else None
