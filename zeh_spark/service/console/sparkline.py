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
    total: int


def sparkline(counts: Sequence[int]) -> Sparkline:
    most = max(counts, default=0)
    if most <= 0:
        return Sparkline("", "", 0)
    step = WIDTH / max(1, len(counts) - 1)
    room = HEIGHT - 2
    points = [(at * step, HEIGHT - 1 - room * each / most) for at, each in enumerate(counts)]
    kept = [
        point
        for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False)
        if before is None or after is None or not before[1] == point[1] == after[1]
    ]
    line = " ".join(f"{x:g},{y:.3g}" for x, y in kept)
    return Sparkline(line, f"0,{HEIGHT} {line} {WIDTH},{HEIGHT}", sum(counts))
