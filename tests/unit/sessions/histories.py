"""Histories of a session, drawn for laws."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

from zeh_spark.spark.sessions.model import Arrival, Outcome, Policy, Session
from zeh_spark.spark.sessions.session_decision import SessionLogic


class Step(NamedTuple):
    """A batch, or with `judged` only time that passes. `now` is the time at it."""

    arrivals: list[Arrival]
    words: list[str]
    now: int
    judged: bool


times = st.none() | st.integers(0, 20)
policies = st.builds(
    Policy,
    gap_timeout=times,
    on_gap=st.sampled_from(["hold", "skip", "dead-letter"]),
    first=st.sampled_from([0, 1, "seen"]),
    max_events=st.integers(1, 5) | st.just(10_000),
    max_bytes=st.integers(1, 12) | st.just(10_000),
    idle_timeout=st.none() | st.integers(0, 40),
)
numbers = st.integers(0, 12)
lasts = st.one_of(st.none(), st.none(), st.none(), numbers)
some_arrivals = st.builds(
    Arrival, numbers, st.integers(0, 60), st.integers(0, 4), lasts, st.sampled_from([False, True])
)


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    now = 0
    found = []
    for _ in range(draw(st.integers(1, 10))):
        now += draw(st.integers(0, 12))
        judged = draw(st.booleans())
        words = st.lists(st.sampled_from(["close", "release"]), max_size=1)
        few_words = draw(st.one_of(st.just([]), st.just([]), st.just([]), words))
        arrivals = [] if judged else draw(st.lists(some_arrivals, max_size=6))
        arrivals.sort(key=lambda each: (each.number, each.replay))
        found.append(Step(arrivals, few_words, now, judged))
    return found


def went(
    logic: SessionLogic, session: Session | None, step: Step
) -> tuple[Session | None, list[Outcome]]:
    """A step from state in bytes, as it is between batches."""
    raw = msgspec.msgpack.encode(session)
    session = msgspec.msgpack.decode(raw, type=Session | None)
    if not step.judged:
        return logic.take(session, step.arrivals, step.words, step.now)
    return logic.judge(session, step.now) if session else (None, [])


def begins(before: Session | None, after: Session | None) -> bool:
    """Whether a session begins: replays begin none, and it may have the numbers of theirs."""
    known = before is not None and before.begun is not None
    return not known and after is not None and after.begun is not None


def spread(outcomes: Iterable[Outcome], kind: Any) -> list[tuple[int, Any]]:
    """Each number of those outcomes that are of a kind."""
    found = [each for each in outcomes if isinstance(each, kind)]
    return [(number, each) for each in found for number in range(each.first, each.last + 1)]


def held_by(session: Session | None) -> set[int]:
    runs = session.held if session else []
    return {number for run in runs for number in range(run.first, run.last + 1)}
