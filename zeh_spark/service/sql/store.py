"""A store in a SQL database, through SQLAlchemy Core.

Rule for editors: use only SQL that every dialect knows. `sqlite` and `postgresql` hold
what differs: pragmas, how a write begins, how another process's commit is noticed, what errors
mean. The roles of a store are in the modules that hold their SQL, above `transactions`.
Runs in the publisher and in commands that write, on threads that may block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from zeh_spark.errors import StoreError
from zeh_spark.service.sql import acts, producers
from zeh_spark.service.sql.batches import SqlBatches
from zeh_spark.service.sql.cursor_sets import SqlCursorSets
from zeh_spark.service.sql.epochs import SqlEpochs
from zeh_spark.service.sql.log import SqlLog
from zeh_spark.service.sql.producers import find_feed
from zeh_spark.service.sql.retentions import SqlRetentions
from zeh_spark.service.sql.schema import clocks, feeds
from zeh_spark.service.sql.tokens import SqlTokens
from zeh_spark.service.store.acts import (
    ACTS_SHOWN,
    EVERY_ACT,
    Act,
    ActFilter,
    Action,
    Actor,
    log_act,
)
from zeh_spark.service.store.interface import FeedState, Log, new_feed, unknown_feed


class SqlStore(SqlBatches, SqlCursorSets, SqlEpochs, SqlRetentions, SqlTokens):
    """Feeds in a SQL database (see `Store`)."""

    def create(self, name: str, partitions: int, *, by: Actor | None = None) -> FeedState:
        feed = new_feed(name, partitions)
        row = {column: value for column, value in asdict(feed).items() if column in feeds.c}

        def work(connection: Connection) -> tuple[None, dict[str, Any]]:
            connection.execute(insert(feeds), row)
            return None, {"partitions": partitions}

        try:
            self._administer(by, Action.CREATE_FEED, work, feed=name)
        except IntegrityError:
            raise StoreError(
                f"feed {name!r} exists already. Use it, or choose another name"
            ) from None
        return feed

    def feed(self, name: str) -> FeedState:
        with self._reading() as connection:
            return find_feed(connection, name)[1]

    def feeds(self) -> list[FeedState]:
        with self._reading() as connection:
            return producers.every_feed(connection)

    @contextmanager
    def snapshot(self, feed: str, positions: Iterable[int] = ()) -> Iterator[Log]:
        if "\0" in feed:  # PostgreSQL cannot even search for it
            raise unknown_feed(feed)
        with self._errors(), self._database.snapshot(feed, positions) as (connection, found):
            yield SqlLog(connection, feed, found)

    def acts(self, wanted: ActFilter = EVERY_ACT, limit: int = ACTS_SHOWN) -> list[Act]:
        with self._reading() as connection:
            return acts.newest(connection, wanted, limit)

    def record(self, done: Sequence[Act]) -> None:
        self._write(partial(acts.add, done=done))
        for each in done:
            if not each.id:
                log_act(each)

    def clock_seen(self) -> int:
        with self._reading() as connection:
            return int(connection.scalar(select(clocks.c.seen)) or 0)

    def see_clock(self, now: int, *, by: Actor | None = None) -> None:
        def work(connection: Connection) -> tuple[None, dict[str, Any]]:
            before = int(connection.scalar(select(clocks.c.seen)) or 0)
            if not connection.execute(update(clocks).values(seen=now)).rowcount:
                connection.execute(insert(clocks), {"id": 1, "seen": now})
            return None, {"before": before, "accepted": now}

        if by:
            self._administer(by, Action.ACCEPT_CLOCK, work)
            return
        with suppress(IntegrityError):  # another publisher was the first
            self._write(work, durable=False)

    def version(self) -> int:
        with self._errors():
            return self._database.version()

    def stored_version(self) -> int:
        with self._reading() as connection:
            return self._database.stored_version(connection)

    def free_bytes(self) -> int:
        with self._reading() as connection:
            return self._database.free_bytes(connection)

    def replica_lag(self) -> int | None:
        with self._reading() as connection:
            return self._database.replica_lag(connection)

    def close(self) -> None:
        self._database.close()
