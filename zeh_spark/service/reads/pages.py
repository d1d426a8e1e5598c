"""Pages of a feed that a store has: where each begins, what it holds, and where it ends.

Rules of a page, in this order:

1. A cursor is `g.tag`, the last chunk that was read, or `_first` (before the oldest chunk), or
   `_last` (the last chunk of the partitions that the reader's partition covers). Any other spelling
   is refused, and so is a tag that the feed did not give at g, and a cursor after which something
   that it covers was removed unread (410).
2. Partition v of a reader's n has the stored partitions p with p mod n == v: the same rule for n
   equal, smaller or larger.
3. Chunks of all asked partitions come in order of g, as wholes, until the hint is reached, at least
   one. Hint 0 gives none. If the reader has selected some events, the hint counts these, and a page
   ends after 64 MiB of all.
4. A cursor follows each chunk. An asked partition without a chunk gets the cursor with which it was
   asked for; `_first` and `_last` become `g.tag`.

Runs in the publisher's worker threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter
from typing import Generic, TypeVar

from zeh_spark.service.reads.reading import (
    READ_BYTES,
    Reading,
    covered,
    groups,
    numbers_of,
    positions,
)
from zeh_spark.service.store.interface import Store
from zeh_spark.service.store.log import Chunk, FeedState, Log
from zeh_spark.wire.feed_identity import FeedIdentity
from zeh_spark.wire.served_lines import Block, stamps

T = TypeVar("T")

DEFAULT_HINT = 10_000
"""Events of a page, about, if the reader gives no hint."""

SCAN_BYTES = 64 << 20
"""Bytes of lines that are read for a page, about, if the reader has selected some events."""

_CHUNKS, _LOOKED_UP = 512, 1024
"""Most chunks that are read at a time, and that are looked up in the index."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a page: neighbouring chunks, whose frames are read if somebody needs them.

    The last part of a page may have no chunks, but the cursors of asked partitions without any.

    Attributes:
        log: The snapshot in which the page was begun. It may be closed.
        reading: Where the frames of the chunks are.
    """

    log: Log
    reading: Reading
    chunks: Sequence[Chunk] = ()
    cursors: Mapping[int, str] = field(default_factory=dict)

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks of the part. Raises Problem if its chunks are gone."""
        for each, cursor in self.cursors.items():
            yield Block(each, b"", cursor)
        lines = self.reading.lines(self.chunks) if self.chunks else []
        for chunk, some in zip(self.chunks, lines, strict=True):
            stamped = stamps(chunk.partition, chunk.time, chunk.producer, chunk.batch)
            yield Block(chunk.partition, some, chunk.cursor, stamped, chunk.sequence)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page whose first part was read.

    Attributes:
        state: The feed when the page was begun.
        identity: Its id and its epochs, at the same moment. No event of the page is of a later one.
        starts: The cursors that were asked with, by partition; special ones as what they mean.
        has_events: Whether the page has any.
        cursors: The cursors of the first part, if the page has no events.
        parts: What `make` returned for each part. It can be iterated once.
    """

    state: FeedState
    identity: FeedIdentity
    starts: Mapping[int, str]
    has_events: bool
    cursors: Mapping[int, str]
    parts: Iterator[T]


def open_page(
    store: Store,
    name: str,
    asked: Mapping[int, str],
    n: int,
    hint: int | None,
    make: Callable[[Part], T],
    look: Callable[[Log, Sequence[Chunk]], object] | None = None,
    selected: Callable[[], int] | None = None,
) -> Page[T]:
    """Read the first part of a page (see `Feed.page`); each other one when it is taken.

    Parts are read in snapshots of their own. `make` is called with the part while its snapshot can
    be opened, and awaits nothing but the store. `look` is called before, with all chunks of the
    page, if it ends by its hint and not at the feed's end, and has at most 1,024 of them. What it
    raises comes in place of the page. `selected` returns how many events of the parts so far the
    reader gets, if not all. Raises Problem, here or while the parts are taken, if cursors or n are
    refused.
    """
    reading = Reading(store, name, numbers_of(asked.values()))
    starts: dict[int, str] = {}

    def made() -> Iterator[tuple[Part, T]]:
        log = reading.log()
        found = positions(log, asked, n)
        starts.update({each: cursor for each, (_, cursor) in found.items()})
        cursors = dict(starts)
        stored = {
            partition: position
            for each, (position, _) in found.items()
            for partition in covered(each, n, log.state.partitions)
        }
        most = DEFAULT_HINT if hint is None else hint
        found_chunks = reading.chunks(stored, log.state.head, min(most, _CHUNKS + 1), _LOOKED_UP)
        chunks = up_to_hint(found_chunks, most)
        if selected:
            chunks = _until(found_chunks, min(most, 1) * SCAN_BYTES, attrgetter("size"))
        if look:
            listed = [*islice(chunks, _LOOKED_UP)]
            if 0 < most <= sum(chunk.events for chunk in listed):
                look(log, listed)
            chunks = chain(listed, chunks)
        for group in groups(chunks, READ_BYTES, _CHUNKS):
            for chunk in group:
                cursors.pop(chunk.partition % n, None)
            part = Part(log, reading, group)
            yield part, make(part)
            reading.taken([each.partition for each in group], [each.g for each in group])
            if selected and selected() >= most:
                break
        if cursors:
            part = Part(log, reading, cursors=cursors)
            yield part, make(part)

    parts = reading.parts(made())
    first, beginning = next(parts)
    rest = chain([beginning], (each for _, each in parts))
    log = first.log
    return Page(log.state, log.identity, starts, bool(first.chunks), first.cursors, rest)


def up_to_hint(chunks: Iterable[Chunk], hint: int) -> Iterator[Chunk]:
    """Yield whole chunks until there are `hint` events, at least one, unless the hint is 0."""
    return _until(chunks, hint, attrgetter("events"))


def _until(chunks: Iterable[Chunk], most: int, size: Callable[[Chunk], int]) -> Iterator[Chunk]:
    """Yield chunks until the sum of their sizes is `most`; none if that is 0."""
    total = 0
    for chunk in chunks if most else ():
        yield chunk
        total += size(chunk)
        if total >= most:
            return
