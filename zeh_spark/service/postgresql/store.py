"""The PostgreSQL dialect of `store.SqlStore`: its engines and its tables.

`writer` holds how it is written to. Several publishers may work on one database.
Transactions that write are READ COMMITTED, whatever the database's default is: rows are locked in
one order, and what was moved is compared, so nothing depends on a snapshot. Reads see one moment
(`transactions`). The tables are in a schema of their own. Frames are zstd, so they are stored as
they are (EXTERNAL). Rejected: PostgreSQL's default, which compresses them once more; it writes 77
MB/s, against 90.

A trigger on the feeds' heads notifies in the transaction that commits, so every writer notifies.
One connection of a process listens (`commit_listener`).

Rule for editors: poolers that hand out connections by transaction must keep working. So no
statement is prepared. Runs in the publisher and in commands that write.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import Format
from sqlalchemy import Connection, create_engine, func, inspect, select, text
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from zeh_spark.errors import StoreError
from zeh_spark.service.postgresql.commit_listener import POLL_SECONDS, Watch
from zeh_spark.service.postgresql.database_clock import DatabaseClock
from zeh_spark.service.postgresql.errors import OTHER_VERSION, explained, reason_of
from zeh_spark.service.postgresql.transactions import bounded, reading
from zeh_spark.service.postgresql.writer import TURN_SECONDS, Writer
from zeh_spark.service.sql import upgrades
from zeh_spark.service.sql.execution import Database, Rows
from zeh_spark.service.sql.log import opening
from zeh_spark.service.sql.schema import VERSION, feeds, metadata
from zeh_spark.service.sql.store import SqlStore
from zeh_spark.service.sql.upgrades import Migration, check_version, migration
from zeh_spark.service.store.acts import Act, Actor, log_act
from zeh_spark.service.store.batches import RECEIPTS
from zeh_spark.service.store.interface import Clock

SCHEMA = "zeroeventhub"
"""The schema of the tables, and the channel on which commits are notified."""

READERS, WRITERS = 8, 12
"""How many connections a process has at most, besides the one that listens."""

CONNECT_SECONDS, UPGRADE_SECONDS = 10, 30
"""Seconds to wait for a new connection; and for others, when a store is upgraded."""

log = logging.getLogger("zeh_spark.publisher")

_DEFAULTS = {
    "application_name": "zeh-spark",
    "client_encoding": "utf8",
    "connect_timeout": CONNECT_SECONDS,
    # A host that disappears without closing its connections is noticed within half a minute, not
    # within hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""Settings of each connection, unless the URL has others."""

_CHECKED = {
    "feeds": "INSERT OR UPDATE",
    "epochs": "INSERT",
    "recent_chunks": "DELETE",
    "retentions": "INSERT OR DELETE",
    "cursor_sets": "INSERT OR UPDATE OR DELETE",
    "tokens": "INSERT OR UPDATE",
    "stagings": "INSERT OR UPDATE",
    "producers": "INSERT OR UPDATE",
    "acts": "INSERT",
    "segment_garbage": "INSERT OR UPDATE OR DELETE",
    "segment_nonces": "INSERT OR UPDATE OR DELETE",
}
"""The tables of which each transaction that changes something changes at least one."""

_TABLES = (
    f"CREATE TABLE {SCHEMA}.store (version integer NOT NULL)",
    f"INSERT INTO {SCHEMA}.store VALUES ({VERSION})",
)
_CHECK_FUNCTION = (
    f"CREATE FUNCTION {SCHEMA}.check_version() RETURNS trigger LANGUAGE plpgsql AS "
    f"$$ BEGIN IF (SELECT version::text FROM {SCHEMA}.store) IS DISTINCT FROM "
    f"current_setting('{SCHEMA}.version', true) THEN RAISE EXCEPTION USING "
    f"MESSAGE = 'the store is of version ' || (SELECT version FROM {SCHEMA}.store) || "
    f"', and the program that writes works with another one', ERRCODE = '{OTHER_VERSION}'; "
    f"END IF; RETURN NULL; END $$"
)
_CHECK = {
    table: f"CREATE TRIGGER check_version BEFORE {when} ON {SCHEMA}.{table} "
    f"FOR EACH STATEMENT EXECUTE FUNCTION {SCHEMA}.check_version()"
    for table, when in _CHECKED.items()
}
"""What refuses writes of programs that work with another version (see `upgrades`).

It holds the table `store` until the transaction ends, so that an upgrade waits for it.
"""

_ACTS_STAY = (
    f"CREATE FUNCTION {SCHEMA}.acts_stay() RETURNS trigger LANGUAGE plpgsql AS "
    f"$$ BEGIN RAISE EXCEPTION 'administrative acts are never changed or deleted'; END $$",
    f"CREATE TRIGGER acts_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON {SCHEMA}.acts "
    f"FOR EACH STATEMENT EXECUTE FUNCTION {SCHEMA}.acts_stay()",
)
"""What keeps the log of administrative acts from being changed by mistake (see `store.acts`)."""

