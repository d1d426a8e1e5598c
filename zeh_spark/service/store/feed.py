"""What the read API asks of a feed, and the feed that a store's chunks make.

Rules of a page of `ChunkFeed`, in this order:

1. A cursor is `g.tag`, the last chunk that was read, or `_first` (before the oldest chunk), or
   `_last` (the last chunk of the partitions that the reader's partition covers). Any other spelling
   is refused, and so is a tag that the feed did not give at g, and a cursor after which something
   that it covers was removed unread (410).
2. Partition v of a reader's n has the stored partitions p with p mod n == v: the same rule for n
   equal, smaller or larger.
3. Chunks of all asked partitions come in order of g, as wholes, until the hint is reached, at least
   one. Hint 0 gives none.
4. A cursor follows each chunk. An asked partition without a chunk gets the cursor with which it was
   asked for; `_first` and `_last` become `g.tag`.

The same request gets the same answer until more is committed. Runs in the publisher's worker
threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zeh_spark.service.store import direct_plans, direct_reads
from zeh_spark.service.store.access import Maker
from zeh_spark.service.store.answer_cache import AnswerCache
from zeh_spark.service.store.cursor_sets import NOBODY
from zeh_spark.service.store.interface import Chunk, FeedState, Store
from zeh_spark.service.store.problems import no_cursors, no_cursors_on_replica
from zeh_spark.service.store.reading import (
    READ_BYTES,
    check_history_kept,
    check_kept,
    covered,
    cursors_at,
    frames_of,
    groups,
    in_order,
    positions,
    scanned,
)
from zeh_spark.wire import wire
from zeh_spark.wire.direct_reads import OFFER, ChunksRequest, Plan, PlanRequest
from zeh_spark.wire.feed_identity import FeedIdentity
from zeh_spark.wire.served_lines import Block, stamps
from zeh_spark.wire.upload_format import lines_of

DEFAULT_HINT = 10_000
"""Events of a page, about, if the reader gives no hint."""

_NEAR = 64
"""Positions that are no further apart are read by one scan, if they are of all partitions."""

DELIVERY = "exactly-once"
"""What discovery tells of a store's feed as `delivery`: see docs/explanation/protocols.md."""

EVERY = (wire.ALL_HEADERS,)
"""The headers of a reader that wants all."""


