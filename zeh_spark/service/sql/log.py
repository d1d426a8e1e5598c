"""A feed's log in a SQL database, as of one moment (see `store.log`).

The first statement of a snapshot finds the feed, its epochs, what was removed last, and some tags.
It is text, because PostgreSQL gets it in one message with what begins the transaction.

Rule for editors: a read is one statement, as far as a statement has room, on the connection of the
snapshot. It needs no lock: a commit is visible whole or not at all. Runs in the publisher and in
commands.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

from sqlalchemy import (
    Connection,
    CursorResult,
    Executable,
    Integer,
    bindparam,
    exists,
    select,
    union_all,
)

from zeh_spark.service.sql.feed_epochs import identity_of
from zeh_spark.service.sql.packed_log import PackedLog
from zeh_spark.service.sql.schema import blobs, chunks
from zeh_spark.service.store.commit_plan import tag
from zeh_spark.service.store.interface import (
    Anchor,
    Chunk,
    FeedState,
    Frame,
    StoreBusyError,
    damaged,
    unknown_feed,
)
from zeh_spark.wire.feed_identity import Epoch, FeedIdentity

SNAPSHOT_SECONDS = 30.0
"""Seconds after which nothing more is read in a snapshot.

An open snapshot keeps SQLite's log from being emptied, and PostgreSQL from removing old rows.
"""

_FEED, _EPOCH, _ANCHOR, _TAG, _TOTALS = range(5)
_OPENING = """
WITH wanted AS (SELECT * FROM {schema}feeds WHERE name = {name})
SELECT 0, id, '', head, partitions, time, events, size, origin, history, {is_replica} FROM wanted
UNION ALL SELECT 1, number, id, time, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM {schema}epochs WHERE feed = (SELECT id FROM wanted)
UNION ALL SELECT 2, partition, tag, g, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM {schema}anchors WHERE feed = (SELECT id FROM wanted)
UNION ALL SELECT 3, g, tag, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM {schema}recent_chunks WHERE feed = (SELECT id FROM wanted) AND g IN ({positions})
UNION ALL SELECT 4, last, '', NULL, NULL, NULL, NULL, NULL, totals, NULL, NULL
FROM {schema}packs WHERE feed = (SELECT id FROM wanted)
AND last = (SELECT max(last) FROM {schema}packs WHERE feed = (SELECT id FROM wanted))
"""
CHUNK = [chunks.c[name] for name in Chunk._fields]
_HERE = chunks.c.feed == bindparam("feed"), chunks.c.g <= bindparam("upto")
_SCAN = (
    select(*CHUNK)
    .where(*_HERE, chunks.c.g > bindparam("after"))
    .order_by(chunks.c.g)
    .limit(bindparam("most"))
)
_FRAMES = select(blobs.c.id, blobs.c.frame).where(blobs.c.id.in_(bindparam("some", expanding=True)))

_MANY = 32
"""Most partitions that a statement looks up."""


def opening(positions: Iterable[int], *, name: str, schema: str = "", is_replica: str = "0") -> str:
    """Return the statement that begins a snapshot, with the tags at some positions.

    `name` is how the database's driver writes the parameter, the feed's name.
    """
    listed = ", ".join(map(str, positions)) or "NULL"
    return _OPENING.format(name=name, schema=schema, is_replica=is_replica, positions=listed)


class SqlLog:
    """A feed's log (see `Log`), on the connection of its transaction.

    Args:
        name: The feed's name.
        rows: What the statement `opening` has found.
        positions: Those that it was given.

    Attributes:
        packed: The beginning of the log, which is in packs. The rest has a row for each chunk.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        rows: Iterable[Sequence[Any]],
        positions: Iterable[int] = (),
    ) -> None:
        self._connection = connection
        self._end = time.monotonic() + SNAPSHOT_SECONDS
        found = defaultdict(list)
        for kind, *row in rows:
            found[kind].append(row)
        if not found[_FEED]:
            raise unknown_feed(name)
        ((self._feed, _, head, partitions, moment, events, size, origin, history, replica),) = (
            found[_FEED]
        )
        self.state = FeedState(
            name, partitions, origin, head, history, moment, events, size, bool(replica)
        )
        self.anchors: Mapping[int, Anchor] = {
            partition: Anchor(g, tag) for partition, tag, g, *_ in found[_ANCHOR]
        }
        removed = {anchor.g: anchor.tag for anchor in self.anchors.values()}
        given = {g: tag for g, tag, *_ in found[_TAG]}
        newest = ((last, totals) for last, *_, totals, _, _ in found[_TOTALS])
        self.packed = PackedLog(
            self._rows, self._feed, partitions, next(newest, None), max(removed, default=0)
        )
        packed = self.packed.tags(each for each in positions if each not in removed)
        self.tags: Mapping[int, str] = {0: tag(origin), **packed, **given, **removed}
        self._epochs = found[_EPOCH]

    @property
    def identity(self) -> FeedIdentity:
        later = [Epoch(name, begun) for _, name, begun, *_ in sorted(self._epochs)]
        return identity_of(self.state, later)

    def chunks(self, positions: Mapping[int, int], upto: int, limit: int) -> list[Chunk]:
        sealed = self.packed.sealed
        of_each = {
            each: self.packed.chunks(each, after, upto, limit) if sealed else []
            for each, after in positions.items()
        }
        for some in _parts(each for each, found in of_each.items() if len(found) < limit):
            after = {f"after{at}": max(positions[each], sealed) for at, each in enumerate(some)}
            for chunk in self._of_each(some, upto, most=limit, **after):
                of_each[chunk.partition].append(chunk)
        return sorted(chunk for found in of_each.values() for chunk in found[:limit])

    def scan(self, after: int, upto: int, limit: int) -> list[Chunk]:
        found = self.packed.scan(after, upto, limit)
        if len(found) < limit and self.packed.sealed < upto:
            after, most = max(after, self.packed.sealed), limit - len(found)
            given = {"feed": self._feed, "after": after, "upto": upto, "most": most}
            found += map(Chunk._make, self._rows(_SCAN, given))
        return found

    def unread(self, positions: Mapping[int, int], upto: int) -> set[int]:
        last = self.packed.last(positions, upto) if self.packed.sealed else {}
        found = {each for each, place in last.items() if place.g > positions[each]}
        for some in _parts(each for each in positions if each not in found):
            given = {"feed": self._feed, "upto": upto}
            for at, each in enumerate(some):
                after = max(positions[each], self.packed.sealed)
                given |= {f"partition{at}": each, f"after{at}": after}
            found |= {each for (each,) in self._rows(_unread(len(some)), given)}
        return found

    def last(self, partitions: Iterable[int], upto: int) -> dict[int, Anchor]:
        asked = [*partitions]
        found = [self._of_each(some, upto) for some in _parts(asked)]
        recent = {each.partition: Anchor(each.g, each.tag) for some in found for each in some}
        packed = [each for each in asked if each not in recent] if self.packed.sealed else ()
        return recent | self.packed.last(packed, upto)

    def frames(self, chunks: Sequence[Chunk]) -> list[Frame]:
        sealed = self.packed.sealed
        packed = self.packed.places(each.g for each in chunks if each.g <= sealed)
        places = [next(packed) if each.g <= sealed else (each.blob, None) for each in chunks]
        if not all(blob for blob, _ in places):
            raise StoreBusyError(
                f"feed {self.state.name!r}: what is read was in a pack, and is in none now. The "
                f"store was restored, or another one took its place. Try again in a few seconds"
            )
        some = {blob for blob, _ in places}
        found: dict[int, bytes] = dict(self._rows(_FRAMES, {"some": [*some]}))
        if missing := some - found.keys():
            raise damaged(f"it has no frame {min(missing)}")
        return [Frame(found[blob], offset) for blob, offset in places]

    def _of_each(self, partitions: Sequence[int], upto: int, **more: int) -> list[Chunk]:
        given = {f"partition{at}": each for at, each in enumerate(partitions)}
        given |= {"feed": self._feed, "upto": upto, **more}
        query = _of_each(len(partitions), newest=not more)
        return list(map(Chunk._make, self._rows(query, given)))

    def _rows(self, statement: Executable, given: Mapping[str, Any]) -> list[Any]:
        """Return all rows as the driver makes them, which are tuples.

        Measured: SQLAlchemy's own rows of ten columns take as long again. No column of these
        queries has a type that SQLAlchemy converts.
        """
        if time.monotonic() > self._end:
            raise StoreBusyError(
                f"a read of feed {self.state.name!r} has taken more than {SNAPSHOT_SECONDS:.0f} s: "
                f"the store is slow. Try again in a few seconds"
            )
        result: CursorResult[Any] = self._connection.execute(statement, given)
        assert result.cursor
        with closing(result):
            return list(result.cursor.fetchall())


