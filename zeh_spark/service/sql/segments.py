"""Segments in a SQL store: which objects have the blocks of old packs, and where in them.

An object is named in one of two tables: as a *segment*; or as *garbage*, which is deleted from a
time on. That is so before it is a segment, while it is written, and once nobody needs it any more.
One transaction moves the name, so no object is forgotten, and none that is needed is deleted.

Rule for editors: what takes a name out of one table puts it into the other one, unless the object
is deleted, and what lets go of blocks has checked that they are those that were written. Storage is
never waited for in a transaction. Runs in the publisher and in commands that write.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, delete, func, insert, select, union, union_all, update

from zeh_spark.service.segments.block_reader import BlockReader
from zeh_spark.service.segments.segment_format import Place, decode_index
from zeh_spark.service.sql.packed_log import Read
from zeh_spark.service.sql.producers import Lock, find_feed
from zeh_spark.service.sql.schema import blobs, chunks, feeds, garbage, nonces, packs, segments
from zeh_spark.service.sql.transactions import Transactions
from zeh_spark.service.sql.uploads import drop_blobs, parts
from zeh_spark.service.store.interface import StoreBusyError
from zeh_spark.service.store.log import BlockPlace, damaged
from zeh_spark.service.store.packs import Pack, decode

_PACKS, _DROPPED = 1024, 8
"""Most packs of a segment, and most blocks that are deleted in a transaction."""

_NONCES_MS = 30 * 86_400_000
"""For how many ms a nonce is known after its last use: a publisher may be slow to write a marker.
"""

KEPT_MS = 7 * 86_400_000
"""For how many ms an object stays that is needed no more: a backup of that age can be restored. And
for how many ms one may be written.
"""


class PacksChangedError(StoreBusyError):
    """Packs that were to be moved were removed, or moved by another process, meanwhile."""


class StoredSegment(NamedTuple):
    """A segment, as the store knows it.

    Attributes:
        first: The position of its first chunk.
        last: The position of its last chunk.
        location: Where it is, without credentials.
        name: The object's name there.
        encoded: What is in it (`segments.segment_format.Index`).
        size: The bytes of the object.
    """

    first: int
    last: int
    location: str
    name: str
    encoded: bytes
    size: int


class PackRun(NamedTuple):
    """Packs of a feed that follow each other, whose blocks may move to one object.

    Attributes:
        origin: The feed's origin.
        packs: For each pack the position of its last chunk, and its headers as they are stored.
        first: Position and tag of the first chunk.
        last: Position and tag of the last chunk.
        blobs: The numbers of the blocks, in their order.
    """

    origin: bytes
    packs: Sequence[tuple[int, bytes]]
    first: tuple[int, str]
    last: tuple[int, str]
    blobs: Sequence[int]


_NAMING = segments, garbage
_OBJECT = segments.c.name, segments.c.location
SEGMENT = [segments.c[name] for name in StoredSegment._fields]
_NEXT_WITH = (
    select(*SEGMENT)
    .where(segments.c.feed == bindparam("feed"), segments.c.last >= bindparam("g"))
    .order_by(segments.c.last)
    .limit(1)
)


class SqlSegments(Transactions):
    """The segments of a store in a SQL database ."""

    @cached_property
    def block_reader(self) -> BlockReader:
        return BlockReader()

    def owner(self) -> str:
        """Return a text that this database has, and no copy of it."""
        return self._read(self._database.owner)

    def locations(self) -> list[str]:
        """Return the locations of all objects that the store names."""
        found = union(*(select(each.c.location) for each in _NAMING))
        return sorted(self._read(lambda connection: {*connection.scalars(found)}))

    def knows(self, nonce: str) -> bool:
        query = select(func.count()).where(nonces.c.nonce == nonce)
        return bool(self._read(lambda connection: connection.scalar(query)))

    def new_nonce(self, known: str | None) -> str | None:
        nonce, now = secrets.token_hex(8), self.now()
        used = update(nonces).where(nonces.c.nonce == known).values(time=now)

        def work(connection: Connection) -> str | None:
            if known is not None and not connection.execute(used).rowcount:
                return None
            connection.execute(insert(nonces), {"nonce": nonce, "time": now})
            connection.execute(delete(nonces).where(nonces.c.time < now - _NONCES_MS))
            return nonce

        return self._write(work)

    def forget_nonces(self) -> None:
        """Have no location be this store's until it is adopted."""
        self._write(lambda connection: connection.execute(delete(nonces)))

    def keep_garbage(self) -> None:
        """Keep what is garbage as long as if it were new: a later backup may name it."""
        longer = update(garbage).where(garbage.c.due > 0).values(due=self.now() + KEPT_MS)
        self._write(lambda connection: connection.execute(longer))

    def movable(self, feed: str, before: int, most: int, *, full: bool) -> PackRun | None:
        """Return the oldest packs that are in no segment; None if there are none.

        Args:
            before: The time, in ms since 1970, before which all their chunks were committed.
            most: Most bytes of their blocks, but for a single pack with more.
            full: Return None if a later pack would still have room.
        """
        with self._reading() as connection:
            of, state = find_feed(connection, feed)
            end = select(func.coalesce(func.max(segments.c.last), 0)).where(segments.c.feed == of)
            query = select(packs.c.last, packs.c.headers).where(
                packs.c.feed == of, packs.c.last > end.scalar_subquery()
            )
            chosen: list[tuple[int, bytes]] = []
            first: Pack | None = None
            ids: list[int] = []
            size = 0
            for last, headers in connection.execute(query.order_by(packs.c.last).limit(_PACKS)):
                pack = decode.__wrapped__(headers)  # readers need what is kept
                more = [block.blob for block in pack.blocks]
                size += sum(_lengths(connection, more))
                if int(pack.run.headers["time"][-1]) >= before:
                    break
                if chosen and size > most:
                    full = False
                    break
                chosen.append((last, headers))
                first, newest = first or pack, pack
                ids += more
            if first is None or (full and len(chosen) < _PACKS):
                return None
        return PackRun(
            state.origin,
            chosen,
            (first.first, first.place(first.first).tag),
            (newest.last, newest.place(newest.last).tag),
            ids,
        )

    def blocks(self, feed: str, run: PackRun, ids: Sequence[int]) -> list[bytes]:
        """Return blocks of packs.

        Raises PacksChangedError if one is not in the store any more, because its pack was removed
        or moved; StoreError if it is missing otherwise.
        """
        with self._reading_of(feed) as (connection, of):
            rows = connection.execute(select(blobs.c.id, blobs.c.frame).where(blobs.c.id.in_(ids)))
            found = {row.id: bytes(row.frame) for row in rows}
            if len(found) < len(ids):
                if _is_there(connection, of, run):
                    raise damaged(f"it has no frame {min({*ids} - found.keys())}")
                raise _changed()
        return [found[each] for each in ids]

    def begin_segment(self, location: str, name: str) -> None:
        """Note durably that an object is written now: it is garbage until it is a segment."""
        row = {"name": name, "location": location, "due": self.now() + KEPT_MS}
        self._write(lambda connection: connection.execute(insert(garbage), row))

    def end_segment(self, feed: str, run: PackRun, segment: StoredSegment) -> None:
        """Have an object be a segment, which has the blocks of some packs, in one transaction.

        Raises PacksChangedError, and changes nothing, if the packs are not as they were, or the
        object may be deleted by now.
        """
        moved = {*_places(segment.encoded)}

        def work(connection: Connection, of: int) -> None:
            mine = delete(garbage).where(garbage.c.name == segment.name, garbage.c.due > 0)
            if not connection.execute(mine).rowcount or not _is_there(connection, of, run):
                raise _changed()
            if moved != {*_stored(connection, run.blobs)}:
                raise _changed()
            row = {"feed": of, "copied": 0, **segment._asdict()}
            connection.execute(insert(segments), row)

        self._write_to(feed, work, lock=Lock.CHANGE, durable=False)

    def drop_copied(self, feed: str) -> bool:
        """Delete a few blocks that a segment has; return whether more may be left.

        Commits wait for it. Measured: all blocks of 20 MB at once take 185 ms in SQLite.
        """

        def work(connection: Connection, of: int) -> bool:
            copied = segments.c.feed == of, segments.c.copied.is_not(None)
            query = select(segments.c.last, segments.c.copied, segments.c.encoded)
            if (row := connection.execute(query.where(*copied)).first()) is None:
                return False
            ids = sorted(_places(row.encoded))
            begin = bisect_left(ids, row.copied)
            some = ids[begin : begin + _DROPPED]
            if some:
                drop_blobs(connection, some)
            here = segments.c.feed == of, segments.c.last == row.last
            following = some[-1] + 1 if some else None
            connection.execute(update(segments).where(*here).values(copied=following))
            return True

        return self._write_to(feed, work, durable=False)

    def give_up(self, name: str) -> None:
        """Note that an object is not going to be needed, which was going to be written."""
        self._write(lambda connection: connection.execute(_delete_now(garbage.c.name == name)))

    def segments(self, feed: str) -> list[StoredSegment]:
        """Return the segments of a feed in the order of g, each without `encoded`."""
        known = [each for each in SEGMENT if each is not segments.c.encoded]
        with self._reading_of(feed) as (connection, of):
            query = select(*known).where(segments.c.feed == of).order_by(segments.c.last)
            rows = connection.execute(query).mappings()
            return [StoredSegment(encoded=b"", **each) for each in rows]

    def blocks_in(self, feed: str, segment: StoredSegment) -> list[BlockPlace]:
        """Return where the blocks of a segment are; none if it was removed meanwhile."""
        with self._reading_of(feed) as (connection, of):
            here = segments.c.feed == of, segments.c.last == segment.last
            encoded = connection.scalar(select(segments.c.encoded).where(*here))
        places = decode_index(encoded).blocks if encoded else ()
        return [BlockPlace(segment.location, segment.name, *each[1:]) for each in places]

    def storage(self) -> dict[str, tuple[int, int]]:
        of = feeds.c.id
        first = select(func.min(chunks.c.g)).where(chunks.c.feed == of).scalar_subquery()
        moved = select(func.sum(segments.c.size)).where(segments.c.feed == of).scalar_subquery()
        query = select(feeds.c.name, feeds.c.head, first, moved)
        return {
            name: (head - first + 1 if first else 0, int(size or 0))
            for name, head, first, size in self._read(lambda c: c.execute(query).all())
        }

    def garbage(self) -> list[str]:
        """Return the locations that have objects to delete now."""
        query = select(garbage.c.location).where(garbage.c.due <= self.now()).distinct()
        return sorted(self._read(lambda connection: {*connection.scalars(query)}))

    def take_garbage(self, location: str) -> list[str]:
        """Return the names of objects to delete now; none becomes a segment any more."""
        here = garbage.c.location == location, garbage.c.due <= self.now()

        def work(connection: Connection) -> list[str]:
            connection.execute(_delete_now(*here))
            return [*connection.scalars(select(garbage.c.name).where(*here))]

        return self._write(work)

    def object_names(self) -> set[str]:
        """Return the names of all objects that the store knows of, whatever they are."""
        names = union_all(*(select(each.c.name) for each in _NAMING))
        return self._read(lambda connection: {*connection.scalars(names)})

    def forget(self, name: str) -> None:
        """Forget the name of garbage that was deleted."""
        gone = delete(garbage).where(garbage.c.name == name)
        self._write(lambda connection: connection.execute(gone), durable=False)

    def read_blocks(self, places: Iterable[BlockPlace]) -> Iterator[tuple[BlockPlace, bytes]]:
        return self.block_reader.read(places)


