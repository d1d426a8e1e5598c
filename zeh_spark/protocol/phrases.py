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


def kept_first(option: str, events: int, digest: str, time_ms: int, given: int, now: str) -> str:
    """Return which events an override has dropped, and which it has kept.

    `option` is `keepFirst`, or that of the dead-letter feed. The batch was published with `events`
    events of that `digest`; `given` other events, whose digest is `now`, were given now.
    """
    return (
        f"{option} keeps the {counted(events, 'event')} published under this name at "
        f"{moment(time_ms)} (content {digest[:8]}); the {counted(given, 'event')} given now "
        f"(content {now[:8]}) {'was' if given == 1 else 'were'} dropped"
    )
