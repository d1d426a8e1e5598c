"""A service's own table as a feed: written by the service, in the transaction that changes its
state; read by whoever asks, straight from the table.

Rules of a page, in this order:

1. a cursor is one that this feed gave in its present history (`table`), and its row is still the
   one that was read; a row that is gone was removed, if a trigger noted that (410 where rows behind
   it are gone too), or if no older one is left; else a restore undid it (409);
2. partition v of a reader's n has the stored partitions p with p mod n == v;
3. the next settled rows of all asked partitions come in order of place, at most `hint`;
4. a cursor follows at least every 2,000 rows; an asked partition without rows gets the one it came
   with, `_first` and `_last` as what they stand for.

Guarantee: every row once, in an order that never changes, and rows of one key in the order of their
commits. The same request brings the same answer until more is settled. Runs in the publisher's
worker threads; a connection is taken for a statement, and none is held while a client is slow.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnection

from zeh_spark.errors import OptionError, StoreError
from zeh_spark.outbox import postgresql, sqlite
from zeh_spark.outbox.blockers import Guard
from zeh_spark.outbox.cursors import Starts, after
from zeh_spark.outbox.faults import refusal
from zeh_spark.outbox.names import HISTORY
from zeh_spark.outbox.postgresql_ddl import CHANNEL
from zeh_spark.outbox.queries import (
    READ_BYTES,
    BlockingTransaction,
    More,
    TableSql,
    TableStatus,
)
from zeh_spark.outbox.rows import BadRowError, RenderHeaders, header_renderer, lines_of
from zeh_spark.outbox.table import Cells, Cursor, OutboxRow, OutboxTable
from zeh_spark.protocol import problems, wire
from zeh_spark.protocol.feed_identity import Epoch, FeedIdentity, parse
from zeh_spark.sql_store import postgresql_errors
from zeh_spark.sql_store.commit_listener import POLL_SECONDS, Watch
from zeh_spark.sql_store.sqlite import explained
from zeh_spark.store.feed import DEFAULT_HINT, EVERY, Block, covered
from zeh_spark.store.interface import StoreBusyError
from zeh_spark.store.problems import Problem

log = logging.getLogger("zeh_spark.publisher")

READ_ROWS = 2_000
"""What one statement brings, at most; less where they are large."""

PENDING_SECONDS, UNNOTIFIED_SECONDS = 0.01, 0.1
"""Between looks for rows to be settled, and for rows that nothing notifies."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableState:
    """How a table that is a feed stands. `held`: what keeps committed rows from being read, and
    `held_seconds`: for how long already; `skipped`: bad rows that this process passed over.
    """

    history: str
    held: BlockingTransaction | None
    held_seconds: float
    skipped: int


