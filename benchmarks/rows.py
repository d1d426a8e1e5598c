"""The rows of the printed table: what, measured, aim."""

from __future__ import annotations

MIB = 1 << 20
Row = tuple[str, str, str]
"""What, measured, aim."""


def rate(what: str, events_per_second: float) -> Row:
    return what, f"{events_per_second / 1000:,.0f}k events/s", ""


def ratio(what: str, value: float, aim: str) -> Row:
    return what, f"{value:.2f}", aim
