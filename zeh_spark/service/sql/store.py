"""A store in a SQL database, through SQLAlchemy Core.

Rule for editors: use only SQL that every dialect knows. `sqlite` and `postgresql` hold
what differs: pragmas, how a write begins, how another process's commit is noticed, what errors
mean. The roles of a store are in the modules that hold their SQL, above `transactions`.
Runs in the publisher and in commands that write, on threads that may block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from zeh_spark.service.sql.administration import SqlAdministration, known_identity
from zeh_spark.service.sql.batches import SqlBatches
from zeh_spark.service.sql.cursor_sets import SqlCursorSets
from zeh_spark.service.sql.log import SqlLog
from zeh_spark.service.sql.producers import every_feed, find_feed
from zeh_spark.service.sql.segments import SqlSegments
from zeh_spark.service.store.interface import unknown_feed
from zeh_spark.service.store.log import FeedState, Log
from zeh_spark.wire.feed_identity import FeedIdentity


class SqlStore(SqlBatches, SqlCursorSets, SqlAdministration, SqlSegments):
    """Feeds in a SQL database (see `Store`)."""

    def feed(self, name: str) -> FeedState:
        return self._read(partial(find_feed, name=name))[1]

    def feeds(self) -> list[FeedState]:
        return self._read(every_feed)

    def identity(self, feed: str) -> FeedIdentity:
        with self._reading() as connection:
            return known_identity(connection, *find_feed(connection, feed))

    @contextmanager
    def snapshot(self, feed: str, positions: Iterable[int] = ()) -> Iterator[Log]:
        if "\0" in feed:  # PostgreSQL cannot even search for it
            raise unknown_feed(feed)
        wanted = [*positions]
        with self._errors(), self._database.snapshot(feed, wanted) as (connection, found):
            yield SqlLog(connection, feed, found, wanted)

    def version(self) -> int:
        with self._errors():
            return self._database.version()

    def lineage(self, feed: str) -> object | None:
        return self._database.lineage(feed)

    def stored_version(self) -> int:
        return self._read(self._database.stored_version)

    def free_bytes(self) -> int:
        return self._read(self._database.free_bytes)

    def replica_lag(self) -> int | None:
        return self._read(self._database.replica_lag)

    def close(self) -> None:
        self._database.close()
