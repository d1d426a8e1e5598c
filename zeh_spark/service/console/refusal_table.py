"""The values of the publisher and of the request that it refused, next to each other. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zeh_spark.service.telemetry.recent_refusals import Refusal
from zeh_spark.wire.problems import REMEDY

_OF_REQUEST = ("incarnation", "run", "batch", "given")
_OF_PUBLISHER = ("current", "published")
_LAST = {"lastBatch": "batch"}
"""Names of the publisher's values that stand beside a value of the request with another name."""


@dataclass(frozen=True, slots=True)
class Sides:
    """What the publisher has, and what the request has.

    Attributes:
        rows: Names with two values that differ: the publisher's one, and that of the request.
        facts: Names with values that only one side has.
        remedy: What makes the publisher accept the batch, in words; "" if the answer has none.
    """

    rows: list[tuple[str, str, str]]
    facts: list[tuple[str, str]]
    remedy: str
    detail: str


def sides(refusal: Refusal) -> Sides:
    members = dict(refusal.members)
    remedy = str(members.pop(REMEDY, ""))
    for told in ("producer", "option"):  # above the values, and in the remedy
        members.pop(told, None)
    request, publisher = [*_OF_REQUEST], [*_OF_PUBLISHER]
    # A commit names what it expects, and the publisher has found something else; a request that
    # gives something is compared with what the publisher has found, or expects.
    publisher.append("found")
    (publisher if "given" in members else request).append("expected")
    theirs = dict(_flat({each: members.pop(each) for each in request if each in members}))
    ours = {
        _LAST.get(name, name): value
        for name, value in _flat({each: members.pop(each) for each in publisher if each in members})
    }
    both = [each for each in ours if each in theirs]
    rows = [(each, ours[each], theirs[each]) for each in both if ours[each] != theirs[each]]
    facts = [each for each in [*theirs.items(), *ours.items()] if each[0] not in (*both, "batch")]
    detail = refusal.detail
    if remedy and detail.endswith(f"; {remedy}"):
        detail = detail[: -len(remedy) - 2]
    return Sides(rows, [*facts, *_flat(members)], remedy, detail)


def _flat(members: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield names and values, those of objects by their own names."""
    for name, value in members.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            is_none = value is None or (name == "lastBatch" and value == -1)
            yield name, "none" if is_none else str(value)
