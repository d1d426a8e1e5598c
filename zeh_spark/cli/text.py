"""How results are written as text: tables, counts, sizes and times.

Rule for editors: `zeh-spark --help` and shell completion load this module, so it imports nothing
but what Python brings.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone

_NUMBER = re.compile(r"-?[0-9.,]+( [KMG]?i?B)?")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows as text, in columns as wide as their longest cell, numbers to the right."""
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


def kept_first(kept: str, when: str, dropped: int) -> str:
    """Return what `keepFirst` did: the batch stays as it was, and the new events are dropped.

    Args:
        kept: The number of events that stay, in words.
        when: When they were published.
        dropped: How many events were given now.
    """
    return (
        f"Published before, at {when}, with other events. keepFirst kept {kept} of then; the "
        f"{counted(dropped, 'event')} given now were dropped: nothing was added."
    )


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, like "1 event" or "2,000 events"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def size_of(size: float) -> str:
    """Return a number of bytes in the unit that suits it, like "75 B" or "1.5 GiB"."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024 or unit == "GiB":
            break
    return f"{size:,.1f} {unit}"


def moment(time_ms: int) -> str:
    """Return a time in ms since 1970 as a date in UTC, or "never" for 0."""
    if not time_ms:
        return "never"
    moment = datetime.fromtimestamp(time_ms / 1000, timezone.utc)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
