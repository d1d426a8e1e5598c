"""The sessions of one bucket through a batch: rows in, rows out, and what is kept.

It has no side effects except on the state that it is given. Runs in tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import msgspec
from msgspec import Raw

from zeh_spark.spark.sessions.model import (
    DECISIONS,
    Arrival,
    Dead,
    Deliver,
    Duplicate,
    Hold,
    Outcome,
    Policy,
    Session,
    SessionEvent,
    SessionRecord,
)
from zeh_spark.spark.sessions.session_decision import SessionLogic
from zeh_spark.spark.sessions.sources import MARK, Mark
from zeh_spark.spark.sessions.state import (
    FORMAT,
    OPEN,
    WAITS,
    Kept,
    Segments,
    Settings,
    Stored,
    Wait,
    check_open,
    gauges_of,
    opened,
    raw_of,
    session_of,
    stored_of,
    tombstones,
    wait_of,
)
from zeh_spark.spark.stateful.state_parts import Blobs, Part, Parts

_SLICES = 8
"""Tables of closed sessions for the time for which they are remembered."""

_SWEPT = 64
"""A batch removes forgotten sessions from the parts that it reads, and from one of so many others
(rounded up) that have any.
"""


class Given(NamedTuple):
    """A row that leaves the bucket: an event, a dead letter, or the counts of the batch.

    Attributes:
        event: The event; None for a report on a session and for counts.
        dead: Why it is dead, as JSON (see `DeadInfo`); None for an ordered event and for counts. If
            `process` follows, an ordered event has a `Delivery` here.
        counts: The counts of the batch, as JSON; None for all other rows.
    """

    event: str | None
    dead: str | None
    counts: str | None = None


class Delivery(msgspec.Struct):
    """Which event of which session is delivered, or which one a decision is about, as JSON.

    `begun` is when the session began, in milliseconds since 1970; None for decisions, and for
    replays of a session that is not known.
    """

    session: str
    number: int
    begun: int | None = None


class DeadInfo(msgspec.Struct):
    """The column `dead` as JSON. `held_since` is in milliseconds since 1970."""

    reason: str
    session: str | None = None
    expected: int | None = None
    received: int | None = None
    missing: dict[str, int] | None = None
    held_since: int | None = None
    detail: str | None = None


_json = msgspec.json.Encoder().encode


class BucketBatch:
    """One bucket in one batch. Give it rows or the time, then `save` what is left.

    Raises CheckpointError if it has no value, or one of other settings or another version.
    """

    def __init__(
        self, blob: bytes | None, settings: Settings, parts: Blobs, segments: Segments
    ) -> None:
        self._bucket = opened(blob, settings)
        self._parts = Parts(parts, self._bucket.layout)
        self._settings = settings
        self._logic = SessionLogic(settings.policy)
        self._segments = segments
        self._counts: Counter[str] = Counter()
        self._now = 0
        self._before = self._gauges()
        self._adopt(settings.policy)

    @property
    def timer(self) -> int | None:
        """When Spark's timer fires, in milliseconds since 1970; None if there is none."""
        return self._bucket.timer

    def now(self, watermark: int, *, first: bool) -> int:
        """Return the time that the clock had reached before the batch, in ms since 1970.

        The watermark is Spark's, which is the clock unless there are several sources. `first` says
        whether this is asked for the first time in this batch.
        """
        clock = self._bucket.clock
        if clock is None:
            return watermark
        if first:
            clock.time = clock.next(self._settings.idle_source)
        return max(0, clock.time - self._settings.delay)

    def take(self, rows: list[SessionEvent], now: int) -> Iterator[Given]:
        """Take the rows of a batch, in any order, and yield the rows that leave.

        `now` is the time that the clock had reached before the batch, in ms since 1970.
        """
        self._now = now
        for number in self._find_due("forgets")[::_SWEPT]:
            self._parts.open(number)
        for name, group in groupby(sorted(rows), key=itemgetter(0)):
            events = [self._timed(row) for row in group if name or not self._noted(row)]
            yield from self._take(name, events, now)

    def _noted(self, row: SessionEvent) -> bool:
        """Return whether a row is the mark of a source, and take it if it is."""
        clock = self._bucket.clock
        if row.control != MARK or row.problem or clock is None:
            return False
        clock.note(Mark(row.event, row.clock, row.last), self._settings.idle_source)
        return True

    def judge(self, now: int) -> Iterator[Given]:
        """Judge all sessions that are due at `now`, and yield the rows that leave."""
        self._now = now
        parts = [self._parts.open(number) for number in self._find_due("due")]
        waits = [item for part in parts for item in part.get(WAITS, {}).items()]
        for name in sorted(name for name, raw in waits if _is_due(wait_of(raw).due, now)):
            part = self._parts.of(name)
            stored = stored_of(part[OPEN][name])
            _, outcomes = self._logic.judge(stored.session, now)
            yield from self._carry_out(name, stored, outcomes, {})
            self._store(part, name, stored)

    def _find_due(self, what: str) -> list[int]:
        """Return the parts for which a time of their gauges has come."""
        gauges = enumerate(self._bucket.gauges)
        return [number for number, each in gauges if _is_due(getattr(each, what), self._now)]

    def save(
        self, *, again: bool = False, soon: int = 0, fired: bool = False
    ) -> tuple[bytes, Given]:
        """Return the bucket's new value and the batch's counts, and set its timer.

        `again` says that the bucket has given its counts in this batch already, so that these have
        to say what has changed. `soon` is a time, in ms since 1970, of a timer that fires in the
        next batch; `fired`, whether the timer has fired. Raises CheckpointError if the batch begins
        more sessions than `max_sessions` allows.
        """
        self._save_parts()
        if (count := self._gauges()["open_sessions"]) > self._before["open_sessions"]:
            check_open(count, self._settings)
        held, gauges = self._gauges()["held"], self._bucket.gauges
        self._bucket.columns = dict(self._settings.columns) if held else {}
        due = min((each.due for each in gauges if each.due is not None), default=None)
        self._set_timer(due, soon, fired)
        counts: dict[str, int | None] = {**self._counts, **self._gauges(), "buckets": 1}
        if again:
            counts |= {name: value - self._before[name] for name, value in self._gauges().items()}
            counts["buckets"] = 0
        counts["oldest_hold"] = min((g.since for g in gauges if g.since is not None), default=None)
        return FORMAT.write(self._bucket), Given(None, None, _json(counts).decode())

    def _save_parts(self) -> None:
        for part in self._parts.opened.values():
            for expires, _ in [*tombstones(part)]:
                if expires <= self._now:
                    del part[str(expires)]
        self._parts.save()
        known = dict(enumerate(self._bucket.gauges))
        known |= {number: gauges_of(part) for number, part in self._parts.opened.items()}
        self._bucket.gauges = [known[number] for number in range(self._bucket.layout.count)]

    def _set_timer(self, due: int | None, soon: int, fired: bool) -> None:
        bucket, clock = self._bucket, self._bucket.clock
        if clock is None:
            bucket.timer = due
        elif fired or bucket.timer is None:  # one that is set fires in this batch, after the rows
            next_time = clock.next(self._settings.idle_source) - self._settings.delay
            bucket.timer = soon if due is not None and due <= next_time else None

    def _gauges(self) -> dict[str, int]:
        gauges = self._bucket.gauges
        return {
            "held": sum(each.held for each in gauges),
            "open_sessions": sum(each.open for each in gauges),
            "stale_sessions": sum(each.stale for each in gauges),
            "closed_sessions": sum(each.closed for each in gauges),
        }

    def _adopt(self, policy: Policy) -> None:
        """Apply a changed policy to sessions that wait already."""
        judging: list[int | str | None] = [policy.gap_timeout, policy.on_gap, policy.idle_timeout]
        if policy.stale_timeout is not None:
            judging.append(policy.stale_timeout)
        if self._bucket.judging == judging:
            return
        self._bucket.judging = judging
        for part in self._parts.open_all():
            for name, raw in list(part.get(OPEN, {}).items()):
                stored = stored_of(raw)
                session = stored.session
                session.stale = session.stale and policy.on_gap == "hold"
                session.reported = session.reported and policy.stale_timeout is not None
                self._keep(part, name, stored)

    # One session

    def _timed(self, row: SessionEvent) -> SessionEvent:
        if row.clock >= 0:
            return row
        self._counts["future"] += 1
        return row._replace(clock=-1 - row.clock)

    def _take(self, name: str, rows: Sequence[SessionEvent], now: int) -> Iterator[Given]:
        arrivals: list[Arrival] = []
        events: dict[int, list[SessionEvent]] = {}
        controls: list[str] = []
        replays = False
        for row in rows:
            if row.problem:
                yield self._invalid(name, row)
                continue
            if row.control in DECISIONS:
                self._counts["controls"] += 1
                yield Given(row.event, _json(Delivery(name, row.number)).decode())
                continue
            if row.control == "replay":
                replays = True
            elif row.control in ("close", "release"):
                controls.append(row.control)
            if row.number >= 0:
                arrivals.append(_arrival(row))
                events.setdefault(row.number, []).append(row)
        if replays:
            arrivals.sort(key=lambda each: (each.number, each.replay))
            for same in events.values():
                same.sort(key=lambda row: row.control == "replay")
        if not arrivals and not controls:  # there were only invalid events or heartbeats
            return
        self._counts["controls"] += len(controls)
        part = self._parts.of(name)
        closed = self._tombstone(part, name)
        stored = self._stored(part, name, closed)
        known = stored.session if stored else None
        session, outcomes = self._logic.take(known, arrivals, controls, now)
        if stored is None or session is not known:
            stored = Stored(session or Session(0))
            if closed:
                del closed[name]
        yield from self._carry_out(name, stored, outcomes, events)
        if session is not None:
            self._store(part, name, stored, max(row.clock for row in rows))

    def _stored(self, part: Part, name: str, closed: dict[str, Raw] | None) -> Stored | None:
        if (raw := part.get(OPEN, {}).get(name)) is not None:
            return stored_of(raw)
        return Stored(session_of(closed[name])) if closed else None

    def _carry_out(
        self,
        name: str,
        stored: Stored,
        outcomes: Iterable[Outcome],
        events: dict[int, list[SessionEvent]],
    ) -> Iterator[Given]:
        processing = self._settings.policy.processing
        compare = self._settings.policy.on_conflict == "dead-letter"
        kept = Kept(name, stored, self._segments, events, compare=compare)
        for outcome in outcomes:
            match outcome:
                case Deliver(first, last, known):
                    self._counts["ordered"] += last - first + 1
                    begun = stored.session.begun if known else None
                    for number in range(first, last + 1):
                        told = _json(Delivery(name, number, begun)).decode() if processing else None
                        yield Given(kept.pop(number), told)
                case Hold(number):
                    kept.hold(number)
                case Duplicate(number, passed):
                    event, conflict = kept.drop(number, first=passed)
                    self._counts["conflict" if conflict else "duplicates"] += 1
                    if conflict:
                        next_number = stored.session.next
                        info = DeadInfo("conflict", name, next_number, number, detail=conflict)
                        yield Given(event, _json(info).decode())
                case Dead():
                    self._counts[outcome.reason] += outcome.last - outcome.first + 1
                    for number in range(outcome.first, outcome.last + 1):
                        yield Given(kept.pop(number), _told(name, outcome, number))
                case SessionRecord():
                    self._counts[outcome.reason] += 1
                    yield Given(None, _told(name, outcome, outcome.received))
        kept.save()

    def _store(self, part: Part, name: str, stored: Stored, newest: int = 0) -> None:
        """Keep a session, open or closed; `newest` is the newest time of the batch's events."""
        if not stored.session.closed:
            self._keep(part, name, stored)
            return
        part.get(OPEN, {}).pop(name, None)
        part.get(WAITS, {}).pop(name, None)
        self._bury(part, name, stored.session, newest)

    def _keep(self, part: Part, name: str, stored: Stored) -> None:
        session = stored.session
        part.setdefault(OPEN, {})[name] = raw_of(stored)
        due = self._logic.due(session)
        if session.held or due is not None or session.reported:
            stale = session.stale or session.reported
            wait = Wait(session.held_count, session.since, due, stale)
            part.setdefault(WAITS, {})[name] = raw_of(wait)
        else:
            part.get(WAITS, {}).pop(name, None)

    def _invalid(self, name: str, row: SessionEvent) -> Given:
        self._counts["invalid"] += 1
        received = row.number if row.number >= 0 else None
        info = DeadInfo("invalid", name or None, received=received, detail=row.problem)
        return Given(row.event, _json(info).decode())

    # Tombstones

    def _tombstone(self, part: Part, name: str) -> dict[str, Raw] | None:
        """Return the table that has a closed session; None if it is forgotten."""
        tables = (names for expires, names in tombstones(part) if expires > self._now)
        return next((names for names in tables if name in names), None)

    def _bury(self, part: Part, name: str, session: Session, newest: int) -> None:
        table = self._tombstone(part, name)
        if table is None:
            step = max(1, self._settings.keep_closed // _SLICES)
            end = -(-max(session.seen, self._now, newest) // step) * step
            table = part.setdefault(str(end + self._settings.keep_closed), {})
        table[name] = raw_of(session)


def _is_due(time: int | None, now: int) -> bool:
    return time is not None and time <= now


def _arrival(row: SessionEvent) -> Arrival:
    event = row.event
    size = len(event) if event.isascii() else len(event.encode())
    last = row.last if row.last >= 0 else None
    return Arrival(row.number, row.clock, size, last, row.control == "replay")


def _told(name: str, outcome: Dead | SessionRecord, received: int | None) -> str:
    """Return the column `dead` of an event that is dead, or of a report on the session."""
    missing = outcome.missing._asdict() if outcome.missing else None
    info = DeadInfo(outcome.reason, name, outcome.expected, received, missing, outcome.since)
    info.detail = outcome.detail if isinstance(outcome, Dead) else None
    return _json(info).decode()