_AFTER_TABLES = (
    f"ALTER TABLE {SCHEMA}.blobs ALTER COLUMN frame SET STORAGE EXTERNAL",
    *upgrades.PACKED,
    f"CREATE FUNCTION {SCHEMA}.notify_commit() RETURNS trigger LANGUAGE plpgsql AS "
    f"$$ BEGIN PERFORM pg_notify('{SCHEMA}', ''); RETURN NULL; END $$",
    f"CREATE TRIGGER notify_commit AFTER UPDATE OF head ON {SCHEMA}.feeds FOR EACH ROW "
    f"WHEN (NEW.head <> OLD.head) EXECUTE FUNCTION {SCHEMA}.notify_commit()",
)
_OPENING = {"name": "%s", "schema": f"{SCHEMA}.", "is_replica": "pg_is_in_recovery()"}
_REPLICA_LAG = text(
    "SELECT CASE WHEN NOT pg_is_in_recovery() THEN NULL"
    " WHEN EXISTS (SELECT FROM pg_stat_wal_receiver)"
    " AND pg_last_wal_replay_lsn() >= pg_last_wal_receive_lsn() THEN 0"
    " ELSE greatest(0, extract(epoch FROM clock_timestamp()"
    " - coalesce(pg_last_xact_replay_timestamp(), pg_postmaster_start_time())) * 1000)::bigint END"
)
_OWNER = text(
    "SELECT system_identifier, timeline_id, oid FROM pg_control_system(), pg_control_checkpoint(),"
    " pg_database WHERE datname = current_database()"
)
_HEADS = select(func.coalesce(func.sum(feeds.c.head), 0))


def open_postgresql(
    url: str, *, must_exist: bool = False, clock: Clock | None = None, receipts: int = RECEIPTS
) -> SqlStore:
    """Open a store in a PostgreSQL database, and make its tables if they are missing."""
    address, time = _address(url), DatabaseClock()
    write = _engine(address, isolation_level="AUTOCOMMIT", pool_size=WRITERS, pool_pre_ping=False)
    read = _engine(address, isolation_level="AUTOCOMMIT", pool_size=READERS, pool_pre_ping=False)
    try:
        _prepare(write.execution_options(isolation_level="READ COMMITTED"), must_exist, time)
    except DBAPIError as exc:
        write.dispose()
        raise StoreError(
            f"{shown(url)} cannot be used as a store: {reason_of(exc)}. Check the address, and "
            f"whether the database answers"
        ) from exc
    except StoreError:
        write.dispose()
        raise
    writer = Writer(write)

    def look(connection: Connection) -> tuple[int, float]:
        time.look(connection)
        with bounded(connection):
            return int(connection.scalar(_HEADS) or 0), POLL_SECONDS

    watch = Watch(_engine(address, poolclass=NullPool), SCHEMA, look)

    @contextmanager
    def reads() -> Iterator[Connection]:
        with reading(read) as (connection, _):
            yield connection

    def snapshot(
        feed: str, positions: Iterable[int]
    ) -> AbstractContextManager[tuple[Connection, Rows]]:
        return reading(read, opening(positions, **_OPENING), [feed])

    def close() -> None:
        watch.close()
        read.dispose()
        write.dispose()

    database = Database(
        reads, snapshot, writer, watch.version, _stored_version, explained, close, _owner,
        replica_lag=lambda connection: connection.scalar(_REPLICA_LAG), skew=time.skew,
    )  # fmt: skip
    return SqlStore(database, clock=clock or time, receipts=receipts)


def engine(url: str, pool_size: int, settings: Mapping[str, object]) -> Engine:
    """Return an engine for a service's own tables. Raises StoreError if the URL is wrong.

    The settings in the URL take precedence over `settings`.
    """
    address = _address(url)
    ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
    theirs = address.query.get("options", "")
    given = f"{ours} {theirs if isinstance(theirs, str) else ' '.join(theirs)}".strip()
    return _engine(address.update_query_dict({"options": given}), pool_size=pool_size)


def shown(url: str) -> str:
    """Return the URL without its passwords, also if it is not valid."""
    where, _, query = url.partition("?")
    where = re.sub(r"//([^:/@]*):.*@", r"//\1:***@", where)
    query = re.sub(r"(?i)([^&=]*password[^&=]*)=[^&]*", r"\1=***", query)
    return f"{where}?{query}" if query else where


def _address(url: str) -> URL:
    """Return the URL of a PostgreSQL database. Raises StoreError if it is not one."""
    address = None
    with suppress(ArgumentError, ValueError):
        address = make_url(url)
    drivers = {"postgresql", "postgres", "postgresql+psycopg"}
    if address is None or address.drivername not in drivers:
        raise StoreError(
            f"{shown(url)} is not understood. Write a PostgreSQL database as "
            f"postgresql+psycopg://USER@HOST:PORT/DATABASE. In a password, write @ as %40, : as "
            f"%3A and / as %2F, or better keep it in PGPASSFILE or PGPASSWORD. Write several hosts "
            f"as ?host=a:5432&host=b:5432"
        ) from None
    return address.set(drivername="postgresql+psycopg")


