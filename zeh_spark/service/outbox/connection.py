"""Connections to the database of a table, and what was found out there about the table.

Runs in the publisher's worker threads. Rule for editors: a connection is taken for a statement, and
none is held while a client is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnection

from zeh_spark.errors import OptionError, StoreError
from zeh_spark.service.outbox import postgresql, sqlite
from zeh_spark.service.outbox.blockers import Guard
from zeh_spark.service.outbox.queries import TableSql
from zeh_spark.service.outbox.table import OutboxTable
from zeh_spark.service.outbox.table_facts import TableStatus
from zeh_spark.service.postgresql import errors as postgresql_errors
from zeh_spark.service.sqlite.store import explained
from zeh_spark.service.store.interface import StoreBusyError

T = TypeVar("T")


class TableConnection:
    """Does work on the database of a table, and inspects the table when that is needed.

    Attributes:
        engine: The database, without transactions.
        guard: What holds back all readers of the table.

    Raises:
        OptionError: The database is of another kind.
    """

    def __init__(self, engine: Engine, table: OutboxTable) -> None:
        self._table = table
        self._inspect, self._prepare, self._explained = _dialect_of(engine, table)
        self._sql: TableSql | None = None
        self._writing = engine.execution_options(no_parameters=True)
        self.engine = self._writing.execution_options(isolation_level="AUTOCOMMIT")
        self.guard = Guard()

    def statements(self) -> TableSql:
        """Return the statements for the table as it was when it was last inspected."""
        return self._sql or self.run(self.renew)

    def inspect(self, connection: Connection) -> TableSql:
        """Return the statements for the table as it is now."""
        return self._inspect(connection, self._table)

    def renew(self, connection: Connection) -> TableSql:
        """Inspect the table, and use what was found from now on.

        Raises StoreError if the table cannot be a feed when it is first inspected. A later fault,
        a dropped index for example, does not stop readers.
        """
        sql = self.inspect(connection)
        if self._sql is None and (faults := sql.facts.faults()):
            raise sql.facts.refusal(faults)
        self._sql = sql
        return sql

    def run(self, work: Callable[[Connection], T]) -> T:
        """Do short work on a connection, and once more if the connection was lost while idle.

        Raises StoreError, or a Problem that the work raises.
        """
        with self.errors():
            try:
                return self._run_once(work)
            except DBAPIError as exc:
                if not exc.connection_invalidated:
                    raise
                return self._run_once(work)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Do work in one transaction, which may write. Raises StoreError."""
        with self.errors(), self._writing.begin() as connection:
            return work(connection)

    def run_on(self, work: Callable[[TableSql, TableStatus, Connection], T]) -> T:
        """Do short work on the table as it stands (see `run`)."""
        return self.run(lambda connection: work(*self.look_up(connection), connection))

    def look_up(self, connection: Connection) -> tuple[TableSql, TableStatus]:
        """Return the statements and how the table stands; inspect it again if it was changed."""
        sql = self._sql or self.renew(connection)
        while (standing := sql.standing(connection)) is None:
            sql = self.renew(connection)
        self.guard.look(connection, sql, standing)
        return sql, standing

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn errors of the database into StoreError."""
        try:
            yield
        except NoConnection as exc:
            raise StoreBusyError("all connections to the database are in use. Ask again.") from exc
        except DBAPIError as exc:
            raise self._explained(exc) from exc
        except SQLAlchemyError as exc:
            raise StoreError(f"the database cannot be used: {exc}") from exc

    def _run_once(self, work: Callable[[Connection], T]) -> T:
        with self.engine.connect() as connection:
            self._prepare(connection)
            return work(connection)


_Dialect = tuple[
    Callable[[Connection, OutboxTable], TableSql],
    Callable[[Connection], None],
    Callable[[DBAPIError], StoreError],
]


def _dialect_of(engine: Engine, table: OutboxTable) -> _Dialect:
    """Return what inspects a table, prepares a connection, and explains an error of a database.

    Raises OptionError if it is not SQLite or PostgreSQL with psycopg, or the table's name has a
    schema that SQLite does not have.
    """
    if engine.dialect.name == "sqlite":
        if table.schema:
            raise OptionError(
                f"table is {table.name!r}, and SQLite has no schemas. Give the name alone.",
                option="table",
            )
        return sqlite.inspected, sqlite.prepare, explained
    if (engine.dialect.name, engine.dialect.driver) == ("postgresql", "psycopg"):
        return postgresql.inspected, lambda _: None, postgresql_errors.explained
    raise OptionError(
        f"a table is read through an engine of postgresql+psycopg://… or sqlite:///…, not of "
        f"{engine.dialect.name}+{engine.dialect.driver}. Give such an engine; the service itself "
        f"may use another one.",
        option="url",
    )
