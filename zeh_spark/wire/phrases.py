"""How messages of both sides write counts, sizes and times.

Rule for editors: a count and its noun are written by `counted`, so that no message says "1 events".
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a count with its noun, like "1 event" or "2,000 events"."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def no_power_of_two(partitions: int) -> str:
    """Return advice about a number of partitions; none about a power of two."""
    if partitions & (partitions - 1) == 0:
        return ""
    return (
        f"{partitions} is no power of two: readers cannot halve it again and again, and some "
        f"publishers and readers of the protocol support only powers of two"
    )


def in_ranges(partitions: Iterable[int]) -> str:
    """Return ascending numbers as the option `partitions` has them, like "0-2,5"."""
    ranges: list[list[int]] = []
    for each in partitions:
        if ranges and ranges[-1][-1] + 1 == each:
            ranges[-1][1:] = [each]
        else:
            ranges.append([each])
    return ",".join("-".join(map(str, each)) for each in ranges)


def size_of(count: float) -> str:
    """Return a number of bytes in the unit that suits it, like "75 B" or "1.5 GiB"."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if count < 1024 or unit == "TiB":
            break
    return f"{count:,.1f} {unit}"


def in_units(number: int, units: Sequence[tuple[int, str]]) -> str:
    """Return a number in its largest unit that leaves no rest, like "90m"; units in that order."""
    unit, name = next(each for each in units if number % each[0] == 0)
    return f"{number // unit}{name}"


def moment(time_ms: int) -> str:
    """Return a time, given in ms since 1970, as text."""
    seconds = min(time_ms // 1000, 253_402_300_799)  # the last second of the year 9999
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def printable(text: str) -> str:
    r"""Return a text with escapes, like \n, for characters that could forge or hide a line."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
