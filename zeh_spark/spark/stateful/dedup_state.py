"""What deduplication keeps in a bucket of Spark's state, and to which feed its numbers belong.

The bucket's value tells what all of its keys have in common. The numbers are in parts
(`state_parts`), whose tables are feeds: key -> Seen, the numbers that were seen with the feed's id.
The table `NO_FEED` has those that were seen without one, which belong to the bucket's owner.

Numbers belong to (feed, epoch, key), see `wire.feed_identity`. An event may not tell its feed:
such numbers are of the query's only feed, so the first feed that comes owns them. If a second one
comes, the numbers of both may be mixed in one range, and some of its events may have been dropped
as duplicates of the other's. That is refused.

The module has no side effects. It runs in tasks.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec
from msgspec import Raw

from zeh_spark.errors import CheckpointError, PublisherError
from zeh_spark.spark.stateful.seen import Reuse, Seen
from zeh_spark.spark.stateful.state_buckets import BucketFormat, same
from zeh_spark.spark.stateful.state_parts import Layout, Parts
from zeh_spark.wire.feed_identity import EPOCH, feed_of

NO_FEED = ""
"""Stands for the feed of an event that does not tell it."""


class SeenBucket(msgspec.Struct, array_like=True):
    """The value of a bucket.

    Attributes:
        buckets: The number of buckets, which never changes in a checkpoint.
        owner: The feed of the numbers that were seen without one, once it is known.
        feeds: The tables that were ever there.
        keys: The number of keys of all feeds.
        arguments: The names of the arguments of `drop_seen` that say what numbers belong to.
    """

    buckets: int
    owner: str = NO_FEED
    feeds: list[str] = []
    keys: int = 0
    layout: Layout = msgspec.field(default_factory=Layout)
    arguments: list[str] = []

    def belong(self, arguments: list[str]) -> None:
        """Keep what numbers belong to. Raises CheckpointError if it was something else.

        A feed may be added while no event has told one: `SeenNumbers.claim` decides about it.
        """
        if arguments != [*self.arguments, "feed"] or {*self.feeds} - {NO_FEED}:
            same("arguments", arguments, self.arguments)
        self.arguments = arguments


class SeenNumbers:
    """What deduplication knows of the keys of one bucket, in one batch."""

    def __init__(self, bucket: SeenBucket, parts: Parts) -> None:
        self.bucket, self.parts = bucket, parts

    def claim(self, slots: Collection[tuple[str, str]], sources: int) -> None:
        """Decide which feed owns the numbers that were seen without one.

        `slots` are (feed, key) of all events of a batch; the feed is `NO_FEED` if it is not told.
        `sources` is how many feeds the query reads, as far as its plan tells. Raises
        CheckpointError if the numbers may be of several feeds.
        """
        untold = [key for feed, key in slots if feed == NO_FEED]
        bucket = self.bucket
        if NO_FEED not in bucket.feeds and not untold:
            return
        named = {feed for feed, _ in slots} | {*bucket.feeds, bucket.owner}
        bucket.owner = owner_of(bucket.owner, named - {NO_FEED}, sources)
        for key in untold:
            if bucket.owner in (part := self.parts.of(key)) and key in part[bucket.owner]:
                self._of(NO_FEED, key)[key] = part[bucket.owner].pop(key)

    def slot(self, feed: str, key: str, untold: Collection[str]) -> tuple[str, str]:
        """Return where the numbers of an event are kept; the owner's old keys stay where they are.

        `untold` are the keys of the batch's events without a feed.
        """
        old = feed == self.bucket.owner and (
            key in untold or key in self.parts.of(key).get(NO_FEED, {})
        )
        return (NO_FEED if old else feed), key

    def get(self, feed: str, key: str) -> Seen:
        """Return the numbers of a slot; none if it is new."""
        raw = self.parts.of(key).get(feed, {}).get(key)
        return _seen(raw) if raw is not None else Seen()

    def put(self, feed: str, key: str, seen: Seen) -> None:
        table = self._of(feed, key)
        self.bucket.keys += key not in table
        table[key] = Raw(_encode(seen))

    def save(self) -> bytes:
        """Write the parts, and return the bucket's new value."""
        self.parts.save()
        return FORMAT.write(self.bucket)

    def _of(self, feed: str, key: str) -> dict[str, Raw]:
        if feed not in self.bucket.feeds:
            self.bucket.feeds.append(feed)
        return self.parts.of(key).setdefault(feed, {})


_encode = msgspec.msgpack.Encoder().encode
_seen = msgspec.msgpack.Decoder(Seen).decode

FORMAT = BucketFormat(SeenBucket, version=5)


# Which feed owns the numbers that were seen without one


def owner_of(owner: str, named: Collection[str], sources: int) -> str:
    """Return which feed owns the numbers that were seen without one; `NO_FEED` if none has come.

    `owner` is the one that was decided before, and `named` are the feeds of the batch and of the
    bucket. Raises CheckpointError if more than one feed may own the numbers.
    """
    first = owner or min(named, key=_place, default=NO_FEED)
    # A later epoch of the query's only feed has numbers of its own.
    undecided = owner == NO_FEED and (sources > 1 or _place(first)[0] > 0)
    if undecided or any(not _follows(feed, first) for feed in named):
        raise _mixed(named, owner)
    return first


def _place(epoch: str) -> tuple[int, str]:
    match = re.match(EPOCH, epoch)
    return (int(match[2]) if match else 0), epoch


def _follows(feed: str, owner: str) -> bool:
    """Return whether a feed is the owner, or a later epoch of it.

    The numbers of a later epoch cannot be among the old ones: a key's events are read in the feed's
    order.
    """
    return feed_of(feed) == feed_of(owner) and _place(feed) >= _place(owner)


def _mixed(named: Collection[str], owner: str) -> CheckpointError:
    came = ", ".join(sorted(named)) or "none with an id"
    return CheckpointError(
        f"drop_seen: the checkpoint has numbers that were seen without the id of their feed, in "
        f"events without the header zeh-feed. This query may read several feeds, or several epochs "
        f"of one; here came {came}. Numbers of several feeds may be mixed there, so that events of "
        f"one were dropped for those of another. Start a new checkpoint, with events that have the "
        f"header zeh-feed",
        expected=owner or None,
        got=sorted(named),
        anchor="the-checkpoint-has-numbers-that-were-seen-without-the-id-of-their-feed",
    )


# Numbers that are used again


def used_again(feed: str, key: str, reuse: Reuse) -> PublisherError:
    """Return the error for a publisher that gave a number to two events."""
    producer, partition = split_pair(key)
    return PublisherError(
        f"drop_seen: feed {feed or 'not told'}, producer {producer!r}, stored partition "
        f"{partition!r}: number {reuse.number} has the time {reuse.time}, which is later than "
        f"{reuse.other_time}, the time of number {reuse.other}. Numbers and times (ms since 1970) "
        f"of one history ascend together, so the publisher was restored from a backup, and uses "
        f"numbers again for other events, which would be dropped. Nothing of this batch was "
        f"passed on. Run `zeh-spark new-history FEED --since {reuse.other_time + 1}` at the "
        f"publisher, so that events since then count as new numbers, and start the query again",
        partition=int(partition) if partition.isdecimal() else None,
        anchor="a-number-is-used-again",
    )


def split_pair(text: str) -> tuple[str, str]:
    """Return a feed and its key, or a key's producer and stored partition: SQL joins such pairs."""
    length, _, rest = text.partition(" ")
    return rest[: int(length)], rest[int(length) :]
