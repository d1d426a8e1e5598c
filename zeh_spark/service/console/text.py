"""Text as people see it: times, and text of strangers made visible and bounded. Pure."""

from __future__ import annotations

import unicodedata
from datetime import datetime, timezone

_HIDDEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Categories of characters that are not seen, or that change how others are shown: controls, the
direction of text, characters of no width.
"""

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


def lasting(seconds: float) -> str:
    """Return a duration in its largest whole unit, like "3 min"."""
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{int(seconds // unit):,} {name}"
    return f"{max(0, int(seconds))} s"


def moment(ms: int) -> str:
    return f"{_utc(ms):%Y-%m-%d %H:%M:%S}"


def machine_moment(ms: int) -> str:
    """Return a time in ms since 1970 in the form of HTML's `datetime`."""
    return f"{_utc(ms):%Y-%m-%dT%H:%M:%SZ}"


def _utc(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)
