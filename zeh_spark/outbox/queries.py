"""Reading a service's table by key: the statements, as far as they are those of every database.

Rule for editors: rows are found by (tx, id) alone, never by OFFSET, and in the statement that knows
how far the table can be read; nothing is held between two statements. Values are written into the
statements, as numbers and checked text [with parameters, PostgreSQL may plan without their values,
and then sorts the table]. What is one database's own is in `postgresql` and `sqlite`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sqlalchemy import Connection

from zeh_spark.outbox.faults import Fault
from zeh_spark.outbox.names import HISTORY, REMOVED, literal, quoted
from zeh_spark.outbox.table import Cells, OutboxRow, OutboxTable, Place, Removed
from zeh_spark.protocol import wire

READ_BYTES = 1 << 20
"""Of data and headers that one statement brings, about."""

_ALL = 1_000_000
"""A limit that limits nothing: a subquery that has one is computed by itself."""


@dataclass(frozen=True, slots=True)
class TableStatus:
    """How a table stands. `removed`: what is noted of each stored partition, -1 for all of them;
    `end`: beyond all places that may have been given; `settled`: no row comes any more before it;
    `standby`: this is a replica, which may lag; `server`: which one, since when it runs.
    """

    history: str
    removed: Mapping[int, Removed] = field(default_factory=dict)
    end: tuple[int, ...] = ()
    settled: tuple[int, ...] = ()
    standby: bool = False
    server: str = ""


@dataclass(frozen=True, slots=True)
class BlockingTransaction:
    """What keeps rows from being read: the oldest transaction that writes, in whatever database of
    the cluster. What we may not see is None. `prepared`: the name of a prepared one, which no
    process will end by itself.
    """

    pid: int | None = None
    database: str | None = None
    seconds: float | None = None
    prepared: str | None = None

    def __str__(self) -> str:
        who = "a transaction that cannot be seen from here"
        if self.prepared:
            who = f"the prepared transaction {self.prepared!r}"
        elif self.pid:
            who = f"the transaction of process {self.pid}"
        where = f" in database {self.database!r}" if self.database else ""
        return who + where + (f", {self.seconds:.0f} s old" if self.seconds is not None else "")


@dataclass(frozen=True, slots=True)
class More:
    """What statements shall bring beside what a feed needs; see `SqlTableFeed.ddl`."""

    notify: bool = False
    updates: bool = False
    retention: bool = False
    grant_to: str | None = None


class TableFacts(Protocol):
    """How a table was made when it was inspected, as far as every database can tell."""

    @property
    def uuid(self) -> bool:
        """Whether rows have UUIDs; else they have integers."""

    @property
    def moves_updates(self) -> bool:
        """Whether a row that is updated becomes the last one."""

    @property
    def notifies(self) -> bool:
        """Whether a trigger tells of new rows."""

    @property
    def notes_removed(self) -> bool:
        """Whether a trigger notes what is deleted."""


@dataclass(frozen=True, slots=True)
class TableSql(ABC):
    """The statements about one table, made from its settings and facts. Immutable: for a table that
    was changed there is another one.
    """

    table: OutboxTable
    facts: TableFacts

    @property
    @abstractmethod
    def name(self) -> str:
        """Of the table, as SQL."""

    @property
    @abstractmethod
    def tx(self) -> str:
        """The column, as SQL."""

    @property
    @abstractmethod
    def order(self) -> str:
        """Of a row r."""

    @property
    @abstractmethod
    def backwards(self) -> str:
        """Of a row r."""

    @property
    @abstractmethod
    def settled(self) -> str:
        """A condition: no row comes any more before this one."""

    @property
    @abstractmethod
    def partition(self) -> str:
        """The stored partition of a row, as SQL."""

    @property
    def _alias(self) -> dict[str, str]:
        return {name: f"c{number}" for number, name in enumerate(self.table.used)}

    @abstractmethod
    def faults(self) -> list[Fault]:
        """Why the table cannot be a feed; empty if it can."""

    @abstractmethod
    def ddl(self, more: More) -> list[str]:
        """What is missing, as statements. Raises StoreError where that is not enough."""

    @abstractmethod
    def standing(self, connection: Connection) -> TableStatus | None:
        """Return how the table stands now; None if it is not made any more as the facts say, so
        that it has to be inspected again. Raises StoreError or Problem for a table that cannot be
        read as it stands.
        """

    @abstractmethod
    def feed_id(self, connection: Connection) -> str | None:
        """Return the feed's id; None if the table was prepared by a version that gave none. Raises
        StoreError if the feed's history is gone.
        """

    @abstractmethod
    def newest(self, connection: Connection) -> tuple[object, bool]:
        """What is different once there may be more to read, and whether rows wait to be settled."""

    def stray(self, connection: Connection) -> object:
        """The id of a row whose partition is none of the feed's, if there is one."""
        if not self.table.partition:
            return None
        column, key = f"r.{quoted(self.table.partition)}", f"r.{quoted(self.table.id)}"
        parts = [
            f"SELECT * FROM (SELECT {key} AS i FROM {self.name} AS r WHERE {each} LIMIT 1) AS part"
            for each in (
                f"{column} < 0",
                f"{column} >= {self.table.partitions}",
                f"{column} IS NULL",
            )
        ]
        found = connection.exec_driver_sql(f"{' UNION ALL '.join(parts)} LIMIT 1").first()
        return found and found[0]

    @abstractmethod
    def blocker(self, connection: Connection) -> BlockingTransaction | None:
        """Who keeps rows that are committed from being read."""

    @abstractmethod
    def new_history(self, connection: Connection, *, copy: bool) -> str:
        """Begin one, in a transaction of the caller's: older cursors are refused from then on. A
        `copy` gets a new feed id, too. Raises StoreError if there is no column for it.
        """

    @abstractmethod
    def _beside(self, name: str) -> str:
        """A table of ours, as SQL."""

    @abstractmethod
    def _behind(self, place: Place) -> str: ...

    @abstractmethod
    def _upto(self, place: Place) -> str: ...

    @abstractmethod
    def _at(self, place: Place) -> str: ...

    @abstractmethod
    def _json(self, column: str, value: str) -> str:
        """A value of a column as JSON text; NULL stays NULL."""

    @abstractmethod
    def _data(self, column: str, value: str) -> str:
        """The same, but text is JSON already."""

    @abstractmethod
    def _text(self, column: str, value: str) -> str:
        """The same, as a header's text."""

    @abstractmethod
    def _is_server(self, server: str) -> str:
        """A condition: the one that `standing` was asked of, not started since."""

    @abstractmethod
    def _is_behind(self, place: Place) -> str:
        """A condition on a row of REMOVED: its place is behind another one."""

    @abstractmethod
    def _id(self, value: str) -> str: ...

    @abstractmethod
    def _bytes(self, text: str) -> str:
        """How many."""

    def rows(
        self,
        connection: Connection,
        after: Mapping[int, Mapping[int, Place | None]],
        standing: TableStatus,
        limit: int,
        headers: Sequence[str],
    ) -> list[Cells]:
        """The next rows with these headers, in order of place: for each asked partition those of
        its stored ones that are behind a place; none if the table does not stand so any more: rows
        behind the place may be gone.
        """
        parts, only = [], [f"coalesce(before, 0) < {READ_BYTES}", self._stands_so(standing)]
        for asked, stored in after.items():
            for partition, place in stored.items():
                where = [self._of(partition), self.settled]
                where += [self._behind(place)] if place else []
                parts.append(self._picked(asked, where, f"{self.order} LIMIT {limit}"))
                if self.facts.notes_removed:
                    only += [self._keeps(each, place, standing) for each in {-1, partition}]
        found = " AND ".join(only)
        order = f"t, i LIMIT {limit}"
        return self._read(connection, parts, order, found, headers) if parts else []

    def last(self, connection: Connection, asked: int, stored: Iterable[int]) -> OutboxRow | None:
        """The last row of some stored partitions."""
        parts = [
            self._picked(asked, [self._of(each), self.settled], f"{self.backwards} LIMIT 1")
            for each in stored
        ]
        found = self._read(connection, parts, "t DESC, i DESC LIMIT 1") if parts else []
        return OutboxRow.of(found[0]) if found else None

    def at(self, connection: Connection, places: Mapping[int, Place]) -> dict[int, OutboxRow]:
        """The rows at places, by asked partition, as far as there are any."""
        parts = [self._picked(asked, [self._at(place)], "1") for asked, place in places.items()]
        found = self._read(connection, parts, f"v LIMIT {_ALL}") if parts else []
        return {row.asked: row for row in map(OutboxRow.of, found)}

    def any_upto(self, connection: Connection, place: Place, stored: Iterable[int]) -> bool:
        """Whether stored partitions have a row at or before a place."""
        parts = [
            f"SELECT * FROM (SELECT 1 FROM {self.name} AS r WHERE {self._of(each)}"
            f" AND {self._upto(place)} ORDER BY {self.order} LIMIT 1) AS part"
            for each in stored
        ]
        return (
            connection.exec_driver_sql(f"{' UNION ALL '.join(parts)} LIMIT 1").first() is not None
        )

    def _of(self, partition: int) -> str:
        return f"{self.partition} = {partition}" if self.table.partitions > 1 else "1 = 1"

    def _stands_so(self, standing: TableStatus) -> str:
        """The same history, on the same server [others may have undone what was read]."""
        mine = f"WHERE table_name = {literal(self.table.bare_name)}"
        history = f"(SELECT history FROM {self._beside(HISTORY)} {mine})"
        return f"{history} = {literal(standing.history)} AND {self._is_server(standing.server)}"

    def _keeps(self, partition: int, place: Place | None, standing: TableStatus) -> str:
        """No row of a partition behind a place was deleted since."""
        known = standing.removed.get(partition, Removed()).times
        mark = f"table_name = {literal(self.table.bare_name)} AND partition = {partition}"
        behind = f" AND {self._is_behind(place)}" if place else ""
        found = (
            f"SELECT 1 FROM {self._beside(REMOVED)} WHERE {mark} AND removals <> {known}{behind}"
        )
        return f"NOT EXISTS ({found})"

    def _picked(self, asked: int, where: Sequence[str], order: str) -> str:
        """Places and raw columns."""
        columns = "".join(f", r.{quoted(name)} AS {alias}" for name, alias in self._alias.items())
        return (
            f"SELECT * FROM (SELECT {asked} AS v, {self.tx} AS t, r.{quoted(self.table.id)} AS i"
            f"{columns} FROM {self.name} AS r WHERE {' AND '.join(where)} ORDER BY {order}) AS part"
        )

    def _read(
        self,
        connection: Connection,
        parts: Sequence[str],
        order: str,
        only: str = "1 = 1",
        headers: Sequence[str] = (),
    ) -> list[Cells]:
        """Values are computed once, and of the rows that are wanted only; the inner order spares
        PostgreSQL a second one. `only`: a condition, also on the bytes `before` a row. `headers`:
        those to fetch. A row's size is that with all of them, for it decides whether the row can be
        served, and its tag: neither depends on who asks.
        """
        found = f"SELECT * FROM ({' UNION ALL '.join(parts)}) AS found ORDER BY {order}"
        data = self._value()
        names = {each: f"h{number}" for number, each in enumerate(self.table.headers)}
        texts = [f"{self._text(each, self._alias[each])} AS {h}" for each, h in names.items()]
        shown = [f"{data} AS d", *texts]
        more = "".join(f" + coalesce({self._bytes(name)}, 0)" for name in names.values())
        fetched = ["d", *(names[each] for each in headers)]
        fits = f"CASE WHEN s <= {wire.MAX_LINE} THEN {{}} END"
        statement = (
            f"SELECT v, t, i, s, {', '.join(map(fits.format, fetched))} FROM (SELECT sized.*,"
            f" sum(coalesce(s, 0)) OVER (ORDER BY t, i ROWS UNBOUNDED PRECEDING) - s AS before"
            f" FROM (SELECT page.*, {self._bytes('d')}{more} AS s"
            f" FROM (SELECT v, t, {self._id('i')} AS i, {', '.join(shown)}"
            f" FROM ({found}) AS picked ORDER BY picked.t, picked.i LIMIT {_ALL}) AS page) AS sized"
            f") AS cut WHERE {only} ORDER BY t, i"
        )
        cursor: Any = connection.exec_driver_sql(statement).cursor  # the driver's own is faster
        found_rows: list[Cells] = cursor.fetchall()
        return found_rows

    def _value(self) -> str:
        """An event's data."""
        names = self.table.columns
        if not self.table.is_object:
            return self._data(names[0], self._alias[names[0]])
        members = [
            f"{literal(('{' if not at else ',') + json.dumps(name, ensure_ascii=False) + ':')}"
            f" || coalesce({self._json(name, self._alias[name])}, 'null')"
            for at, name in enumerate(names)
        ]
        return f"{' || '.join(members)} || '}}'"
