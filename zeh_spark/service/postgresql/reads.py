"""Reads of a PostgreSQL database that end: how long one waits for a lock, and how long it takes.

Reads wait for nothing but a lock on a whole table: that of ALTER TABLE, VACUUM FULL or TRUNCATE.
Without a bound, as many reads as there are connections would stop the process behind it.

Rule for editors: the bounds hold for one transaction, because there may be a pooler between the
process and the database, which refuses settings of a session or mixes them up. Runs in the
publisher and in commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psycopg
from sqlalchemy import Connection
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError

from zeh_spark.service.sql.dialect import Rows

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


@contextmanager
def reading(
    engine: Engine, query: str = "", given: Sequence[object] = ()
) -> Iterator[tuple[Connection, Rows]]:
    """Read in a transaction (see `bounded`) on a connection of the engine's pool.

    A connection that was lost while nobody used it is replaced. Rejected: to ask each connection
    first whether it is there, which takes a round trip more.
    """
    with ExitStack() as stack:
        for last in (False, True):
            connection = stack.enter_context(engine.connect())
            try:
                found = stack.enter_context(bounded(connection, query, given))
                break
            except OperationalError as exc:
                if last or not exc.connection_invalidated:
                    raise
                connection.invalidate()
                stack.close()
                engine.dispose()  # the others were lost with it
        yield connection, found


@contextmanager
def bounded(
    connection: Connection, query: str = "", given: Sequence[object] = ()
) -> Iterator[Rows]:
    """Read in a transaction that has the bounds and sees one moment; it is rolled back at the end.

    The transaction begins with one message, which has the first `query`, too; its rows are lent.
    Rejected: the transactions of SQLAlchemy, which take two more; a short read takes longer than
    all of them. Rejected: a pipeline, which some poolers do not know. The connection's isolation
    level is AUTOCOMMIT.
    """
    driver: Any = connection.connection.dbapi_connection
    cursor = psycopg.ClientCursor(driver)  # as text: several statements have no binary form
    try:
        try:
            cursor.execute(f"{_BEGIN};{query}" if query else _BEGIN, given)
        except psycopg.Error as exc:
            raise OperationalError(query, None, exc, connection_invalidated=driver.closed) from exc
        while cursor.nextset():
            pass
        yield cursor.fetchall() if query else ()
    finally:
        with suppress(psycopg.Error):  # if it is lost, the pool notices
            driver.rollback()
