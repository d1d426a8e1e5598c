"""A service's own table as a feed, read straight from the table.

The service writes the rows in the transaction that changes its state. The rules of a page, in this
order:

1. A cursor is one that this feed gave in its present history (`table`), and its row is still the
   one that was read. A row that is gone was removed, if a trigger noted that or if no older row is
   left; if rows after it are gone, too, the answer is 410. Else a restore undid it (409).
2. Partition v of a reader's n has the stored partitions p with p mod n == v.
3. The next settled rows of all asked partitions come in order of place, at most `hint`.
4. A cursor follows at least every 2,000 rows. An asked partition without rows gets the cursor it
   came with, `_first` and `_last` as what they stand for.

Runs in the publisher's worker threads. Rule for editors: a connection is taken for a statement, and
none is held while a client is slow.
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
from zeh_spark.service.outbox import cursor_sets, postgresql, sqlite
from zeh_spark.service.outbox.blockers import Guard
from zeh_spark.service.outbox.cursors import Starts, after
from zeh_spark.service.outbox.faults import refusal
from zeh_spark.service.outbox.names import CURSORS, HISTORY
from zeh_spark.service.outbox.postgresql_ddl import CHANNEL
from zeh_spark.service.outbox.queries import READ_BYTES, TableSql
from zeh_spark.service.outbox.rows import BadRowError, RenderHeaders, header_renderer, lines_of
from zeh_spark.service.outbox.table import Cells, Cursor, OutboxRow, OutboxTable
from zeh_spark.service.outbox.table_facts import BlockingTransaction, More, TableStatus
from zeh_spark.service.postgresql import errors as postgresql_errors
from zeh_spark.service.postgresql.commit_listener import POLL_SECONDS, Watch
from zeh_spark.service.sqlite.store import explained
from zeh_spark.service.store.access import Maker
from zeh_spark.service.store.cursor_sets import NOBODY
from zeh_spark.service.store.feed import DEFAULT_HINT, EVERY, Feed
from zeh_spark.service.store.interface import StoreBusyError
from zeh_spark.service.store.problems import Problem, no_cursors_on_replica
from zeh_spark.service.store.reading import covered
from zeh_spark.service.telemetry.rare_log import RareLog
from zeh_spark.wire import problems, wire
from zeh_spark.wire.feed_identity import Epoch, FeedIdentity, parse
from zeh_spark.wire.served_lines import Block

log = logging.getLogger("zeh_spark.publisher")

READ_ROWS = 2_000
"""Most rows that one statement fetches; fewer if they are large."""

PENDING_SECONDS, UNNOTIFIED_SECONDS = 0.01, 0.1
"""Seconds between two checks: if rows wait to be settled, and if no trigger reports new rows."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableState:
    """How a table that is a feed stands now.

    Args:
        history: The table's history: 8 hexadecimal digits.
        held: The transaction that holds committed rows back from readers; None if none does.
        held_seconds: For how many seconds it has done so.
        skipped: How many bad rows this process has left out (`on_bad_row`).
    """

    history: str
    held: BlockingTransaction | None
    held_seconds: float
    skipped: int


