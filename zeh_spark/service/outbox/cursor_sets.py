"""Keep cursors for the readers of a table feed (the protocol's `cursorset`), beside the table.

A role that serves a table needs no right to write, so the table of cursors is made only if it is
asked for (`zeh-spark ddl --cursorsets`). Connections only read; `_writing` allows one transaction.

A name is bound to a consumer (see `store.cursor_sets`) in a row with n = 0 and partition = 0, whose
cursor is the consumer's identity. A reader's n is at least 1, so it is no cursor.

Rule for editors: `save` locks the row of the name before it writes a cursor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import groupby

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from zeh_spark.service.outbox.table import CURSORS, OutboxTable, literal, qualified
from zeh_spark.service.postgresql.errors import NOT_ALLOWED, READ_ONLY, sqlstate
from zeh_spark.service.store.cursor_sets import NOBODY, CursorSet, check_consumer, check_made
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.store.token_rights import Maker
from zeh_spark.wire import problems

_NO_RIGHT = (NOT_ALLOWED, READ_ONLY)
"""SQLSTATEs of a role that may not write, and of a database that takes no writes."""

_SQLITE_READONLY = 8
"""SQLite's code of a file that may not be written; Python tells it from 3.11 on."""


def create(table: OutboxTable) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {qualified(table, CURSORS)} (\n"
        f"    table_name text, cursorset text, n integer, partition integer,\n"
        f"    cursor text NOT NULL, PRIMARY KEY (table_name, cursorset, n, partition));"
    )


def grant(table: OutboxTable, role: str) -> str:
    """Return the statement that grants a role, a quoted name, the rights to keep cursors."""
    return f"GRANT SELECT, INSERT, UPDATE ON {qualified(table, CURSORS)} TO {role};"


def load(
    connection: Connection, table: OutboxTable, name: str, n: int, consumer: str
) -> dict[int, str]:
    """Return the cursors that are kept under a name, by partition of a reader's n.

    Raises Problem if the role may not read them, or the name is bound to another consumer.
    """
    empty = CursorSet(name, NOBODY, {})
    found = next(iter(kept(connection, table, _under(table, name))), empty)
    check_consumer(name, found.consumer, consumer, freed_by(table, name))
    return dict(found.cursors.get(n, {}))


def kept(connection: Connection, table: OutboxTable, where: str = "") -> list[CursorSet]:
    """Return the cursors that are kept, by name: all of the table, or those of a condition.

    Raises Problem if the role may not read them.
    """
    where = where or f"table_name = {literal(table.bare_name)}"
    with _allowed(table):
        rows = connection.exec_driver_sql(
            f"SELECT cursorset, n, partition, cursor FROM {qualified(table, CURSORS)}"
            f" WHERE {where} ORDER BY cursorset, n, partition"
        ).all()
    found: list[CursorSet] = []
    for name, some in groupby(rows, lambda row: row.cursorset):
        cursors: dict[int, dict[int, str]] = defaultdict(dict)
        for _, n, partition, cursor in some:
            cursors[n][partition] = cursor
        consumer = cursors.pop(0, {}).get(0, NOBODY)
        found.append(CursorSet(name, consumer, cursors))
    return found


def save(
    connection: Connection,
    table: OutboxTable,
    name: str,
    n: int,
    cursors: Mapping[int, str],
    consumer: str,
    maker: Maker | None = None,
) -> None:
    """Keep cursors under a name, by partition of a reader's n. Other partitions stay as they are.

    The name is bound to the consumer if it is bound to nobody. A cursor that is kept already is not
    written again. Raises Problem if the role may not write, or the name is bound to another
    consumer, or is new and one too many.
    """
    key = f"{literal(table.bare_name)}, {literal(name)}"
    rows = ", ".join(f"({key}, {n}, {each}, {literal(cursors[each])})" for each in sorted(cursors))
    into = (
        f"INSERT INTO {qualified(table, CURSORS)} AS kept"
        f" (table_name, cursorset, n, partition, cursor)"
    )
    with _allowed(table), _writing(connection):
        if maker:
            _check_made(connection, table, name, maker.most)
        # The row is locked, too, if it does not change.
        connection.exec_driver_sql(
            f"{into} VALUES ({key}, 0, 0, {literal(consumer)})"
            f" ON CONFLICT (table_name, cursorset, n, partition)"
            f" DO UPDATE SET cursor = excluded.cursor"
            f" WHERE kept.cursor = '' AND excluded.cursor <> ''"
        )
        bound = connection.exec_driver_sql(
            f"SELECT cursor FROM {qualified(table, CURSORS)} WHERE {_under(table, name)} AND n = 0"
        ).scalar_one()
        check_consumer(name, bound, consumer, freed_by(table, name))
        connection.exec_driver_sql(
            f"{into} VALUES {rows} ON CONFLICT (table_name, cursorset, n, partition)"
            f" DO UPDATE SET cursor = excluded.cursor WHERE kept.cursor <> excluded.cursor"
        )


def _check_made(connection: Connection, table: OutboxTable, name: str, most: int) -> None:
    """Raise Problem for a new name if the table has as many as it may have."""
    made, is_known = connection.exec_driver_sql(
        f"SELECT count(*), max(CASE cursorset WHEN {literal(name)} THEN 1 END)"
        f" FROM {qualified(table, CURSORS)} WHERE table_name = {literal(table.bare_name)} AND n = 0"
    ).one()
    if not is_known:
        check_made(name, made, most)


def freed_by(table: OutboxTable, name: str) -> str:
    """Return the statement that frees a name, ready to paste."""
    return f"DELETE FROM {qualified(table, CURSORS)} WHERE {_under(table, name)};"


def _under(table: OutboxTable, name: str) -> str:
    return f"table_name = {literal(table.bare_name)} AND cursorset = {literal(name)}"


@contextmanager
def _allowed(table: OutboxTable) -> Iterator[None]:
    """Turn the database's refusal of what the role may not do into a Problem."""
    try:
        yield
    except DBAPIError as exc:
        read_only = getattr(exc.orig, "sqlite_errorcode", 0) & 0xFF == _SQLITE_READONLY
        if sqlstate(exc) in _NO_RIGHT or read_only:
            raise unsupported("the publisher may not write there") from exc
        raise


@contextmanager
def _writing(connection: Connection) -> Iterator[None]:
    """Allow a connection to write in one transaction, which ends with the context."""
    if connection.dialect.name == "sqlite":
        before = connection.exec_driver_sql("PRAGMA query_only").scalar()
        begin = ["PRAGMA query_only = OFF", "BEGIN IMMEDIATE"]
        again = [f"PRAGMA query_only = {before}"]
    else:  # READ COMMITTED: after a wait, a statement sees what the other transaction wrote
        begin, again = ["BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"], []
    try:
        _run(connection, begin)
        yield
        _run(connection, ["COMMIT"])
    except BaseException:
        for each in ("ROLLBACK", *again):
            with suppress(DBAPIError):  # the first error counts
                _run(connection, [each])
        raise
    _run(connection, again)


def _run(connection: Connection, statements: Iterable[str]) -> None:
    for each in statements:
        connection.exec_driver_sql(each)


def unsupported(why: str) -> Problem:
    return Problem(
        problems.CURSORSET_UNSUPPORTED,
        f"this feed keeps no cursors for readers: {why}. Its owner can run what zeh-spark ddl "
        "NAME --config FILE --cursorsets prints; or leave cursorset out, and keep the cursors "
        "yourself",
    )
