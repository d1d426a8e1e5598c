"""Transactions of a PostgreSQL database that begin with one message, and reads that end.

Reads wait for nothing but a lock on a whole table: that of ALTER TABLE, VACUUM FULL or TRUNCATE.
Without a bound, as many reads as there are connections would stop the process behind it.

Rule for editors: settings hold for one transaction, because there may be a pooler between the
process and the database, which refuses settings of a session or mixes them up. Connections have the
isolation level AUTOCOMMIT. Rejected: the transactions of SQLAlchemy, which take more round trips;
pipelines, which some poolers do not know. Runs in the publisher and in commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

import psycopg
from sqlalchemy import Connection
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError

from zeh_spark.service.sql.execution import Rows

LOCK_SECONDS = 2
"""Seconds that a read waits for a lock.

It is less than a request waits for a connection, so that reads of other tables get one.
"""

STATEMENT_SECONDS = 30
"""Seconds that a statement of a read may take."""

IDLE_SECONDS = 30
"""Seconds for which a read may ask nothing, because its process has stopped in the middle."""

_BEGIN = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
    f" SET LOCAL lock_timeout = '{LOCK_SECONDS}s';"
    f" SET LOCAL statement_timeout = '{STATEMENT_SECONDS}s';"
    f" SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'"
)


def reading(
    engine: Engine, query: str = "", given: Sequence[object] = ()
) -> AbstractContextManager[tuple[Connection, Rows]]:
    """Read in a transaction that has the bounds and sees one moment; it is rolled back at the end.

    It begins with the first `query`, too, whose rows are yielded.
    """
    return begun(engine, f"{_BEGIN};{query}" if query else _BEGIN, given)


@contextmanager
def bounded(connection: Connection) -> Iterator[None]:
    """Read likewise, on a connection that is kept."""
    _begin(connection, _BEGIN)
    try:
        yield
    finally:
        with suppress(psycopg.Error):  # if it is lost, the next read notices
            _driver(connection).rollback()


@contextmanager
def begun(
    engine: Engine, statements: str, given: Sequence[object] = ()
) -> Iterator[tuple[Connection, Rows]]:
    """Begin a transaction on a connection of the engine's pool; it is rolled back at the end.

    Yields the connection, and the rows of the last of the `statements` with which it begins. A
    connection that was lost while nobody used it is replaced. Rejected: to ask each connection
    first whether it is there, which takes a round trip more.
    """
    with ExitStack() as stack:
        for last in (False, True):
            connection = stack.enter_context(engine.connect())
            try:
                rows = _begin(connection, statements, given)
                break
            except OperationalError as exc:
                if last or not exc.connection_invalidated:
                    raise
                connection.invalidate()
                stack.close()
                engine.dispose()  # the others were lost with it
        yield connection, rows


def _begin(connection: Connection, statements: str, given: Sequence[object] = ()) -> Rows:
    """Send statements as one message. Return the rows of the last one."""
    driver = _driver(connection)
    cursor = psycopg.ClientCursor(driver)  # as text: several statements have no binary form
    try:
        cursor.execute(statements, given)
    except psycopg.Error as exc:
        lost = driver.closed
        raise OperationalError(statements, None, exc, connection_invalidated=lost) from exc
    while cursor.nextset():
        pass
    return cursor.fetchall() if cursor.description else ()


def _driver(connection: Connection) -> Any:
    return connection.connection.dbapi_connection
