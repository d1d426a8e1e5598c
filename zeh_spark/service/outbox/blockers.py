"""Find what holds back all readers of a table: open transactions, and rows that cannot be read.

A row cannot be read if its partition is not one of the feed's, or if it came from another cluster.
Runs in the publisher's worker threads, at readers' requests.
"""

from __future__ import annotations

import logging
import math
import time

from sqlalchemy import Connection

from zeh_spark.service.outbox.queries import TableSql
from zeh_spark.service.outbox.table_facts import BlockingTransaction, TableStatus
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import problems

log = logging.getLogger("zeh_spark.publisher")

HELD_SECONDS = 60.0
"""Seconds after which a blocking transaction is named in the log, and named again."""

LOOK_SECONDS = 1.0
"""Seconds between two checks of a table."""


class Guard:
    """Checks one table for all of its readers, at most once in `LOOK_SECONDS`.

    Attributes:
        holder: The transaction that held committed rows back at the last check; None if none did.
    """

    def __init__(self) -> None:
        self._looked = self._warned = -math.inf
        self._since = time.monotonic()
        self._settled: tuple[int, ...] = ()
        self._pending = False
        self.holder: BlockingTransaction | None = None

    @property
    def seconds(self) -> float:
        """Return for how many seconds the same committed rows have been held back, or 0."""
        return time.monotonic() - self._since if self._pending else 0.0

    def look(self, connection: Connection, sql: TableSql, standing: TableStatus) -> None:
        """Look at the table, unless that was done less than `LOOK_SECONDS` ago.

        Raises Problem if a row is in no partition of the feed, or the table was restored from
        another cluster.
        """
        now, table = time.monotonic(), sql.table
        if now < self._looked + LOOK_SECONDS:
            return
        _, self._pending = sql.newest(connection)
        self._looked = -math.inf  # if this fails, the next request looks again
        if not self._pending or standing.settled != self._settled:
            self._since, self._settled = now, standing.settled
        self.holder = sql.blocker(connection) if self._pending else None
        if (stray := sql.stray(connection)) is not None:
            raise Problem(
                problems.BAD_ROW,
                f"the row of table {table.name} with {table.id} {stray} is in no partition of the "
                f"feed: {table.partition} must be 0 to {table.partitions - 1}. Repair the row.",
                partition=0,
                id=str(stray),
            )
        if self.seconds >= HELD_SECONDS and now >= self._warned + HELD_SECONDS:
            self._warned = now
            log.warning(
                "table %s: committed rows wait for %s, for %.0f s now. "
                "Readers get them when it ends.",
                table.name, self.holder, self.seconds,
            )  # fmt: skip
        self._looked = now
