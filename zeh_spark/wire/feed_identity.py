"""The identity of a feed, to which producers' sequence numbers belong.

A producer's numbers are counted per feed, producer and stored partition. So an event is identified
by (feed, producer, stored partition, sequence number). Our publisher tells a feed's random id, and
its epochs, when it is asked without parameters:

    {"partitionCount": 4,
     "feed": {"id": "9f86d081884c7d65",
              "epochs": [{"id": "9f86d081884c7d65", "time": 0},
                         {"id": "9f86d081884c7d65~1", "time": 1764000000000}]}}

After a restore a producer's numbers are used again for other events. `zeh-spark new-history` then
begins an epoch: events whose `zeh-time` is at or after the epoch's `time` have its id. Feeds of
other publishers are named by the option `feedId`, or by their URL, and have one epoch.

The reader adds the id to the headers that it asked for, as `zeh-feed`. Rejected: a stamp added by
the publisher, because it would not fit into lines that are stored already.

Rules for editors: ids are stored in checkpoints, tables and batch names, so their form stays.
`decoding.lines` does for a block's columns at once what `stamp` does for single events; a law in
its tests compares the two. Pure; runs everywhere.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from zeh_spark.errors import MalformedLineError
from zeh_spark.wire import wire

HEADER = "zeh-feed"
"""The header that the reader adds to each event."""

EPOCH = r"^([0-9a-f]{16})~([0-9]{1,9})$"
"""The id of a later epoch: the feed's id and the epoch's number. The first has the feed's id."""

ID = re.compile(r"[0-9a-f]{16}(~[0-9]{1,9})?")
"""The id of an epoch, as our publisher tells it."""

TIME_DIGITS = 18
"""The maximum digits of a `zeh-time`, in ms since 1970: such a number fits 64 bits."""

_TIME = re.compile(rf"[0-9]{{1,{TIME_DIGITS}}}")

_FEED = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Epoch:
    """A part of a feed's history: events committed from `time` on (ms since 1970) have `id`."""

    id: str
    time: int = 0


@dataclass(frozen=True, slots=True)
class FeedIdentity:
    """A feed's id and its epochs.

    Args:
        id: the feed's id; the option `feedId` or the URL if the publisher told none.
        epochs: ordered by time; the first one begins at 0.
        told: whether the publisher told them.
    """

    id: str
    epochs: tuple[Epoch, ...]
    told: bool = True

    def at(self, time: int) -> str:
        """Return the id of the epoch of an event, by its `zeh-time` in ms since 1970."""
        return self.epochs[bisect_right(self.epochs, time, key=lambda each: each.time) - 1].id

    @property
    def feeds(self) -> frozenset[str]:
        """The ids of the feed and of the feeds that it was copied from."""
        return frozenset({self.id, *(feed_of(each.id) for each in self.epochs)})

    def knows(self, feed: str) -> bool:
        """Return whether cursors of the feed with that id, or that name, are valid in this feed."""
        return feed == self.id or (self.told and feed in self.feeds)

    def document(self) -> dict[str, Any]:
        return {"id": self.id, "epochs": [{"id": e.id, "time": e.time} for e in self.epochs]}


def untold(name: str) -> FeedIdentity:
    """Return the identity of a feed whose publisher tells none: the option `feedId`, or the URL."""
    return FeedIdentity(name, (Epoch(name),), told=False)


def parse(document: object) -> FeedIdentity:
    """Return the identity in the member `feed` of a discovery answer.

    Raises ValueError if it has another form.
    """
    if not isinstance(document, Mapping):
        raise ValueError(f"feed must be an object, got {document!r}")
    feed, listed = document.get("id"), document.get("epochs")
    if not isinstance(feed, str) or not _FEED.fullmatch(feed):
        raise ValueError(f"feed.id must be 16 hexadecimal digits, got {feed!r}")
    if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
        raise ValueError(f"feed.epochs must be a list that is not empty, got {listed!r}")
    epochs = tuple(_epoch(each) for each in listed)
    times = [each.time for each in epochs]
    if times[0] != 0 or any(a >= b for a, b in pairwise(times)):
        raise ValueError(f"feed.epochs must begin at time 0 and ascend, got {times}")
    if feed_of(epochs[-1].id) != feed:
        raise ValueError(f"the last of feed.epochs must be of feed {feed!r}, got {epochs[-1].id!r}")
    return FeedIdentity(feed, epochs)


def _epoch(document: object) -> Epoch:
    if isinstance(document, Mapping):
        name, time = document.get("id"), document.get("time")
        if isinstance(name, str) and ID.fullmatch(name) and type(time) is int and time >= 0:
            return Epoch(name, time)
    raise ValueError(f"each of feed.epochs must have an id and a time, got {document!r}")


def feed_of(epoch: str) -> str:
    """Return the feed's id, given the id of one of its epochs."""
    match = re.match(EPOCH, epoch)
    return match[1] if match else epoch


def stamp(events: Sequence[wire.Event], feed: FeedIdentity | None) -> bool:
    """Set the header `zeh-feed` of each event to the id of its epoch.

    It returns False at the first event whose `zeh-time` does not tell in which of several epochs it
    was committed. Events after it are not changed.
    """
    for event in events if feed else ():
        headers = dict(event.headers or {})
        epoch = _epoch_at(headers.get(wire.TIME_HEADER), feed)  # type: ignore[arg-type]  # not None here
        if epoch is None:
            return False
        headers.pop(HEADER, None)
        event.headers = {**headers, HEADER: epoch}
    return True


def _epoch_at(time: str | None, feed: FeedIdentity) -> str | None:
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
