"""CPU seconds of the parts of a running query, from one look at all processes to the next.

A process that ends while it is measured is not lost: what it took then stands in its parent, as
time of children that were waited for. So a part is a tree of processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psutil

CLIENT, JVM, PYTHON = "program", "JVM", "Python"


@dataclass(frozen=True, slots=True)
class Seen:
    """A process: `own` are its CPU seconds, `ended` those of its children that have ended."""

    pid: int
    parent: int
    java: bool
    own: float
    ended: float


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of a part: for each million events, and for a run whatever it reads."""

    million: float
    run: float


def spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """CPU seconds between two looks, by part."""
    return {part: seconds - before.get(part, 0.0) for part, seconds in after.items()}


def costs(
    small: Mapping[str, float], large: Mapping[str, float], events: tuple[int, int]
) -> dict[str, Cost]:
    """What each part takes, given its CPU seconds in a run of few events and in one of many.

    A run starts processes and plans queries, which would look like a cost of events if only one run
    was measured.
    """
    few, many = events
    found = {}
    for part, seconds in large.items():
        less = small.get(part, 0.0)
        each = max(seconds - less, 0.0) / (many - few)
        found[part] = Cost(each * 1e6, max(less - each * few, 0.0))
    return found


def by_part(seen: Iterable[Seen], roots: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """CPU seconds of the trees of each part, `NAME: JVM` apart from `NAME: Python`.

    Args:
        seen: all processes.
        roots: the processes at the top of each part's trees. A tree that has no JVM is one part,
            without a colon. What the program above a JVM takes itself is `NAME: program`.
    """
    processes = list(seen)
    found: dict[str, float] = {}
    for name, pids in roots.items():
        tree = _tree(processes, pids)
        has_jvm = any(each.java for each in tree)
        for each in tree:
            program = CLIENT if each.pid in pids else PYTHON
            own = f"{name}: {JVM if each.java else program}" if has_jvm else name
            ended = f"{name}: {PYTHON}" if has_jvm else name
            found[own] = found.get(own, 0.0) + each.own
            found[ended] = found.get(ended, 0.0) + each.ended
    return found


def _tree(processes: Sequence[Seen], roots: Sequence[int]) -> list[Seen]:
    """These processes, and all below them."""
    found = [each for each in processes if each.pid in roots]
    for each in found:  # it grows meanwhile
        found += [child for child in processes if child.parent == each.pid]
    return found


def look() -> list[Seen]:
    """All processes of this machine."""
    found = []
    for process in psutil.process_iter():
        try:
            with process.oneshot():
                times = process.cpu_times()
                found.append(
                    Seen(
                        process.pid,
                        process.ppid(),
                        process.name() == "java",
                        times.user + times.system,
                        times.children_user + times.children_system,
                    )
                )
        except psutil.Error:
            continue  # it has ended meanwhile
    return found
