"""Find where a request on a table starts: check its cursors, and resolve the special ones.

A cursor is checked against the row that it follows. Rule for editors: a cursor is accepted only if
no row after it can have been missed; else it is refused, or the reader is asked to try again. Runs
in the publisher's worker threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from zeh_spark.service.outbox.queries import TableSql
from zeh_spark.service.outbox.table import (
    Cursor,
    OutboxRow,
    OutboxTable,
    Removed,
    all_removed,
    later,
    parse_cursor,
)
from zeh_spark.service.outbox.table_facts import TableStatus
from zeh_spark.service.reads.reading import covered
from zeh_spark.service.store.interface import StoreBusyError
from zeh_spark.service.store.problems import Problem, cursor_gone, other_history
from zeh_spark.wire import wire


@dataclass(frozen=True, slots=True)
class Starts:
    """Finds where readers with `n` partitions start, in a table as it stands now."""

    sql: TableSql
    connection: Connection
    standing: TableStatus
    n: int

    def of(self, asked: Mapping[int, str]) -> dict[int, Cursor]:
        """Return the cursors to start from, by the reader's partition.

        `asked` may have `_first` and `_last`. Raises Problem if the feed has not given a cursor,
        can no longer continue from it, or is a replica that has not come so far yet; StoreBusyError
        if rows were deleted meanwhile.
        """
        history, uuid, replica = self._lineage, self.sql.facts.uuid, self.standing.standby
        given = {
            each: parse_cursor(each, text, history, uuid, replica=replica)
            for each, text in asked.items()
        }
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

    def since(self, time: int) -> dict[int, str]:
        """Return the cursors before all rows of a time, in ms since 1970, or later.

        The end is found first: a row that is written meanwhile comes after it.
        """
        row = self.sql.head(self.connection)
        if place := self.sql.first_since(self.connection, time):
            row = self.sql.head(self.connection, before=place)
        table, lineage = self.sql.table, self._lineage
        removals = {each: self._removed(each).times for each in range(self.n)}
        return {
            each: str(after(row, lineage, table, times) if row else Cursor(lineage, removals=times))
            for each, times in removals.items()
        }

    def _special(self, partition: int, last: bool) -> Cursor:
        """Return the cursor that `_first` or, with `last`, `_last` stands for."""
        last = last and bool(self._stored(partition))
        history, removals = self._lineage, self._removed(partition).times
        rows = self.sql.lasts(self.connection, self._stored(partition)) if last else []
        return (
            after(rows[-1], history, self.sql.table, removals)
            if rows
            else Cursor(history, removals=removals)
        )

    def _check(self, partition: int, cursor: Cursor, row: OutboxRow | None) -> Cursor:
        """Return the cursor as of now, after these checks in this order.

        1. Its row is another one now.
        2. Rows after it were removed.
        3. Its row has not come to this replica yet.
        4. Its row was never there.
        5. Its row is gone, although older rows are left.
        """
        removed, place, text = self._removed(partition), cursor.place, str(cursor)
        now = replace(cursor, removals=removed.times)
        if not self._stored(partition):  # n is larger than the feed's partitions: no row ever comes
            return cursor
        if row and not cursor.is_behind(row):
            raise self._other(partition, text, f"row {row.id} is another one now")
        if cursor.misses(removed):
            raise cursor_gone(partition, text, str(now))
        if row or place is None or later(place, removed.place) == removed.place:
            return now
        if self.standing.standby and place >= self.standing.settled:
            raise self._other(partition, text, "its row has not come yet")
        if self.standing.end and place >= self.standing.end:
            raise self._other(partition, text, "the database has never come that far")
        if self._is_strict() and self.sql.any_upto(self.connection, place, self._stored(partition)):
            again = self.sql.standing(self.connection)
            if again is None or again.removed != self.standing.removed:
                raise StoreBusyError("rows were deleted during the request. Ask again.")
            raise self._other(
                partition,
                text,
                f"its row {place[1]} is gone, while older ones are left. If the service deletes "
                f"rows in any order, set strict_cursors to false, or let zeh-spark ddl --retention "
                f"note what is deleted",
            )
        return now

    def _other(self, partition: int, cursor: str, why: str) -> Problem:
        return other_history(partition, cursor, why, replica=self.standing.standby)

    def _is_strict(self) -> bool:
        """Return whether a cursor is refused if its row is gone while older rows are left."""
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
    return Cursor(history, row.place, row.tag(table.tagged), removals)
