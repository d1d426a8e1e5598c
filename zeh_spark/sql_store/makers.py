"""How many names each client has begun, in a SQL database: parts of a transaction (see `Maker`).

A name counts for the client that began it until it is deleted or has expired. New names do not wait
for each other, so a client may get a few names more at the same moment.

Runs inside a transaction of the caller, in the publisher and in commands that write.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select

from zeh_spark.sql_store.schema import makers
from zeh_spark.store.access import Maker

PRODUCER, CURSOR_SET = "producer", "cursorset"
"""The kinds of names."""

NAME = makers.c.name
"""The column of the names, for the conditions of `forget`."""


def count(connection: Connection, maker: Maker | None, kind: str) -> int:
    """Return how many names of a kind a client has begun; 0 if nobody counts."""
    if maker is None:
        return 0
    mine = makers.c.client == maker.client, makers.c.kind == kind
    return int(connection.scalar(select(func.count()).select_from(makers).where(*mine)) or 0)


def add(connection: Connection, maker: Maker | None, kind: str, feed: int, name: str) -> None:
    """Note that a client has begun a name."""
    if maker is not None:
        forget(connection, kind, feed, NAME == name)  # it may have been deleted meanwhile
        row = {"feed": feed, "kind": kind, "name": name, "client": maker.client}
        connection.execute(insert(makers), row)


def forget(connection: Connection, kind: str, feed: int, *which: ColumnElement[bool]) -> None:
    """Count some names of a feed for nobody any more."""
    connection.execute(delete(makers).where(makers.c.feed == feed, makers.c.kind == kind, *which))
