"""How many names each client has begun, in a SQL database: parts of a transaction (see `Maker`).

A name counts for the client that began it until it is deleted or has expired. Batches with names
count as their producer, which is one name. Rejected: to count each, because a job that names a
batch every minute would reach any bound, and each of its batches would count all those before it.
New names of two feeds do not wait for each other, so a client may get a few more at one moment.

Runs inside a transaction of the caller, in the publisher and in commands that write.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, delete, func, insert, select

from zeh_spark.service.sql.schema import makers
from zeh_spark.service.store.token_rights import Maker

PRODUCER, CURSOR_SET = "producer", "cursorset"
"""The kinds of names."""


def count(connection: Connection, maker: Maker | None, kind: str, feed: int, name: str) -> int:
    """Return how many names of a kind a client has begun; 0 if it need not begin this one."""
    if maker is None or _is_known(connection, kind, feed, name):
        return 0
    mine = makers.c.client == maker.client, makers.c.kind == kind
    return int(connection.scalar(select(func.count()).select_from(makers).where(*mine)) or 0)


def add(connection: Connection, maker: Maker | None, kind: str, feed: int, name: str) -> None:
    if maker is not None and not _is_known(connection, kind, feed, name):
        row = {"feed": feed, "kind": kind, "name": name, "client": maker.client}
        connection.execute(insert(makers), row)


def forget(connection: Connection, kind: str, feed: int, those: Collection[str]) -> None:
    """Count some names of a feed for nobody any more."""
    which = makers.c.feed == feed, makers.c.kind == kind, makers.c.name.in_(those)
    connection.execute(delete(makers).where(*which))


def _is_known(connection: Connection, kind: str, feed: int, name: str) -> bool:
    which = makers.c.feed == feed, makers.c.kind == kind, makers.c.name == name
    return connection.scalar(select(makers.c.name).where(*which)) is not None
