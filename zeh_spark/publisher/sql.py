"""A store in a SQL database, through SQLAlchemy Core.

Rule for editors: only SQL that every dialect knows; what differs (pragmas, how a write begins, how
a foreign commit is noticed) is in `sqlite`, and will be in a module beside it for PostgreSQL. A
read is one short statement or a few, never held open while a client is waited for. A write is one
short transaction.

Payload is written once, into `blobs`, when it is staged; a commit moves rows of a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, Select, bindparam, delete, func, insert, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from zeh_spark.errors import StoreError
from zeh_spark.publisher.schema import blobs, chunks, cursor_sets, feeds, staged
from zeh_spark.publisher.store import (
    STAGED_FOR,
    Chunk,
    FeedState,
    FeedSummary,
    Moved,
    StagedChunk,
    StoreBusyError,
    committed,
    new_feed,
    now_ms,
    unknown_feed,
)

STAGED_BYTES = 4 << 20
"""Frames that one staging transaction writes, about: others wait that long for their turn."""

_CHUNK = [chunks.c[name] for name in ("g", "partition", "events", "size", "time", "tag", "blob")]
_FEED = [feeds.c[name] for name in ("name", "partitions", "origin", "head", "history", "time")]
_FEED_ID = select(feeds.c.id).where(feeds.c.name == bindparam("feed")).scalar_subquery()
_MOVED = [staged.c[name] for name in ("blob", "partition", "events", "size", "digest")]

_CHUNKS_BEHIND = (
    select(*_CHUNK)
    .where(chunks.c.feed == _FEED_ID, chunks.c.partition == bindparam("partition"))
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


@dataclass(frozen=True, slots=True)
class Database:
    """What a dialect brings. `write` connections begin a transaction that already excludes other
    writers.
    """

    read: Engine
    write: Engine
    version: Callable[[], int]
    close: Callable[[], None]


class SqlStore:
    """Feeds in a SQL database.

    Guarantee: `commit` returns after its transaction is on disk (fsync), and readers see it whole
    or not at all.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with _database_errors(), self._database.read.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with _database_errors(), self._database.write.begin() as connection:
            yield connection

    def create(self, name: str, partitions: int) -> FeedState:
        feed = new_feed(name, partitions)
        try:
            with self._writing() as connection:
                connection.execute(insert(feeds), asdict(feed))
        except IntegrityError:
            raise StoreError(f"feed {name!r} exists already") from None
        return feed

    def feed(self, name: str) -> FeedState:
        with self._reading() as connection:
            return _feed(connection, name)[1]

    def feeds(self) -> list[FeedSummary]:
        totals = (
            select(
                feeds.c.name,
                feeds.c.partitions,
                func.coalesce(func.sum(chunks.c.events), 0),
                func.coalesce(func.sum(chunks.c.size), 0),
                feeds.c.time,
            )
            .outerjoin_from(feeds, chunks)
            .group_by(feeds.c.id)
            .order_by(feeds.c.name)
        )
        with self._reading() as connection:
            return [FeedSummary(*row) for row in connection.execute(totals)]

    def stage(self, batch: str, chunks: Iterable[StagedChunk]) -> int:
        self._drop_abandoned(now_ms() - int(STAGED_FOR * 1000))
        count = 0
        for group in _groups(chunks):
            created = now_ms()
            digests = [each.digest for each in group]
            with self._writing() as connection:
                for each, digest in zip(group, digests, strict=True):
                    key = connection.execute(insert(blobs), {"frame": each.frame})
                    row = {
                        "batch": batch,
                        "blob": key.inserted_primary_key[0],  # type: ignore[index]  # one row, so there is a key
                        "partition": each.partition,
                        "events": each.events,
                        "size": each.size,
                        "digest": digest,
                        "created": created,
                    }
                    connection.execute(insert(staged), row)
            count += len(group)
        return count

    def commit(self, feed: str, batch: str, chunks: int) -> FeedState:
        with self._writing() as connection:
            feed_id, before = _feed(connection, feed, lock=True)
            # Counted are the rows that this statement moved: rows looked at before could be gone by
            # now.
            move = delete(staged).where(staged.c.batch == batch).returning(*_MOVED)
            moved = sorted(
                (Moved(*row) for row in connection.execute(move)), key=lambda each: each.blob
            )
            after, added = committed(before, moved, chunks, now_ms())
            if added:
                _append(connection, feed_id, after, added)
        return after

    def discard(self, batch: str) -> None:
        """In steps, so that other writers get their turn."""
        some = (
            select(staged.c.blob).where(staged.c.batch == batch).order_by(staged.c.blob).limit(64)
        )
        more = True
        while more:
            with self._writing() as connection:
                ids = list(connection.scalars(some))
                connection.execute(delete(staged).where(staged.c.blob.in_(ids)))
                connection.execute(delete(blobs).where(blobs.c.id.in_(ids)))
            more = bool(ids)

    def _drop_abandoned(self, before: int) -> None:
        """A batch counts as alive as long as something of it was staged lately."""
        old = (
            select(staged.c.batch)
            .group_by(staged.c.batch)
            .having(func.max(staged.c.created) < before)
        )
        with self._reading() as connection:
            abandoned = list(connection.scalars(old))
        for batch in abandoned:
            self.discard(batch)

    def chunks(self, feed: str, positions: Mapping[int, int], upto: int, limit: int) -> list[Chunk]:
        found: list[Chunk] = []
        with self._reading() as connection:
            for partition, after in positions.items():
                given = {
                    "feed": feed,
                    "partition": partition,
                    "after": after,
                    "upto": upto,
                    "most": limit,
                }
                found += [Chunk(*row) for row in connection.execute(_CHUNKS_BEHIND, given)]
        return sorted(found, key=lambda each: each.g)

    def frames(self, blobs: Sequence[int]) -> list[bytes]:
        with self._reading() as connection:
            rows = connection.execute(_frames(blobs))
            found: dict[int, bytes] = {row.id: row.frame for row in rows}
        if missing := set(blobs) - found.keys():
            raise StoreError(f"the store is damaged: it has no frame {min(missing)}; restore it")
        return [found[blob] for blob in blobs]

    def tags(self, feed: str, positions: Iterable[int]) -> dict[int, str]:
        query = select(chunks.c.g, chunks.c.tag).where(
            chunks.c.feed == _FEED_ID, chunks.c.g == bindparam("g")
        )
        with self._reading() as connection:
            rows = (
                connection.execute(query, {"feed": feed, "g": g}).one_or_none()
                for g in set(positions)
            )
            return {row.g: row.tag for row in rows if row}

    def last(self, feed: str, partitions: Iterable[int], upto: int) -> Chunk | None:
        with self._reading() as connection:
            rows = [
                connection.execute(
                    _LAST_CHUNK, {"feed": feed, "partition": each, "upto": upto}
                ).one_or_none()
                for each in partitions
            ]
        return max((Chunk(*row) for row in rows if row), key=lambda each: each.g, default=None)

    def save_cursors(self, feed: str, name: str, n: int, cursors: Mapping[int, str]) -> None:
        with self._writing() as connection:
            feed_id, _ = _feed(connection, feed)
            for partition, cursor in cursors.items():
                key = {"feed": feed_id, "name": name, "n": n, "partition": partition}
                here = [cursor_sets.c[column] == value for column, value in key.items()]
                found = connection.execute(update(cursor_sets).where(*here).values(cursor=cursor))
                if not found.rowcount:
                    connection.execute(insert(cursor_sets), {**key, "cursor": cursor})

    def load_cursors(self, feed: str, name: str, n: int) -> dict[int, str]:
        query = select(cursor_sets.c.partition, cursor_sets.c.cursor).where(
            cursor_sets.c.feed == _FEED_ID, cursor_sets.c.name == name, cursor_sets.c.n == n
        )
        with self._reading() as connection:
            return {row.partition: row.cursor for row in connection.execute(query, {"feed": feed})}

    def version(self) -> int:
        with _database_errors():
            return self._database.version()

    def close(self) -> None:
        self._database.close()


