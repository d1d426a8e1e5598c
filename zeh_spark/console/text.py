"""Text as people see it: sizes, times, and text of strangers made visible and bounded. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import datetime, timezone

_HIDDEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Categories of characters that are not seen, or that change how others are shown: controls, the
direction of text, characters of no width.
"""

AGES = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
"""Units of durations in ms, and of sizes in bytes, the largest first."""

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def visible(text: str, most: int) -> str:
    r"""Return at most `most` characters of a text, with hidden ones as escapes like \u202e."""
    return "".join(map(_shown, text[:most]))


def safe(value: object) -> object:
    """Return what a page shows of a value: a text with hidden characters as escapes, except breaks.

    It is for every value of a page, so that none can be forgotten. HTML of our own stays.
    """
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    return "".join(each if each in "\r\n\t" else _shown(each) for each in value)


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def size(count: float) -> str:
    """Return a number of bytes in the unit that suits it, like "75 B" or "1.5 GiB"."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1024 or unit == "TiB":
            break
    return f"{count:,.1f} {unit}"


def in_units(number: int, units: Sequence[tuple[int, str]], space: str = "") -> str:
    """Return a number in its largest unit that leaves no rest, like "90m"."""
    unit, name = next(each for each in units if number % each[0] == 0)
    return f"{number // unit:,}{space}{name}" if space else f"{number // unit}{name}"


def exact_duration(ms: int) -> str:
    """Return a duration without rounding, like "47 h"."""
    return in_units(ms, AGES, " ")


def exact_size(count: int) -> str:
    """Return a number of bytes without rounding, like "1,536 MiB"."""
    return in_units(count, BYTES, " ")


def lasting(seconds: float) -> str:
    """Return a duration in its largest whole unit, like "3 min"."""
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{int(seconds // unit):,} {name}"
    return f"{max(0, int(seconds))} s"


def moment(ms: int) -> str:
    """Return a time in ms since 1970, as a date and time in UTC."""
    return f"{_utc(ms):%Y-%m-%d %H:%M:%S}"


def machine_moment(ms: int) -> str:
    """Return a time in ms since 1970 in the form of HTML's `datetime`."""
    return f"{_utc(ms):%Y-%m-%dT%H:%M:%SZ}"


def _utc(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)
