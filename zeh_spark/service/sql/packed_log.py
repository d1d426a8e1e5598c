"""The packs of a feed's log in a SQL database (see `store.packs`), as of one moment.

The totals of the newest pack come with the snapshot. They answer most questions about what is
packed; of the others, each reads the pack in question, or finds it by bisection.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection, Executable, bindparam, func, select

from zeh_spark.service.sql.schema import anchors, packs
from zeh_spark.service.store.log import Anchor, Chunk, PackTotals, Run, damaged
from zeh_spark.service.store.packs import PACK_CHUNKS, Pack, Place, Totals, decode

_AT_A_TIME = 64
"""Most packs whose totals are read at a time."""

_AHEAD = 16
"""Most packs whose headers are read at a time."""

_NEVER = 1 << 62

_OF_FEED = packs.c.feed == bindparam("feed")
_FROM = packs.c.last >= bindparam("g")
_PLACE = packs.c.first, packs.c.last, packs.c.totals
_TOTALS = select(*_PLACE).where(_OF_FEED, _FROM).order_by(packs.c.last).limit(1)
_HEADERS = (
    select(packs.c.first, packs.c.last, packs.c.headers)
    .where(_OF_FEED, _FROM)
    .order_by(packs.c.last)
    .limit(bindparam("most"))
)
_BEFORE = (
    select(packs.c.totals)
    .where(_OF_FEED, packs.c.last < bindparam("g"))
    .order_by(packs.c.last.desc())
    .limit(1)
)
_ALL = (
    select(*_PLACE, packs.c.time)
    .where(_OF_FEED, _FROM, packs.c.last <= bindparam("upto"))
    .order_by(packs.c.last)
    .limit(bindparam("most"))
)
_NEWEST = (
    select(packs.c.last, packs.c.totals).where(_OF_FEED).order_by(packs.c.last.desc()).limit(1)
)

Read = Callable[[Executable, Mapping[str, Any]], Sequence[Sequence[Any]]]
"""Runs a statement in the snapshot."""


class _Row(NamedTuple):
    first: int
    last: int
    headers: bytes


class _Found(NamedTuple):
    first: int
    last: int
    totals: Totals

    def has(self, after: np.ndarray) -> bool:
        """Return whether a chunk of this or an earlier pack is after its partition's position."""
        return bool((self.totals.table["g"] > after).any())


