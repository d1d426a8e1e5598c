"""A service's table in SQLite as a feed: what is SQLite's own.

One transaction writes at a time, so ids that only grow come in the order of commits: AUTOINCREMENT,
which never gives the id of a deleted row again. `tx` is 0. Functions of ours, on the connections
that read, compute partitions as every writer does (`wire.partition_of`), and make JSON of values,
which have the types of their columns only by convention.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import msgspec
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from zeh_spark import wire
from zeh_spark.errors import StoreError
from zeh_spark.publisher import sqlite, table_ddl
from zeh_spark.publisher.table import Place, Table
from zeh_spark.publisher.table_ddl import DELETES, Fault
from zeh_spark.publisher.table_sql import (
    HISTORY,
    REMOVED,
    Holder,
    More,
    Standing,
    TableSql,
    literal,
    quoted,
)

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(Z|[+-]\d\d:?\d\d)?")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")


class SqliteTable(TableSql):
    """Statements for one table. `check` comes first, `prepare` before each use of a connection."""

    tx = "0"
    settled = "1 = 1"

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.name = quoted(table.bare_name)
        key = quoted(table.id)
        self.order, self.backwards = key, f"{key} DESC"
        self.partition = partition_sql(table)
        self._types: Mapping[str, str] = {}
        self._notes_removed = False
        self._is_view = False

    def prepare(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        for name, count, function in (
            ("zeh_partition", 3, _partition),
            ("zeh_json", 2, json_of),
            ("zeh_data", 2, data_of),
            ("zeh_text", 2, text_of),
        ):
            driver.create_function(name, count, function, deterministic=True)

    def check(self, connection: Connection) -> None:
        self.prepare(connection)
        if found := faults(connection, self.table):
            raise StoreError(table_ddl.refusal(self.table, found))
        self._types = column_types(connection, self.table)
        self._is_view = not _statement(connection, self.table, "table")
        self._notes_removed = f"{DELETES}_{self.table.bare_name}" in _triggers(connection)

    def standing(self, connection: Connection) -> Standing:
        name = literal(self.table.bare_name)
        history = connection.exec_driver_sql(
            f"SELECT history FROM {HISTORY} WHERE table_name = {name}"
        ).scalar()
        if history is None:
            raise table_ddl.gone_history(self.table, create_history(self.table))
        removed: dict[int, Place] = {}
        if self._notes_removed:
            kept = f"SELECT partition, id FROM {REMOVED} WHERE table_name = {name}"
            removed = {each: (0, key) for each, key in connection.exec_driver_sql(kept)}
        if self._is_view:
            return Standing(history, removed)
        given = f"SELECT seq FROM sqlite_sequence WHERE name = {name}"
        return Standing(
            history, removed, (0, (connection.exec_driver_sql(given).scalar() or 0) + 1)
        )

    def newest(self, connection: Connection) -> tuple[object, bool]:
        newest = f"SELECT max({quoted(self.table.id)}) FROM {self.name}"
        return connection.exec_driver_sql(newest).scalar() or 0, False

    def holder(self, connection: Connection) -> Holder | None:
        return None

    def new_history(self, connection: Connection) -> str:
        name = literal(self.table.bare_name)
        if self._notes_removed:
            connection.exec_driver_sql(f"DELETE FROM {REMOVED} WHERE table_name = {name}")
        connection.exec_driver_sql(
            f"UPDATE {HISTORY} SET history = lower(hex(randomblob(4))) WHERE table_name = {name}"
        )
        return self.standing(connection).history

    def ddl(self, connection: Connection, more: More) -> list[str]:
        statements = table_ddl.mended(self.table, faults(connection, self.table))
        if more.retention and f"{DELETES}_{self.table.bare_name}" not in _triggers(connection):
            statements += retention(self.table)
        return statements

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
        return f"zeh_json({self._readable(column, value)}, {literal(self._types[column])})"

    def _data(self, column: str, value: str) -> str:
        return f"zeh_data({self._readable(column, value)}, {literal(self._types[column])})"

    def _text(self, column: str, value: str) -> str:
        return f"zeh_text({self._readable(column, value)}, {literal(self._types[column])})"

    def _readable(self, column: str, value: str) -> str:
        """JSONB is a format of SQLite's own."""
        if "JSON" in self._types[column]:
            return f"CASE typeof({value}) WHEN 'blob' THEN json({value}) ELSE {value} END"
        return value

    def _id(self, value: str) -> str:
        return value

    def _bytes(self, text: str) -> str:
        return f"length(CAST({text} AS BLOB))"


def partition_sql(table: Table) -> str:
    if table.partition:
        return quoted(table.partition)
    if not table.partition_by:
        return "0"
    return f"zeh_partition({quoted(table.partition_by)}, {quoted(table.id)}, {table.partitions})"


def _partition(key: object, id_: object, partitions: int) -> int:
    text = (
        key.decode(errors="replace") if isinstance(key, bytes) else str(id_ if key is None else key)
    )
    return wire.partition_of(text, partitions)


def json_of(value: object, kind: str) -> str | None:
    """A value as JSON text, by the type its column was declared with, in capitals."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    if isinstance(value, str):
        if "JSON" in kind:
            return value
        if _is_number(kind) and _JSON_NUMBER.fullmatch(value):
            return value
        text = _moment(value, kind) if "TIMESTAMP" in kind or "DATETIME" in kind else value
        return msgspec.json.encode(text).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else f'"{"-" * (value < 0)}Infinity"'
    if "BOOL" in kind and value in (0, 1):
        return "true" if value else "false"
    return repr(value)


def data_of(value: object, kind: str) -> str | None:
    """The same, but text in a column for text is JSON already."""
    if isinstance(value, str) and (not kind or re.search("CHAR|TEXT|CLOB|JSON", kind)):
        return value
    return json_of(value, kind)


def text_of(value: object, kind: str) -> str | None:
    """The same, as a header's text."""
    text = json_of(value, kind)
    if text is None or not text.startswith('"') or "JSON" in kind:
        return None if text == "null" else text
    return str(msgspec.json.decode(text))


