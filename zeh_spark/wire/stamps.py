"""Add the header `zeh-feed` to single events: the id of the epoch in which each was committed.

Rule for editors: `decoding.lines` does the same for a block's columns at once; a law in its tests
compares the two. Pure. Runs in tasks and in commands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from zeh_spark.errors import MalformedLineError
from zeh_spark.wire import wire
from zeh_spark.wire.feed_identity import HEADER, FeedIdentity

TIME_DIGITS = 18
"""The maximum digits of a `zeh-time`, in ms since 1970: such a number fits 64 bits."""

_TIME = re.compile(rf"[0-9]{{1,{TIME_DIGITS}}}")


def stamp(events: Sequence[wire.Event], feed: FeedIdentity | None) -> bool:
    """Set the header `zeh-feed` of each event to the id of its epoch.

    It returns False at the first event whose `zeh-time` does not tell in which of several epochs it
    was committed. Events after it are not changed.
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
    """Parse one event line as in `wire.parse_event`, and add its header `zeh-feed`.

    Raises MalformedLineError if it is no event, or its epoch is not known.
    """
    event = wire.parse_event(line, partition)
    if event is not None and feed and not stamp([event], feed):
        raise MalformedLineError(
            f"partition {partition}: an event has no valid {wire.TIME_HEADER!r} among its headers, "
            f"so it is not known to which of the feed's {len(feed.epochs)} epochs it belongs: "
            f"{wire.excerpt(line)}. Tell the publisher's owner, or put such lines into a column "
            f"with mode=PERMISSIVE",
            partition=partition,
            body=wire.excerpt(line),
            anchor="headers-without-zeh-time",
        )
    return event