def _feed(connection: Connection, name: str, *, lock: bool = False) -> tuple[int, FeedState]:
    query = select(feeds.c.id, *_FEED).where(feeds.c.name == name)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise unknown_feed(name)
    return row[0], FeedState(*row[1:])


def _append(connection: Connection, feed_id: int, after: FeedState, added: list[Chunk]) -> None:
    connection.execute(insert(chunks), [{"feed": feed_id, **asdict(each)} for each in added])
    connection.execute(
        update(feeds)
        .where(feeds.c.id == feed_id)
        .values(head=after.head, history=after.history, time=after.time)
    )


def _frames(ids: Sequence[int]) -> Select[tuple[int, bytes]]:
    return select(blobs.c.id, blobs.c.frame).where(blobs.c.id.in_(ids))


def _groups(staging: Iterable[StagedChunk]) -> Iterator[list[StagedChunk]]:
    """Chunks in groups of about STAGED_BYTES, one transaction each."""
    group: list[StagedChunk] = []
    held = 0
    for chunk in staging:
        group.append(chunk)
        held += len(chunk.frame)
        if held >= STAGED_BYTES:
            yield group
            group, held = [], 0
    if group:
        yield group


@contextmanager
def _database_errors() -> Iterator[None]:
    """The database's errors in our words. Constraint violations pass: callers know them."""
    try:
        yield
    except IntegrityError:
        raise
    except OperationalError as exc:
        reason = str(exc.orig)
        kind = StoreBusyError if "locked" in reason or "busy" in reason else StoreError
        raise kind(f"the store does not answer: {reason}") from exc
    except DBAPIError as exc:
        raise StoreError(f"the store cannot be used: {exc.orig}") from exc
