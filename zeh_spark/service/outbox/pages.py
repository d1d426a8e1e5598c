"""The pages of a table that is a feed.

These are the rules of a page, in this order:

1. A cursor is one that this feed gave in its present history (`table`), and its row is still the
   one that was read. A row that is gone was removed, if a trigger noted that or if no older row is
   left; if rows after it are gone, too, the answer is 410. Else a restore undid it (409).
2. Partition v of a reader's n has the stored partitions p with p mod n == v.
3. The next settled rows of all asked partitions come in order of place, at most `hint`.
4. A cursor follows at least every 2,000 rows. An asked partition without rows gets the cursor it
   came with, `_first` and `_last` as what they stand for.

Runs in the publisher's worker threads.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from sqlalchemy import Connection

from zeh_spark.service.outbox.connection import TableConnection
from zeh_spark.service.outbox.cursors import Starts, after
from zeh_spark.service.outbox.queries import READ_BYTES, TableSql
from zeh_spark.service.outbox.rows import BadRowError, RenderHeaders, header_renderer, lines_of
from zeh_spark.service.outbox.table import (
    Cells,
    Cursor,
    OutboxRow,
    OutboxTable,
    literal,
    qualified,
    quoted,
)
from zeh_spark.service.outbox.table_facts import TableStatus
from zeh_spark.service.reads.pages import DEFAULT_HINT
from zeh_spark.service.reads.reading import covered
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.telemetry.rare_log import RareLog
from zeh_spark.wire import problems, wire
from zeh_spark.wire.served_lines import Block

log = logging.getLogger("zeh_spark.publisher")

READ_ROWS = 2_000
"""Most rows that one statement fetches; fewer if they are large."""


class PageReader:
    """Reads pages of a table.

    Attributes:
        rare: The log.
        skipped: How many bad rows it has left out (`on_bad_row`).
    """

    def __init__(self, connection: TableConnection, table: OutboxTable) -> None:
        self._connection = connection
        self._table = table
        self._headers = header_renderer(table.sent_headers)
        self.rare = RareLog(log)
        self.skipped = 0

    def read_page(
        self, asked: Mapping[int, str], n: int, hint: int | None, headers: Collection[str]
    ) -> Iterator[Block]:
        """Yield an answer (see `Feed.page`). Headers that nobody wants are not fetched at all."""
        wanted, render = self._choose_headers(headers)
        sql, standing, cursors = self._connection.run(partial(self._begin, asked, n))
        left = DEFAULT_HINT if hint is None else hint
        quiet, limit, bad = set(asked), READ_ROWS, False
        stored = {part: covered(part, n, self._table.partitions) for part in asked}
        stored = {part: some for part, some in stored.items() if some}  # others never have rows
        while left > 0 and not bad:
            most = min(left, limit)
            places = {part: dict.fromkeys(stored[part], cursors[part].place) for part in stored}
            rows = self._connection.run(
                partial(sql.rows, after=places, standing=standing, limit=most, headers=wanted)
            )
            rows_of: dict[int, list[Cells]] = defaultdict(list)
            for row in rows:
                rows_of[row[0]].append(row)
            found = [
                self._make_block(part, rows_of[part], cursors[part], render)
                for part in stored
                if part in rows_of
            ]
            stuck = [problem for _, cursor, problem in found if problem and not cursor]
            if stuck and len(quiet) == len(asked):
                raise stuck[0]
            for block, cursor, problem in found:
                bad = bad or problem is not None
                if cursor:
                    cursors[block.partition] = cursor
                    quiet.discard(block.partition)
                    yield block
            if len(rows) < most and sum(row[3] or 0 for row in rows) < READ_BYTES:
                break
            left -= len(rows)
            limit = _choose_limit(rows)
        for part in quiet:
            yield Block(part, b"", str(cursors[part]))

    def _begin(
        self, asked: Mapping[int, str], n: int, connection: Connection
    ) -> tuple[TableSql, TableStatus, dict[int, Cursor]]:
        """Return the statements, how the table stands, and the cursors to start from.

        Raises Problem.
        """
        sql, standing = self._connection.look_up(connection)
        return sql, standing, Starts(sql, connection, standing, n).of(asked)

    def _choose_headers(self, headers: Collection[str]) -> tuple[Sequence[str], RenderHeaders]:
        """Return those of the table's headers that are wanted, and what renders them."""
        if wire.ALL_HEADERS in headers:
            return self._table.sent_headers, self._headers
        wanted = [name for name in self._table.sent_headers if name in headers]
        return wanted, header_renderer(wanted)

    def _make_block(
        self, asked: int, mine: Sequence[Cells], before: Cursor, render: RenderHeaders
    ) -> tuple[Block, Cursor | None, Problem | None]:
        """Return what some rows bring for the partition of the reader that they are of.

        This is a block, the cursor after it (None if the first row stops it), and the problem with
        the row that stops it (None without one).
        """
        last: OutboxRow | None = OutboxRow.of(mine[-1])
        problem = None
        skip = self._skip_row if self._table.on_bad_row == "skip" else None
        try:
            lines = lines_of(asked, mine, render, skip)
        except BadRowError as exc:
            lines, last, problem = exc.before, exc.last, self._bad_row(asked, exc)
        cursor = after(last, before.history, self._table, before.removals) if last else None
        return Block(asked, lines, str(cursor or "")), cursor, problem

    def _bad_row(self, asked: int, bad: BadRowError) -> Problem:
        row, table = bad.row, self._table
        return Problem(
            problems.BAD_ROW,
            f"partition {asked}: the row of table {table.name} with {table.id} {row.id} cannot be "
            f"an event: {bad}. Repair the row{_replacing(table, row)}, or leave such rows out with "
            f"on_bad_row = 'skip'.",
            partition=asked,
            id=row.id,
        )

    def _skip_row(self, bad: BadRowError) -> None:
        """Count a bad row, and name it in the log, one a minute."""
        self.skipped += 1
        self.rare.warning(
            "skipped",
            "table %s: the row with %s %s is left out: %s",
            self._table.name, self._table.id, bad.row.id, bad,
        )  # fmt: skip


def _replacing(table: OutboxTable, row: OutboxRow) -> str:
    """Return a statement that puts other data in the place of a row's, ready to paste."""
    if table.is_object:
        return ""
    key = row.id if isinstance(row.id, int) else literal(row.id)
    return (
        f", or put other data in its place: UPDATE {qualified(table, table.bare_name)} SET "
        f"{quoted(table.columns[0])} = '{{\"removed\": true}}' WHERE {quoted(table.id)} = {key};"
    )


def _choose_limit(rows: Sequence[Cells]) -> int:
    """Return how many rows to fetch next, so that they have about `READ_BYTES`."""
    size = sum(row[3] or 0 for row in rows) // len(rows) + 1
    return max(10, min(READ_ROWS, READ_BYTES // size))
