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

import heapq
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from zeh_spark.errors import StoreError
from zeh_spark.protocol import wire
from zeh_spark.protocol.feed_identity import FeedIdentity
from zeh_spark.protocol.upload_format import lines_of
from zeh_spark.store.commit_plan import tag
from zeh_spark.store.interface import Anchor, Chunk, FeedState, Store
from zeh_spark.store.problems import bad_cursor, cursor_gone, other_history

DEFAULT_HINT = 10_000
"""Events of a page, about, if the reader gives no hint."""

READ_BYTES = 1 << 20
"""Bytes of lines, about, that one read of the store brings if chunks are small."""

DELIVERY = "exactly-once"
"""What discovery tells of a store's feed as `delivery`: see docs/explanation/protocols.md."""

EVERY = (wire.ALL_HEADERS,)
"""The headers of a reader that wants all."""

_CURSOR = re.compile(r"(0|[1-9][0-9]{0,17})\.([0-9a-f]{8})")
_WINDOW, _LEAST_WINDOW = 1024, 4
"""Most chunks that are looked up at a time for all partitions, and least for each of them."""


@dataclass(frozen=True, slots=True)
class Block:
    """Events of one stored partition, and the cursor after them.

    Attributes:
        partition: The stored partition; the asked one if nothing was read.
        lines: Lines as `wire.event_line` makes them, each ended by one b"\n"; may be empty.
        cursor: The cursor after these events.
        stamps: Headers that each of these lines gets when it is served.
        sequence: The producer's number of the first line; each line has the next one.
    """

    partition: int
    lines: bytes
    cursor: str
    stamps: Mapping[str, str] = field(default_factory=dict)
    sequence: int | None = None


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
class KeepsCursors(Protocol):
    """A feed that can also keep cursors for its readers, the spec's `cursorset`."""

    def save_cursors(self, name: str, n: int, cursors: Mapping[int, str]) -> None:
        """Keep a reader's cursors under a name (see `Store.save_cursors`)."""

    def load_cursors(self, name: str, n: int) -> dict[int, str]:
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
        positions = self._positions(feed, asked, n)
        cursors = {each: cursor for each, (_, cursor) in positions.items()}
        stored = {
            partition: position
            for each, (position, _) in positions.items()
            for partition in covered(each, n, feed.partitions)
        }
        for block in self._blocks(stored, feed.head, DEFAULT_HINT if hint is None else hint):
            cursors.pop(block.partition % n, None)
            yield block
        for each, cursor in cursors.items():
            yield Block(each, b"", cursor)

    def version(self) -> object:
        """Return the store's version (see `Feed.version`)."""
        return self._store.version()

    def identity(self) -> FeedIdentity:
        """Return the feed's id and its epochs (see `TellsIdentity.identity`)."""
        return self._store.identity(self._name)

    def save_cursors(self, name: str, n: int, cursors: Mapping[int, str]) -> None:
        """Keep a reader's cursors under a name (see `Store.save_cursors`)."""
        self._store.save_cursors(self._name, name, n, cursors)

    def load_cursors(self, name: str, n: int) -> dict[int, str]:
        """Return the kept cursors (see `Store.load_cursors`)."""
        return self._store.load_cursors(self._name, name, n)

    def _positions(
        self, feed: FeedState, asked: Mapping[int, str], n: int
    ) -> dict[int, tuple[int, str]]:
        """Return g and cursor of each asked partition. Raises Problem."""
        given = {each: parse_cursor(each, text) for each, text in asked.items()}
        numbers = {found[0] for found in given.values() if found}
        tags = {0: tag(feed.origin), **self._store.tags(self._name, numbers)}
        anchors = self._store.anchors(self._name)
        tags.update({anchor.g: anchor.tag for anchor in anchors.values()})
        positions = {}
        for each, found in given.items():
            gone = [anchors[p] for p in covered(each, n, feed.partitions) if p in anchors]
            first = max(gone, key=lambda anchor: anchor.g, default=Anchor(0, tags[0]))
            if found:
                check_history(each, asked[each], found, tags, feed.head, removed=bool(anchors))
                if found[0] < first.g or found[0] not in tags:
                    raise cursor_gone(each, asked[each], first.cursor)
                positions[each] = (found[0], asked[each])
            else:
                last = asked[each] == wire.LAST and self._last(feed, each, n)
                positions[each] = (last or first).g, (last or first).cursor
        return positions

    def _last(self, feed: FeedState, partition: int, n: int) -> Chunk | None:
        """Return the last chunk that an asked partition covers, as of this page's head."""
        return self._store.last(self._name, covered(partition, n, feed.partitions), feed.head)

    def _blocks(self, positions: Mapping[int, int], head: int, hint: int) -> Iterator[Block]:
        def look_up(positions: Mapping[int, int], limit: int) -> list[Chunk]:
            found = self._store.chunks(self._name, positions, head, limit)
            self._check_kept(positions)
            return found

        chunks = up_to_hint(in_order(look_up, positions), hint)
        for group in groups(chunks):
            try:
                frames = self._store.frames([each.blob for each in group])
            except StoreError:
                self._check_kept({each.partition: each.g - 1 for each in reversed(group)})
                raise
            for chunk, frame in zip(group, frames, strict=True):
                yield Block(
                    chunk.partition, lines_of(frame), chunk.cursor, stamps(chunk), chunk.sequence
                )

    def _check_kept(self, positions: Mapping[int, int]) -> None:
        """Raise Problem if chunks after these positions are gone: a read may have missed some."""
        anchors = self._store.anchors(self._name)
        for partition, g in positions.items():
            if partition in anchors and anchors[partition].g > g:
                raise cursor_gone(partition, f"{g}.…", anchors[partition].cursor)


