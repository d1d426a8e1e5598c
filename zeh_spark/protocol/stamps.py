"""The header `zeh-feed` of single events: the id of the epoch in which each was committed. Pure.

Rule for editors: `decode` does the same for a block's columns at once; a law in its tests compares
the two.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from zeh_spark.errors import MalformedLineError
from zeh_spark.protocol import wire
from zeh_spark.protocol.feed_identity import HEADER, FeedIdentity

TIME_DIGITS = 18
"""The most that a `zeh-time` has: ms since 1970, which fit 64 bits."""

_TIME = re.compile(rf"[0-9]{{1,{TIME_DIGITS}}}")


def stamp(events: Sequence[wire.Event], feed: FeedIdentity | None) -> bool:
    """Put the id of its epoch among each event's headers, as `zeh-feed`; one that is there already
    is replaced.

    Returns False at the first event whose `zeh-time` does not tell in which of several epochs it
    was committed.
    """
    for event in events if feed else ():
        headers = dict(event.headers or {})
        epoch = _epoch(headers.get(wire.TIME_HEADER), feed)  # type: ignore[arg-type]  # not None here
        if epoch is None:
            return False
        headers.pop(HEADER, None)
        event.headers = {**headers, HEADER: epoch}
    return True


def _epoch(time: str | None, feed: FeedIdentity) -> str | None:
    if len(feed.epochs) == 1:
        return feed.epochs[0].id
    return feed.at(int(time)) if time and _TIME.fullmatch(time) else None


def parse_stamped(line: bytes, partition: int, feed: FeedIdentity | None) -> wire.Event | None:
    """Parse one event line, as `wire.parse_event`, and stamp it.

    Raises MalformedLineError also for an event that belongs to none of several epochs.
    """
    event = wire.parse_event(line, partition)
    if event is not None and feed and not stamp([event], feed):
        raise MalformedLineError(
            f"partition {partition}: an event has no valid {wire.TIME_HEADER!r} among its headers, "
            f"so it cannot be told to which of the feed's {len(feed.epochs)} epochs it belongs: "
            f"{wire.excerpt(line)}; tell the publisher's owner, or put such lines into a column "
            f"with mode=PERMISSIVE",
            partition=partition,
            body=wire.excerpt(line),
        )
    return event