class PackedLog:
    """What a feed has in packs: a beginning of its log.

    Args:
        newest: The position at which the newest pack ends, and its totals; None if there is none.
        removed: The position up to which retention has removed chunks; the first pack may have some
            of them.

    Attributes:
        sealed: The position up to which chunks are in packs; 0 if there are none.
        totals: Those up to `sealed`.
    """

    def __init__(
        self,
        read: Read,
        feed: int,
        partitions: int,
        newest: tuple[int, bytes] | None,
        removed: int,
    ) -> None:
        self._read = read
        self._feed = feed
        self._removed = removed
        self._ahead: deque[_Row] = deque()
        self._next, self._most = 0, 1
        self.sealed = newest[0] if newest else 0
        self.totals = Totals.decode(newest[1]) if newest else Totals.none(partitions)

    def next_run(self, after: Mapping[int, int], low: int, upto: int) -> Run | None:
        """Return chunks of some stored partitions in the next pack with any (see `Log.packed`)."""
        low, upto = max(low, self._removed), min(upto, self.sealed)
        if low >= upto:
            return None
        wanted = np.full(len(self.totals.table), _NEVER)
        wanted[[*after]] = np.maximum([*after.values()], low)
        newest = self.totals.table["g"]
        late = newest > wanted
        if not late.any() or wanted[late].min() >= upto:
            return None
        begin = max(low, int(wanted[late].min())) + 1
        for is_near in (True, True, False):  # mostly it is in the pack that was read, or the next
            if not is_near:
                begin = self._first_with(wanted, begin, int(newest[late].max()))
            if begin > upto:
                break
            pack = self._pack(begin)
            if len((run := pack.wanted(wanted, upto)).headers):
                return run
            begin = pack.last + 1
        return None

    def _first_with(self, after: np.ndarray, low: int, high: int) -> int:
        """Return where the first pack begins that has a chunk after its partition's position.

        It is between two positions, and `high` is in one that has such a chunk, too. The search
        goes ahead in steps that double, and then back.
        """
        step, found = PACK_CHUNKS, self._place(low)
        while not found.has(after):
            low = found.last + 1
            found, step = self._place(min(low + step, high)), 2 * step
        while low < found.first:
            middle = self._place((low + found.first - 1) // 2)
            if middle.has(after):
                found = middle
            else:
                low = middle.last + 1
        return found.first

    def scan(self, after: int, upto: int, limit: int) -> list[Chunk]:
        """Return at most `limit` chunks with `after` < g <= `upto`, in order."""
        found: list[Chunk] = []
        every = dict.fromkeys(range(len(self.totals.table)), 0)
        while len(found) < limit and (run := self.next_run(every, after, upto)):
            found += run.part(slice(limit - len(found))).chunks()
            after = found[-1].g
        return found

    def totals_between(self, after: int, upto: int) -> Iterator[PackTotals]:
        """Yield what the packs between two positions have (see `Log.packs`)."""
        after, upto = max(after, self._removed), min(upto, self.sealed)
        before: Totals | None = None
        most = 2
        while after < upto:
            given = {"feed": self._feed, "g": after + 1, "upto": upto, "most": most}
            rows = self._read(_ALL, given)
            for first, last, stored, time in rows:
                totals = Totals.decode(stored)
                if before is None:
                    before = Totals.none(len(totals.table)) if first == 1 else self._before(first)
                if before is not None and first == after + 1:
                    sums = totals.since(before)
                    places = {each: totals.place(each) for each in sums}
                    more = self.totals.table["events"] - totals.table["events"]
                    later = {each: int(more[each]) for each in sums}
                    yield PackTotals(first, last, time, sums, places, later)
                before, after = totals, last
            if len(rows) < most:
                return
            most = min(2 * most, _AT_A_TIME)

    def last(self, partitions: Iterable[int], upto: int) -> dict[int, Anchor]:
        """Return where the last chunk, up to g = `upto`, of each stored partition with one is."""
        pack, totals = None, self.totals
        if upto < self.sealed:
            found = self._place(max(upto, self._removed + 1))
            totals = found.totals
            if upto != found.last:
                pack = self._pack(found.last)
                totals = self._before(found.first) or Totals.none(len(totals.table))
        places = {
            each: (pack and pack.last_of(each, upto)) or totals.last_of(each) for each in partitions
        }
        return {each: place for each, place in places.items() if place and place.g > self._removed}

    def tags(self, positions: Iterable[int]) -> dict[int, str]:
        """Return the tags of chunks, as far as they are packed."""
        wanted = {each for each in positions if self._removed < each <= self.sealed}
        if not wanted:
            return {}
        known = self.totals.tags()
        found = {each: known[each] for each in wanted & known.keys()}
        for each in sorted(wanted - known.keys()):
            found[each] = self._pack(each).place(each).tag
        return found

    def frames(self, positions: Sequence[int]) -> Iterator[Place]:
        """Yield the frames of chunks (see `Pack.frames`), whose positions ascend."""
        begin = 0
        while begin < len(positions):
            pack = self._pack(positions[begin])
            end = bisect_right(positions, pack.last, begin)
            for blob, chunks, offsets in pack.frames(positions[begin:end]):
                yield Place(blob, [begin + each for each in chunks], offsets)
            begin = end

    def _pack(self, g: int) -> Pack:
        """Return the pack with a position. More are read ahead if one follows the other."""
        while self._ahead and self._ahead[0].last < g:
            self._ahead.popleft()
        if not self._ahead or g < self._ahead[0].first:
            self._most = min(2 * self._most, _AHEAD) if g == self._next else 1
            given = {"feed": self._feed, "g": g, "most": self._most}
            self._ahead = deque(_Row(*each) for each in self._read(_HEADERS, given))
            if not self._ahead or g < self._ahead[0].first:  # they follow each other without a gap
                raise damaged(f"its pack with position {g} is missing")
        self._next = self._ahead[-1].last + 1
        return decode(self._ahead[0].headers)

    def _place(self, g: int) -> _Found:
        """Return where the pack with a position begins and ends, and its totals."""
        rows = self._read(_TOTALS, {"feed": self._feed, "g": g})
        if not rows or rows[0][0] > g:
            raise damaged(f"its pack with position {g} is missing")
        first, last, stored = rows[0]
        return _Found(first, last, Totals.decode(stored))

    def _before(self, g: int) -> Totals | None:
        """Return the totals of the newest pack before a position, if one is left."""
        rows = self._read(_BEFORE, {"feed": self._feed, "g": g})
        return Totals.decode(rows[0][0]) if rows else None


def packed_log(connection: Connection, feed: int, partitions: int) -> PackedLog:
    """Return the packs of a feed in a transaction that writes, given the id of the feed's row."""

    def read(statement: Executable, given: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return connection.execute(statement, given).all()

    newest = connection.execute(_NEWEST, {"feed": feed}).one_or_none()
    removed = connection.scalar(select(func.max(anchors.c.g)).where(anchors.c.feed == feed))
    return PackedLog(read, feed, partitions, newest and (newest[0], newest[1]), int(removed or 0))
