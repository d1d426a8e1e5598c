"""The statements that read a service's table, as far as they are the same for every database.

What differs is in `postgresql` and `sqlite`. Rules for editors:

- Rows are found by (tx, id) alone, never by OFFSET, in the statement that also knows how far the
  table can be read. Nothing is held between two statements.
- Values are written into the statements, as numbers and checked text. Rejected: parameters. With
  them PostgreSQL may plan without their values, and then sorts the table.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from sqlalchemy import Connection

from zeh_spark.service.outbox.table import (
    HISTORY,
    REMOVED,
    Cells,
    OutboxRow,
    OutboxTable,
    Place,
    Removed,
    literal,
    qualified,
    quoted,
)
from zeh_spark.service.outbox.table_facts import (
    BlockingTransaction,
    Fault,
    TableFacts,
    TableStatus,
)
from zeh_spark.service.telemetry.lag import Unread
from zeh_spark.wire import wire

READ_BYTES = 1 << 20
"""About how many bytes of data and headers one statement fetches."""

COUNTED = 10_000
"""Rows that are counted at most for a request, because each page of a reader that is behind counts
them. Measured: 0.01 s, and 0.04 s where SQLite computes the partitions.
"""

Form = Literal["json", "data", "text"]
"""What a value becomes: JSON text; an event's data, for which text is JSON already; or a header."""

_ALL = 1_000_000
"""A limit that no statement reaches: a subquery with a limit is computed separately."""

