"""Where a request on a table starts: cursors checked against the rows that they follow, and special
ones as what they stand for. Runs in the publisher's worker threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from zeh_spark.outbox.queries import TableSql, TableStatus
from zeh_spark.outbox.table import (
    Cursor,
    OutboxRow,
    OutboxTable,
    Removed,
    all_removed,
    later,
    parse_cursor,
)
from zeh_spark.protocol import wire
from zeh_spark.store.feed import covered
from zeh_spark.store.interface import StoreBusyError
from zeh_spark.store.problems import cursor_gone, other_history


@dataclass(frozen=True, slots=True)
class Starts:
    """Of readers with n partitions, as the table stands."""

    sql: TableSql
    connection: Connection
    standing: TableStatus
    n: int

    def of(self, asked: Mapping[int, str]) -> dict[int, Cursor]:
        """Cursors by partition. Raises Problem, StoreBusyError."""
        history, uuid = self._lineage, self.sql.facts.uuid
        given = {each: parse_cursor(each, text, history, uuid) for each, text in asked.items()}
        places = {
            each: cursor.place
            for each, cursor in given.items()
            if cursor and cursor.place and self._stored(each)
        }
        rows = self.sql.at(self.connection, places)
        return {
            each: self._check(each, cursor, rows.get(each))
            if cursor
            else self._special(each, asked[each] == wire.LAST)
            for each, cursor in given.items()
        }

    def _special(self, partition: int, last: bool) -> Cursor:
        last = last and bool(self._stored(partition))
        history, removals = self._lineage, self._removed(partition).times
        row = self.sql.last(self.connection, partition, self._stored(partition)) if last else None
        return (
            after(row, history, self.sql.table, removals)
            if row
            else Cursor(history, removals=removals)
        )

    def _check(self, partition: int, cursor: Cursor, row: OutboxRow | None) -> Cursor:
        """In this order: its row is another one; what is behind it was removed; its row has not
        come yet, was never there, or is gone before its time.
        """
        removed, place, text = self._removed(partition), cursor.place, str(cursor)
        now = replace(cursor, removals=removed.times)
        if not self._stored(partition):  # n is larger than what is stored: nothing will ever come
            return cursor
        if row and not cursor.is_behind(row):
            raise other_history(partition, text, f"row {row.id} is another one now")
        if cursor.misses(removed):
            raise cursor_gone(partition, text, str(now))
        if row or place is None or later(place, removed.place) == removed.place:
            return now
        if self.standing.standby and place >= self.standing.settled:
            raise StoreBusyError(f"this replica has not come to cursor {text!r} yet; ask again")
        if self.standing.end and place >= self.standing.end:
            raise other_history(partition, text, "the database has never come that far")
        if self._is_strict() and self.sql.any_upto(self.connection, place, self._stored(partition)):
            again = self.sql.standing(self.connection)
            if again is None or again.removed != self.standing.removed:
                raise StoreBusyError("rows were deleted meanwhile; ask again")
            raise other_history(
                partition,
                text,
                f"its row {place[1]} is gone, while older ones are left. If the service deletes "
                f"rows in any order, set strict_cursors to false, or let zeh-spark ddl --retention "
                f"note what is deleted",
            )
        return now

    def _is_strict(self) -> bool:
        strict = self.sql.table.strict_cursors
        return not self.sql.facts.moves_updates if strict is None else strict

    @property
    def _lineage(self) -> str:
        return self.sql.table.lineage(self.standing.history)

    def _stored(self, partition: int) -> range:
        return covered(partition, self.n, self.sql.table.partitions)

    def _removed(self, partition: int) -> Removed:
        return all_removed(self.standing.removed, self._stored(partition))


def after(row: OutboxRow, history: str, table: OutboxTable, removals: int) -> Cursor:
    """The cursor behind a row."""
    return Cursor(history, row.place, row.tag(table.tagged), removals)
