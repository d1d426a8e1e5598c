"""The values of both sides of a refusal, next to each other. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zeh_spark.service.telemetry.recent_refusals import Refusal
from zeh_spark.wire.problems import REMEDY

_OF_CALL = ("incarnation", "run", "batch", "given")
_OF_PUBLISHER = ("current", "published")
_LAST = {"lastBatch": "batch"}
"""Names of the publisher's values that stand beside a value of the call with another name."""


@dataclass(frozen=True, slots=True)
class Sides:
    """What the publisher has, and what the call has.

    Attributes:
        rows: Name, the publisher's value, and the call's value; "" where a side has none.
        remedy: What makes the publisher take the batch, in words; "" if the answer has none.
    """

    rows: list[tuple[str, str, str]]
    facts: list[tuple[str, str]]
    option: str
    remedy: str
    detail: str


def sides(refusal: Refusal) -> Sides:
    members = dict(refusal.members)
    remedy, option = str(members.pop(REMEDY, "")), members.pop("option", {})
    members.pop("producer", None)
    call, publisher = [*_OF_CALL], [*_OF_PUBLISHER]
    # A commit names what it expects, and the publisher has found something else; a call that gives
    # something is compared with what the publisher has found, or expects.
    publisher.append("found")
    (publisher if "given" in members else call).append("expected")
    theirs = dict(_flat({each: members.pop(each) for each in call if each in members}))
    ours = {
        _LAST.get(name, name): value
        for name, value in _flat({each: members.pop(each) for each in publisher if each in members})
    }
    names = [*ours, *(each for each in theirs if each not in ours)]
    rows = [(each, ours.get(each, ""), theirs.get(each, "")) for each in names] if ours else []
    facts = [] if ours else list(theirs.items())
    detail = refusal.detail
    if remedy and detail.endswith(f"; {remedy}"):
        detail = detail[: -len(remedy) - 2]
    return Sides(
        rows,
        [*facts, *_flat(members)],
        " ".join(f"{name}={value}" for name, value in option.items()),
        remedy,
        detail,
    )


def _flat(members: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield names and values, those of objects by their own names."""
    for name, value in members.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            is_none = value is None or (name == "lastBatch" and value == -1)
            yield name, "none" if is_none else str(value)