def _is_number(kind: str) -> bool:
    return bool(re.search("INT|NUM|DEC|REAL|FLOA|DOUB", kind))


def _moment(text: str, kind: str) -> str:
    """ISO 8601, in UTC where the text says how far it is from it."""
    match = _MOMENT.fullmatch(text)
    if not match:
        return text
    date, time, offset = match.groups()
    if not offset:
        return f"{date}T{time}"
    if offset == "Z":
        return f"{date}T{time}Z"
    moment = datetime.fromisoformat(f"{date}T{time}{offset[:3]}:{offset[-2:]}")
    return moment.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def column_types(connection: Connection, table: Table) -> dict[str, str]:
    """As they were declared, in capitals."""
    found = connection.exec_driver_sql(f"PRAGMA table_xinfo({quoted(table.bare_name)})")
    return {row[1]: row[2].upper() for row in found}


def faults(connection: Connection, table: Table) -> list[Fault]:
    """Why a table cannot be a feed; empty if it can."""
    name = literal(table.bare_name)
    statement = _statement(connection, table, "table")
    if not statement and not _statement(connection, table, "view"):
        return [Fault(f"there is no table {table.name}", (example(table),))]
    types = column_types(connection, table)
    wrong = [
        Fault(f"there is no column {each}; there are {', '.join(types)}")
        for each in table.used
        if each not in types
    ]
    declared = rf"[\"'`\[]?{re.escape(table.id)}[\"'`\]]?\s+INTEGER\b[^,]*\bPRIMARY\s+KEY(\s+ASC)?"
    if statement and not re.search(declared + r"\s+AUTOINCREMENT", statement, re.IGNORECASE):
        reason = (
            f"{table.id} is not INTEGER PRIMARY KEY AUTOINCREMENT: SQLite would give the ids of "
            f"deleted rows again, and readers would miss rows"
        )
        wrong.append(Fault(reason, rebuilt(table, statement, declared)))
    known = "SELECT 1 FROM sqlite_master WHERE name = " + literal(HISTORY)
    entry = f"SELECT 1 FROM {HISTORY} WHERE table_name = {name}"
    if not (
        connection.exec_driver_sql(known).first() and connection.exec_driver_sql(entry).first()
    ):
        wrong.append(Fault(f"{table.name} has no history of its own", create_history(table)))
    return wrong


def rebuilt(table: Table, statement: str, declared: str) -> tuple[str, ...]:
    """The table anew, with AUTOINCREMENT; empty where we cannot say how."""
    changed, count = re.subn(
        declared, r"\g<0> AUTOINCREMENT", statement, count=1, flags=re.IGNORECASE
    )
    name = table.bare_name
    head = re.match(rf"CREATE TABLE\s+[\"'`\[]?{re.escape(name)}[\"'`\]]?", changed, re.IGNORECASE)
    if not count or not head:
        return ()
    new = quoted(f"{name}_new")
    return (
        f"-- then create its indexes and triggers again\nBEGIN IMMEDIATE;\n"
        f"CREATE TABLE {new}{changed[head.end() :]};\n"
        f"INSERT INTO {new} SELECT * FROM {quoted(name)};\nDROP TABLE {quoted(name)};\n"
        f"ALTER TABLE {new} RENAME TO {quoted(name)};\nCOMMIT;",
    )


def create_history(table: Table) -> tuple[str, ...]:
    return (
        f"CREATE TABLE IF NOT EXISTS {HISTORY}"
        f" (table_name TEXT PRIMARY KEY, history TEXT NOT NULL);",
        f"INSERT OR IGNORE INTO {HISTORY}"
        f" VALUES ({literal(table.bare_name)}, lower(hex(randomblob(4))));",
    )


def retention(table: Table) -> tuple[str, ...]:
    """What is deleted is noted, so that who has not read it is told. Partitions that only we can
    compute are noted together.
    """
    partition = f"OLD.{quoted(table.partition)}" if table.partition else "-1"
    return (
        f"CREATE TABLE IF NOT EXISTS {REMOVED} (table_name TEXT, partition INTEGER,"
        f" id INTEGER NOT NULL, PRIMARY KEY (table_name, partition));",
        f"CREATE TRIGGER IF NOT EXISTS {quoted(f'{DELETES}_{table.bare_name}')}"
        f" AFTER DELETE ON {quoted(table.bare_name)} BEGIN\n"
        f"    INSERT INTO {REMOVED} VALUES ({literal(table.bare_name)}, {partition},"
        f" OLD.{quoted(table.id)})\n"
        f"    ON CONFLICT DO UPDATE SET id = max(id, excluded.id);\nEND;",
    )


def example(table: Table) -> str:
    """A new table."""
    types = {table.id: "INTEGER PRIMARY KEY AUTOINCREMENT"}
    for name in table.used:
        types.setdefault(name, "JSON NOT NULL" if name == table.data else "TEXT")
    columns = (f"    {quoted(name)} {kind}" for name, kind in types.items())
    return f"CREATE TABLE {quoted(table.bare_name)} (\n" + ",\n".join(columns) + ");"


def _statement(connection: Connection, table: Table, kind: str) -> str | None:
    found = connection.exec_driver_sql(
        f"SELECT sql FROM sqlite_master WHERE name = {literal(table.bare_name)} AND type = '{kind}'"
    ).scalar()
    return str(found) if found else None


def _triggers(connection: Connection) -> set[str]:
    return set(
        connection.exec_driver_sql(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).scalars()
    )
