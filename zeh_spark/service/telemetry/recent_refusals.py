"""The last refusals of publish requests, with the values of both sides, for the console.

They are in this process, from its start; a bounded number. A client that repeats a refused call
makes one entry, which counts. Requests that are refused for lack of a right are left out: a
stranger could otherwise push out what operators look for.

Belongs to the publisher's event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zeh_spark.service.store.interface import now_ms
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import problems

KEPT = 200
"""Refusals that are kept."""

DETAIL_CHARACTERS = 2_000
"""Characters of a detail that are kept, because a client chooses some of them."""

_OF_ACCESS = {problems.UNAUTHORIZED, problems.FORBIDDEN, problems.FOREIGN_ORIGIN}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A publish request that was refused.

    Attributes:
        token: The name of its token; empty if none was asked for.
        first: When the first such request was refused, in ms since 1970.
        last: The same of the last one.
    """

    feed: str
    producer: str
    batch: str
    problem: str
    status: int
    detail: str
    members: Mapping[str, Any]
    request_id: str
    token: str
    first: int
    last: int
    count: int


class RecentRefusals:
    """Keeps the last refusals."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, ...], Refusal] = OrderedDict()

    def note(self, named: Mapping[str, Any], problem: Problem, request_id: str, token: str) -> None:
        """Note a refusal. `named` are the feed, producer and batch in the path of the request."""
        if problem.type in _OF_ACCESS:
            return
        feed, producer, batch = (str(named.get(each, "")) for each in ("feed", "producer", "batch"))
        key, now = (feed, producer, batch, problem.name), now_ms()
        before = self._kept.pop(key, None)
        self._kept[key] = Refusal(
            feed, producer, batch, problem.name, problem.status,
            problem.detail[:DETAIL_CHARACTERS], problem.members, request_id, token,
            first=before.first if before else now,
            last=now,
            count=before.count + 1 if before else 1,
        )  # fmt: skip
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def newest(self) -> list[Refusal]:
        return list(reversed(self._kept.values()))