def to_garbage(connection: Connection, feed: int, upto: int, due: int) -> None:
    """Have the segments up to a position be garbage, to delete from a time on."""
    which = segments.c.feed == feed, segments.c.last <= upto
    gone = connection.execute(delete(segments).where(*which).returning(*_OBJECT)).mappings()
    if rows := [{**each, "due": due} for each in gone]:
        connection.execute(insert(garbage), rows)


def places_in_objects(read: Read, feed: int, wanted: Mapping[int, int]) -> dict[int, BlockPlace]:
    """Return where blocks are that are not in the store, as far as segments have them.

    `wanted` are their numbers, each with a position of the pack that it is of.
    """
    found: dict[int, BlockPlace] = {}
    for blob, g in sorted(wanted.items(), key=lambda each: each[1]):
        if blob in found:
            continue
        for row in read(_NEXT_WITH, {"feed": feed, "g": g}):
            segment = StoredSegment(*row)
            places = _places(segment.encoded)
            for each in wanted.keys() & places.keys():
                found[each] = BlockPlace(segment.location, segment.name, *places[each][1:])
    return found


@lru_cache(maxsize=16)
def _places(encoded: bytes) -> Mapping[int, Place]:
    return {each.blob: each for each in decode_index(encoded).blocks}


def _changed() -> PacksChangedError:
    return PacksChangedError("packs were removed or moved meanwhile. Move what is left")


def _delete_now(*which: Any) -> Any:
    return update(garbage).where(*which).values(due=0)


def _stored(connection: Connection, ids: Sequence[int]) -> Iterator[int]:
    """Yield those of some blocks that are blobs."""
    for some in parts(ids):
        yield from connection.scalars(select(blobs.c.id).where(blobs.c.id.in_(some)))


def _lengths(connection: Connection, ids: Sequence[int]) -> Iterable[int]:
    length = select(func.length(blobs.c.frame))
    for some in parts(ids):
        yield from connection.scalars(length.where(blobs.c.id.in_(some)))


def _is_there(connection: Connection, feed: int, run: PackRun) -> bool:
    """Return whether packs are as they were, and in no segment."""
    here = packs.c.feed == feed, packs.c.last.between(run.first[0], run.last[0])
    query = select(packs.c.last, packs.c.headers).where(*here).order_by(packs.c.last)
    moved = connection.scalar(select(func.max(segments.c.last)).where(segments.c.feed == feed))
    found = [tuple(row) for row in connection.execute(query)]
    return (moved or 0) < run.first[0] and found == [*run.packs]
