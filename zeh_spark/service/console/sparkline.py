"""A small chart of counts as SVG, without styles or scripts of its own. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 120, 24


@dataclass(frozen=True, slots=True)
class Sparkline:
    """The shapes of a chart, in a box of WIDTH by HEIGHT."""

    line: str
    area: str


def sparkline(counts: Sequence[int | None]) -> Sparkline:
    """Return the chart of counts; the line goes straight on where one is not known (None)."""
    known = [(at, each) for at, each in enumerate(counts) if each is not None]
    most = max((each for _, each in known), default=0)
    if most <= 0:
        return Sparkline("", "")
    step = WIDTH / max(1, len(counts) - 1)
    room = HEIGHT - 2
    points = [(at * step, HEIGHT - 1 - room * each / most) for at, each in known]
    kept = [
        point
        for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False)
        if before is None or after is None or not before[1] == point[1] == after[1]
    ]
    line = " ".join(f"{x:g},{y:.3g}" for x, y in kept)
    return Sparkline(line, f"{kept[0][0]:g},{HEIGHT} {line} {kept[-1][0]:g},{HEIGHT}")
