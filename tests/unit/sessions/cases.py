"""A session that is told its batches, as tests want it."""

from __future__ import annotations

from typing import Any

import msgspec

from zeh_spark.spark.sessions.model import (
    Arrival,
    Dead,
    Deliver,
    Duplicate,
    Outcome,
    Policy,
    Session,
    SessionRecord,
)
from zeh_spark.spark.sessions.session_decision import SessionLogic


class Told:
    """A session, told batch by batch, and what came of it.

    It goes through bytes between batches, as it does in a query.
    """

    def __init__(self, **policy: Any) -> None:
        self.logic = SessionLogic(Policy(**policy))
        self.session: Session | None = None
        self.outcomes: list[Outcome] = []

    def take(self, *given: int | Arrival, words: tuple[str, ...] = (), now: int = 0) -> Told:
        arrivals = [each if isinstance(each, Arrival) else event(each) for each in given]
        arrivals.sort(key=lambda each: (each.number, each.replay))
        session, outcomes = self.logic.take(self.session, arrivals, words, now)
        return self._went(session, outcomes)

    def judge(self, now: int) -> Told:
        assert self.session is not None
        return self._went(*self.logic.judge(self.session, now))

    def _went(self, session: Session | None, outcomes: list[Outcome]) -> Told:
        raw = msgspec.msgpack.encode(session)
        self.session = msgspec.msgpack.decode(raw, type=Session | None)
        self.outcomes += outcomes
        return self

    @property
    def delivered(self) -> list[int]:
        runs = [each for each in self.outcomes if isinstance(each, Deliver)]
        return [number for run in runs for number in range(run.first, run.last + 1)]

    @property
    def letters(self) -> list[Dead]:
        return [each for each in self.outcomes if isinstance(each, Dead)]

    @property
    def dead(self) -> list[tuple[str, int]]:
        return [(each.reason, n) for each in self.letters for n in range(each.first, each.last + 1)]

    @property
    def sorted_dead(self) -> list[tuple[str, int]]:
        return sorted(self.dead)

    @property
    def details(self) -> list[str | None]:
        return [each.detail for each in self.letters]

    @property
    def missing(self) -> list[tuple[int, int] | None]:
        return [each.missing for each in self.letters]

    @property
    def due(self) -> int | None:
        assert self.session is not None
        return self.logic.due(self.session)

    @property
    def closed(self) -> bool:
        return self.session is not None and self.session.closed

    @property
    def stale(self) -> bool:
        return self.session is not None and self.session.stale

    @property
    def records(self) -> list[tuple[str, tuple[int, int]]]:
        found = [each for each in self.outcomes if isinstance(each, SessionRecord)]
        return [(each.reason, tuple(each.missing)) for each in found]

    @property
    def duplicates(self) -> list[int]:
        return [each.number for each in self.outcomes if isinstance(each, Duplicate)]

    @property
    def held(self) -> list[int]:
        runs = self.session.held if self.session else []
        return [number for run in runs for number in range(run.first, run.last + 1)]


def event(number: int, clock: int = 0, size: int = 1, **more: Any) -> Arrival:
    return Arrival(number, clock, size, **more)


def again(number: int) -> Arrival:
    """Somebody sends it on purpose."""
    return event(number, replay=True)
