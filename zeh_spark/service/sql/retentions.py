"""What feeds keep, in a SQL database (see `Administration.set_retention`).

Runs in the publisher and in commands that write.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from zeh_spark.service.sql import commits, producers
from zeh_spark.service.sql.producers import Lock, find_feed
from zeh_spark.service.sql.schema import feeds, retentions
from zeh_spark.service.sql.transactions import Transactions
from zeh_spark.service.store.acts import Action, Actor
from zeh_spark.service.store.interface import Retention

_NAMES = "age_ms", "bytes", "readers", "names_ms", "producers_ms"
_COLUMNS = [retentions.c[name] for name in _NAMES]


class SqlRetentions(Transactions):
    """What feeds in a SQL database keep, and what goes (see `Administration`)."""

    def retention(self, feed: str) -> Retention:
        with self._reading() as connection:
            return _find(connection, feed)

    def remove(self, feed: str, upto: int, *, by: Actor | None = None) -> None:
        def work(connection: Connection) -> tuple[None, dict[str, Any] | None]:
            feed_id, _ = find_feed(connection, feed, Lock.CHANGE)
            return None, commits.remove(connection, feed_id, upto)

        if by:
            self._administer(by, Action.PRUNE, work, feed=feed)
        else:
            self._write(work, durable=False)

    def set_retention(self, feed: str, retention: Retention, *, by: Actor | None = None) -> None:
        values = {**asdict(retention), "readers": json.dumps(retention.readers)}

        def work(connection: Connection) -> tuple[None, dict[str, Any] | None]:
            feed_id, _ = find_feed(connection, feed)
            before = _find(connection, feed)
            connection.execute(delete(retentions).where(retentions.c.feed == feed_id))
            connection.execute(insert(retentions), {"feed": feed_id, **values})
            told = {"before": asdict(before), "after": asdict(retention)}
            return None, told if retention != before else None

        self._administer(by, Action.SET_RETENTION, work, feed=feed)

    def expire_names(self, feed: str, before: int, limit: int) -> int:
        expire = partial(producers.expire_names, before=before, limit=limit)
        return self._write_to(feed, expire, durable=False)

    def expire_producers(self, feed: str, before: int, limit: int) -> int:
        expire = partial(producers.expire_producers, before=before, limit=limit)
        return self._write_to(feed, expire, lock=Lock.CHANGE, durable=False)


def _find(connection: Connection, feed: str) -> Retention:
    """Return what a feed keeps; everything if nothing is set."""
    query = select(*_COLUMNS).join(feeds, feeds.c.id == retentions.c.feed)
    row = connection.execute(query.where(feeds.c.name == feed)).one_or_none()
    if row is None:
        return Retention()
    readers = tuple(json.loads(row.readers))
    return Retention(row.age_ms, row.bytes, readers, row.names_ms, row.producers_ms)
