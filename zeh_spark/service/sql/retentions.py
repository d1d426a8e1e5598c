"""What feeds keep, in a SQL database: parts of a transaction (see `Store.set_retention`).

Runs inside a transaction of the caller, in the publisher and in commands that write.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from sqlalchemy import Connection, delete, insert, select

from zeh_spark.service.sql.schema import feeds, retentions
from zeh_spark.service.store.interface import Retention

_NAMES = "age_ms", "bytes", "readers", "names_ms", "producers_ms"
_COLUMNS = [retentions.c[name] for name in _NAMES]


def find(connection: Connection, feed: str) -> Retention:
    """Return what a feed keeps; everything if nothing is set."""
    query = select(*_COLUMNS).join(feeds, feeds.c.id == retentions.c.feed)
    row = connection.execute(query.where(feeds.c.name == feed)).one_or_none()
    if row is None:
        return Retention()
    readers = tuple(json.loads(row.readers))
    return Retention(row.age_ms, row.bytes, readers, row.names_ms, row.producers_ms)


def replace(connection: Connection, feed_id: int, retention: Retention) -> None:
    values = {**asdict(retention), "readers": json.dumps(retention.readers)}
    connection.execute(delete(retentions).where(retentions.c.feed == feed_id))
    connection.execute(insert(retentions), {"feed": feed_id, **values})
