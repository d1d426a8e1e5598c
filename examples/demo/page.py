"""A page that shows what happened in a demo: batches, crashes and positions over time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import accumulate, count

from examples.demo.record import Batch, Record

TITLE = "A year of flights, published and read through two crashes"

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 860, 260, 64, 28

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1b1f24; --quiet: #656d76; --line: #d8dee4;
  --paper: #ffffff; --first: #0969da; --second: #1a7f37; --third: #9a6700; --fourth: #8250df;
  --crash: #cf222e; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6edf3; --quiet: #9198a1; --line: #30363d;
  --paper: #0d1117; --first: #4493f8; --second: #3fb950; --third: #d29922;
  --fourth: #ab7df8; --crash: #f85149; }} }}
body {{ margin: 2rem auto; max-width: 56rem; padding: 0 1rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
svg {{ width: 100%; height: auto; }} text {{ fill: var(--quiet); font-size: 12px; }}
.axis {{ stroke: var(--line); }} .crash {{ stroke: var(--crash); stroke-dasharray: 4 3; }}
text.crash {{ fill: var(--crash); stroke: none; }}
.series {{ fill: none; stroke-width: 2; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ border-bottom: 1px solid var(--line); padding: .25rem .75rem .25rem 0;
  text-align: right; }}
th:first-child, td:first-child {{ text-align: left; }} caption {{ text-align: left; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{summary}</p>
<h2>Flights on the feed and in the table</h2>
{flights}
<h2>Position in each partition of the feed that the table has reached</h2>
{positions}
<h2>Batches</h2>
{batches}
</body>
</html>
"""

_COLOURS = ("var(--first)", "var(--second)", "var(--third)", "var(--fourth)")


def rendered(record: Record) -> str:
    """Return the page as HTML, without references to anything outside it.

    Args:
        record: What happened.
    """
    partitions = sorted({name for batch in record.read for name in batch.positions})
    flights = [
        ("on the feed", _totals(record.published)),
        ("in the table", _totals(record.read)),
    ]
    positions = [(f"partition {name}", _positions(record.read, name)) for name in partitions]
    published, read = (
        sum(each.events for each in batches) for batches in (record.published, record.read)
    )
    return _PAGE.format(
        title=escape(TITLE),
        summary=(
            f"{published:,} flights were published in {len(record.published)} batches, and "
            f"{read:,} were read in {len(record.read)}. Each job was killed once (dashed lines), "
            f"and continued where it had stopped."
        ),
        flights=_chart(flights, record),
        positions=_chart(positions, record),
        batches=_table(record),
    )


def _totals(batches: Sequence[Batch]) -> list[tuple[float, int]]:
    """Return the events so far, after each batch."""
    totals = accumulate(each.events for each in batches)
    return [(each.seconds, total) for each, total in zip(batches, totals, strict=True)]


def _positions(batches: Sequence[Batch], partition: str) -> list[tuple[float, int]]:
    """Return the position of a partition after each batch."""
    return [
        (each.seconds, each.positions[partition]) for each in batches if partition in each.positions
    ]


def _chart(series: Sequence[tuple[str, Sequence[tuple[float, int]]]], record: Record) -> str:
    """Return steps over time as SVG, with the crashes."""
    times = [when for _, points in series for when, _ in points]
    end = max([*times, *record.crashes, 1.0])
    most = max((value for _, points in series for _, value in points), default=1)

    def x(seconds: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - 8) * seconds / end, 1)

    def y(value: float) -> float:
        return round(_HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - 24) * value / most, 1)

    parts = [
        f'<line class="axis" x1="{_LEFT}" y1="{y(value)}" x2="{_WIDTH}" y2="{y(value)}"/>'
        f'<text x="{_LEFT - 8}" y="{y(value) + 4}" text-anchor="end">{value:,}</text>'
        for value in _ticks(most)
    ]
    parts += [
        f'<text x="{x(seconds)}" y="{_HEIGHT - 8}" text-anchor="middle">{seconds} s</text>'
        for seconds in _ticks(int(end))
    ]
    for when in record.crashes:
        parts.append(
            f'<line class="crash" x1="{x(when)}" y1="24" x2="{x(when)}" y2="{y(0)}"/>'
            f'<text class="crash" x="{x(when) + 6}" y="36">killed</text>'
        )
    for number, (name, points) in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<path class="series" stroke="{colour}" d="{_steps(points, x, y)}"/>')
        parts.append(
            f'<text x="{_LEFT + 12 + 130 * number}" y="14" style="fill: {colour}">'
            f"{escape(name)}</text>"
        )
    label = ", ".join(name for name, _ in series)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)} over time">'
        f"{''.join(parts)}</svg>"
    )


def _ticks(most: int) -> range:
    """Return round numbers from 0 to at most `most`: about five, steps of 1, 2 or 5 and zeros."""
    steps = (leading * 10**zeros for zeros in count() for leading in (1, 2, 5))
    return range(0, most + 1, next(step for step in steps if most < 6 * step))


def _steps(
    points: Iterable[tuple[float, int]], x: Callable[[float], float], y: Callable[[float], float]
) -> str:
    """Return a path that rises at each point."""
    path = f"M{_LEFT} {y(0)}"
    for when, value in points:
        path += f" H{x(when)} V{y(value)}"
    return path


def _table(record: Record) -> str:
    rows = "".join(
        f"<tr><td>{what} {each.number}</td><td>{each.seconds:.1f}</td><td>{each.events:,}</td></tr>"
        for what, batches in (("published", record.published), ("read", record.read))
        for each in batches
    )
    return (
        "<table><tr><th>batch</th><th>seconds since the beginning</th><th>flights</th></tr>"
        f"{rows}</table>"
    )
