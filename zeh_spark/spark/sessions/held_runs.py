"""The runs of numbers that a session holds: how they join, end, and leave gaps. Pure functions.

A run is a `Held`: numbers that follow each other, whose events have arrived and wait for earlier
ones. The runs of a session ascend, and between two of them at least one number is missing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from zeh_spark.spark.sessions.model import Held, Missing, Session


def cut_run(run: Held, last: int | None) -> tuple[Held | None, Held | None]:
    """Return the part of a run up to a session's last number, and the part after it."""
    if last is None or run.last <= last:
        return run, None
    if run.first > last:
        return None, run
    return Held(run.first, last, run.since, run.size), Held(last + 1, run.last, run.since, 0)


def find_gaps(session: Session) -> Iterator[tuple[Held, Missing | None]]:
    """Yield the held runs, each with the numbers that are missing directly before it."""
    begin = session.next
    for run in session.held:
        end = run.first - 1 if session.last is None else min(run.first - 1, session.last)
        yield run, Missing(begin, end) if begin <= end else None
        begin = run.last + 1


def is_held(session: Session, number: int) -> bool:
    at = bisect_right(session.held, number, key=lambda run: run.first) - 1
    return at >= 0 and number <= session.held[at].last


def join_runs(held: list[Held], fresh: list[Held]) -> list[Held]:
    """Return two lists of runs as one, by number."""
    found: list[Held] = []
    for run in sorted([*held, *fresh], key=lambda run: run.first):
        if found and found[-1].last + 1 == run.first:
            before = found[-1]
            found[-1] = Held(
                before.first, run.last, min(before.since, run.since), before.size + run.size
            )
        else:
            found.append(run)
    return found