@functools.cache
def _of_each(count: int, *, newest: bool) -> Executable:
    """Return the query of chunks after a position, or of the last one, of `count` partitions."""
    queries = []
    for at in range(count):
        query = select(*CHUNK).where(*_HERE, chunks.c.partition == bindparam(f"partition{at}"))
        if newest:
            query = query.order_by(chunks.c.g.desc()).limit(1)
        else:
            query = query.where(chunks.c.g > bindparam(f"after{at}"))
            query = query.order_by(chunks.c.g).limit(bindparam("most"))
        queries.append(query)
    return union_all(*(select(each.subquery()) for each in queries)) if count > 1 else queries[0]


@functools.cache
def _unread(count: int) -> Executable:
    """Return the query that finds which of `count` partitions have chunks after a position.

    Measured: one query with VALUES for any count is compiled each time, half of a plan's time.
    """
    queries = []
    for at in range(count):
        partition = bindparam(f"partition{at}", type_=Integer)
        here = *_HERE, chunks.c.partition == partition, chunks.c.g > bindparam(f"after{at}")
        queries.append(select(partition).where(exists().where(*here)))
    return union_all(*queries)


def _parts(partitions: Iterable[int]) -> Iterable[list[int]]:
    left = iter(partitions)
    while some := list(islice(left, _MANY)):
        yield some
