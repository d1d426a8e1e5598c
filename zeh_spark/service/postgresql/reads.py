"""Reads of a PostgreSQL database that end: how long one waits for a lock, and how long it takes.

Reads wait for nothing but a lock on a whole table: that of ALTER TABLE, VACUUM FULL or TRUNCATE.
Without a bound, as many reads as there are connections would stop the process behind it.

Rule for editors: the bounds hold for one transaction, because there may be a pooler between the
process and the database, which refuses settings of a session or mixes them up. Runs in the
publisher and in commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

LOCK_SECONDS = 2
"""Seconds that a read waits for a lock.

It is less than a request waits for a connection, so that reads of other tables get one.
"""

STATEMENT_SECONDS = 30
"""Seconds that a statement of a read may take."""

_BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY;"
    f" SET LOCAL lock_timeout = '{LOCK_SECONDS}s';"
    f" SET LOCAL statement_timeout = '{STATEMENT_SECONDS}s'"
)


@contextmanager
def bounded(connection: Connection) -> Iterator[Connection]:
    """Read in a transaction that has the bounds; it is rolled back at the end.

    The transaction begins with one request. Rejected: the transactions of SQLAlchemy, which take
    two more; a short read takes longer than all of them. The connection's isolation level is
    AUTOCOMMIT.
    """
    driver: Any = connection.connection.dbapi_connection
    try:
        psycopg.Cursor(driver).execute(_BEGIN)  # as text: several statements have no binary form
    except psycopg.Error as exc:
        raise OperationalError(_BEGIN, None, exc) from exc
    try:
        yield connection
    finally:
        with suppress(psycopg.Error):  # if it is lost, the pool notices
            driver.rollback()
