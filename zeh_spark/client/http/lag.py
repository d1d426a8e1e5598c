"""How far a reader is behind the end of a feed, as its publisher tells.

Our publisher tells it with each plan, and with each page if the reader asks (`wire.page_headers`).
Of another publisher the lag is unknown: the protocol has no call for the end of a feed.

Rule for editors: what is unknown is None, and never 0. Runs on the driver and in commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zeh_spark.client.http import direct_client
from zeh_spark.client.http.transport import Transport
from zeh_spark.wire import wire
from zeh_spark.wire.direct_reads import Plan, PlanRequest


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a reader is behind.

    Args:
        events: for each partition, the events that it has not read.
        seconds: for each partition, the age of the oldest of them, by the publisher's clock.
    """

    events: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def total(self) -> int:
        """The events of all partitions that are not read."""
        return sum(self.events)

    @property
    def age(self) -> float:
        """The age of the oldest event that is not read, in seconds; 0 without one."""
        return max(self.seconds)


def lag_of(plan: Plan, n: int) -> Lag | None:
    """Return the lag after a plan; None if the publisher did not tell it."""
    told = plan.lag
    if not told or any(str(each) not in told for each in range(n)):
        return None
    found = [told[str(each)] for each in range(n)]
    return Lag(tuple(each.events for each in found), tuple(each.ms / 1000 for each in found))


def metrics(lag: Lag | None) -> dict[str, Any]:
    """Return the lag as it stands in a query's progress.

    `eventsBehind` has the total, and the least, the mean and the most of a partition;
    `secondsBehind` has these but the total. Each is None if the lag is unknown.
    """
    if lag is None:
        return {"eventsBehind": None, "secondsBehind": None}
    events = {"total": lag.total, **_spread(lag.events)}
    return {"eventsBehind": events, "secondsBehind": _spread(lag.seconds)}


def _spread(values: Sequence[float]) -> dict[str, float]:
    mean = round(sum(values) / len(values), 3)
    return {"min": min(values), "mean": mean, "max": max(values)}


def lag_at(transport: Transport, cursors: Sequence[str]) -> tuple[Plan, Lag | None]:
    """Ask a publisher how far cursors are behind.

    The plan is one of nothing, which tells the feed's head. The lag is None if it is not told.
    Raises PublisherError if plans are not offered.
    """
    at = wire.by_partition(cursors)
    plan = direct_client.plan(transport, PlanRequest(len(cursors), at, ends=at))
    return plan, lag_of(plan, len(cursors))


def report(feed: str, head: str | None, lag: Lag | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a query's progress tells as its latest offset."""
    document: dict[str, Any] = {"feed": feed, "head": head, **metrics(lag), **more}
    if head is not None and lag is not None:
        document["partitionCount"] = len(lag.events)
        document["partitions"] = {
            str(each): {"cursor": head, "eventsBehind": events, "secondsBehind": seconds}
            for each, (events, seconds) in enumerate(zip(lag.events, lag.seconds, strict=True))
        }
    return document
