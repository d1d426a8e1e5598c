"""How messages of both sides write counts and times.

Rule for editors: a count and its noun are written by `counted`, so that no message says "1 events".
Pure.
"""

from __future__ import annotations

from datetime import datetime, timezone


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun, like "1 event" or "2,000 events"."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def moment(time_ms: int) -> str:
    """Return a time, given in ms since 1970, as text."""
    return f"{datetime.fromtimestamp(time_ms / 1000, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
