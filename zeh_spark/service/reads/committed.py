"""What the consumer of a cursor set has committed of a store's feed, and whether a batch is in it.

A batch is known by the feed's cursor after it, which its receipt has. A consumer has committed it
if it has nothing to read up to there. Cursors of partitions without new events stay where they are.

Rule for editors: what is not certain is not committed: what retention removed before the consumer
passed it, and what is before a cursor that the feed does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from zeh_spark.service.reads.reading import CURSOR, chunks_after
from zeh_spark.service.store.interface import Store
from zeh_spark.service.store.log import FeedState
from zeh_spark.service.store.problems import Problem, no_cursors_on_replica
from zeh_spark.wire import problems

Kept = Mapping[int, Mapping[int, str]]
"""The cursors of a cursor set, by n and partition."""


class Committed(NamedTuple):
    """What a consumer has committed: all up to a position, -1 before it has begun."""

    upto: int
    kept: Kept
    feed: FeedState


@dataclass(frozen=True, slots=True)
class Consumer:
    """The consumer of a cursor set of a store's feed."""

    store: Store
    feed: str
    name: str

    def kept(self) -> Kept:
        return self.store.saved_cursors(self.feed, self.name)

    def committed(self) -> Committed:
        kept = self.kept()
        passed = positions(self.store, self.feed, kept)
        with self.store.snapshot(self.feed) as log:
            feed, anchors = log.state, log.anchors
            if not kept:
                return Committed(-1, kept, feed)
            after = {
                stored: min(read.get(stored % n, 0) for n, read in passed.items())
                for stored in range(feed.partitions)
            }
            unread = next(chunks_after(lambda: log, after, feed.head, 1, 1), None)
            lost = [g for each, g in after.items() if each in anchors and anchors[each].g > g]
            return Committed(min([unread.g - 1 if unread else feed.head, *lost]), kept, feed)

    def check_batch(self, g: int, tag: str) -> None:
        """Raise Problem unless the feed has the batch that ends at a position, with a tag.

        Also if retention has removed it: nothing shows any more that a restore has not undone it,
        or that the consumer did not begin after it was removed.
        """
        with self.store.snapshot(self.feed, [g]) as log:
            found, head = log.tags.get(g), log.state.head
            removed = max((each.g for each in log.anchors.values()), default=0)
        if log.state.replica:
            raise no_cursors_on_replica()
        if (found is None and g <= head) or (found == tag and g <= removed):
            raise Problem(
                problems.RECEIPT_GONE,
                f"await is '{g}.{tag}', and retention has removed that batch, so that whether it "
                f"was committed can no longer be told. Look for its events in the reader's table",
            )
        if found != tag:
            why = f"position {g} has the tag {found!r}" if found else f"the feed ends at {head}"
            raise Problem(
                problems.RECEIPT_OF_ANOTHER_HISTORY,
                f"await is '{g}.{tag}', but {why}: the receipt is of another feed, or of a batch "
                f"that a restore of this feed undid. Check the feed's address; or publish the "
                f"batch again, and await its new receipt",
            )


def positions(store: Store, feed: str, kept: Kept) -> dict[int, dict[int, int]]:
    """Return by n and partition the position after which a consumer is, if the feed has it."""
    found: dict[int, dict[int, int]] = {}
    for n, cursors in kept.items():
        matches = {each: CURSOR.fullmatch(cursor) for each, cursor in cursors.items()}
        given = {each: (int(match[1]), match[2]) for each, match in matches.items() if match}
        with store.snapshot(feed, {g for g, _ in given.values()}) as log:
            found[n] = {each: g for each, (g, tag) in given.items() if log.tags.get(g) == tag}
    return found
