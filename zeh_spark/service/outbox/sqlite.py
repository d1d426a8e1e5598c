"""The statements about a table in SQLite, as far as they differ.

One transaction writes at a time, so ids that only grow come in the order of commits. AUTOINCREMENT
gives such ids: it never gives the id of a deleted row again. `tx` is 0.

Rule for editors: every connection that reads has to go through `prepare` first. It adds our
functions, which compute partitions as every other writer does, and make JSON of values.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import Connection

from zeh_spark.service.outbox import sqlite_ddl, sqlite_values
from zeh_spark.service.outbox.queries import COUNTED, Form, TableSql, history_row
from zeh_spark.service.outbox.sqlite_ddl import Column, SqliteFacts
from zeh_spark.service.outbox.table import (
    CURSORS,
    HISTORY,
    OutboxTable,
    Place,
    literal,
    quoted,
)
from zeh_spark.service.outbox.table_facts import TableStatus
from zeh_spark.service.telemetry.lag import Unread

_FUNCTIONS = {
    "zeh_partition": (4, sqlite_values.partition_of),
    "zeh_json": (3, sqlite_values.json_of),
    "zeh_data": (3, sqlite_values.data_of),
    "zeh_text": (3, sqlite_values.text_of),
}

_KNOWS_JSONB = sqlite3.sqlite_version_info >= (3, 45)


def prepare(connection: Connection) -> None:
    """Give a connection our functions, before it is used."""
    driver: Any = connection.connection.driver_connection
    for name, (count, function) in _FUNCTIONS.items():
        driver.create_function(name, count, function, deterministic=True)


@dataclass(frozen=True, slots=True)
class SqliteTable(TableSql):
    """The statements about one table in SQLite (see `TableSql`), on prepared connections."""

    facts: SqliteFacts

    new_history_sql: ClassVar[str] = "history = lower(hex(randomblob(4)))"
    new_feed_id_sql: ClassVar[str] = sqlite_ddl.NEW_FEED_ID
    server_sql: ClassVar[str] = "''"
    bytes_sql: ClassVar[str] = "length(CAST({} AS BLOB))"

    def standing(self, connection: Connection) -> TableStatus | None:
        trigger = literal(sqlite_ddl.retention_trigger(self.table))
        name = literal(self.table.bare_name)
        given = f"(SELECT seq FROM sqlite_sequence WHERE name = {name})"
        history, notes_removed, last = self._kept(
            connection,
            f"history, EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'trigger'"
            f" AND name = {trigger} AND tbl_name = {name}),"
            f" {'NULL' if self.facts.is_view else given}",
        )
        if notes_removed != self.facts.notes_removed:
            return None
        end = () if self.facts.is_view else (0, (last or 0) + 1)
        return TableStatus(history, self._removed(connection, tx="0"), end)

    def newest(self, connection: Connection) -> tuple[object, bool]:
        """Return the highest id; no rows wait to be settled (see `TableSql.newest`)."""
        newest = f"SELECT max(r.{quoted(self.table.id)}) FROM {self._name} AS r"
        return connection.exec_driver_sql(newest).scalar() or 0, False

    def _parts(self, after: Mapping[int, Mapping[int, Place | None]], limit: int) -> list[str]:
        """Return queries for the next rows: only one, if the partition is made from a key.

        No index has such a partition, so each query would look at all rows of the table.
        """
        if not self._has_keys:
            return TableSql._parts(self, after, limit)  # `super()` does not work with slots
        of, places, begin = self._asked(after)
        if not of:
            return []
        is_next = {each: self._at(place, ">") if place else "1" for each, place in places.items()}
        where = [begin, self._by_partition(is_next)]
        return [self._picked(self._by_partition(of), where, f"{self._order} LIMIT {limit}")]

    def _asked(
        self, after: Mapping[int, Mapping[int, Place | None]]
    ) -> tuple[dict[int, int], dict[int, Place | None], str]:
        """Return who asks, and the place after which to read, each by stored partition.

        The third value is an SQL condition on the table's order: true for rows after the first of
        all these places.
        """
        of = {each: asked for asked, stored in after.items() for each in stored}
        places = {each: place for stored in after.values() for each, place in stored.items()}
        if not places or not all(places.values()):
            return of, places, "1"
        first = min(int(place[1]) for place in places.values() if place)
        return of, places, self._at((0, first), ">")

    def _partitions_to_search(self, stored: Sequence[int]) -> list[tuple[int, str]]:
        if self._has_keys and len(stored) == self.table.partitions:
            return [(-1, "1")]
        return TableSql._partitions_to_search(self, stored)

    def _times(self, time: int) -> tuple[str, str]:
        return self._ms(quoted(self.table.time or "")), str(time)

    def unread(
        self, connection: Connection, after: Mapping[int, Mapping[int, Place | None]]
    ) -> dict[int, Unread]:
        """Count what follows the first of the places, because no index has a key's partition."""
        of, places, begin = self._asked(after)
        if not of:
            return {}
        cases = " ".join(
            f"WHEN p = {stored}{f' AND i > {place[1]}' if place else ''} THEN {of[stored]}"
            for stored, place in places.items()
        )
        key = quoted(self.table.id)
        rows = connection.exec_driver_sql(
            f"SELECT CASE {cases} END AS v, count(*), {self._age('min(at)')} FROM"
            f" (SELECT {self.partition} AS p, r.{key} AS i, {self._time} AS at"
            f" FROM {self._name} AS r WHERE {begin}"
            f" ORDER BY r.{key} LIMIT {COUNTED}) GROUP BY 1"
        ).all()
        more = sum(count for _, count, _ in rows) == COUNTED
        found = {v: Unread(count, since, more) for v, count, since in rows if v is not None}
        return {each: Unread(more=more) for each in after} | found

    @property
    def _has_keys(self) -> bool:
        """Return whether partitions are made from a key, by our function, which takes its time."""
        return self.table.partition_by is not None and self.table.partitions > 1

    def _ms(self, value: str) -> str:
        return sqlite_ddl.ms(value)

    def _by_partition(self, values: Mapping[int, object]) -> str:
        """Return SQL for the value of a row's stored partition; 0 for other partitions."""
        cases = " ".join(f"WHEN {each} THEN {value}" for each, value in values.items())
        return f"CASE {self.partition} {cases} ELSE 0 END"

    def _literal(self, place: Place) -> str:
        return str(place[1])

    def _value_of(self, column: str, form: Form) -> str:
        value, kind = self._alias[column], self.facts.columns[column].type
        if _KNOWS_JSONB and "JSON" in kind:  # a format of SQLite's own
            value = (
                f"CASE WHEN typeof({value}) = 'blob' AND json_valid({value}, 8) THEN json({value})"
                f" ELSE {value} END"
            )
        return f"zeh_{form}({_safe(value)}, {literal(kind)})"


