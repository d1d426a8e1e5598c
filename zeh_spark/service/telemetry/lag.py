"""The lag of consumers, computed from running totals of a feed's chunks.

A `Backlog` keeps, for each stored partition, the number of events up to each position. Each look
adds only the chunks that are new since the last look, so that its cost does not depend on the size
of the feed. A pack (see `store.packs`) is added as one sum. Old positions are kept more sparsely.
Near the head the lag is exact. Far behind, it may be up to two percent too high, because it is
counted from a position before the cursor.

Metrics, pages and plans of direct reads share the backlogs of a store (`Backlogs`).

Rejected: sum up the chunks after a cursor at each look, because the cost grows with the lag.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from zeh_spark.service.reads.reading import covered
from zeh_spark.service.store.commit_plan import tag
from zeh_spark.service.store.cursor_sets import CursorSet
from zeh_spark.service.store.interface import Store
from zeh_spark.service.store.log import Anchor, Chunk, FeedState, Log, PackTotals
from zeh_spark.wire.direct_reads import PartitionLag

POSITIONS = 1024
"""Positions that are kept of a partition before some are merged: 24 bytes each."""

PRECISION = 64
"""The largest relative error of a lag; it is never too low."""

ANSWER_SECONDS = 0.05
"""Seconds for which chunks are read to tell the lag. Without enough time, it is unknown."""

SCAN_CHUNKS = 2_000
"""Chunks that are read at a time."""

_FEEDS = 200
"""Feeds whose backlogs are kept, those that were used last."""


class Unread(NamedTuple):
    """The events after a cursor.

    Args:
        since: The time of the oldest of them, in ms since 1970; None if there is none, or it is
            not known.
        more: Whether there may be more events, because no more were counted. So there may be some
            if there are none.
    """

    events: int = 0
    since: int | None = None
    more: bool = False

    def as_told(self, now: int) -> PartitionLag:
        """Return what a reader is told; `now` is in ms since 1970."""
        age = None if self.since is None else max(0, now - self.since)
        return PartitionLag(self.events, age if self.events or self.more else 0, self.more)


def joined(parts: Iterable[Unread]) -> Unread:
    """Return what is unread of several partitions together."""
    some = [*parts]
    since = min((each.since for each in some if each.since is not None), default=None)
    return Unread(sum(each.events for each in some), since, any(each.more for each in some))


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a cursor set is behind.

    Attributes:
        n: How many partitions its reader works with.
        partitions: Of how many of them it has a position. The others are not in the numbers below.
        since: When the oldest of them was committed, in ms since 1970; None as in `Unread`.
        more: Whether there may be more than `events`, because they were counted up to a limit.
    """

    name: str
    n: int
    partitions: int
    events: int
    since: int | None
    more: bool = False


class NewestRow(NamedTuple):
    """The newest row of a partition of a table, and its time in ms since 1970, if it has one.

    Partition -1 stands for all, if no index has a row's partition.
    """

    partition: int
    id: int | str
    time: int | None


@dataclass(frozen=True, slots=True)
class TableLook:
    """How a table that is a feed, and its consumers, stand.

    Attributes:
        newest: The rows that readers get last, the newest of all at the end.
        held_seconds: For how long committed rows have waited for an open transaction; 0 for none.
        held_by: That transaction; "" if it is not known.
    """

    newest: Sequence[NewestRow]
    lags: Sequence[Lag]
    held_seconds: float = 0.0
    held_by: str = ""

    @property
    def last(self) -> NewestRow | None:
        return self.newest[-1] if self.newest else None