_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class TableSql(ABC):
    """The statements about one table, made from its settings and facts.

    It never changes: after a change of the table there is another one.

    Args:
        tx: The column `tx`, as SQL.
        place: The columns of the place of a row `r`, as SQL.
        settled: A condition, as SQL: no row will come any more before this one.
        partition: The stored partition of a row, as SQL.
        removed_place: The place in a row of REMOVED, as SQL, to be compared with others.
    """

    table: OutboxTable
    facts: TableFacts
    tx: str
    place: tuple[str, ...]
    settled: str
    partition: str
    removed_place: str

    new_history_sql: ClassVar[str]
    """What a new history sets in the table's row of HISTORY."""

    new_feed_id_sql: ClassVar[str]

    server_sql: ClassVar[str]
    """The server that answers, by the time of its start (`TableStatus.server`)."""

    bytes_sql: ClassVar[str]
    """The number of bytes of a text, {}."""

    @property
    def _name(self) -> str:
        return qualified(self.table, self.table.bare_name)

    @property
    def _mine(self) -> str:
        """Return a condition on a row of a table beside the service's own: it is of this table."""
        return f"table_name = {literal(self.table.bare_name)}"

    @property
    def _order(self) -> str:
        return ", ".join(self.place)

    @property
    def _backwards(self) -> str:
        return ", ".join(f"{each} DESC" for each in self.place)

    @property
    def _alias(self) -> dict[str, str]:
        """Return the names that the table's columns have in a statement."""
        return {name: f"c{number}" for number, name in enumerate(self.table.used)}

    @abstractmethod
    def standing(self, connection: Connection) -> TableStatus | None:
        """Return how the table stands now; None if it has to be inspected again.

        That is so if the table was changed, and is no longer as the facts say. Raises StoreError if
        the feed's history is gone, and Problem if the table was restored from another cluster.
        """

    def feed_id(self, connection: Connection) -> str:
        return str(self._kept(connection, "feed_id")[0])

    def _kept(self, connection: Connection, columns: str) -> Sequence[Any]:
        """Return columns of the table's row in HISTORY. Raises StoreError if it is gone."""
        found = history_row(connection, self.table, columns)
        if found is None:
            gone = Fault(f"{HISTORY} no longer has a row for it", self.facts.history())
            raise self.facts.refusal([gone])
        return found

    def _removed(self, connection: Connection, tx: str) -> dict[int, Removed]:
        """Return what is noted as deleted of each stored partition; `tx` is its column's name."""
        if not self.facts.notes_removed:
            return {}
        noted = connection.exec_driver_sql(
            f"SELECT partition, {tx}, id, removals"
            f" FROM {qualified(self.table, REMOVED)} WHERE {self._mine}"
        )
        return {
            partition: Removed((tx, key if self.facts.uuid else int(key)), times)
            for partition, tx, key, times in noted
        }

    @abstractmethod
    def newest(self, connection: Connection) -> tuple[object, bool]:
        """Return what changes once there may be more rows, and whether rows wait to be settled.

        Raises Problem if the table was restored from another cluster.
        """

    def stray(self, connection: Connection) -> object:
        """Return the id of a row that is in no partition of the feed; None if there is none."""
        if not self.table.partition:
            return None
        column, key = f"r.{quoted(self.table.partition)}", f"r.{quoted(self.table.id)}"
        wrong = (f"{column} < 0", f"{column} >= {self.table.partitions}", f"{column} IS NULL")
        found = self._first(connection, f"{key} AS i", [f"{each} LIMIT 1" for each in wrong])
        return found and found[0]

    def _first(
        self, connection: Connection, columns: str, where: Iterable[str], order: str = ""
    ) -> Sequence[Any] | None:
        """Return the first row that fulfils one of some conditions, each with its own limit."""
        parts = [
            f"SELECT * FROM (SELECT {columns} FROM {self._name} AS r WHERE {each}) AS part"
            for each in where
        ]
        return connection.exec_driver_sql(f"{' UNION ALL '.join(parts)}{order} LIMIT 1").first()

    def blocker(self, connection: Connection) -> BlockingTransaction | None:
        """Return the transaction that holds committed rows back; None if there cannot be one."""
        return None

    def new_history(self, connection: Connection, *, copy: bool) -> str:
        """Begin a new history and return it. Older cursors are refused from then on.

        The caller commits. With `copy` the feed gets a new id, too.
        """
        if self.facts.notes_removed:
            connection.exec_driver_sql(
                f"DELETE FROM {qualified(self.table, REMOVED)} WHERE {self._mine}"
            )
        renamed = f", feed_id = {self.new_feed_id_sql}" if copy else ""
        connection.exec_driver_sql(
            f"UPDATE {qualified(self.table, HISTORY)}"
            f" SET {self.new_history_sql}{renamed} WHERE {self._mine}"
        )
        return str(self._kept(connection, "history")[0])

    @abstractmethod
    def _literal(self, place: Place) -> str:
        """Return a place as SQL, to be compared with the columns of `place`."""

    def _at(self, place: Place, comparison: str = "=") -> str:
        """Return a condition on a row `r`: it is at a place; or after it (`>`), or up to it."""
        return f"({self._order}) {comparison} {self._literal(place)}"

    @abstractmethod
    def _value_of(self, column: str, form: Form) -> str:
        """Return SQL for a value of a column in a form; NULL stays NULL."""

    def _id(self, value: str) -> str:
        """Return SQL for an id as Python is to get it."""
        return value

    @abstractmethod
    def _ms(self, value: str) -> str:
        """Return SQL for a value of the column `time` in ms since 1970; NULL if it is no time."""

    @property
    def _time(self) -> str:
        """Return SQL for the column `time` of a row `r`; NULL without one."""
        return f"r.{quoted(self.table.time)}" if self.table.time else "NULL"

    def _age(self, value: str) -> str:
        return self._ms(value) if self.table.time else "NULL"

    def rows(
        self,
        connection: Connection,
        after: Mapping[int, Mapping[int, Place | None]],
        standing: TableStatus,
        limit: int,
        headers: Sequence[str],
    ) -> list[Cells]:
        """Return the next rows, in order of place.

        It returns none if the table no longer stands as `standing` says, because rows after the
        places may be gone then. `after` has for each asked partition its stored partitions, each
        with the place after which to read, or None. `standing` is how the table stood when the
        places were checked.
        """
        only = [f"coalesce(before, 0) < {READ_BYTES}", self._stands_so(standing)]
        if self.facts.notes_removed:
            for stored in after.values():
                for partition, place in stored.items():
                    only += [self._keeps(each, place, standing) for each in {-1, partition}]
        parts, order = self._parts(after, limit), f"t, i LIMIT {limit}"
        return self._read(connection, parts, order, " AND ".join(only), headers)

    def _parts(self, after: Mapping[int, Mapping[int, Place | None]], limit: int) -> list[str]:
        """Return queries that together have the next rows: one for each stored partition."""
        return [
            self._picked(str(asked), self._next(partition, place), f"{self._order} LIMIT {limit}")
            for asked, stored in after.items()
            for partition, place in stored.items()
        ]

    def _next(self, partition: int, place: Place | None) -> list[str]:
        """Return conditions on a row: it is settled, of a stored partition, and after a place."""
        return [self._of(partition), self.settled, *([self._at(place, ">")] if place else [])]

    def lasts(
        self, connection: Connection, stored: Sequence[int], before: Place | None = None
    ) -> list[OutboxRow]:
        """Return the last settled row of each stored partition, or the last one before a place.

        `asked` is the stored partition; -1 stands for all, if no index has the partition. The only
        header is `zeh-time`, if the table has times.
        """
        upto = [self._at(before, "<")] if before else []
        parts = [
            self._picked(f"{each}", [where, self.settled, *upto], f"{self._backwards} LIMIT 1")
            for each, where in self._partitions_to_search(stored)
        ]
        headers = self.table.sent_headers[len(self.table.headers) :]
        found = self._read(connection, parts, f"t, i LIMIT {_ALL}", headers=headers)
        return [OutboxRow.of(each) for each in found]

    def _partitions_to_search(self, stored: Sequence[int]) -> list[tuple[int, str]]:
        """Return stored partitions, and for each the condition that a row is in it."""
        return [(each, self._of(each)) for each in stored]

    def head(self, connection: Connection, before: Place | None = None) -> OutboxRow | None:
        """Return the last settled row of all partitions, or the last before a place; or None."""
        rows = self.lasts(connection, range(self.table.partitions), before)
        return rows[-1] if rows else None

    def first_since(self, connection: Connection, time: int) -> Place | None:
        """Return the first place of a settled row of a time, in ms since 1970, or without one."""
        written, since = self._times(time)
        place = f"{self.tx} AS t, {self._id(f'r.{quoted(self.table.id)}')} AS i"
        where = [  # OFFSET keeps databases from searching all rows in the order of places
            f"{written} {each} AND {self.settled} LIMIT {_NO_LIMIT} OFFSET 0"
            for each in (f">= {since}", "IS NULL")
        ]
        row = self._first(connection, place, where, " ORDER BY t, i")
        return (row[0], row[1]) if row else None

    @abstractmethod
    def _times(self, time: int) -> tuple[str, str]:
        """Return SQL for when a row was written, as an index has it, and for a time to compare."""

    @abstractmethod
    def unread(
        self, connection: Connection, after: Mapping[int, Mapping[int, Place | None]]
    ) -> dict[int, Unread]:
        """Return what is settled after places, by asked partition (`after` is as in `rows`).

        Rows are counted up to a limit, in the order in which they are read.
        """

    def at(self, connection: Connection, places: Mapping[int, Place]) -> dict[int, OutboxRow]:
        """Return the rows at places, by asked partition, as far as there are any."""
        parts = [
            self._picked(str(asked), [self._at(place)], "1") for asked, place in places.items()
        ]
        found = self._read(connection, parts, f"v LIMIT {_ALL}")
        return {row.asked: row for row in map(OutboxRow.of, found)}

    def any_upto(self, connection: Connection, place: Place, stored: Iterable[int]) -> bool:
        """Return whether stored partitions have a row at or before a place."""
        upto = f"{self._at(place, '<=')} ORDER BY {self._order} LIMIT 1"
        where = [f"{self._of(each)} AND {upto}" for each in stored]
        return self._first(connection, "1", where) is not None

    def _of(self, partition: int) -> str:
        return f"{self.partition} = {partition}" if self.table.partitions > 1 else "1 = 1"

    def _stands_so(self, standing: TableStatus) -> str:
        """Return a condition: the history and the server are still the same.

        Another server, or the same after a restart, may have lost what was read.
        """
        history = f"(SELECT history FROM {qualified(self.table, HISTORY)} WHERE {self._mine})"
        same_server = f"{self.server_sql} = {literal(standing.server)}"
        return f"{history} = {literal(standing.history)} AND {same_server}"

    def _keeps(self, partition: int, place: Place | None, standing: TableStatus) -> str:
        """Return a condition: no row of a partition after a place was deleted since."""
        known = standing.removed.get(partition, Removed()).times
        mark = f"{self._mine} AND partition = {partition}"
        behind = f" AND {self.removed_place} > {self._literal(place)}" if place else ""
        noted = f"FROM {qualified(self.table, REMOVED)} WHERE {mark} AND removals <> {known}"
        return f"NOT EXISTS (SELECT 1 {noted}{behind})"

    def _picked(self, asked: str, where: Sequence[str], order: str) -> str:
        """Return a query for places and raw columns of the rows that fulfil conditions.

        `asked` is SQL for the reader's partition of a row.
        """
        columns = "".join(f", r.{quoted(name)} AS {alias}" for name, alias in self._alias.items())
        return (
            f"SELECT * FROM (SELECT {asked} AS v, {self.tx} AS t, r.{quoted(self.table.id)} AS i"
            f"{columns} FROM {self._name} AS r WHERE {' AND '.join(where)} ORDER BY {order})"
            f" AS part"
        )

    def _read(
        self,
        connection: Connection,
        parts: Sequence[str],
        order: str,
        only: str = "1 = 1",
        headers: Sequence[str] = (),
    ) -> list[Cells]:
        """Return the rows of some queries, with their values as JSON and text.

        Values are computed once, and only for the rows that are wanted. The inner order spares
        PostgreSQL a second sort. A row's size includes all headers, also those that are not
        fetched. It decides whether the row can be served, and its tag, and neither may depend on
        the reader. `parts` are made by `_picked`. `only` is a condition on each row, also on the
        bytes `before` it.
        """
        if not parts:
            return []
        found = f"SELECT * FROM ({' UNION ALL '.join(parts)}) AS found ORDER BY {order}"
        data = self._value()
        names = {each: f"h{number}" for number, each in enumerate(self.table.sent_headers)}
        texts = [f"{self._header(each)} AS {h}" for each, h in names.items()]
        shown = [f"{data} AS d", *texts]
        more = "".join(f" + coalesce({self.bytes_sql.format(name)}, 0)" for name in names.values())
        fetched = ["d", *(names[each] for each in headers)]
        fits = f"CASE WHEN s <= {wire.MAX_LINE} THEN {{}} END"
        statement = (
            f"SELECT v, t, i, s, {', '.join(map(fits.format, fetched))} FROM (SELECT sized.*,"
            f" sum(coalesce(s, 0)) OVER (ORDER BY t, i ROWS UNBOUNDED PRECEDING) - coalesce(s, 0)"
            f" AS before"
            f" FROM (SELECT page.*, {self.bytes_sql.format('d')}{more} AS s"
            f" FROM (SELECT v, t, {self._id('i')} AS i, {', '.join(shown)}"
            f" FROM ({found}) AS picked ORDER BY picked.t, picked.i LIMIT {_ALL}) AS page) AS sized"
            f") AS cut WHERE {only} ORDER BY t, i"
        )
        cursor: Any = connection.exec_driver_sql(statement).cursor  # the driver's own is faster
        found_rows: list[Cells] = cursor.fetchall()
        return found_rows

    def _header(self, name: str) -> str:
        if name == wire.TIME_HEADER and self.table.time:
            return f"CAST({self._ms(self._alias[self.table.time])} AS text)"
        return self._value_of(name, "text")

    def _value(self) -> str:
        names = self.table.columns
        if not self.table.is_object:
            return self._value_of(names[0], "data")
        members = [
            f"{literal(('{' if not at else ',') + json.dumps(name, ensure_ascii=False) + ':')}"
            f" || coalesce({self._value_of(name, 'json')}, 'null')"
            for at, name in enumerate(names)
        ]
        return f"{' || '.join(members)} || '}}'"


def history_row(connection: Connection, table: OutboxTable, columns: str) -> Sequence[Any] | None:
    """Return columns of the table's row in HISTORY; None if there is no such row."""
    mine = f"WHERE table_name = {literal(table.bare_name)}"
    found = f"SELECT {columns} FROM {qualified(table, HISTORY)} {mine}"
    return connection.exec_driver_sql(found).first()