def stamps(chunk: Chunk) -> dict[str, str]:
    """Return the headers with which all of a chunk's events are stamped."""
    publication = {"zeh-partition": str(chunk.partition), "zeh-time": str(chunk.time)}
    if chunk.producer is None:
        return publication
    return {"zeh-producer": chunk.producer, "zeh-batch": str(chunk.batch), **publication}


def covered(partition: int, n: int, partitions: int) -> range:
    """Return the stored partitions of a reader's partition.

    None if n is larger than their number.
    """
    return range(partition, partitions, n)


def parse_cursor(partition: int, cursor: str) -> tuple[int, str] | None:
    """Return g and tag; None for a special cursor. Raises Problem for anything else."""
    if cursor in (wire.FIRST, wire.LAST):
        return None
    match = _CURSOR.fullmatch(cursor)
    if not match:
        raise bad_cursor(
            partition, cursor, "_first, _last, and cursors that this feed gave, like 17.0a1b2c3d"
        )
    return int(match[1]), match[2]


def check_history(
    partition: int,
    cursor: str,
    found: tuple[int, str],
    tags: Mapping[int, str],
    head: int,
    *,
    removed: bool,
) -> None:
    """Raise Problem for a cursor that the feed, as it is now, cannot have given.

    Args:
        partition: The asked partition.
        cursor: The cursor.
        found: Its g and tag.
        tags: The feed's tags by g.
        head: The position of the newest chunk.
        removed: Whether some tags are gone with their chunks.
    """
    g, given = found
    if g > head:
        raise other_history(partition, cursor, f"the feed ends at position {head}")
    if g not in tags and removed:
        return
    if tags.get(g) != given:
        raise other_history(partition, cursor, f"position {g} has the tag {tags.get(g)!r}")


def in_order(
    look_up: Callable[[Mapping[int, int], int], list[Chunk]],
    positions: Mapping[int, int],
    limit: int = 8,
) -> Iterator[Chunk]:
    """Yield chunks of several partitions in order of g.

    Args:
        look_up: Returns chunks after some positions, at most as many of each as its second
            argument.
        positions: For each stored partition, the position after which to begin.
        limit: How many chunks of a partition are looked up first. The number grows, because most
            pages are short.
    """
    most = max(_LEAST_WINDOW, _WINDOW // max(1, len(positions)))
    limits = dict.fromkeys(positions, min(limit, most))
    waiting: dict[int, deque[Chunk]] = {partition: deque() for partition in positions}
    for chunk in look_up(positions, min(limit, most)):
        waiting[chunk.partition].append(chunk)
    may_have_more = {each for each, found in waiting.items() if len(found) == limits[each]}
    lowest = [(found[0].g, partition) for partition, found in waiting.items() if found]
    heapq.heapify(lowest)
    while lowest:
        _, partition = heapq.heappop(lowest)
        found = waiting[partition]
        chunk = found.popleft()
        yield chunk
        if not found and partition in may_have_more:
            limits[partition] = min(2 * limits[partition], most)
            found.extend(look_up({partition: chunk.g}, limits[partition]))
            if len(found) < limits[partition]:
                may_have_more.discard(partition)
        if found:
            heapq.heappush(lowest, (found[0].g, partition))


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
