"""How results are written as text: tables and times. `wire.phrases` has counts and sizes.

Rule for editors: `zeh-spark --help` and shell completion load this module, so it imports nothing
that takes long to load.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from zeh_spark.errors import printable
from zeh_spark.wire import phrases

_NUMBER = re.compile(r"-?[0-9.,]+( [KMGT]?i?B)?")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text, in columns as wide as their longest cell, numbers to the right."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
    align = [
        ">" if rows and all(_NUMBER.fullmatch(cell) for cell in column) else "<"
        for column in zip(*rows, strict=True)
    ] or ["<"] * len(heads)
    lines = []
    for row in [heads, *rows]:
        cells = (f"{cell:{a}{w}}" for cell, a, w in zip(row, align, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def moment(time_ms: int) -> str:
    """Return a time in ms since 1970 as a date in UTC, or "never" for 0."""
    return phrases.moment(time_ms) if time_ms else "never"
