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
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import Any, TypeVar

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
from zeh_spark.service.sql.segments import places_in_objects
from zeh_spark.service.store.commit_plan import tag
from zeh_spark.service.store.interface import StoreBusyError, unknown_feed
from zeh_spark.service.store.log import Anchor, Chunk, FeedState, Frame, PackTotals, Run, damaged
from zeh_spark.service.store.packs import Place
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

_MANY, _ROWS = 32, 1024
"""Most partitions that a statement looks up, or frames of packs; most frames of other chunks."""

T = TypeVar("T")


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
        totals: What there is up to `sealed`.
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
        self._packed = PackedLog(
            self._rows, self._feed, partitions, next(newest, None), max(removed, default=0)
        )
        packed = self._packed.tags(each for each in positions if each not in removed)
        self.tags: Mapping[int, str] = {0: tag(origin), **packed, **given, **removed}
        self._epochs = found[_EPOCH]
        self.sealed, self.totals = self._packed.sealed, self._packed.totals

    @property
    def identity(self) -> FeedIdentity:
        later = [Epoch(name, begun) for _, name, begun, *_ in sorted(self._epochs)]
        return identity_of(self.state, later)

    def packed(self, after: Mapping[int, int], low: int, upto: int) -> Run | None:
        return self._packed.next_run(after, low, upto)

    def packs(self, after: int, upto: int) -> Iterator[PackTotals]:
        return self._packed.totals_between(after, upto)

    def chunks(self, positions: Mapping[int, int], upto: int, limit: int) -> list[Chunk]:
        of_each: dict[int, list[Chunk]] = {each: [] for each in positions}
        for each, after in positions.items():  # for all, `packed` is better
            while len(of_each[each]) < limit and (run := self.packed({each: after}, 0, upto)):
                of_each[each] += run.chunks()
                after = of_each[each][-1].g
        for some in _parts(each for each, found in of_each.items() if len(found) < limit):
            after_each = {f"after{at}": max(positions[p], self.sealed) for at, p in enumerate(some)}
            for chunk in self._of_each(some, upto, most=limit, **after_each):
                of_each[chunk.partition].append(chunk)
        return sorted(chunk for found in of_each.values() for chunk in found[:limit])

    def scan(self, after: int, upto: int, limit: int) -> list[Chunk]:
        found = self._packed.scan(after, upto, limit)
        if len(found) < limit and self.sealed < upto:
            after, most = max(after, self.sealed), limit - len(found)
            given = {"feed": self._feed, "after": after, "upto": upto, "most": most}
            found += map(Chunk._make, self._rows(_SCAN, given))
        return found

    def unread(self, positions: Mapping[int, int], upto: int) -> set[int]:
        last = self._packed.last(positions, upto) if self.sealed else {}
        found = {each for each, place in last.items() if place.g > positions[each]}
        left = [each for each in positions if each not in found] if upto > self.sealed else ()
        for some in _parts(left):
            given = {"feed": self._feed, "upto": upto}
            for at, each in enumerate(some):
                after = max(positions[each], self.sealed)
                given |= {f"partition{at}": each, f"after{at}": after}
            found |= {each for (each,) in self._rows(_unread(len(some)), given)}
        return found

    def last(self, partitions: Iterable[int], upto: int) -> dict[int, Anchor]:
        asked = [*partitions]
        found = [self._of_each(some, upto) for some in _parts(asked)]
        recent = {each.partition: Anchor(each.g, each.tag) for some in found for each in some}
        packed = [each for each in asked if each not in recent] if self.sealed else ()
        return recent | self._packed.last(packed, upto)

    def frames(self, positions: Sequence[int], blobs: Sequence[int]) -> Iterator[Frame]:
        border = bisect_right(positions, self.sealed)
        if not all(blobs[border:]):
            raise StoreBusyError(
                f"feed {self.state.name!r}: what is read was in a pack, and is in none now. The "
                f"store was restored, or another one took its place. Try again in a few seconds"
            )
        recent = (Place(blob, [at], None) for at, blob in enumerate(blobs[border:], border))
        packed = self._packed.frames(positions[:border])
        for some in chain(_parts(packed), _parts(recent, _ROWS)):
            wanted = [blob for blob, *_ in some]
            found: dict[int, bytes] = dict(self._rows(_FRAMES, {"some": wanted}))
            missing = {b: positions[which[0]] for b, which, _ in some if b not in found}
            moved = places_in_objects(self._rows, self._feed, missing)
            for blob, which, offsets in some:
                if blob not in found and blob not in moved:
                    raise damaged(f"it has no frame {blob}")
                yield Frame(found.get(blob, b""), which, offsets, moved.get(blob))

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


def _parts(every: Iterable[T], most: int = _MANY) -> Iterable[list[T]]:
    left = iter(every)
    while some := list(islice(left, most)):
        yield some
