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

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol, runtime_checkable

from zeh_spark.errors import StoreError
from zeh_spark.protocol import wire
from zeh_spark.protocol.direct_reads import ChunksRequest, Plan, PlanRequest
from zeh_spark.protocol.feed_identity import FeedIdentity
from zeh_spark.protocol.served_lines import Block, stamps
from zeh_spark.protocol.upload_format import lines_of
from zeh_spark.store import direct_reads
from zeh_spark.store.cursor_sets import NOBODY
from zeh_spark.store.interface import Chunk, Store
from zeh_spark.store.reading import READ_BYTES, check_kept, covered, in_order, positions

DEFAULT_HINT = 10_000
"""Events of a page, about, if the reader gives no hint."""

DELIVERY = "exactly-once"
"""What discovery tells of a store's feed as `delivery`: see docs/explanation/protocols.md."""

EVERY = (wire.ALL_HEADERS,)
"""The headers of a reader that wants all."""


class Feed(Protocol):
    """A feed of any kind. Methods may block and are called from worker threads."""

    @property
    def partitions(self) -> int:
        """The number of stored partitions."""

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

    def version(self) -> object:
        """Return a value that differs once there may be more events.

        It is called every few milliseconds while a reader waits.
        """


@runtime_checkable
class TellsState(Protocol):
    """A feed whose `version` also changes with other feeds, and that can tell its own state."""

    def state(self) -> object:
        """Return a value that differs once this feed may have more events.

        It is called once `version` has changed, and before a reader that may wait is answered.
        """


@runtime_checkable
class KeepsCursors(Protocol):
    """A feed that can also keep cursors for its readers, the spec's `cursorset`."""

    def save_cursors(
        self, name: str, n: int, cursors: Mapping[int, str], consumer: str = NOBODY
    ) -> None:
        """Keep a reader's cursors under a name (see `Store.save_cursors`)."""

    def load_cursors(self, name: str, n: int, consumer: str = NOBODY) -> dict[int, str]:
        """Return the kept cursors (see `Store.load_cursors`)."""


@runtime_checkable
class TellsIdentity(Protocol):
    """A feed that tells its readers which feed it is (see `protocol.feed_identity`).

    Readers name any other feed by its URL, or by their option `feedId`.
    """

    def identity(self) -> FeedIdentity | None:
        """Return the feed's id and its epochs as of now; None if it has no id. May block.

        Raises:
            StoreError: The store does not answer. Returning None then would make another feed of
                it.
        """


@runtime_checkable
class DirectFeed(Protocol):
    """A feed whose readers may plan a batch, and fetch its chunks as they are stored."""

    def plan(self, request: PlanRequest) -> Plan:
        """Return a plan (see `store.direct_reads.plan`)."""

    def chunks(self, request: ChunksRequest) -> Iterator[bytes]:
        """Yield an answer with chunks (see `store.direct_reads.requested_chunks`)."""


class ChunkFeed:
    """A feed of a store.

    Guarantee: a reader gets every event once and in order of g, however it cuts its pages. Memory
    is that of one read, whatever the hint.

    Args:
        store: The store.
        name: The feed's name.

    Raises:
        UnknownFeedError: The store has no such feed.
    """

    def __init__(self, store: Store, name: str) -> None:
        self.partitions = store.feed(name).partitions
        self._store = store
        self._name = name

    def page(
        self, asked: Mapping[int, str], n: int, hint: int | None, headers: Collection[str] = EVERY
    ) -> Iterator[Block]:
        """Yield a page (see `Feed.page`). Lines have all their headers, whichever are wanted."""
        feed = self._store.feed(self._name)
        found = positions(self._store, feed, asked, n)
        cursors = {each: cursor for each, (_, cursor) in found.items()}
        stored = {
            partition: position
            for each, (position, _) in found.items()
            for partition in covered(each, n, feed.partitions)
        }
        for block in self._blocks(stored, feed.head, DEFAULT_HINT if hint is None else hint):
            cursors.pop(block.partition % n, None)
            yield block
        for each, cursor in cursors.items():
            yield Block(each, b"", cursor)

    def plan(self, request: PlanRequest) -> Plan:
        """Return a plan (see `store.direct_reads.plan`)."""
        return direct_reads.plan(self._store, self._name, request)

    def chunks(self, request: ChunksRequest) -> Iterator[bytes]:
        """Yield an answer with chunks (see `store.direct_reads.requested_chunks`)."""
        return direct_reads.requested_chunks(self._store, self._name, request)

    def version(self) -> object:
        """Return the store's version (see `Feed.version`)."""
        return self._store.version()

    def state(self) -> object:
        """Return the position of the newest chunk and the history up to it (see `TellsState`)."""
        feed = self._store.feed(self._name)
        return feed.head, feed.history

    def identity(self) -> FeedIdentity:
        """Return the feed's id and its epochs (see `TellsIdentity.identity`)."""
        return self._store.identity(self._name)

    def save_cursors(
        self, name: str, n: int, cursors: Mapping[int, str], consumer: str = NOBODY
    ) -> None:
        """Keep a reader's cursors under a name (see `Store.save_cursors`)."""
        self._store.save_cursors(self._name, name, n, cursors, consumer)

    def load_cursors(self, name: str, n: int, consumer: str = NOBODY) -> dict[int, str]:
        """Return the kept cursors (see `Store.load_cursors`)."""
        return self._store.load_cursors(self._name, name, n, consumer)

    def _blocks(self, positions: Mapping[int, int], head: int, hint: int) -> Iterator[Block]:
        def look_up(positions: Mapping[int, int], limit: int) -> list[Chunk]:
            found = self._store.chunks(self._name, positions, head, limit)
            check_kept(self._store, self._name, positions)
            return found

        chunks = up_to_hint(in_order(look_up, positions), hint)
        for group in groups(chunks):
            try:
                frames = self._store.frames([each.blob for each in group])
            except StoreError:
                before = {each.partition: each.g - 1 for each in reversed(group)}
                check_kept(self._store, self._name, before)
                raise
            for chunk, frame in zip(group, frames, strict=True):
                stamped = stamps(chunk.partition, chunk.time, chunk.producer, chunk.batch)
                lines = lines_of(frame)
                yield Block(chunk.partition, lines, chunk.cursor, stamped, chunk.sequence)


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


def groups(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Yield neighbours that are read together: one chunk, or several small ones."""
    group: list[Chunk] = []
    size = 0
    for chunk in chunks:
        if group and (size + chunk.size > READ_BYTES or len(group) == 64):
            yield group
            group, size = [], 0
        group.append(chunk)
        size += chunk.size
    if group:
        yield group
