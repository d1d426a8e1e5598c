"""A service's own table as a feed, read straight from the table.

The service writes the rows in the transaction that changes its state. `pages` has the rules of a
page. Runs in the publisher's worker threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import Engine

from zeh_spark.errors import StoreError
from zeh_spark.service.outbox import cursor_sets, lag
from zeh_spark.service.outbox.connection import TableConnection
from zeh_spark.service.outbox.cursors import Starts
from zeh_spark.service.outbox.pages import PageReader
from zeh_spark.service.outbox.postgresql_ddl import CHANNEL
from zeh_spark.service.outbox.table import CURSORS, HISTORY, OutboxTable
from zeh_spark.service.outbox.table_facts import BlockingTransaction, More
from zeh_spark.service.postgresql.commit_listener import POLL_SECONDS, Watch
from zeh_spark.service.reads.feed import EVERY, Feed, LoadCursors, SaveCursors
from zeh_spark.service.reads.reading import time_is_ahead
from zeh_spark.service.store.interface import now_ms
from zeh_spark.service.store.problems import Problem, no_cursors_on_replica
from zeh_spark.service.telemetry.lag import Lag, TableLook
from zeh_spark.wire import page_headers
from zeh_spark.wire.feed_identity import Epoch, FeedIdentity, parse
from zeh_spark.wire.page_headers import Standing
from zeh_spark.wire.served_lines import Block

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
        time: The column with the time at which a row was written. Events have it as `zeh-time`,
            readers can start by time, and the lag is told in seconds.

    Raises:
        OptionError: A setting has a value that is not allowed, or the database is of another kind.

    Guarantee: every row comes once, in an order that never changes, unless it is updated, deleted
    or skipped, or a view shows it only after its commit. Rows of one key come in the order of their
    commits, if ids grow and each transaction locks the key's row first. The same request brings the
    same answer until more rows are settled.
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
        time: str | None = None,
    ) -> None:
        self.table = OutboxTable(
            table, data, headers, partition_by, partition, partitions, id, tx, on_bad_row,
            strict_cursors, time,
        )  # fmt: skip
        self.partitions = partitions
        self.engine = engine
        self._connection = TableConnection(engine, self.table)
        self._pages = PageReader(self._connection, self.table)
        self._lock = threading.Lock()
        self._watch: Watch[object] | None = None
        self._lags: dict[str, list[Lag]] = {}

    def check(self) -> None:
        """Check that the table can be a feed.

        Raises:
            StoreError: It cannot. The message has the statements that repair it, if there are any.
            StoreBusyError: The database does not answer now.
        """
        facts = self._connection.run(self._connection.renew).facts
        if faults := facts.faults():
            raise facts.refusal(faults)

    def page(
        self, asked: Mapping[int, str], n: int, hint: int | None, headers: Collection[str] = EVERY
    ) -> Iterator[Block]:
        return self._pages.read_page(asked, n, hint, headers)

    def version(self) -> object:
        """Return something that changes once there may be more rows (see `Feed.version`)."""
        engine, sql = self._connection.engine, self._connection.statements()
        if engine.dialect.name == "sqlite":
            return self._connection.run(sql.newest)[0]
        with self._lock:
            if self._watch is None:
                self._watch = Watch(engine, CHANNEL, self._look)
        with self._connection.errors():
            return self._watch.version()

    def state(self) -> TableState:
        """Return how the table stands now.

        Raises:
            StoreError: The table cannot be a feed, or the database does not answer.
        """
        _, standing = self._connection.run(self._connection.look_up)
        held = self._connection.guard
        return TableState(standing.history, held.holder, held.seconds, self._pages.skipped)

    def look(self) -> TableLook:
        """Return the newest rows, and how far the readers are behind that keep cursors here.

        Raises:
            StoreError: The table cannot be a feed, or the database does not answer.
        """
        return self._connection.run_on(partial(lag.look_at, self._connection.guard, self._lags))

    def standing(self, asked: Mapping[int, str], n: int) -> Standing:
        told = Standing()
        try:
            told = Feed.standing(self, asked, n)
            if len(asked) <= page_headers.MOST_LAGS:
                where = self._connection.run_on(partial(lag.head_and_lags, asked, n))
                return Standing(told.epoch, *where)
        except (Problem, StoreError) as exc:  # the page is good without it
            said = "table %s: how far readers are behind is not told: %s"
            self._pages.rare.warning("lag", said, self.table.name, exc)
        return told

    def cursors_at(self, n: int, time: int) -> dict[int, str]:
        """Return where a reader starts that wants all rows since a time (see `Feed.cursors_at`).

        Rows without a time count as written since then.
        """
        if self.table.time is None:
            return Feed.cursors_at(self, n, time)
        if time > (now := now_ms()):
            raise time_is_ahead(time, now)
        return self._connection.run_on(
            lambda sql, at, connection: Starts(sql, connection, at, n).since(time)
        )

    def identity(self) -> FeedIdentity:
        """Return the feed's identity, whose id is kept beside the table's history.

        The feed has one epoch, because its events have no numbers.

        Raises:
            StoreError: The table cannot be a feed, or its id has another form.
        """
        name = self._connection.run(self._connection.statements().feed_id)
        try:
            return parse(FeedIdentity(name, (Epoch(name),)).document())
        except ValueError as exc:
            raise StoreError(
                f"the id of table {self.table.name} in {HISTORY} is {name!r}; it must be 16 digits "
                f"of 0-9 and a-f. Write such an id there.",
                anchor="the-table-cannot-be-served",
            ) from exc

    def _kept_cursors(self) -> tuple[SaveCursors, LoadCursors]:
        """Return what keeps cursors in the table beside the history. There has to be one."""
        held = self._connection
        if not held.statements().facts.has_cursors and not held.run(held.renew).facts.has_cursors:
            raise cursor_sets.unsupported(f"there is no table {CURSORS}")
        do = self._with_cursors
        return partial(do, cursor_sets.save), partial(do, cursor_sets.load)

    def _with_cursors(self, work: Callable[..., T], *of: object) -> T:
        """Do short work on the table of cursors. Raises Problem on a standby."""

        def checked(connection: Connection) -> T:
            if self._connection.look_up(connection)[1].standby:
                raise no_cursors_on_replica()
            return work(connection, self.table, *of)

        return self._connection.run(checked)

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
        self._connection.statements()
        return self._connection.write(
            lambda each: self._connection.inspect(each).new_history(each, copy=copy)
        )

    def ddl(
        self,
        *,
        notify: bool = False,
        updates: bool = False,
        retention: bool = False,
        cursorsets: bool = False,
        checks: bool = True,
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
            checks: Whether the database is to refuse rows that cannot be events: no JSON, or too
                long. Rows that the table has already are not checked.
            grant_to: A role that is to serve the table; None for none.

        Returns:
            The statements, in order; empty if the table has all that it needs.

        Raises:
            StoreError: No statement can repair the table, or the database has no such feature.
        """
        more = More(notify, updates, retention, cursorsets, checks, grant_to)
        return self._connection.run(self._connection.inspect).facts.ddl(more)

    def close(self) -> None:
        """End the thread that listens for new rows. The engine stays as it is."""
        if self._watch:
            self._watch.close()

    def _look(self, connection: Connection) -> tuple[object, float]:
        """Return the version, and the seconds until the next check."""
        begun, sql = time.monotonic(), self._connection.statements()
        version, pending = sql.newest(connection)
        if pending:
            return version, max(PENDING_SECONDS, 5 * (time.monotonic() - begun))
        return version, POLL_SECONDS if sql.facts.notifies else UNNOTIFIED_SECONDS
