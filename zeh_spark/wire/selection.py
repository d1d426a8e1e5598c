"""Some events of a feed: those whose header has one of a few values (`only`).

A reader asks with the parameter `only={"type":["paid","refunded"]}`, and our publisher says with
the header ZEH-Only that it has left out the other events. Publishers that do not know the
parameter ignore it (spec, "Parameters"), so a reader refuses an answer without that header.

Pure; runs on both sides.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import msgspec

from zeh_spark.wire import event_key, wire

HEADER = "ZEH-Only"
"""The header of an answer that has only the events asked for. Its value is that of `only`."""

MAX_VALUES, MAX_TEXT = 16, 1_000
"""Most values of the header, and most characters of `only`, which has to fit into a header."""

_decode = msgspec.json.Decoder(dict[str, list[str]]).decode


class Selection(NamedTuple):
    """The events whose header `name` has one of the values. `text` is `only`, in ASCII."""

    name: str
    values: frozenset[str]
    text: str


def parse(text: str) -> Selection:
    """Return what a value of `only` selects. Raises ValueError if it is not valid."""
    try:
        ((name, values),) = _decode(text).items()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ValueError(
            'must be JSON with one header and a list of its values, like {"type":["paid"]}'
        ) from None
    if name.startswith(wire.RESERVED_HEADER) and name != event_key.HEADER:
        raise ValueError(
            f"must name a header that events were published with, and {name} is added by the "
            f"publisher; of its headers only {event_key.HEADER} is allowed"
        )
    if not 1 <= len({*values}) == len(values) <= MAX_VALUES:
        raise ValueError(f"must have 1 to {MAX_VALUES} different values, and has {len(values)}")
    told = json.dumps({name: values}, separators=(",", ":"))
    if len(told) > MAX_TEXT:
        raise ValueError(f"has {len(told):,} characters in ASCII; at most {MAX_TEXT:,} are allowed")
    return Selection(name, frozenset(values), told)
