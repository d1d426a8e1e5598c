"""How far readers of a table are behind, and where its end is.

Rule for editors: a look costs the same however many rows the table has. Rows are counted in the
order of an index, up to a limit. Runs in the publisher's worker threads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

from sqlalchemy import Connection

from zeh_spark.service.outbox import cursor_sets
from zeh_spark.service.outbox.blockers import Guard
from zeh_spark.service.outbox.cursors import Starts, after
from zeh_spark.service.outbox.queries import TableSql
from zeh_spark.service.outbox.table import Cursor, parse_cursor
from zeh_spark.service.outbox.table_facts import TableStatus
from zeh_spark.service.reads.reading import covered
from zeh_spark.service.store.cursor_sets import CursorSet
from zeh_spark.service.store.interface import now_ms
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.telemetry.lag import Lag, NewestRow, TableLook, Unread, joined
from zeh_spark.wire.direct_reads import PartitionLag

CURSOR_SETS, SECONDS = 200, 1.0
"""Cursor sets whose lag is told, the first ones by name, and for how long they are looked at."""


def head_and_lags(
    asked: Mapping[int, str], n: int, sql: TableSql, standing: TableStatus, connection: Connection
) -> tuple[str, dict[str, PartitionLag]]:
    """Return the cursor of a table's newest row, and what follows the cursors of a request.

    Raises Problem for a cursor that is refused.
    """
    starts, now = Starts(sql, connection, standing, n).of(asked), now_ms()
    found = _unread(sql, connection, n, starts).items()
    lags = {str(each): unread.as_told(now) for each, unread in found}
    row, lineage = sql.head(connection), sql.table.lineage(standing.history)
    return str(after(row, lineage, sql.table, 0) if row else Cursor(lineage)), lags


def look_at(
    guard: Guard,
    told: dict[str, list[Lag]],
    sql: TableSql,
    standing: TableStatus,
    connection: Connection,
) -> TableLook:
    """Return how the table stands, and the lag of each cursor set that is kept here.

    `told` has what earlier looks found of each set. The set that was counted longest ago comes
    first. If time runs out, the lag of the remaining sets stays as it was.
    """
    kept: list[CursorSet] = []
    with suppress(Problem):  # the role may not read them
        kept = cursor_sets.kept(connection, sql.table) if sql.facts.has_cursors else []
    end = time.monotonic() + SECONDS
    sets = {each.name: each for each in kept[:CURSOR_SETS]}
    for name in told.keys() - sets.keys():
        del told[name]
    for name in [*(each for each in sets if each not in told), *told]:
        told.pop(name, None)
        told[name] = [*_lags(sql, connection, standing, sets[name])]
        if time.monotonic() >= end:
            break
    lags = [each for name in sets for each in told.get(name, ())]
    newest = [
        NewestRow(row.asked, row.id, int(str(row.headers[0])) if any(row.headers) else None)
        for row in sql.lasts(connection, range(sql.table.partitions))
    ]
    held = str(guard.holder) if guard.holder else ""
    return TableLook(newest, lags, guard.seconds, held)


def _lags(
    sql: TableSql, connection: Connection, standing: TableStatus, kept: CursorSet
) -> Iterator[Lag]:
    """Yield the lag of a cursor set for each n, unless a cursor is of another history."""
    lineage = sql.table.lineage(standing.history)
    for n, texts in kept.cursors.items():
        try:
            cursors = {
                each: parse_cursor(each, text, lineage, sql.facts.uuid)
                for each, text in texts.items()
            }
        except Problem:
            continue
        at = {each: cursor for each, cursor in cursors.items() if cursor}
        found = _unread(sql, connection, n, at).values()
        yield Lag(kept.name, n, len(at), *joined(found))


def _unread(
    sql: TableSql, connection: Connection, n: int, cursors: Mapping[int, Cursor]
) -> dict[int, Unread]:
    places = {
        each: dict.fromkeys(covered(each, n, sql.table.partitions), cursor.place)
        for each, cursor in cursors.items()
    }
    return {each: Unread() for each in cursors} | sql.unread(connection, places)
