"""The packs of a feed's log in a SQL database (see `store.packs`), as of one moment.

The totals of the newest pack come with the snapshot. They answer most questions about what is
packed; of the others, each reads the pack in question, or finds it by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Executable, bindparam, func, select

from zeh_spark.service.sql.schema import anchors, packs
from zeh_spark.service.store.interface import Anchor, Chunk, damaged
from zeh_spark.service.store.packs import Pack, Totals, decode

_HELD = 16
"""How many packs that were read are kept for the rest of the snapshot."""

_OF_FEED = packs.c.feed == bindparam("feed")
_FROM = (
    select(packs.c.headers, packs.c.totals)
    .where(_OF_FEED, packs.c.last >= bindparam("g"))
    .order_by(packs.c.last)
    .limit(1)
)
_BEFORE = (
    select(packs.c.totals)
    .where(_OF_FEED, packs.c.last < bindparam("g"))
    .order_by(packs.c.last.desc())
    .limit(1)
)
_NEWEST = (
    select(packs.c.last, packs.c.totals)
    .where(packs.c.feed == bindparam("feed"))
    .order_by(packs.c.last.desc())
    .limit(1)
)

Read = Callable[[Executable, Mapping[str, Any]], Sequence[Sequence[Any]]]
"""Runs a statement in the snapshot."""


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
        self._held: dict[int, tuple[Pack, Totals]] = {}
        self.sealed = newest[0] if newest else 0
        self.totals = Totals.decode(newest[1]) if newest else Totals.none(partitions)

    def scan(self, after: int, upto: int, limit: int) -> list[Chunk]:
        """Return at most `limit` chunks with `after` < g <= `upto`, in order."""
        found: list[Chunk] = []
        after, upto = max(after, self._removed), min(upto, self.sealed)
        while after < upto and len(found) < limit:
            pack, _ = self._pack(after + 1)
            after = max(after, pack.first - 1)
            found += pack.chunks(after, min(upto, after + limit - len(found)))
            after = pack.last
        return found

    def chunks(self, partition: int, after: int, upto: int, limit: int) -> list[Chunk]:
        """Return the same of a stored partition."""
        found: list[Chunk] = []
        after, upto = max(after, self._removed), min(upto, self.sealed)
        while after < upto and len(found) < limit and (pack := self._next_with(partition, after)):
            found += pack.chunks_of(partition, after, upto, limit - len(found))
            after = pack.last
        return found

    def last(self, partitions: Iterable[int], upto: int) -> dict[int, Anchor]:
        """Return where the last chunk, up to g = `upto`, of each stored partition with one is."""
        pack, totals = None, self.totals
        if upto < self.sealed:
            pack, totals = self._pack(upto)
            if upto != pack.last:
                before = self._read(_BEFORE, {"feed": self._feed, "g": pack.first})
                totals = Totals.decode(before[0][0]) if before else Totals.none(len(totals.table))
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
            found[each] = self._pack(each)[0].tag(each)
        return found

    def places(self, positions: Iterable[int]) -> Iterator[tuple[int, int | None]]:
        """Yield the frames that have the lines of chunks, and their offsets (see `Pack.place`)."""
        pack: Pack | None = None
        for g in positions:
            if pack is None or not pack.first <= g <= pack.last:
                pack, _ = self._pack(g)
            yield pack.place(g)

    def _next_with(self, partition: int, after: int) -> Pack | None:
        """Return the first pack that has a chunk of a partition after a position."""
        newest = self.totals.last_of(partition)
        if newest is None or newest.g <= after:
            return None
        low, high = after + 1, newest.g  # the pack is not before low, and not after high
        while True:
            pack, totals = self._pack(low)
            if _has(totals, partition, after):
                return pack
            low = pack.last + 1
            middle, totals = self._pack((low + high) // 2)
            if _has(totals, partition, after):
                high = middle.first
            else:
                low = middle.last + 1

    def _pack(self, g: int) -> tuple[Pack, Totals]:
        """Return the pack with a position, or the next one, and its totals."""
        for pack, totals in self._held.values():
            if pack.first <= g <= pack.last:
                return pack, totals
        found = self._read(_FROM, {"feed": self._feed, "g": g})
        if not found:
            raise damaged(f"its pack with position {g} is missing")
        pack, totals = decode(found[0][0]), Totals.decode(found[0][1])
        wanted = max(g, self._removed + 1)  # packs follow each other without a gap
        if not pack.first <= wanted <= pack.last:
            raise damaged(f"its pack with position {wanted} is missing")
        if len(self._held) == _HELD:
            del self._held[next(iter(self._held))]
        self._held[pack.first] = pack, totals
        return pack, totals


def packed_log(connection: Connection, feed: int, partitions: int) -> PackedLog:
    """Return the packs of a feed in a transaction that writes, given the id of the feed's row."""

    def read(statement: Executable, given: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return connection.execute(statement, given).all()

    newest = connection.execute(_NEWEST, {"feed": feed}).one_or_none()
    removed = connection.scalar(select(func.max(anchors.c.g)).where(anchors.c.feed == feed))
    return PackedLog(read, feed, partitions, newest and (newest[0], newest[1]), int(removed or 0))


def _has(totals: Totals, partition: int, after: int) -> bool:
    last = totals.last_of(partition)
    return last is not None and last.g > after
