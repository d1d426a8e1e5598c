"""PostgreSQL beneath `sql.SqlStore`: everything that is PostgreSQL's own.

Several publishers may work on one database. Transactions are READ COMMITTED, whatever the
database's default: rows are locked in one order, and what was moved is compared, so nothing rests
on a snapshot. The tables are in a schema of their own. Frames are zstd, so they are stored as they
are (EXTERNAL) [PostgreSQL compresses them once more by default: 77 MB/s against 90].

A trigger on the feeds' heads notifies in the transaction that commits, so every writer does. One
connection of a process listens, and looks once a second as well [behind a pooler that hands out
connections by transaction, notifications get lost]. Such a pooler is also why statements are not
prepared, and settings are those of a transaction.
"""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, TypeVar

import psycopg
from psycopg.pq import Format
from sqlalchemy import Connection, bindparam, create_engine, func, select, text
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from zeh_spark.errors import StoreError
from zeh_spark.store.batches import RECEIPTS
from zeh_spark.store.chores import Chores
from zeh_spark.store.commit_listener import POLL_SECONDS, Watch
from zeh_spark.store.dialect import A, Commits, Database, Step, only
from zeh_spark.store.group_commit import Asked, CommitQueues, Look, QueuedCommit
from zeh_spark.store.interface import Clock, StoreBusyError, StoreOutcomeUnknownError, now_ms
from zeh_spark.store.outcome import attempted, failed, hand_on
from zeh_spark.store.problems import Problem
from zeh_spark.store.schema import VERSION, feeds, metadata
from zeh_spark.store.sql_store import SqlStore

T = TypeVar("T")

SCHEMA = "zeroeventhub"
"""Where the tables are; also the channel on which commits are notified."""

READERS, WRITERS = 8, 12
"""Connections of a process, at most; the one that listens comes to them."""

UPLOADS = 2
"""Uploads that a process writes at a time, so that commits have room [with 12, each of 16 writers
waited 120 ms for its commit, and 80 ms with 2; all together they wrote as much].
"""

CONNECT_SECONDS, LOCK_SECONDS, IDLE_SECONDS, TURN_SECONDS = 10, 10, 30, 10
"""How long to wait for a connection, for a lock, for a process that stopped within a transaction,
and for a free connection.
"""

_RETRIES = 6
_AGAIN = {
    "40001",  # serialization failure
    "40P01",  # deadlock
    "23505",  # somebody else has just inserted the row,
    "23503",  # or deleted the one that this one refers to
}
_PASSING = ("08", "53", "55", "57", "25006")
"""SQLSTATEs that may pass: no connection, no room, a lock, shutting down, a standby."""

log = logging.getLogger("zeh_spark.publisher")