def _safe(value: str) -> str:
    """Return SQL for a value and whether it is text. Text becomes bytes: it may not be UTF-8."""
    text = f"CASE typeof({value}) WHEN 'text' THEN CAST({value} AS BLOB) ELSE {value} END"
    return f"{text}, typeof({value}) = 'text'"


def partition_sql(table: OutboxTable) -> str:
    if table.partition:
        return quoted(table.partition)
    if not table.partition_by:
        return "0"
    key = _safe(quoted(table.partition_by))
    return f"zeh_partition({key}, {quoted(table.id)}, {table.partitions})"


def inspected(connection: Connection, table: OutboxTable) -> SqliteTable:
    """Return the statements about a table as it is now. A table that is absent has no columns."""
    name = literal(table.bare_name)
    made = connection.exec_driver_sql(
        f"SELECT type, sql FROM sqlite_master WHERE name = {name} AND type IN ('table', 'view')"
    ).first()
    kind, statement = made or ("", None)
    columns = connection.exec_driver_sql(f"PRAGMA table_xinfo({quoted(table.bare_name)})").all()
    found = connection.exec_driver_sql(
        f"SELECT name, sql FROM sqlite_master WHERE tbl_name = {name} AND sql IS NOT NULL"
        " AND type IN ('index', 'trigger')"
    )
    beside = dict(tuple(each) for each in found)
    history = connection.exec_driver_sql(f"PRAGMA table_info({HISTORY})").all()
    there = connection.exec_driver_sql(
        f"SELECT 1 FROM sqlite_master WHERE name = {literal(CURSORS)}"
    )
    others = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
    facts = SqliteFacts(
        table=table,
        columns={row[1]: Column(row[2].upper(), bool(row[5]), row[6] != 0) for row in columns},
        is_there=bool(kind),
        statement=statement if kind == "table" else None,
        is_view=kind == "view",
        beside=beside,
        checks=beside,
        has_history=bool(history) and history_row(connection, table, "1") is not None,
        lacks_feed_ids=bool(history) and "feed_id" not in {row[1] for row in history},
        notes_removed=sqlite_ddl.retention_trigger(table) in beside,
        has_cursors=there.first() is not None,
        others=[] if kind else connection.exec_driver_sql(others).scalars().all(),
    )
    return SqliteTable(
        table, facts,
        tx="0",  # SQLite needs none
        place=(f"r.{quoted(table.id)}",),
        settled="1 = 1",  # every committed row is
        partition=partition_sql(table),
        removed_place="id",
    )  # fmt: skip
