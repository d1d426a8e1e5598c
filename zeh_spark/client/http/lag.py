"""How far a reader is behind the end of a feed, as its publisher tells.

Our publisher tells it with each plan, and with each page if the reader asks (`wire.page_headers`).
Of another publisher the lag is unknown: the protocol has no call for the end of a feed.

Rule for editors: what is unknown is None, and never 0. Runs on the driver and in commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
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
        partitions: for each partition that it reads, the events that it has not read, and the age
            of the oldest of them in seconds, by the publisher's clock; None if it is not known.
        at_least: whether there may be more events, because they were counted up to a limit.
    """

    partitions: Mapping[int, tuple[int, float | None]]
    at_least: bool = False

    @property
    def total(self) -> int:
        """The events of all partitions that are not read."""
        return sum(events for events, _ in self.partitions.values())

    def of_partitions(self) -> dict[str, dict[str, Any]]:
        """Return the lag of each partition as documents have it."""
        return {
            str(each): {"eventsBehind": events, "secondsBehind": seconds}
            for each, (events, seconds) in self.partitions.items()
        }


def lag_of(told: Mapping[str, PartitionLag] | None, partitions: Iterable[int]) -> Lag | None:
    """Return the lag that a publisher told of partitions; None if it did not tell all."""
    if not told or any(str(each) not in told for each in partitions):
        return None
    found = {each: told[str(each)] for each in partitions}
    ages = {each: None if at.ms is None else at.ms / 1000 for each, at in found.items()}
    return Lag(
        {each: (at.events, ages[each]) for each, at in found.items()},
        any(each.more for each in found.values()),
    )


def metrics(lag: Lag | None) -> dict[str, Any]:
    """Return the lag as it stands in a query's progress.

    `eventsBehind` has the total, and the least, the mean and the most of a partition, and
    `atLeast` if there may be more; `secondsBehind` has these but the total. Each is None if it is
    unknown.
    """
    if lag is None:
        return {"eventsBehind": None, "secondsBehind": None}
    counts, ages = zip(*lag.partitions.values(), strict=True)
    events = {"total": lag.total, **_spread(counts)}
    known = [each for each in ages if each is not None]
    return {
        "eventsBehind": {**events, "atLeast": True} if lag.at_least else events,
        "secondsBehind": _spread(known) if len(known) == len(ages) else None,
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    mean = round(sum(values) / len(values), 3)
    return {"min": min(values), "mean": mean, "max": max(values)}


def lag_at(transport: Transport, cursors: Mapping[int, str], n: int) -> Lag | None:
    """Ask a publisher how far cursors are behind; None if it has not counted the feed yet.

    They are those of some of n partitions. Pages of no events tell it. Raises PublisherError if it
    is another publisher.
    """
    told: dict[str, PartitionLag] = {}
    left = iter(cursors.items())
    while some := dict(islice(left, page_headers.MOST_LAGS)):
        standing = transport.retry().call(partial(_told, transport, some, n))
        if standing.epoch is None:
            raise PublisherError(
                f"the publisher of {transport.url} does not tell how far a reader is behind. Only "
                f"zeh-spark serve does. See what is unread with zeh-spark tail, from the query's "
                f"cursors"
            )
        told.update(standing.lags or {})
    return lag_of(told, cursors)


def _told(transport: Transport, cursors: Mapping[int, str], n: int) -> Standing:
    asked = {f"cursor{each}": cursor for each, cursor in cursors.items()}
    query = urlencode({"n": n, "pagesizehint": 0, **asked})
    with closing(transport.body(query, {page_headers.TELL: "1"})) as body:
        return page_headers.parse_fields(body.headers)


def report(
    feed: str, count: int | None, head: str | None, lag: Lag | None, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a query's progress tells as its latest offset."""
    document: dict[str, Any] = {"feed": feed, "head": head, **metrics(lag), **more}
    if head is not None and lag is not None:
        document["partitionCount"] = count
        document["partitions"] = {
            each: {"cursor": head, **behind} for each, behind in lag.of_partitions().items()
        }
    return document