_DEFAULTS = {
    "application_name": "zeh-spark",
    "client_encoding": "utf8",
    "connect_timeout": CONNECT_SECONDS,
    # a host that is gone without a word is noticed within half a minute, not within hours
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""Of the connection, unless the URL says otherwise."""

_UPGRADES: Mapping[int, tuple[str, ...]] = {
    3: (),  # epochs
}
"""What brings a store of a version to the next one, before tables that are missing are made."""

_TABLES = (
    f"CREATE TABLE {SCHEMA}.store (version integer NOT NULL)",
    f"INSERT INTO {SCHEMA}.store VALUES ({VERSION})",
)
_AFTER_TABLES = (
    f"ALTER TABLE {SCHEMA}.blobs ALTER COLUMN frame SET STORAGE EXTERNAL",
    f"CREATE FUNCTION {SCHEMA}.notify_commit() RETURNS trigger LANGUAGE plpgsql AS "
    f"$$ BEGIN PERFORM pg_notify('{SCHEMA}', ''); RETURN NULL; END $$",
    f"CREATE TRIGGER notify_commit AFTER UPDATE OF head ON {SCHEMA}.feeds FOR EACH ROW "
    f"WHEN (NEW.head <> OLD.head) EXECUTE FUNCTION {SCHEMA}.notify_commit()",
)
_BEGIN = text(
    "SELECT set_config('synchronous_commit', CASE WHEN NOT :durable THEN 'off'"
    " WHEN current_setting('synchronous_commit') = 'off' THEN 'on'"
    " ELSE current_setting('synchronous_commit') END, true),"
    f" set_config('lock_timeout', '{LOCK_SECONDS}s', true),"
    f" set_config('idle_in_transaction_session_timeout', '{IDLE_SECONDS}s', true)"
).bindparams(bindparam("durable"))
_HEADS = select(func.coalesce(func.sum(feeds.c.head), 0))


def open_postgresql(
    url: str, *, must_exist: bool = False, clock: Clock = now_ms, receipts: int = RECEIPTS
) -> SqlStore:
    """Raises StoreError for a database that cannot be had, or whose tables are a later version's.

    The tables are made if they are missing, unless they `must_exist`.
    """
    address = _address(url)
    write = _engine(address, isolation_level="READ COMMITTED", pool_size=WRITERS)
    read = _engine(address, isolation_level="AUTOCOMMIT", pool_size=READERS)
    try:
        _prepare(write, must_exist)
    except DBAPIError as exc:
        write.dispose()
        raise StoreError(f"{shown(url)} cannot be used as a store: {_reason(exc)}") from exc
    except StoreError:
        write.dispose()
        raise
    writing = Writing(write)
    watch = Watch(_engine(address, poolclass=NullPool), SCHEMA, _heads)

    @contextmanager
    def reading() -> Iterator[Connection]:
        with read.connect() as connection:
            yield connection

    def close() -> None:
        writing.close()
        watch.close()
        read.dispose()
        write.dispose()

    database = Database(reading, writing, watch.version, explained, close)
    return SqlStore(database, clock=clock, receipts=receipts)


def engine(url: str, pool_size: int, settings: Mapping[str, object]) -> Engine:
    """Connections with settings of PostgreSQL, for a service's own tables. Raises StoreError."""
    address = _address(url)
    ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
    theirs = address.query.get("options", "")
    given = f"{ours} {theirs if isinstance(theirs, str) else ' '.join(theirs)}".strip()
    return _engine(address.update_query_dict({"options": given}), pool_size=pool_size)


def shown(url: str) -> str:
    """The URL without its passwords, however it is written."""
    where, _, query = url.partition("?")
    where = re.sub(r"//([^:/@]*):.*@", r"//\1:***@", where)
    query = re.sub(r"(?i)([^&=]*password[^&=]*)=[^&]*", r"\1=***", query)
    return f"{where}?{query}" if query else where


def _address(url: str) -> URL:
    address = None
    with suppress(ArgumentError, ValueError):
        address = make_url(url)
    drivers = {"postgresql", "postgres", "postgresql+psycopg"}
    if address is None or address.drivername not in drivers:
        raise StoreError(
            f"{shown(url)} is not understood: a store in PostgreSQL is "
            f"postgresql+psycopg://USER@HOST:PORT/DATABASE. In a password, @ is %40, : is %3A and "
            f"/ is %2F; it is better kept in PGPASSFILE or PGPASSWORD. Several hosts are "
            f"?host=a:5432&host=b:5432"
        ) from None
    return address.set(drivername="postgresql+psycopg")


class _Cursor(psycopg.Cursor[Any]):
    """Gets bytes as bytes, not as text."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.format = Format.BINARY


def _engine(address: URL, **options: Any) -> Engine:
    if "pool_size" in options:
        options.update(max_overflow=0, pool_timeout=TURN_SECONDS, pool_pre_ping=True)
    defaults = {name: value for name, value in _DEFAULTS.items() if name not in address.query}
    given = {**defaults, "cursor_factory": _Cursor, "prepare_threshold": None}
    engine = create_engine(
        address, connect_args=given, use_native_hstore=False, hide_parameters=True, **options
    )
    return engine.execution_options(schema_translate_map={None: SCHEMA})


def _prepare(engine: Engine, must_exist: bool) -> None:
    """Make the tables where there are none, upgrade older ones; refuse what a later version has
    made.
    """
    with engine.begin() as connection:
        # Two processes that start at once make them once, and upgrade them once.
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": SCHEMA})
        here = connection.scalar(text("SELECT to_regclass(:name)"), {"name": f"{SCHEMA}.store"})
        if here is None:
            if must_exist:
                raise StoreError(
                    f"there is no store in database {engine.url.database!r}; zeh-spark create "
                    f"makes it, with its first feed"
                )
            if not connection.scalar(text("SELECT to_regnamespace(:name)"), {"name": SCHEMA}):
                connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA}")
            for each in _TABLES:
                connection.exec_driver_sql(each)
            metadata.create_all(connection)
            for each in _AFTER_TABLES:
                connection.exec_driver_sql(each)
            return
        version = connection.execute(text(f"SELECT version FROM {SCHEMA}.store")).scalar_one()
        if version != VERSION and version not in _UPGRADES:
            raise StoreError(
                f"the store is of version {version}; this zeh-spark knows {VERSION}: upgrade it"
            )
        if version != VERSION:
            _upgrade(connection, version)
        if connection.scalar(text("SELECT current_setting('fsync')")) != "on":
            log.warning("fsync is off in this PostgreSQL: what is acknowledged may get lost")


def _upgrade(connection: Connection, version: int) -> None:
    """Bring the tables of an older version to VERSION, in the transaction of the caller. Publishers
    of that version may go on meanwhile. Raises StoreError if the role may not do it.
    """
    try:
        for each in range(version, VERSION):
            for statement in _UPGRADES[each]:
                connection.exec_driver_sql(statement)
        metadata.create_all(connection)
        connection.execute(text(f"UPDATE {SCHEMA}.store SET version = {VERSION}"))
    except DBAPIError as exc:
        raise StoreError(
            f"the store is of version {version}, and its upgrade to version {VERSION} failed: "
            f"{_reason(exc)}. Open it once as the role that owns the schema {SCHEMA}, for instance "
            f"with zeh-spark feeds"
        ) from exc


class Writing:
    """Transactions. What others were in the way of is done anew.

    Guarantee: what is returned is committed, and durable if that was asked for; what is raised was
    not done, except for an error of the commit itself, whose outcome nobody knows.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lanes = CommitQueues(self._do)
        self._uploads = threading.BoundedSemaphore(UPLOADS)
        self._chores = Chores(self.write)

    def write(self, work: Callable[[Connection], T], *, durable: bool = True) -> T:
        for tried in count(1):
            try:
                with self._engine.connect() as connection:
                    connection.execute(_BEGIN, {"durable": durable})
                    result = work(connection)
                    _commit(connection)
                    return result
            except DBAPIError as exc:
                if not _in_the_way(exc) or tried > _RETRIES:
                    raise
            time.sleep(random.uniform(0, 0.005 * 2**tried))
        raise AssertionError("unreachable")

    def stage(self, work: Callable[[Connection], T], *, durable: bool) -> T:
        if not self._uploads.acquire(timeout=TURN_SECONDS):
            raise StoreBusyError("other uploads to the store take long; ask again")
        try:
            return self.write(work, durable=durable)
        finally:
            self._uploads.release()

    def commit(self, feed: str, about: A, work: Commits[A, T], share: float) -> T:
        result: T = self._lanes.of(feed).through(QueuedCommit(about, work, share))
        return result

    def consistent_read(self, feed: str, work: Callable[[Connection], T]) -> T:
        result: T = self._lanes.of(feed).through(Look(work))
        return result

    def tidy(self, step: Step) -> None:
        self._chores.add(step)

    def close(self) -> None:
        self._chores.close()

    def _do(self, group: Sequence[Asked]) -> None:
        """Together, if none stands against the others; else each as if it had come alone."""
        if len(group) > 1 and self._together(group):
            return
        for each in group:
            hand_on(_answer(each, attempted(partial(self._alone, each))), each.done)

    def _alone(self, asked: Asked) -> Any:
        if isinstance(asked, QueuedCommit):
            return self.write(lambda connection: only(asked.work(connection, [asked.about])))
        assert isinstance(asked, Look)
        return self.write(asked.work, durable=False)

    def _together(self, group: Sequence[Asked]) -> bool:
        """In one transaction; false if that has to be done otherwise. Nobody hears of a success
        before it is committed; a database that fails, fails for all.
        """
        commits = [each for each in group if isinstance(each, QueuedCommit)]
        looks = [each for each in group if isinstance(each, Look)]
        outcome = attempted(partial(self._transaction, commits, looks))
        failure = outcome.exception()
        if failure and not _fails_all(failure):
            return False  # each is done by itself next, and gets its own failure
        for at, each in enumerate((*commits, *looks)):
            if failure:
                hand_on(_answer(each, outcome), each.done)
            elif isinstance(answer := outcome.result()[at], Problem):
                each.done.set_exception(answer)
            else:
                each.done.set_result(answer)
        return True

    def _transaction(self, commits: Sequence[QueuedCommit], looks: Sequence[Look]) -> list[Any]:
        """An answer to each. A Problem is one, too."""
        answers: list[Any] = []
        with self._engine.connect() as connection:
            connection.execute(_BEGIN, {"durable": bool(commits)})
            # Commits first: they lock more than looks do [a look first, and both publishers would
            # wait for each other to give theirs up].
            if commits:
                answers += commits[0].work(connection, [each.about for each in commits])
            answers += [_seen(each, connection) for each in looks]
            if commits:
                _commit(connection)
        return answers


def _answer(asked: Asked, outcome: Future[Any]) -> Future[Any]:
    """The outcome as it concerns who asked: a look has nothing that could be unknown."""
    failure = outcome.exception()
    if isinstance(asked, Look) and isinstance(failure, StoreOutcomeUnknownError):
        busy = StoreBusyError("the store failed; ask again")
        busy.__cause__ = failure
        return failed(busy)
    return outcome


def _fails_all(failure: BaseException) -> bool:
    """Whether a group's failure is that of each of its members. Otherwise one of them may be to
    blame, or another transaction was in the way.
    """
    if isinstance(failure, DBAPIError):
        return not _in_the_way(failure)
    return isinstance(failure, StoreOutcomeUnknownError | SQLAlchemyError)


def _seen(look: Look, connection: Connection) -> Any:
    """What a look brings. A Problem is an answer, too: it has changed nothing."""
    try:
        return look.work(connection)
    except Problem as problem:
        return problem


def _in_the_way(exc: DBAPIError) -> bool:
    return sqlstate(exc) in _AGAIN


def _commit(connection: Connection) -> None:
    try:
        connection.commit()
    except DBAPIError as exc:
        raise StoreOutcomeUnknownError(
            f"the store failed while it committed ({_reason(exc)}): whether it did is not known "
            f"yet; ask again"
        ) from exc


def sqlstate(exc: DBAPIError) -> str:
    """PostgreSQL's code of an error, empty if it did not even answer."""
    return str(getattr(exc.orig, "sqlstate", None) or "")


def explained(exc: DBAPIError) -> StoreError:
    state, reason = sqlstate(exc), _reason(exc)
    if exc.connection_invalidated or (not state and isinstance(exc, OperationalError)):
        return StoreBusyError(f"the database does not answer: {reason}")
    if state.startswith(_PASSING) or state in _AGAIN:
        return StoreBusyError(f"the database cannot do it now: {reason}")
    return StoreError(f"the database refuses: {reason}")


def _reason(exc: DBAPIError) -> str:
    return " ".join(str(exc.orig).split())


def _heads(connection: Connection) -> tuple[int, float]:
    return int(connection.scalar(_HEADS) or 0), POLL_SECONDS