class Backlog:
    """The running totals of a feed's chunks, up to each position.

    Attributes:
        head: The position up to which chunks were added.
        tag: The tag of the chunk there; empty if there is none.
        lock: Held by whoever uses it.
    """

    def __init__(self, partitions: int) -> None:
        self.lock = threading.Lock()
        self.begin_again(partitions)

    def begin_again(self, partitions: int) -> None:
        self.head = 0
        self.tag = ""
        self._partitions = [_Sums() for _ in range(partitions)]

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Add the chunks after the head, in the order of g."""
        for each in chunks:
            self._partitions[each.partition].add(each.g, each.events, each.time)
            self.head, self.tag = each.g, each.tag

    def add_pack(self, log: Log, pack: PackTotals) -> None:
        """Add the chunks of a pack, which begins after the head: as one, where that is precise."""
        few = {p: 0 for p, sums in pack.sums.items() if sums.events * PRECISION > pack.later[p]}
        exact = log.packed(few, pack.first - 1, pack.last) if few else None
        self.add(exact.chunks() if exact else ())
        for partition in pack.sums.keys() - few.keys():
            g, events = pack.places[partition].g, pack.sums[partition].events
            self._partitions[partition].add(g, events, pack.time)
        newest = max(pack.places.values(), key=attrgetter("g"))
        self.head, self.tag = newest.g, newest.tag

    def lags(self, cursor_set: CursorSet, anchors: Mapping[int, Anchor]) -> Iterable[Lag]:
        """Yield the lag of a cursor set, for each n under which it has cursors.

        Partitions of which it has no cursor do not count. `anchors` have what retention removed
        last: nobody reads it any more.
        """
        for n, cursors in cursor_set.cursors.items():
            found = [self.after(each, n, cursor, anchors) for each, cursor in cursors.items()]
            yield Lag(cursor_set.name, n, len(cursors), *joined(found))

    def after(self, partition: int, n: int, cursor: str, anchors: Mapping[int, Anchor]) -> Unread:
        """Return the events after a cursor."""
        return joined(
            self._partitions[stored].after(
                max(_position(cursor), anchors[stored].g if stored in anchors else 0)
            )
            for stored in covered(partition, n, len(self._partitions))
        )


class Backlogs:
    """The backlogs of the feeds of a store. Any thread may use them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._backlog_of = lru_cache(_FEEDS)(lambda origin, partitions: Backlog(partitions))

    @contextmanager
    def up_to_date(self, feed: FeedState, seconds: float) -> Iterator[Backlog | None]:
        """Add a feed's new chunks to its backlog, and lend it.

        It takes at most so many seconds; the next call continues. It yields None if there was not
        enough time.
        """
        end = time.monotonic() + seconds
        backlog = self._backlog_of(feed.origin, feed.partitions)
        if not backlog.lock.acquire(timeout=seconds):
            yield None
            return
        try:
            if (backlog.head, backlog.tag) != (feed.head, tag(feed.history)):
                self._continue(feed.name, backlog, end)
            yield backlog if backlog.head >= feed.head else None
        finally:
            backlog.lock.release()

    def after(
        self, feed: FeedState, n: int, cursors: Mapping[str, str]
    ) -> dict[str, PartitionLag] | None:
        """Return how far a reader is behind, for the answer to its request for a plan or a page.

        No chunk after the cursors was removed. It returns None if the lag is not known yet.
        """
        with self.up_to_date(feed, ANSWER_SECONDS) as backlog:
            if backlog is None:
                return None
            found = {each: backlog.after(int(each), n, at, {}) for each, at in cursors.items()}
        now = self._store.now() if any(each.events for each in found.values()) else 0
        return {each: unread.as_told(now) for each, unread in found.items()}

    def _continue(self, name: str, backlog: Backlog, end: float) -> None:
        """Add the chunks that are new, until a time; to an empty backlog after a restore."""
        with self._store.snapshot(name, [backlog.head]) as log:
            feed = log.state
            known = log.tags.get(backlog.head, backlog.tag)
            if backlog.head > feed.head or backlog.tag not in ("", known):
                backlog.begin_again(feed.partitions)
            for pack in log.packs(backlog.head, feed.head):
                if time.monotonic() > end:
                    return
                backlog.add(log.scan(backlog.head, pack.first - 1, pack.first))  # of one in part
                backlog.add_pack(log, pack)
            while backlog.head < feed.head and time.monotonic() < end:
                found = log.scan(backlog.head, feed.head, SCAN_CHUNKS)
                if not found:  # retention has removed them
                    backlog.head, backlog.tag = feed.head, tag(feed.history)
                backlog.add(found)


class _Sums:
    """Positions of a partition in ascending order, and the sum of its events up to each.

    Between two positions that are kept there may be chunks that were merged into the later one.
    """

    def __init__(self) -> None:
        self._positions = array("q")
        self._totals = array("q")
        self._times = array("q")

    def add(self, g: int, events: int, time: int) -> None:
        self._positions.append(g)
        self._totals.append((self._totals[-1] if self._totals else 0) + events)
        self._times.append(time)
        if len(self._positions) > POSITIONS:
            self._thin()

    def after(self, position: int) -> Unread:
        at = bisect_right(self._positions, position)
        if at == len(self._positions):
            return Unread()
        return Unread(self._totals[-1] - (self._totals[at - 1] if at else 0), self._times[at])

    def _thin(self) -> None:
        """Merge neighbours that have few events together, compared with those after them."""
        positions, totals, times = array("q"), array("q"), array("q")
        last, before = self._totals[-1], 0
        since: int | None = None
        for at, total in enumerate(self._totals):
            since = self._times[at] if since is None else since
            following = self._totals[at + 1] if at + 1 < len(self._totals) else None
            if following is None or following - before > (last - following) / PRECISION:
                positions.append(self._positions[at])
                totals.append(total)
                times.append(since)
                before, since = total, None
        self._positions, self._totals, self._times = positions, totals, times


def _position(cursor: str) -> int:
    number = cursor.partition(".")[0]
    return int(number) if number.isdecimal() else 0
