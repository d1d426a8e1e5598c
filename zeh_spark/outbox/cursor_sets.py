"""Keep cursors for the readers of a table feed (the protocol's `cursorset`), beside the table.

A role that serves a table needs no right to write, so the table of cursors is made only if it is
asked for (`zeh-spark ddl --cursorsets`). Connections only read; `_writing` allows one statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from zeh_spark.outbox.names import CURSORS, literal, qualified
from zeh_spark.outbox.table import OutboxTable
from zeh_spark.protocol import problems
from zeh_spark.sql_store.postgresql_errors import sqlstate
from zeh_spark.store.problems import Problem

_NO_RIGHT = ("42501", "25006")
"""SQLSTATEs of a role that may not write, and of a standby."""

_SQLITE_READONLY = 8
"""SQLite's code of a file that may not be written; Python tells it from 3.11 on."""


def create(table: OutboxTable) -> str:
    """Return the statement that creates the table of cursors."""
    return (
        f"CREATE TABLE IF NOT EXISTS {qualified(table, CURSORS)} (\n"
        f"    table_name text, cursorset text, n integer, partition integer,\n"
        f"    cursor text NOT NULL, PRIMARY KEY (table_name, cursorset, n, partition));"
    )


def grant(table: OutboxTable, role: str) -> str:
    """Return the statement that grants a role, a quoted name, the rights to keep cursors."""
    return f"GRANT SELECT, INSERT, UPDATE ON {qualified(table, CURSORS)} TO {role};"


def load(connection: Connection, table: OutboxTable, name: str, n: int) -> dict[int, str]:
    """Return the cursors that are kept under a name, by partition of a reader's n.

    Raises:
        Problem: The role may not read them.
    """
    with _allowed(table):
        found = connection.exec_driver_sql(
            f"SELECT partition, cursor FROM {qualified(table, CURSORS)}"
            f" WHERE table_name = {literal(table.bare_name)} AND cursorset = {literal(name)}"
            f" AND n = {n}"
        )
        return {partition: cursor for partition, cursor in found}


def save(
    connection: Connection, table: OutboxTable, name: str, n: int, cursors: Mapping[int, str]
) -> None:
    """Keep cursors under a name, by partition of a reader's n. Other partitions stay as they are.

    A cursor that is kept already is not written again.

    Raises:
        Problem: The role may not write.
    """
    key = f"{literal(table.bare_name)}, {literal(name)}, {n}"
    rows = ", ".join(f"({key}, {each}, {literal(cursors[each])})" for each in sorted(cursors))
    with _allowed(table), _writing(connection):
        connection.exec_driver_sql(
            f"INSERT INTO {qualified(table, CURSORS)} AS kept"
            f" (table_name, cursorset, n, partition, cursor) VALUES {rows}"
            f" ON CONFLICT (table_name, cursorset, n, partition)"
            f" DO UPDATE SET cursor = excluded.cursor WHERE kept.cursor <> excluded.cursor"
        )


@contextmanager
def _allowed(table: OutboxTable) -> Iterator[None]:
    """Turn the database's refusal of what the role may not do into a Problem."""
    try:
        yield
    except DBAPIError as exc:
        read_only = getattr(exc.orig, "sqlite_errorcode", 0) & 0xFF == _SQLITE_READONLY
        if sqlstate(exc) in _NO_RIGHT or read_only:
            raise unsupported(table, "the publisher may not write there") from exc
        raise


@contextmanager
def _writing(connection: Connection) -> Iterator[None]:
    """Allow a connection to write meanwhile."""
    if connection.dialect.name == "sqlite":
        before = connection.exec_driver_sql("PRAGMA query_only").scalar()
        begin, end = "PRAGMA query_only = OFF", f"PRAGMA query_only = {before}"
        undo = end
    else:
        begin, end, undo = "BEGIN READ WRITE", "COMMIT", "ROLLBACK"
    connection.exec_driver_sql(begin)
    try:
        yield
    except BaseException:
        with suppress(DBAPIError):  # the first error counts
            connection.exec_driver_sql(undo)
        raise
    connection.exec_driver_sql(end)


def unsupported(table: OutboxTable, why: str) -> Problem:
    """Return the refusal of a feed that keeps no cursors."""
    return Problem(
        problems.CURSORSET_UNSUPPORTED,
        f"this feed keeps no cursors for readers: {why}. Its owner can run what zeh-spark ddl "
        f"{table.name} --cursorsets prints; or leave cursorset out, and keep the cursors yourself",
    )