class SqlTableFeed:
    """A table or view in PostgreSQL (through psycopg) or SQLite as a feed; its settings are those
    of `table.Table`.

    The database is first asked when the feed is: `check` does that before. The `engine` should be
    one of its own, because readers may take all its connections.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        table: str,
        data: str | Sequence[str],
        headers: Sequence[str] = (),
        partition_by: str | None = None,
        partition: str | None = None,
        partitions: int = 1,
        id: str = "id",
        tx: str = "tx",
        on_bad_row: str = "stop",
        strict_cursors: bool | None = None,
    ) -> None:
        """Raises OptionError."""
        self.table = OutboxTable(
            table, data, headers, partition_by, partition, partitions, id, tx, on_bad_row,
            strict_cursors,
        )  # fmt: skip
        self.partitions = partitions
        self.engine = engine
        self._dialect = dialect_of(engine, self.table)
        self._sql: TableSql | None = None
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT", no_parameters=True)
        self._headers = header_renderer(self.table.headers)
        self._lock = threading.Lock()
        self._watch: Watch[object] | None = None
        self._guard = Guard()
        self._skipped = 0

    def check(self) -> None:
        """Raises StoreError for a table that cannot be a feed, with the statements that mend it;
        StoreBusyError where the database does not answer.
        """
        if faults := self._do(self._inspected).faults():
            raise StoreError(refusal(self.table, faults))

    def page(
        self, asked: Mapping[int, str], n: int, hint: int | None, headers: Collection[str] = EVERY
    ) -> Iterator[Block]:
        """As `Feed.page`. Headers that nobody wants are neither fetched nor in the lines."""
        wanted, render = self._wanted(headers)
        sql, standing, cursors = self._do(partial(self._begun, asked, n))
        left = DEFAULT_HINT if hint is None else hint
        quiet, limit, bad = set(asked), READ_ROWS, False
        while left > 0 and not bad:
            most = min(left, limit)
            places = {
                each: dict.fromkeys(covered(each, n, self.partitions), cursor.place)
                for each, cursor in cursors.items()
            }
            rows = self._do(
                partial(sql.rows, after=places, standing=standing, limit=most, headers=wanted)
            )
            found = [self._found(each, rows, cursors[each], render) for each in asked]
            if len(quiet) == len(asked) and (problem := _stuck(found)):
                raise problem
            for block, cursor, problem in found:
                bad = bad or problem is not None
                if cursor:
                    cursors[block.partition] = cursor
                    quiet.discard(block.partition)
                    yield block
            if len(rows) < most and sum(row[3] or 0 for row in rows) < READ_BYTES:
                break
            left -= len(rows)
            limit = _next_limit(rows)
        for each in quiet:
            yield Block(each, b"", str(cursors[each]))

    def version(self) -> object:
        sql = self._prepared()
        if self._engine.dialect.name == "sqlite":
            return self._do(sql.newest)[0]
        with self._lock:
            if self._watch is None:
                self._watch = Watch(self._engine, CHANNEL, self._look)
        try:
            return self._watch.version()
        except DBAPIError as exc:
            raise self._dialect.explained(exc) from exc

    def state(self) -> TableState:
        """Raises StoreError."""
        _, standing = self._do(self._standing)
        held = self._guard
        return TableState(standing.history, held.holder, held.seconds, self._skipped)

    def identity(self) -> FeedIdentity | None:
        """Return the feed's id, which is kept beside the table's history; None if the table was
        prepared by a version that gave none, until what `zeh-spark ddl` prints was run. It has one
        epoch: its events have no numbers and no times.

        Raises StoreError for a table that cannot be a feed, and for an id of another form.
        """
        if (name := self._do(self._prepared().feed_id)) is None:
            return None
        try:
            return parse(FeedIdentity(name, (Epoch(name),)).document())
        except ValueError as exc:
            raise StoreError(
                f"the id of table {self.table.name} in {HISTORY} is {name!r}; it must be 16 digits "
                f"of 0-9 and a-f. Set feed_id to NULL there, and run what zeh-spark ddl prints"
            ) from exc

    def new_history(self, *, copy: bool = False) -> str:
        """For a table that was restored from a copy: rows that are there come before all others,
        and cursors that were given until now are refused. Needs the rights of the table's owner.
        Returns the new history.

        `copy`: the table is a copy that goes on beside the original, and its feed another one: it
        gets a new id, too. Raises StoreError.
        """
        self._prepared()
        engine = self.engine.execution_options(no_parameters=True)
        with self._errors(), engine.begin() as connection:
            found = self._dialect.inspect(connection, self.table)
            return found.new_history(connection, copy=copy)

    def ddl(
        self,
        *,
        notify: bool = False,
        updates: bool = False,
        retention: bool = False,
        grant_to: str | None = None,
    ) -> list[str]:
        """Statements that give the table what it needs and has not: to be a feed; to wake readers
        at once; that its rows may be updated; that readers are told what was deleted; that a role
        may serve it. Raises StoreError for a table that no statement can mend.

        `notify` costs: PostgreSQL commits transactions that notify one after the other, and they
        cannot be prepared.
        """
        more = More(notify, updates, retention, grant_to)
        return self._do(lambda connection: self._dialect.inspect(connection, self.table)).ddl(more)

    def close(self) -> None:
        """Ends the thread that listens. The engine stays as it is."""
        if self._watch:
            self._watch.close()

    def _prepared(self) -> TableSql:
        return self._sql or self._do(self._inspected)

    def _inspected(self, connection: Connection) -> TableSql:
        """Look at the table, and go by that from now on. Raises StoreError if it has never been a
        feed and cannot be one. [What goes wrong later, a dropped index for instance, stops nobody
        who reads.]
        """
        sql = self._dialect.inspect(connection, self.table)
        if self._sql is None and (faults := sql.faults()):
            raise StoreError(refusal(self.table, faults))
        self._sql = sql
        return sql

    def _do(self, work: Callable[[Connection], T]) -> T:
        """Short work on a connection, done once more where that was lost while it was idle. Raises
        StoreError, Problem.
        """
        with self._errors():
            try:
                return self._once(work)
            except DBAPIError as exc:
                if not exc.connection_invalidated:
                    raise
                return self._once(work)

    def _once(self, work: Callable[[Connection], T]) -> T:
        with self._engine.connect() as connection:
            self._dialect.prepare(connection)
            return work(connection)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except NoConnection as exc:
            raise StoreBusyError("all connections to the database are in use; ask again") from exc
        except DBAPIError as exc:
            raise self._dialect.explained(exc) from exc
        except SQLAlchemyError as exc:
            raise StoreError(f"the database cannot be used: {exc}") from exc

    def _begun(
        self, asked: Mapping[int, str], n: int, connection: Connection
    ) -> tuple[TableSql, TableStatus, dict[int, Cursor]]:
        """The table's statements, how it stands, and the cursors to go on from. Raises Problem."""
        sql, standing = self._standing(connection)
        return sql, standing, Starts(sql, connection, standing, n).of(asked)

    def _standing(self, connection: Connection) -> tuple[TableSql, TableStatus]:
        sql = self._sql or self._inspected(connection)
        while (standing := sql.standing(connection)) is None:
            sql = self._inspected(connection)
        self._guard.look(connection, sql, standing)
        return sql, standing

    def _look(self, connection: Connection) -> tuple[object, float]:
        begun, sql = time.monotonic(), self._sql or self._inspected(connection)
        version, pending = sql.newest(connection)
        if pending:
            return version, max(PENDING_SECONDS, 5 * (time.monotonic() - begun))
        return version, POLL_SECONDS if sql.facts.notifies else UNNOTIFIED_SECONDS

    def _wanted(self, headers: Collection[str]) -> tuple[Sequence[str], RenderHeaders]:
        """Those of the table's headers that are wanted, and what renders them."""
        if wire.ALL_HEADERS in headers:
            return self.table.headers, self._headers
        wanted = [each for each in self.table.headers if each in headers]
        return wanted, header_renderer(wanted)

    def _found(
        self, asked: int, rows: Sequence[Cells], before: Cursor, render: RenderHeaders
    ) -> tuple[Block, Cursor | None, Problem | None]:
        """A reader's partition's part of some rows: a block, the cursor behind it, if there are
        any, and the row that stops it.
        """
        mine, problem = [row for row in rows if row[0] == asked], None
        last = OutboxRow.of(mine[-1]) if mine else None
        skip = self._skip if self.table.on_bad_row == "skip" else None
        try:
            lines = lines_of(asked, mine, render, skip)
        except BadRowError as exc:
            lines, last, problem = exc.before, exc.last, self._bad(asked, exc)
        cursor = after(last, before.history, self.table, before.removals) if last else None
        return Block(asked, lines, str(cursor or "")), cursor, problem

    def _bad(self, asked: int, bad: BadRowError) -> Problem:
        row, table = bad.row, self.table
        return Problem(
            problems.BAD_ROW,
            f"partition {asked}: the row of table {table.name} with {table.id} {row.id} cannot be "
            f"an event: {bad}; repair the row, or pass over such rows with on_bad_row = 'skip'",
            partition=asked,
            id=row.id,
        )

    def _skip(self, bad: BadRowError) -> None:
        self._skipped += 1
        log.warning(
            "table %s: the row with %s %s is left out: %s",
            self.table.name, self.table.id, bad.row.id, bad,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableDialect:
    """What a database brings. `inspect`: the statements for a table as it is made now; `explained`:
    an error in our words; `prepare` comes before a connection is used.
    """

    inspect: Callable[[Connection, OutboxTable], TableSql]
    explained: Callable[[DBAPIError], StoreError]
    prepare: Callable[[Connection], None] = lambda _: None


def dialect_of(engine: Engine, table: OutboxTable) -> TableDialect:
    """Raises OptionError for a database that we do not know."""
    if engine.dialect.name == "sqlite":
        if table.schema:
            raise OptionError(f"table is {table.name!r}; SQLite has no schemas", option="table")
        return TableDialect(sqlite.inspected, explained, sqlite.prepare)
    if (engine.dialect.name, engine.dialect.driver) == ("postgresql", "psycopg"):
        return TableDialect(postgresql.inspected, postgresql_errors.explained)
    raise OptionError(
        f"a table is read through an engine of postgresql+psycopg://… or sqlite:///…, not of "
        f"{engine.dialect.name}+{engine.dialect.driver}; the service's own engine may be another",
        option="url",
    )


def _stuck(found: Sequence[tuple[Block, Cursor | None, Problem | None]]) -> Problem | None:
    """What a partition stops at whose next row is a bad one."""
    return next((problem for _, cursor, problem in found if problem and not cursor), None)


def _next_limit(rows: Sequence[Cells]) -> int:
    size = sum(row[3] or 0 for row in rows) // len(rows) + 1
    return max(10, min(READ_ROWS, READ_BYTES // size))
