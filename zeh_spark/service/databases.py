"""The stores of a publisher by their URLs: SQLite in a file, or PostgreSQL.

Another database is added here: a room like `sqlite` or `postgresql`, which brings a
`sql.execution.Database`, is opened for its URLs. psycopg is imported only inside functions: SQLite
has to work without it. Runs in the publisher's process, and in the command line.
"""

from __future__ import annotations

from zeh_spark.errors import StoreError
from zeh_spark.service.sql.upgrades import Migration
from zeh_spark.service.sqlite import store as sqlite
from zeh_spark.service.store.acts import Actor
from zeh_spark.service.store.batches import RECEIPTS
from zeh_spark.service.store.interface import Clock, Store, now_ms

_INSTALL = 'pip install "zeh-spark[publisher]"'


def open_store(
    url: str, *, must_exist: bool = False, clock: Clock | None = None, receipts: int = RECEIPTS
) -> Store:
    """Open the store at a URL, in which a publisher keeps its feeds.

    Args:
        url: `sqlite:///file` (`sqlite:////dir/file` for an absolute path), or
            `postgresql+psycopg://user@host/database`.
        must_exist: Refuse a store that is missing. By default the SQLite file, or the tables in
            PostgreSQL, are created if they are missing.
        clock: Returns the time in milliseconds since 1970. By default it is the clock of the
            PostgreSQL database; that of this machine for other stores.
        receipts: How many receipts of each producer are kept; `zeh-spark audit` expects the
            default, and takes older ones that are missing for lost.

    Returns:
        The open store.

    Raises:
        StoreError: The URL is of no known kind, psycopg is not installed, or the store cannot be
            opened.
    """
    if url.startswith("sqlite:///"):
        file = url.removeprefix("sqlite:///")
        return sqlite.open_sqlite(
            file, must_exist=must_exist, clock=clock or now_ms, receipts=receipts
        )
    if _is_postgresql(url):
        try:
            from zeh_spark.service.postgresql.store import open_postgresql
        except ImportError as exc:
            raise StoreError(f"a store in PostgreSQL needs psycopg ({exc}): {_INSTALL}") from exc
        return open_postgresql(url, must_exist=must_exist, clock=clock, receipts=receipts)
    raise StoreError(
        f"unknown store {url.partition(':')[0]!r}: use sqlite:///feeds.db, sqlite:////dir/feeds.db "
        f"(a whole path), or postgresql+psycopg://USER@HOST/DATABASE"
    )


def migrate_store(url: str, *, dry_run: bool = False, by: Actor | None = None) -> Migration:
    """Upgrade a store to the version that this `zeh_spark` works with, in one transaction.

    No publisher may serve a store in SQLite meanwhile. Publishers over PostgreSQL may: those of the
    older version go on reading, and are refused at their next write.

    Args:
        url: The store, as `open_store` takes it.
        dry_run: Change nothing.
        by: Who does it, for the log of administrative acts; whoever runs this process by default.

    Returns:
        The versions before and after, and the statements.

    Raises:
        StoreError: There is no such store, or it cannot be upgraded. It is as it was.
    """
    if url.startswith("sqlite:///"):
        return sqlite.migrate(url.removeprefix("sqlite:///"), dry_run=dry_run, by=by)
    if _is_postgresql(url):
        from zeh_spark.service.postgresql import store as postgresql

        return postgresql.migrate(url, dry_run=dry_run, by=by)
    raise StoreError(
        f"{url.partition(':')[0]!r} is not a kind of store that can be upgraded. "
        "Give the URL of a SQLite or PostgreSQL store"
    )


def shown_url(url: str) -> str:
    """Return a store's URL without its password, to print it."""
    if not _is_postgresql(url):
        return url
    from zeh_spark.service.postgresql import store as postgresql

    return postgresql.shown(url)


def _is_postgresql(url: str) -> bool:
    return url.startswith(("postgresql:", "postgresql+", "postgres:"))