class SqlTableFeed(Feed):
    """A table or view in PostgreSQL (through psycopg) or SQLite as a feed.

    The database is first asked when the feed is read. Call `check` to ask it before.

    Args:
        engine: The database. Give the feed an engine of its own, because readers may take all of
            its connections.
        table: The table's or view's name, like `outbox` or `shop.outbox`.
        data: The column with an event's data as JSON; or columns, whose object is the data.
        headers: Columns that become headers with their names. NULL leaves a header out.
        partition_by: The column that is the key: rows with the same value go to one partition.
        partition: Instead of `partition_by`: a column with the number of the partition, from 0.
        partitions: The number of stored partitions, 1 to 64. After a change readers have to begin
            again, because their cursors are refused.
        id: The column with the row's id: unique, and growing for each key.
        tx: In PostgreSQL, the column with the transaction that wrote the row. `ddl` adds it.
        on_bad_row: What to do with a row that cannot be an event: `stop` its partition there, or
            `skip` it with a warning in the log.
        strict_cursors: Whether to refuse a cursor whose row is gone while older rows of its
            partition are left. None: yes, unless rows may be updated (`ddl(updates=True)`).

    Raises:
        OptionError: A setting has a value that is not allowed, or the database is of another kind.

    Guarantee: every row comes once, in an order that never changes, and rows of one key come in the
    order of their commits. The same request brings the same answer until more rows are settled.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        table: str,
        data: str | Sequence[str] = "data",
        headers: Sequence[str] = (),
        partition_by: str | None = None,
        partition: str | None = None,
        partitions: int = 1,
        id: str = "id",
        tx: str = "tx",
        on_bad_row: str = "stop",
        strict_cursors: bool | None = None,
    ) -> None:
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
        self._rare = RareLog(log)

    def check(self) -> None:
        """Check that the table can be a feed.

        Raises:
            StoreError: It cannot. The message has the statements that repair it, if there are any.
            StoreBusyError: The database does not answer now.
        """
        if faults := self._do(self._inspected).faults():
            raise StoreError(refusal(self.table, faults), anchor="the-table-cannot-be-served")

    def page(
        self, asked: Mapping[int, str], n: int, hint: int | None, headers: Collection[str] = EVERY
    ) -> Iterator[Block]:
        """Yield an answer (see `Feed.page`). Headers that nobody wants are not fetched at all."""
        wanted, render = self._wanted(headers)
        sql, standing, cursors = self._do(partial(self._begun, asked, n))
        left = DEFAULT_HINT if hint is None else hint
        quiet, limit, bad = set(asked), READ_ROWS, False
        stored = {each: covered(each, n, self.partitions) for each in asked}
        stored = {each: some for each, some in stored.items() if some}  # others never have rows
        while left > 0 and not bad:
            most = min(left, limit)
            places = {each: dict.fromkeys(stored[each], cursors[each].place) for each in stored}
            rows = self._do(
                partial(sql.rows, after=places, standing=standing, limit=most, headers=wanted)
            )
            by_asked = _by_asked(rows)
            found = [
                self._found(each, by_asked[each], cursors[each], render)
                for each in stored
                if each in by_asked
            ]
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
        """Return something that changes once there may be more rows (see `Feed.version`)."""
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
        """Return how the table stands now.

        Raises:
            StoreError: The table cannot be a feed, or the database does not answer.
        """
        _, standing = self._do(self._standing)
        held = self._guard
        return TableState(standing.history, held.holder, held.seconds, self._skipped)

    def identity(self) -> FeedIdentity:
        """Return the feed's identity, whose id is kept beside the table's history.

        The feed has one epoch, because its events have no numbers and no times.

        Raises:
            StoreError: The table cannot be a feed, or its id has another form.
        """
        name = self._do(self._prepared().feed_id)
        try:
            return parse(FeedIdentity(name, (Epoch(name),)).document())
        except ValueError as exc:
            raise StoreError(
                f"the id of table {self.table.name} in {HISTORY} is {name!r}; it must be 16 digits "
                f"of 0-9 and a-f. Write such an id there.",
                anchor="the-table-cannot-be-served",
            ) from exc

    def save_cursors(
        self,
        name: str,
        n: int,
        cursors: Mapping[int, str],
        consumer: str = NOBODY,
        maker: Maker | None = None,
    ) -> None:
        """Keep a reader's cursors under a name, in the table beside the history.

        The cursors of each n are kept apart. A name is bound to the first consumer that tells its
        identity (see `store.cursor_sets`). All clients together may have begun `maker.most` names.

        Raises:
            Problem: The feed keeps no cursors, the role may not write them, or the name is bound to
                another consumer, or is one too many.
            StoreError: The database does not answer.
        """
        self._with_cursors(
            lambda each: cursor_sets.save(each, self.table, name, n, cursors, consumer, maker)
        )

    def load_cursors(self, name: str, n: int, consumer: str = NOBODY) -> dict[int, str]:
        """Return the kept cursors by partition (see `save_cursors`); empty if there are none."""
        return self._with_cursors(
            lambda each: cursor_sets.load(each, self.table, name, n, consumer)
        )

    def _with_cursors(self, work: Callable[[Connection], T]) -> T:
        """Do short work on the table of cursors. Raises Problem if there is none."""

        def checked(connection: Connection) -> T:
            sql = self._sql or self._inspected(connection)
            if not sql.facts.has_cursors and not self._inspected(connection).facts.has_cursors:
                raise cursor_sets.unsupported(self.table, f"there is no table {CURSORS}")
            if self._standing(connection)[1].standby:
                raise no_cursors_on_replica()
            return work(connection)

        return self._do(checked)

    def new_history(self, *, copy: bool = False) -> str:
        """Begin a new history of a table that was restored from a copy.

        The rows of the table come before all later ones, and cursors that were given until now are
        refused. The role needs the rights of the table's owner.

        Args:
            copy: Whether the table is a copy, and the original continues beside it. Then its feed
                is another one, and gets a new id.

        Returns:
            The new history: 8 hexadecimal digits.

        Raises:
            StoreError: The table cannot be a feed, or the role may not change it.
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
        cursorsets: bool = False,
        grant_to: str | None = None,
    ) -> list[str]:
        """Return the SQL statements that give the table what it lacks; change nothing.

        Args:
            notify: Whether readers are to be woken at once, not within 0.1 seconds. It costs:
                PostgreSQL commits transactions that notify one after the other, and such a
                transaction cannot be prepared.
            updates: Whether rows may be updated, which moves them to the end as new events.
            retention: Whether to note what is deleted, so that a reader that has not read it gets
                an error.
            cursorsets: Whether the feed is to keep cursors for readers (`cursorset`).
            grant_to: A role that is to serve the table; None for none.

        Returns:
            The statements, in order; empty if the table has all that it needs.

        Raises:
            StoreError: No statement can repair the table, or the database has no such feature.
        """
        more = More(notify, updates, retention, cursorsets, grant_to)
        return self._do(lambda connection: self._dialect.inspect(connection, self.table)).ddl(more)

    def close(self) -> None:
        """End the thread that listens for new rows. The engine stays as it is."""
        if self._watch:
            self._watch.close()

    def _prepared(self) -> TableSql:
        return self._sql or self._do(self._inspected)

    def _inspected(self, connection: Connection) -> TableSql:
        """Inspect the table, and use what was found from now on.

        Raises StoreError if the table cannot be a feed when it is first inspected. A later fault,
        a dropped index for example, does not stop readers.
        """
        sql = self._dialect.inspect(connection, self.table)
        if self._sql is None and (faults := sql.faults()):
            raise StoreError(refusal(self.table, faults), anchor="the-table-cannot-be-served")
        self._sql = sql
        return sql

    def _do(self, work: Callable[[Connection], T]) -> T:
        """Do short work on a connection, and once more if the connection was lost while idle.

        Raises StoreError, or a Problem that the work raises.
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
            raise StoreBusyError("all connections to the database are in use. Ask again.") from exc
        except DBAPIError as exc:
            raise self._dialect.explained(exc) from exc
        except SQLAlchemyError as exc:
            raise StoreError(f"the database cannot be used: {exc}") from exc

    def _begun(
        self, asked: Mapping[int, str], n: int, connection: Connection
    ) -> tuple[TableSql, TableStatus, dict[int, Cursor]]:
        """Return the statements, how the table stands, and the cursors to start from.

        Raises Problem.
        """
        sql, standing = self._standing(connection)
        return sql, standing, Starts(sql, connection, standing, n).of(asked)

    def _standing(self, connection: Connection) -> tuple[TableSql, TableStatus]:
        """Return the statements and how the table stands; inspect it again if it was changed."""
        sql = self._sql or self._inspected(connection)
        while (standing := sql.standing(connection)) is None:
            sql = self._inspected(connection)
        self._guard.look(connection, sql, standing)
        return sql, standing

    def _look(self, connection: Connection) -> tuple[object, float]:
        """Return the version, and the seconds until the next check."""
        begun, sql = time.monotonic(), self._sql or self._inspected(connection)
        version, pending = sql.newest(connection)
        if pending:
            return version, max(PENDING_SECONDS, 5 * (time.monotonic() - begun))
        return version, POLL_SECONDS if sql.facts.notifies else UNNOTIFIED_SECONDS

    def _wanted(self, headers: Collection[str]) -> tuple[Sequence[str], RenderHeaders]:
        """Return those of the table's headers that are wanted, and what renders them."""
        if wire.ALL_HEADERS in headers:
            return self.table.headers, self._headers
        wanted = [each for each in self.table.headers if each in headers]
        return wanted, header_renderer(wanted)

    def _found(
        self, asked: int, mine: Sequence[Cells], before: Cursor, render: RenderHeaders
    ) -> tuple[Block, Cursor | None, Problem | None]:
        """Return what some rows bring for the partition of the reader that they are of.

        This is a block, the cursor after it (None if the first row stops it), and the problem with
        the row that stops it (None without one).
        """
        last: OutboxRow | None = OutboxRow.of(mine[-1])
        problem = None
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
            f"an event: {bad}. Repair the row, or leave such rows out with on_bad_row = 'skip'.",
            partition=asked,
            id=row.id,
        )

    def _skip(self, bad: BadRowError) -> None:
        """Count a bad row, and name it in the log, one a minute."""
        self._skipped += 1
        self._rare.warning(
            "skipped",
            "table %s: the row with %s %s is left out: %s",
            self.table.name, self.table.id, bad.row.id, bad,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableDialect:
    """What differs between databases."""

    inspect: Callable[[Connection, OutboxTable], TableSql]
    explained: Callable[[DBAPIError], StoreError]
    prepare: Callable[[Connection], None] = lambda _: None


def dialect_of(engine: Engine, table: OutboxTable) -> TableDialect:
    """Return what is specific to the database of an engine.

    Raises OptionError if it is not SQLite or PostgreSQL with psycopg, or the table's name has a
    schema that SQLite does not have.
    """
    if engine.dialect.name == "sqlite":
        if table.schema:
            raise OptionError(
                f"table is {table.name!r}, and SQLite has no schemas. Give the name alone.",
                option="table",
            )
        return TableDialect(sqlite.inspected, explained, sqlite.prepare)
    if (engine.dialect.name, engine.dialect.driver) == ("postgresql", "psycopg"):
        return TableDialect(postgresql.inspected, postgresql_errors.explained)
    raise OptionError(
        f"a table is read through an engine of postgresql+psycopg://… or sqlite:///…, not of "
        f"{engine.dialect.name}+{engine.dialect.driver}. Give such an engine; the service itself "
        f"may use another one.",
        option="url",
    )


def _stuck(found: Sequence[tuple[Block, Cursor | None, Problem | None]]) -> Problem | None:
    """Return the problem of a partition whose next row is a bad one; None if there is none."""
    return next((problem for _, cursor, problem in found if problem and not cursor), None)


def _by_asked(rows: Sequence[Cells]) -> dict[int, list[Cells]]:
    """Return the rows of each partition of the reader, for those that have rows."""
    found: dict[int, list[Cells]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row)
    return found


def _next_limit(rows: Sequence[Cells]) -> int:
    """Return how many rows to fetch next, so that they have about `READ_BYTES`."""
    size = sum(row[3] or 0 for row in rows) // len(rows) + 1
    return max(10, min(READ_ROWS, READ_BYTES // size))
