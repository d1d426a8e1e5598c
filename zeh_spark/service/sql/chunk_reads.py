"""Reads of chunks and of their frames: what a SQL database says of a feed's events.

Rule for editors: a read is one short statement or a few, on a connection of the caller, and needs
no lock: a commit is visible whole or not at all. Runs in the publisher and in commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    CursorResult,
    Integer,
    bindparam,
    column,
    exists,
    select,
    values,
)

from zeh_spark.service.sql.schema import anchors, blobs, chunks, feeds
from zeh_spark.service.store.interface import Anchor, Chunk, frame_missing

_CHUNK = [
    chunks.c[name]
    for name in (
        "g", "partition", "events", "size", "time", "tag", "blob", "producer", "batch", "sequence",
    )
]  # fmt: skip
_FEED_ID = select(feeds.c.id).where(feeds.c.name == bindparam("feed")).scalar_subquery()

_CHUNKS_BEHIND = (
    select(*_CHUNK)
    .where(chunks.c.feed == _FEED_ID, chunks.c.partition == bindparam("partition"))
    .where(chunks.c.g > bindparam("after"), chunks.c.g <= bindparam("upto"))
    .order_by(chunks.c.g)
    .limit(bindparam("most"))
)
_SCAN = (
    select(*_CHUNK)
    .where(chunks.c.feed == _FEED_ID)
    .where(chunks.c.g > bindparam("after"), chunks.c.g <= bindparam("upto"))
    .order_by(chunks.c.g)
    .limit(bindparam("most"))
)
_LAST_CHUNK = (
    select(*_CHUNK)
    .where(chunks.c.feed == _FEED_ID, chunks.c.partition == bindparam("partition"))
    .where(chunks.c.g <= bindparam("upto"))
    .order_by(chunks.c.g.desc())
    .limit(1)
)
_TAGS = (
    select(chunks.c.g, chunks.c.tag)
    .where(chunks.c.feed == _FEED_ID)
    .where(chunks.c.g.in_(bindparam("some", expanding=True)))
)
_ANCHORS = select(anchors.c.partition, anchors.c.g, anchors.c.tag).where(anchors.c.feed == _FEED_ID)
_FRAMES = select(blobs.c.id, blobs.c.frame).where(blobs.c.id.in_(bindparam("some", expanding=True)))

_MANY = 1000
"""Most values that a statement names."""


def after(
    connection: Connection, feed: str, positions: Mapping[int, int], upto: int, limit: int
) -> list[Chunk]:
    found: list[Chunk] = []
    for partition, position in positions.items():
        given = {
            "feed": feed,
            "partition": partition,
            "after": position,
            "upto": upto,
            "most": limit,
        }
        found += map(Chunk._make, _tuples(connection.execute(_CHUNKS_BEHIND, given)))
    return sorted(found, key=lambda each: each.g)


def scan(connection: Connection, feed: str, after: int, upto: int, limit: int) -> list[Chunk]:
    given = {"feed": feed, "after": after, "upto": upto, "most": limit}
    return list(map(Chunk._make, _tuples(connection.execute(_SCAN, given))))


def unread(connection: Connection, feed: str, positions: Mapping[int, int], upto: int) -> set[int]:
    if not positions:
        return set()
    columns = column("partition", Integer), column("after", BigInteger)
    asked = values(*columns, name="asked").data(list(positions.items())).cte("asked")
    here = chunks.c.feed == _FEED_ID, chunks.c.partition == asked.c.partition
    beyond = exists().where(*here, chunks.c.g > asked.c.after, chunks.c.g <= upto)
    rows = connection.execute(select(asked.c.partition).where(beyond), {"feed": feed})
    return set(rows.scalars())


def frames(connection: Connection, blobs: Sequence[int]) -> list[bytes]:
    """Return the frames of chunks by the ids of their blobs (see `Store.frames`).

    Raises StoreError if there is no frame with one of these ids.
    """
    found: dict[int, bytes] = dict(_tuples(connection.execute(_FRAMES, {"some": list(blobs)})))
    if missing := set(blobs) - found.keys():
        raise frame_missing(min(missing))
    return [found[blob] for blob in blobs]


def tags(connection: Connection, feed: str, positions: Iterable[int]) -> dict[int, str]:
    wanted = sorted(set(positions))
    found: dict[int, str] = {}
    for begin in range(0, len(wanted), _MANY):
        given = {"feed": feed, "some": wanted[begin : begin + _MANY]}
        found |= {g: tag for g, tag in connection.execute(_TAGS, given)}
    return found


def last(connection: Connection, feed: str, partitions: Iterable[int], upto: int) -> Chunk | None:
    asked = [{"feed": feed, "partition": each, "upto": upto} for each in partitions]
    rows = [connection.execute(_LAST_CHUNK, given).one_or_none() for given in asked]
    return max((Chunk(*row) for row in rows if row), key=lambda each: each.g, default=None)


def anchors_of(connection: Connection, feed: str) -> dict[int, Anchor]:
    rows = connection.execute(_ANCHORS, {"feed": feed})
    return {partition: Anchor(g, tag) for partition, g, tag in rows}


def _tuples(result: CursorResult[Any]) -> list[Any]:
    """Return all rows as the driver makes them, which are tuples.

    Measured: SQLAlchemy's own rows of ten columns take as long again. No column of these queries
    has a type that SQLAlchemy converts.
    """
    assert result.cursor
    with closing(result):
        return list(result.cursor.fetchall())
