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


def sparkline(counts: Sequence[int | None]) -> Sparkline:
    """Return the chart of counts; the line goes straight on where one is not known (None)."""
    known = [each for each in counts if each is not None]
    most = max(known, default=0)
    if most <= 0:
        return Sparkline("", "", 0)
    step = WIDTH / max(1, len(counts) - 1)
    room = HEIGHT - 2
    points = [
        (at * step, HEIGHT - 1 - room * each / most)
        for at, each in enumerate(counts)
        if each is not None
    ]
    kept = [
        point
        for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False)
        if before is None or after is None or not before[1] == point[1] == after[1]
    ]
    line = " ".join(f"{x:g},{y:.3g}" for x, y in kept)
    area = f"{kept[0][0]:g},{HEIGHT} {line} {kept[-1][0]:g},{HEIGHT}"
    return Sparkline(line, area, sum(known))
