"""What is the same for all readers of a table, looked for now and then: rows of another cluster,
and transactions that keep committed rows from being read.
"""

from __future__ import annotations

import logging
import math
import time

from sqlalchemy import Connection

from zeh_spark.outbox.queries import BlockingTransaction, TableSql, TableStatus
from zeh_spark.protocol import problems
from zeh_spark.store.problems import Problem

log = logging.getLogger("zeh_spark.publisher")

HELD_SECONDS = 60.0
"""After which a transaction that keeps rows from being read is named in the log, and again."""

LOOK_SECONDS = 1.0


class Guard:
    """Of one table. Readers' requests make it look, once in LOOK_SECONDS."""

    def __init__(self) -> None:
        self._looked = self._warned = -math.inf
        self._since = time.monotonic()
        self._settled: tuple[int, ...] = ()
        self._pending = False
        self.holder: BlockingTransaction | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since if self._pending else 0.0

    def look(self, connection: Connection, sql: TableSql, standing: TableStatus) -> None:
        """Raises Problem."""
        now, table = time.monotonic(), sql.table
        if now < self._looked + LOOK_SECONDS:
            return
        _, self._pending = sql.newest(connection)
        self._looked = -math.inf  # again, until all is well
        if not self._pending or standing.settled != self._settled:
            self._since, self._settled = now, standing.settled
        self.holder = sql.blocker(connection) if self._pending else None
        if (stray := sql.stray(connection)) is not None:
            raise Problem(
                problems.BAD_ROW,
                f"the row of table {table.name} with {table.id} {stray} is in no partition of the "
                f"feed: {table.partition} must be 0 to {table.partitions - 1}; repair the row",
                partition=0,
                id=str(stray),
            )
        if self.seconds >= HELD_SECONDS and now >= self._warned + HELD_SECONDS:
            self._warned = now
            log.warning(
                "table %s: rows that are committed wait for %s, for %.0f s now: readers get them "
                "when it ends",
                table.name, self.holder, self.seconds,
            )  # fmt: skip
        self._looked = now
