"""A bucket of sessions that is told its batches, as tests want it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from zeh_spark.spark.sessions import state
from zeh_spark.spark.sessions.bucket import BucketBatch, Given
from zeh_spark.spark.sessions.model import Policy, SessionEvent
from zeh_spark.spark.sessions.state import Settings
from zeh_spark.spark.stateful.state_parts import unpack

DAY = 86_400_000


class Memory(dict[Any, bytes]):
    """Segments or parts, as Spark's state keeps them."""

    def __delitem__(self, key: Any) -> None:
        self.pop(key, None)

    def events(self) -> list[str]:
        parts = (msgspec.msgpack.decode(each, type=dict[int, str]) for each in self.values())
        return sorted(event for part in parts for event in part.values())


@dataclass
class Told:
    """A bucket that is told its batches, and what it gave. Its state is bytes between them."""

    settings: Settings
    segments: Memory = field(default_factory=Memory)
    given: list[Given] = field(default_factory=list)
    counts: list[dict[str, Any]] = field(default_factory=list)
    blob: bytes = b""
    timer: int | None = None
    parts: Memory = field(default_factory=Memory)

    def __post_init__(self) -> None:
        self.blob = self.blob or state.empty(self.settings)

    def take(self, *rows: SessionEvent, now: int = 0) -> list[Given]:
        return self._go(list(rows), now)

    def judge(self, now: int) -> list[Given]:
        return self._go(None, now)

    def _go(self, rows: list[SessionEvent] | None, now: int) -> list[Given]:
        batch = BucketBatch(self.blob, self.settings, self.parts, self.segments)
        gave = list(batch.judge(now) if rows is None else batch.take(rows, now))
        self.blob, counts = batch.save()
        self.timer = batch.timer
        self.counts.append(json.loads(counts.counts or ""))
        self.given += gave
        return gave

    def again(self, settings: Settings) -> Told:
        """Return the bucket with other settings, as a restarted query has it."""
        return Told(settings, self.segments, blob=self.blob, parts=self.parts)

    @property
    def size(self) -> int:
        """The bytes of state, without segments."""
        return len(self.blob) + sum(map(len, self.parts.values()))

    @property
    def stored(self) -> dict[str, state.Stored]:
        """The sessions that are open, by name."""
        whole = state.FORMAT.read(self.blob).layout.whole
        blobs = [whole] if whole else self.parts.values()
        parts = [unpack(blob).get(state.OPEN, {}) for blob in blobs]
        return {name: state.stored_of(raw) for part in parts for name, raw in part.items()}

    @property
    def ordered(self) -> list[str | None]:
        return [each.event for each in self.given if each.dead is None]

    @property
    def dead(self) -> list[tuple[str, str | None]]:
        return [(reason(each), each.event) for each in self.given if each.dead]

    @property
    def duplicates(self) -> int:
        return self.count("duplicates")

    def count(self, name: str) -> int:
        return sum(each.get(name, 0) for each in self.counts)


def told(buckets: int = 4, keep_closed: int = DAY, **policy: Any) -> Told:
    return Told(Settings(Policy(**policy), buckets, keep_closed))


def went(it: Told, batches: Iterable[tuple[list[SessionEvent] | None, int]]) -> Told:
    """Take batches one after the other: rows, or None where only time passes; and the time."""
    for batch, now in batches:
        it._go(batch, now)
    return it


def row(session: str, number: int = -1, clock: int = 0, **more: Any) -> SessionEvent:
    """Its event is "session number"; a word without a number is one for the session."""
    event = more.pop("event", f"{session} {number}")
    return SessionEvent(
        session, number, clock, event, **{"last": -1, "control": "", "problem": "", **more}
    )


def rows(session: str, *numbers: int, **more: Any) -> list[SessionEvent]:
    return [row(session, number, **more) for number in numbers]


def reason(given: Given) -> str:
    return str(json.loads(given.dead or "{}")["reason"])
