"""What the consumer of a cursor set has committed of a store's feed, and whether a batch is in it.

A batch is known by the feed's cursor after it, which its receipt has. A consumer has committed the
batch if it has read each stored partition up to there. Its cursors alone do not tell: the one of a
partition without events of the batch stays where it was.

Rule for editors: what is not certain is not committed. What retention removed before the consumer
passed it was not read, and a cursor that the feed does not have stands for the beginning. Runs in
the publisher's worker threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zeh_spark.service.reads.reading import chunks_after, parse_cursor
from zeh_spark.service.store.interface import Store
from zeh_spark.service.store.log import FeedState
from zeh_spark.service.store.problems import Problem, no_cursors_on_replica
from zeh_spark.wire import problems

Kept = Mapping[int, Mapping[int, str]]
"""The cursors of a cursor set, by n and partition."""


NOTHING = -1
"""A position before all of a feed."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What a consumer has committed, as of `feed`.

    Attributes:
        kept: Its cursors: while they stay the same, so does what it has committed.
        upto: The position up to which it has committed everything; NOTHING before it has begun.
    """

    feed: FeedState
    kept: Kept
    upto: int


def committed(store: Store, name: str, cursor_set: str) -> Committed:
    """Return what a consumer has committed. Raises Problem if the store is a replica."""
    kept = store.saved_cursors(name, cursor_set)
    passed = positions(store, name, kept)
    with store.snapshot(name) as log:
        feed, anchors = log.state, log.anchors
        if feed.replica:
            raise no_cursors_on_replica()
        if not kept:
            return Committed(feed, kept, NOTHING)
        after = {
            stored: min(read.get(stored % n, 0) for n, read in passed.items())
            for stored in range(feed.partitions)
        }
        unread = next(chunks_after(lambda: log, after, feed.head, 1, 1), None)
        ends = [g for stored, g in after.items() if stored in anchors and anchors[stored].g > g]
        return Committed(feed, kept, min([unread.g - 1 if unread else feed.head, *ends]))


def positions(store: Store, name: str, kept: Kept) -> dict[int, dict[int, int]]:
    """Return by n and partition the position after which a consumer is, if the feed has it."""
    found: dict[int, dict[int, int]] = {}
    for n, cursors in kept.items():
        given = {each: _position(each, cursor) for each, cursor in cursors.items()}
        with store.snapshot(name, {g for g, _ in given.values()}) as log:
            found[n] = {each: g for each, (g, tag) in given.items() if log.tags.get(g) == tag}
    return found


def _position(partition: int, cursor: str) -> tuple[int, str]:
    try:
        return parse_cursor(partition, cursor) or (0, "")
    except Problem:
        return 0, ""


def check_batch(store: Store, name: str, g: int, tag: str) -> None:
    """Raise Problem unless the feed has the batch that ends at a position, with a tag.

    Also if retention has removed it: nothing shows any more that a restore has not undone it.
    """
    with store.snapshot(name, [g]) as log:
        found, head = log.tags.get(g), log.state.head
        if log.state.replica:
            raise no_cursors_on_replica()
        if found is None and g <= head:
            raise Problem(
                problems.RECEIPT_GONE,
                f"await is '{g}.{tag}', and retention has removed that batch, so that whether it "
                f"was committed can no longer be told. Look for its events in the reader's table",
            )
        if found != tag:
            raise Problem(
                problems.RECEIPT_OF_ANOTHER_HISTORY,
                f"await is '{g}.{tag}', but "
                + (f"position {g} has the tag {found!r}" if found else f"the feed ends at {head}")
                + ": the receipt is of another feed, or of a batch that a restore of this feed "
                "undid. Check the feed's address; or publish the batch again, and await its new "
                "receipt",
            )