class _Cursor(psycopg.Cursor[Any]):
    """A cursor that receives values in binary form, so that bytes are not sent as text."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.format = Format.BINARY


def _engine(address: URL, **options: Any) -> Engine:
    """Return an engine with the defaults of a connection; the tables are in `SCHEMA`."""
    if "pool_size" in options:
        pool = {"max_overflow": 0, "pool_timeout": TURN_SECONDS, "pool_pre_ping": True}
        options = {**pool, **options}
    defaults = {name: value for name, value in _DEFAULTS.items() if name not in address.query}
    given = {**defaults, "cursor_factory": _Cursor, "prepare_threshold": None}
    engine = create_engine(
        address, connect_args=given, use_native_hstore=False, hide_parameters=True, **options
    )
    return engine.execution_options(schema_translate_map={None: SCHEMA})


def migrate(url: str, *, dry_run: bool = False, by: Actor | None = None) -> Migration:
    """Upgrade a store to the version that this program works with, in one transaction.

    It waits for transactions that write, and lets none begin.
    """
    made = _engine(_address(url), isolation_level="READ COMMITTED", poolclass=NullPool)
    found = None
    try:
        with made.begin() as connection:
            version = _version(connection)
            if version is None:
                raise _no_store(made)
            found = migration(version, upgrades.POSTGRESQL)
            act = None
            if not dry_run and found.before != found.after:
                act = _upgrade(connection, found, by)
        if act:
            log_act(act)
        return found
    except DBAPIError as exc:
        of = (
            f"the store is of version {found.before}, and its upgrade failed"
            if found
            else (f"{shown(url)} cannot be used")
        )
        raise StoreError(
            f"{of}: {reason_of(exc)}. It is as it was. Upgrade it as the role that owns the schema "
            f"{SCHEMA}; and again, if others were using it",
            anchor=upgrades.ANCHOR,
        ) from exc
    finally:
        made.dispose()


def _prepare(engine: Engine, must_exist: bool, time: DatabaseClock) -> None:
    """Make the tables if there are none; refuse those of another version. Look at the clock."""
    with engine.begin() as connection:
        time.look(connection)
        version = _version(connection)
        if version is None and must_exist:
            raise _no_store(engine)
        if version is None:
            _make_tables(connection)
            return
        check_version(version)
        if connection.scalar(text("SELECT current_setting('fsync')")) != "on":
            log.warning(
                "fsync is off in this PostgreSQL: acknowledged batches may get lost. Set fsync=on"
            )


def _version(connection: Connection) -> int | None:
    """Return the version of a database's store, None if it has none.

    Others wait until the transaction ends: two processes that start at once make the tables once,
    and upgrade them once.
    """
    connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": SCHEMA})
    here = connection.scalar(text("SELECT to_regclass(:name)"), {"name": f"{SCHEMA}.store"})
    if here is None:
        return None
    return _stored_version(connection)


def _no_store(engine: Engine) -> StoreError:
    return StoreError(
        f"there is no store in database {engine.url.database!r}. Make it, with its first feed, "
        f"with zeh-spark create FEED; or, to keep tokens for tables, with zeh-spark token create",
        anchor="there-is-no-store-or-no-feed",
    )


def _make_tables(connection: Connection) -> None:
    if not connection.scalar(text("SELECT to_regnamespace(:name)"), {"name": SCHEMA}):
        connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA}")
    for each in _TABLES:
        connection.exec_driver_sql(each)
    metadata.create_all(connection)
    for each in (*_AFTER_TABLES, *_ACTS_STAY, _CHECK_FUNCTION, *_CHECK.values()):
        connection.exec_driver_sql(each)


def _upgrade(connection: Connection, found: Migration, by: Actor | None) -> Act:
    """Upgrade the tables while nobody uses them, and keep the act of it, in one transaction.

    Whoever writes locks the feed first, and the version last. So does this, or both might wait for
    each other.
    """
    connection.execute(text(f"SET LOCAL lock_timeout = '{UPGRADE_SECONDS}s'"))
    there = inspect(connection).get_table_names(SCHEMA)
    for table in sorted(there, key=lambda name: (name != "feeds", name == "store")):
        connection.exec_driver_sql(f"LOCK TABLE {SCHEMA}.{table} IN ACCESS EXCLUSIVE MODE")
    for statement in found.statements:
        connection.exec_driver_sql(statement)
    metadata.create_all(connection)
    for table in {"segment_garbage", "segment_nonces"} - {*there}:
        connection.exec_driver_sql(_CHECK[table])
    connection.execute(text(f"UPDATE {SCHEMA}.store SET version = {found.after}"))
    time = DatabaseClock()
    time.look(connection)
    version = {"version": str(found.after)}
    connection.execute(text(f"SELECT set_config('{SCHEMA}.version', :version, true)"), version)
    return upgrades.note_migration(connection, found, by, time())


def _owner(connection: Connection) -> str:
    system, timeline, database = connection.execute(_OWNER).one()
    return f"postgresql: system {system}, timeline {timeline}, database {database}"


def _stored_version(connection: Connection) -> int:
    return int(connection.execute(text(f"SELECT version FROM {SCHEMA}.store")).scalar_one())