class Feed(ABC):
    """A feed of any kind. Methods may block and are called from worker threads.

    A feed of your own has `partitions`, `page` and `version`. The other methods say that it has no
    identity and keeps no cursors for readers, until it overrides them.
    """

    partitions: int
    """The number of stored partitions."""

    @abstractmethod
    def page(
        self, asked: Mapping[int, str], n: int, hint: int | None, headers: Collection[str]
    ) -> Iterator[Block]:
        """Yield the answer to a request, of about `hint` events.

        There is at least one block for each asked partition. With hint 0 all blocks are empty. No
        block has a special cursor.

        Args:
            asked: Cursors by partition of the reader's n.
            n: How many partitions the reader works with.
            hint: How many events to give, about; None if the feed decides.
            headers: Names of the headers that the reader wants, or `_all` among them. The feed need
                not read the others; if they are in its lines, the publisher leaves them out.

        Raises:
            Problem: Cursors or n are refused. It is raised before the first block.
        """

    @abstractmethod
    def version(self) -> object:
        """Return a value that differs once there may be more events.

        It is called every few milliseconds while a reader waits.
        """

    def own_version(self) -> object:
        """Return a value that differs once this feed may have more events.

        It is called once `version` has changed, which may also change with other feeds, and before
        a reader that may wait is answered.
        """
        return self.version()

    def identity(self) -> FeedIdentity | None:
        """Return the feed's id and its epochs as of now; None if it has no id.

        Readers name a feed without an id by its URL, or by their option `feedId`.

        Raises:
            StoreError: The store does not answer. Returning None then would make another feed of
                it.
        """
        return None

    def description(self) -> dict[str, Any]:
        """Return what discovery tells of the feed, if it has an identity, besides that."""
        return {}

    def save_cursors(
        self,
        name: str,
        n: int,
        cursors: Mapping[int, str],
        consumer: str = NOBODY,
        maker: Maker | None = None,
    ) -> None:
        """Keep a reader's cursors under a name, the spec's `cursorset` (see `Store.save_cursors`).

        Raises:
            Problem: The feed keeps no cursors.
        """
        raise no_cursors()

    def load_cursors(self, name: str, n: int, consumer: str = NOBODY) -> dict[int, str]:
        """Return the kept cursors (see `Store.load_cursors`).

        Raises:
            Problem: The feed keeps no cursors.
        """
        raise no_cursors()


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a page before its events are read: neighbouring chunks.

    The last part of a page may have no chunks, but the cursors of asked partitions without any.
    """

    chunks: Sequence[Chunk]
    cursors: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Outline:
    """What a page will have, before its events are read.

    Attributes:
        feed: The feed as of the page.
        starts: The cursors that were asked with, by partition; special ones as what they mean.
    """

    feed: FeedState
    starts: Mapping[int, str]
    parts: Iterator[Part]

    @property
    def state(self) -> object:
        """A value that differs once the feed may have more events."""
        return _state_of(self.feed)


class ChunkFeed(Feed):
    """A feed of a store.

    Guarantee: a reader gets every event once and in order of g, however it cuts its pages. Memory
    is that of one read, whatever the hint.

    Attributes:
        found: The feed as of when this was made.
    """

    def __init__(self, store: Store, name: str, cache: AnswerCache | None = None) -> None:
        self.found = store.feed(name)
        self.partitions = self.found.partitions
        self._store = store
        self._name = name
        self._cache = cache or AnswerCache(0)

    def page(
        self, asked: Mapping[int, str], n: int, hint: int | None, headers: Collection[str] = EVERY
    ) -> Iterator[Block]:
        """Yield a page (see `Feed.page`). Lines have all their headers, whichever are wanted."""
        for part in self.outline(asked, n, hint).parts:
            yield from self.read(part)

    def outline(
        self, asked: Mapping[int, str], n: int, hint: int | None, now: FeedState | None = None
    ) -> Outline:
        """Return what a page will have (see `Feed.page`), to `read` its parts one by one.

        `now` is the feed as of now, if it was just read. Raises Problem, here or while the parts
        are taken, if cursors or n are refused.
        """
        feed = now or self.now()
        found = positions(self._store, feed, asked, n)
        starts = {each: cursor for each, (_, cursor) in found.items()}
        stored = {
            partition: position
            for each, (position, _) in found.items()
            for partition in covered(each, n, feed.partitions)
        }

        def parts() -> Iterator[Part]:
            cursors = dict(starts)
            before: list[Chunk] = []
            for group in self._groups(stored, feed.head, DEFAULT_HINT if hint is None else hint):
                check_history_kept(self._store, self._name, before)
                before = group[-1:]
                for chunk in group:
                    cursors.pop(chunk.partition % n, None)
                yield Part(group, {})
            if cursors:
                yield Part((), cursors)

        return Outline(feed, starts, parts())

    def read(self, part: Part) -> Iterator[Block]:
        """Yield the blocks of a part. Raises Problem if its chunks were removed meanwhile."""
        group = part.chunks
        for each, cursor in part.cursors.items():
            yield Block(each, b"", cursor)
        frames = frames_of(self._store, self._name, group) if group else []
        for chunk, frame in zip(group, frames, strict=True):
            stamped = stamps(chunk.partition, chunk.time, chunk.producer, chunk.batch)
            yield Block(chunk.partition, lines_of(frame), chunk.cursor, stamped, chunk.sequence)

    def plan(self, request: PlanRequest) -> Plan:
        return direct_plans.plan(self._store, self._name, request)

    def chunks(
        self, request: ChunksRequest, count: Callable[[int], object] = int
    ) -> Iterator[bytes]:
        return direct_reads.requested_chunks(self._store, self._name, request, self._cache, count)

    def cursors_at(self, n: int, time: int) -> dict[int, str]:
        return cursors_at(self._store, self._name, n, time)

    def version(self) -> object:
        return self._store.version()

    def now(self) -> FeedState:
        """Return the feed as of now."""
        return self._store.feed(self._name)

    def own_version(self) -> object:
        return _state_of(self.now())

    def identity(self) -> FeedIdentity:
        return self._store.identity(self._name)

    def description(self) -> dict[str, Any]:
        found = {"replica": True} if self.found.replica else {"delivery": DELIVERY}
        return {**found, "reads": OFFER}

    def save_cursors(
        self,
        name: str,
        n: int,
        cursors: Mapping[int, str],
        consumer: str = NOBODY,
        maker: Maker | None = None,
    ) -> None:
        """Keep a reader's cursors under a name (see `Store.save_cursors`). A replica refuses."""
        if self.found.replica:
            raise no_cursors_on_replica()
        self._store.save_cursors(self._name, name, n, cursors, consumer, maker)

    def load_cursors(self, name: str, n: int, consumer: str = NOBODY) -> dict[int, str]:
        """Return the kept cursors (see `Store.load_cursors`). A replica refuses."""
        if self.found.replica:
            raise no_cursors_on_replica()
        return self._store.load_cursors(self._name, name, n, consumer)

    def _groups(self, after: Mapping[int, int], head: int, hint: int) -> Iterator[list[Chunk]]:
        def look_up(positions: Mapping[int, int], limit: int) -> list[Chunk]:
            found = self._store.chunks(self._name, positions, head, limit)
            check_kept(self._store, self._name, positions)
            return found

        low, high = min(after.values(), default=0), max(after.values(), default=0)
        if len(after) == self.partitions and high - low <= _NEAR:
            found = scanned(self._store, self._name, after, low, head, 16, 1024)
            found = (each for each in found if each.g > after[each.partition])
        else:
            found = in_order(look_up, after)
        return groups(up_to_hint(found, hint), READ_BYTES, 64)


def _state_of(feed: FeedState) -> object:
    return feed.head, feed.history


def up_to_hint(chunks: Iterable[Chunk], hint: int) -> Iterator[Chunk]:
    """Yield whole chunks until there are `hint` events, at least one, unless the hint is 0."""
    events = 0
    if not hint:
        return
    for chunk in chunks:
        yield chunk
        events += chunk.events
        if events >= hint:
            return
