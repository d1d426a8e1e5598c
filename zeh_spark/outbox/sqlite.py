"""A service's table in SQLite as a feed: what is SQLite's own.

One transaction writes at a time, so ids that only grow come in the order of commits: AUTOINCREMENT,
which never gives the id of a deleted row again. `tx` is 0. Functions of ours, on the connections
that read, compute partitions as every writer does, and make JSON of values.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from zeh_spark.errors import StoreError
from zeh_spark.outbox import postgresql_check, sqlite_ddl, sqlite_values
from zeh_spark.outbox.queries import (
    HISTORY,
    REMOVED,
    BlockingTransaction,
    Fault,
    More,
    TableSql,
    TableStatus,
    literal,
    quoted,
)
from zeh_spark.outbox.table import OutboxTable, Place, Removed
from zeh_spark.store import sqlite

_FUNCTIONS = {
    "zeh_partition": (4, sqlite_values.partition_of),
    "zeh_json": (3, sqlite_values.json_of),
    "zeh_data": (3, sqlite_values.data_of),
    "zeh_text": (3, sqlite_values.text_of),
}

_KNOWS_JSONB = sqlite3.sqlite_version_info >= (3, 45)


class SqliteTable(TableSql):
    """Statements for one table. `inspect` comes first, `prepare` before a connection is used."""

    tx = "0"
    settled = "1 = 1"

    def __init__(self, table: OutboxTable) -> None:
        super().__init__(table)
        self.name = quoted(table.bare_name)
        key = f"r.{quoted(table.id)}"
        self.order, self.backwards = key, f"{key} DESC"
        self.partition = partition_sql(table)
        self._types: Mapping[str, str] = {}
        self._is_view = False

    def prepare(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        for name, (count, function) in _FUNCTIONS.items():
            driver.create_function(name, count, function, deterministic=True)

    def inspect(self, connection: Connection) -> list[Fault]:
        self._types = sqlite_ddl.column_types(connection, self.table)
        self._is_view = not sqlite_ddl.statement_of(connection, self.table, "table")
        self.notes_removed = sqlite_ddl.notes_removed(connection, self.table)
        return sqlite_ddl.sqlite_faults(connection, self.table)

    def standing(self, connection: Connection) -> TableStatus:
        name = literal(self.table.bare_name)
        history = connection.exec_driver_sql(
            f"SELECT history FROM {HISTORY} WHERE table_name = {name}"
        ).scalar()
        if history is None:
            missing = sqlite_ddl.create_history(connection, self.table)
            raise postgresql_check.gone_history(self.table, missing)
        self.notes_removed = sqlite_ddl.notes_removed(connection, self.table)
        removed: dict[int, Removed] = {}
        if self.notes_removed:
            kept = f"SELECT partition, id, removals FROM {REMOVED} WHERE table_name = {name}"
            for partition, key, count in connection.exec_driver_sql(kept):
                removed[partition] = Removed((0, key), count)
        if self._is_view:
            return TableStatus(history, removed)
        given = f"SELECT seq FROM sqlite_sequence WHERE name = {name}"
        return TableStatus(
            history, removed, (0, (connection.exec_driver_sql(given).scalar() or 0) + 1)
        )

    def feed_id(self, connection: Connection) -> str | None:
        return sqlite_ddl.feed_id(connection, self.table)

    def newest(self, connection: Connection) -> tuple[object, bool]:
        newest = f"SELECT max(r.{quoted(self.table.id)}) FROM {self.name} AS r"
        return connection.exec_driver_sql(newest).scalar() or 0, False

    def blocker(self, connection: Connection) -> BlockingTransaction | None:
        return None

    def new_history(self, connection: Connection, *, copy: bool) -> str:
        name = literal(self.table.bare_name)
        if copy and sqlite_ddl.lacks_feed_ids(connection):
            missing = sqlite_ddl.create_feed_id(connection, self.table)
            raise postgresql_check.no_feed_ids(self.table, missing)
        renamed = f", feed_id = {sqlite_ddl.NEW_FEED_ID}" if copy else ""
        if self.notes_removed:
            connection.exec_driver_sql(f"DELETE FROM {REMOVED} WHERE table_name = {name}")
        connection.exec_driver_sql(
            f"UPDATE {HISTORY} SET history = lower(hex(randomblob(4))){renamed}"
            f" WHERE table_name = {name}"
        )
        return self.standing(connection).history

    def ddl(self, connection: Connection, more: More) -> list[str]:
        return sqlite_ddl.sqlite_ddl(connection, self.table, more)

    def explained(self, exc: DBAPIError) -> StoreError:
        return sqlite.explained(exc)

    def _beside(self, name: str) -> str:
        return name

    def _behind(self, place: Place) -> str:
        return f"{self.order} > {place[1]}"

    def _upto(self, place: Place) -> str:
        return f"{self.order} <= {place[1]}"

    def _at(self, place: Place) -> str:
        return f"{self.order} = {place[1]}"

    def _json(self, column: str, value: str) -> str:
        return self._call("zeh_json", column, value)

    def _data(self, column: str, value: str) -> str:
        return self._call("zeh_data", column, value)

    def _text(self, column: str, value: str) -> str:
        return self._call("zeh_text", column, value)

    def _is_server(self, server: str) -> str:
        return "1 = 1"

    def _is_behind(self, place: Place) -> str:
        return f"id > {place[1]}"

    def _id(self, value: str) -> str:
        return value

    def _bytes(self, text: str) -> str:
        return f"length(CAST({text} AS BLOB))"

    def _call(self, function: str, column: str, value: str) -> str:
        kind = self._types[column]
        if _KNOWS_JSONB and "JSON" in kind:  # a format of SQLite's own
            value = (
                f"CASE WHEN typeof({value}) = 'blob' AND json_valid({value}, 8) THEN json({value})"
                f" ELSE {value} END"
            )
        return f"{function}({_safe(value)}, {literal(kind)})"


def _safe(value: str) -> str:
    """A value and whether it is text, which goes as bytes: it may not be UTF-8."""
    text = f"CASE typeof({value}) WHEN 'text' THEN CAST({value} AS BLOB) ELSE {value} END"
    return f"{text}, typeof({value}) = 'text'"


def partition_sql(table: OutboxTable) -> str:
    if table.partition:
        return quoted(table.partition)
    if not table.partition_by:
        return "0"
    key = _safe(quoted(table.partition_by))
    return f"zeh_partition({key}, {quoted(table.id)}, {table.partitions})"
