"""How far a reader is behind the end of a feed, as its publisher tells.

Our publisher tells it with each plan, and with each page if the reader asks (`wire.page_headers`).
Of another publisher the lag is unknown: the protocol has no call for the end of a feed.

Rule for editors: what is unknown is None, and never 0. Runs on the driver and in commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from zeh_spark.errors import PublisherError
from zeh_spark.wire import page_headers
from zeh_spark.wire.direct_reads import PartitionLag
from zeh_spark.wire.page_headers import Standing

if TYPE_CHECKING:
    from zeh_spark.client.http.transport import Transport


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a reader is behind.

    Args:
        events: for each partition, the events that it has not read.
        seconds: for each partition, the age of the oldest of them, by the publisher's clock; None
            if it is not known.
        at_least: whether there may be more events, because they were counted up to a limit.
    """

    events: tuple[int, ...]
    seconds: tuple[float | None, ...]
    at_least: bool = False

    @property
    def total(self) -> int:
        """The events of all partitions that are not read."""
        return sum(self.events)


def lag_of(told: Mapping[str, PartitionLag] | None, n: int) -> Lag | None:
    """Return the lag that a publisher told of n partitions; None if it did not tell all."""
    if not told or any(str(each) not in told for each in range(n)):
        return None
    found = [told[str(each)] for each in range(n)]
    return Lag(
        tuple(each.events for each in found),
        tuple(None if each.ms is None else each.ms / 1000 for each in found),
        any(each.more for each in found),
    )


def metrics(lag: Lag | None) -> dict[str, Any]:
    """Return the lag as it stands in a query's progress.

    `eventsBehind` has the total, and the least, the mean and the most of a partition, and
    `atLeast` if there may be more; `secondsBehind` has these but the total. Each is None if it is
    unknown.
    """
    if lag is None:
        return {"eventsBehind": None, "secondsBehind": None}
    events = {"total": lag.total, **_spread(lag.events)}
    known = [each for each in lag.seconds if each is not None]
    return {
        "eventsBehind": {**events, "atLeast": True} if lag.at_least else events,
        "secondsBehind": _spread(known) if len(known) == len(lag.seconds) else None,
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    mean = round(sum(values) / len(values), 3)
    return {"min": min(values), "mean": mean, "max": max(values)}


def lag_at(transport: Transport, cursors: Sequence[str]) -> Lag | None:
    """Ask a publisher how far cursors are behind; None if it has not counted the feed yet.

    Pages of no events tell it. Raises PublisherError if it is another publisher.
    """
    told: dict[str, PartitionLag] = {}
    for first in range(0, len(cursors), page_headers.MOST_LAGS):
        some = range(first, min(len(cursors), first + page_headers.MOST_LAGS))
        standing = transport.retry().call(partial(_told, transport, cursors, some))
        if standing.epoch is None:
            raise PublisherError(
                f"the publisher of {transport.url} does not tell how far a reader is behind. Only "
                f"zeh-spark serve does. See what is unread with zeh-spark tail, from the query's "
                f"cursors"
            )
        told.update(standing.lags or {})
    return lag_of(told, len(cursors))


def _told(transport: Transport, cursors: Sequence[str], some: range) -> Standing:
    asked = {f"cursor{each}": cursors[each] for each in some}
    query = urlencode({"n": len(cursors), "pagesizehint": 0, **asked})
    with closing(transport.body(query, {page_headers.TELL: "1"})) as body:
        return page_headers.parse_fields(body.headers)


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
