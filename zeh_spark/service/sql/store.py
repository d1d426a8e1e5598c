"""A store in a SQL database, through SQLAlchemy Core.

Rule for editors: use only SQL that every dialect knows. `sqlite` and `postgresql` hold
what differs: pragmas, how a write begins, how another process's commit is noticed, what errors
mean. A read is one short statement or a few; it is never held open while a client is waited for. A
write is one short transaction; `uploads` and `commits` hold what it does with uploads and batches.

Payload is written once, into `blobs`, when it is staged. A commit moves rows of a few numbers.
Runs in the publisher and in commands that write, on threads that may block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnection

from zeh_spark.errors import StoreError
from zeh_spark.service.sql import (
    acts,
    commits,
    cursor_sets,
    epochs,
    producers,
    retentions,
    tokens,
    uploads,
)
from zeh_spark.service.sql.dialect import Database
from zeh_spark.service.sql.log import SqlLog
from zeh_spark.service.sql.producers import Lock, expire_names, find_feed
from zeh_spark.service.sql.schema import clocks, feeds
from zeh_spark.service.store.access import Maker, Token
from zeh_spark.service.store.acts import (
    ACTS_SHOWN,
    EVERY_ACT,
    Act,
    ActFilter,
    Action,
    Actor,
    log_act,
    new_act,
)
from zeh_spark.service.store.batches import (
    RECEIPTS,
    Call,
    Declared,
    Numbers,
    ProducerState,
    StoredReceipt,
    TaskAttempt,
    Upload,
)
from zeh_spark.service.store.commit_decision import known_receipt
from zeh_spark.service.store.cursor_sets import NOBODY, CursorSet
from zeh_spark.service.store.interface import (
    Clock,
    FeedState,
    Log,
    Retention,
    StagingResult,
    StoreBusyError,
    new_feed,
    now_ms,
    unknown_feed,
)
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire.feed_identity import FeedIdentity

P = ParamSpec("P")
T = TypeVar("T")

GROUP_EVENTS, GROUP_TASKS = 10_000, 1_000
"""About how many events and tasks commits in one transaction may have together.

The feed's other writers wait while such a transaction lasts.
"""


def _read(work: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[SqlStore, P], T]:
    """Return a method of the store that is one read."""

    @wraps(work)
    def read(store: SqlStore, /, *given: P.args, **named: P.kwargs) -> T:
        with store._reading() as connection:
            return work(connection, *given, **named)

    return read


class SqlStore:
    """Feeds in a SQL database (see `Store`).

    Guarantee: `commit` returns after its transaction is on disk (fsync), and readers see it whole
    or not at all.

    Args:
        skew: by how many ms this machine's clock is ahead of it (see `Store.skew`).
        receipts: how many receipts of a producer the store keeps.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock = now_ms,
        skew: Callable[[], int] = lambda: 0,
        receipts: int = RECEIPTS,
    ) -> None:
        self.now = clock
        self.skew = skew
        self._receipts = receipts
        self._database = database

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._errors(), self._database.read() as connection:
            yield connection

    def _write(self, work: Callable[[Connection], T], *, durable: bool = True) -> T:
        with self._errors():
            return self._database.writes.write(work, durable=durable)

    def _write_to(self, feed: str, work: Callable[[Connection, int], T]) -> T:
        return self._write(lambda connection: work(connection, find_feed(connection, feed)[0]))

    def _administer(
        self,
        by: Actor | None,
        action: Action,
        work: Callable[[Connection], tuple[T, dict[str, Any] | None]],
        *,
        feed: str = "",
        subject: str = "",
    ) -> T:
        """Run `work` and keep the act that it is, in one transaction.

        `work` returns its result, and the details of the act; None if it has changed nothing.
        """

        def recorded(connection: Connection) -> tuple[T, Act | None]:
            result, details = work(connection)
            if details is None:
                return result, None
            act = new_act(by, action, self.now(), feed=feed, subject=subject, **details)
            acts.add(connection, [act])
            return result, act

        result, act = self._write(recorded)
        if act:
            log_act(act)
        return result

    def _look(self, feed: str, work: Callable[[Connection, int], T]) -> T:
        """Run `work`, which only reads, serialized with this feed's commits."""

        def in_feed(connection: Connection) -> T:
            return work(connection, find_feed(connection, feed, Lock.CERTAIN)[0])

        with self._errors():
            return self._database.writes.consistent_read(feed, in_feed)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the database's errors as StoreErrors.

        Constraint violations pass unchanged: the callers handle them.
        """
        try:
            yield
        except IntegrityError:
            raise
        except DBAPIError as exc:
            raise self._database.explained(exc) from exc
        except NoConnection as exc:
            raise StoreBusyError(
                "all connections to the store are in use. Try again in a few seconds"
            ) from exc
        except SQLAlchemyError as exc:
            raise StoreError(
                f"the store cannot be used: {exc}. Check the store's address and its database"
            ) from exc

    def create(self, name: str, partitions: int, *, by: Actor | None = None) -> FeedState:
        feed = new_feed(name, partitions)
        row = {column: value for column, value in asdict(feed).items() if column in feeds.c}

        def work(connection: Connection) -> tuple[None, dict[str, Any]]:
            connection.execute(insert(feeds), row)
            return None, {"partitions": partitions}

        try:
            self._administer(by, Action.CREATE_FEED, work, feed=name)
        except IntegrityError:
            raise StoreError(f"feed {name!r} exists already. Choose another name") from None
        return feed

    def feed(self, name: str) -> FeedState:
        with self._reading() as connection:
            return find_feed(connection, name)[1]

    @contextmanager
    def snapshot(self, feed: str, positions: Iterable[int] = ()) -> Iterator[Log]:
        if "\0" in feed:  # PostgreSQL cannot even search for it
            raise unknown_feed(feed)
        with self._errors(), self._database.snapshot(feed, positions) as (connection, found):
            yield SqlLog(connection, feed, found)

    # Reads that are one call

    feeds = _read(producers.every_feed)
    staged = _read(uploads.staged_bytes)
    identity = _read(epochs.identity)
    retention = _read(retentions.find)

    def begin_epoch(
        self,
        feed: str,
        *,
        copy: bool = False,
        since: int | None = None,
        by: Actor | None = None,
    ) -> FeedIdentity:
        def work(connection: Connection) -> tuple[FeedIdentity, dict[str, Any]]:
            begun = epochs.begin_epoch(connection, feed, self.now, copy=copy, since=since)
            return begun, {"epoch": begun.epochs[-1].id, "copy": copy, "since": since}

        return self._administer(by, Action.NEW_HISTORY, work, feed=feed)

    def admit(self, feed: str, call: Call) -> StoredReceipt | None:
        with self._reading() as connection, suppress(Problem):
            return uploads.admit(connection, feed, call)

        def work(connection: Connection, _: int) -> StoredReceipt | None:
            return uploads.admit(connection, feed, call)

        # The call was refused. Its batch may have been committed between the two reads.
        return self._look(feed, work)

    def stage(
        self, feed: str, call: Call, upload: Upload, quota: int | None = None
    ) -> StagingResult | StoredReceipt:
        def work(connection: Connection) -> StagingResult | StoredReceipt:
            return uploads.stage(connection, feed, call, upload, quota, self.now)

        def stage() -> StagingResult | StoredReceipt:
            # The commit notices that an upload with events is lost. An upload without events is
            # only counted: without it, a commit would succeed that has to be refused.
            with self._errors():
                return self._database.writes.stage(work, durable=not upload.chunks)

        try:
            return stage()
        except Problem:  # perhaps because of a commit between two reads
            receipt = self._look(feed, lambda c, _: uploads.admit(c, feed, call))
            if receipt is not None:
                return receipt
            return stage()

    def staged_chunks(self, feed: str, call: Call, attempts: Sequence[TaskAttempt]) -> int:
        with self._reading() as connection:
            feed_id, _ = find_feed(connection, feed)
            return uploads.staged_chunks(connection, feed_id, call, attempts)

    def commit(self, feed: str, call: Call, declared: Declared) -> tuple[StoredReceipt, bool]:
        def work(connection: Connection, asked: Sequence[commits.Commit]) -> list[commits.Done]:
            return commits.commit(connection, feed, asked, self.now, self._receipts)

        with self._errors():
            receipt, new, act = self._database.writes.commit(
                feed, (call, declared), work, _share(declared)
            )
        if act:
            log_act(act)
        return receipt, new

    def tidy(self) -> bool:
        return self._write(lambda db: uploads.tidy(db, self.now()), durable=False)

    def release(
        self,
        feed: str,
        producer: str,
        batch: int | None,
        run: str,
        attempt: tuple[int, int] | None = None,
    ) -> int:
        dropped = 0

        def work(connection: Connection, feed_id: int) -> int | None:
            return uploads.release(connection, feed_id, producer, batch, run, attempt)

        while (some := self._write_to(feed, work)) is not None:
            dropped += some
        return dropped

    def producers(self, feed: str, after: str = "", limit: int = 1 << 31) -> list[ProducerState]:
        with self._reading() as connection:
            feed_id, _ = find_feed(connection, feed)
            return producers.some_producers(connection, feed_id, after, limit)

    def producer(self, feed: str, name: str) -> ProducerState:
        def work(connection: Connection, feed_id: int) -> ProducerState:
            return producers.find_producer(connection, feed_id, name)[1]

        return self._look(feed, work)

    def sequences(self, feed: str, name: str) -> dict[int, Numbers]:
        with self._reading() as connection:
            key, _ = producers.find_producer(connection, find_feed(connection, feed)[0], name)
            return {} if key is None else producers.all_sequences(connection, [key])[key]

    def receipt(
        self, feed: str, name: str, batch: int, incarnation: str | None
    ) -> StoredReceipt | None:
        def work(connection: Connection, feed_id: int) -> StoredReceipt | None:
            _, producer = producers.find_producer(connection, feed_id, name)
            which = producer.incarnation if incarnation is None else incarnation
            call = Call(name, which, "", batch, 0)
            _, known = producers.what_is_known(connection, feed, call)
            return known_receipt(known, call)

        return self._look(feed, work)

    def receipts(self, feed: str, name: str, below: int, limit: int) -> list[StoredReceipt]:
        with self._reading() as connection:
            key, _ = producers.find_producer(connection, find_feed(connection, feed)[0], name)
            return [] if key is None else producers.newest_receipts(connection, key, below, limit)

    def delete_producer(self, feed: str, name: str, *, by: Actor | None = None) -> None:
        def work(connection: Connection) -> tuple[None, dict[str, Any] | None]:
            feed_id, _ = find_feed(connection, feed, Lock.CHANGE)  # its named batches have ended
            return None, {} if producers.delete_producer(connection, feed_id, name) else None

        self._administer(by, Action.DELETE_PRODUCER, work, feed=feed, subject=name)

    def remove(self, feed: str, upto: int, *, by: Actor | None = None) -> None:
        def work(connection: Connection) -> tuple[None, dict[str, Any] | None]:
            feed_id, _ = find_feed(connection, feed, Lock.CHANGE)
            return None, commits.remove(connection, feed_id, upto)

        if by:
            self._administer(by, Action.PRUNE, work, feed=feed)
        else:
            self._write(work, durable=False)

    def set_retention(self, feed: str, retention: Retention, *, by: Actor | None = None) -> None:
        def work(connection: Connection) -> tuple[None, dict[str, Any] | None]:
            feed_id, _ = find_feed(connection, feed)
            before = retentions.find(connection, feed)
            retentions.replace(connection, feed_id, retention)
            told = {"before": asdict(before), "after": asdict(retention)}
            return None, told if retention != before else None

        self._administer(by, Action.SET_RETENTION, work, feed=feed)

    def expire_names(self, feed: str, before: int, limit: int) -> int:
        def work(connection: Connection) -> int:
            feed_id, _ = find_feed(connection, feed)
            return expire_names(connection, feed_id, before, limit)

        return self._write(work, durable=False)

    def expire_producers(self, feed: str, before: int, limit: int) -> int:
        def work(connection: Connection) -> int:
            feed_id, _ = find_feed(connection, feed, Lock.CHANGE)
            return producers.expire_producers(connection, feed_id, before, limit)

        return self._write(work, durable=False)

    def save_cursors(
        self,
        feed: str,
        name: str,
        n: int,
        cursors: Mapping[int, str],
        consumer: str = NOBODY,
        maker: Maker | None = None,
    ) -> None:
        def work(connection: Connection, feed_id: int) -> None:
            cursor_sets.save(connection, (feed_id, feed), name, n, cursors, consumer, maker)

        try:
            self._write_to(feed, work)
        except IntegrityError:  # another transaction was the first under this name
            self._write_to(feed, work)

    def load_cursors(self, feed: str, name: str, n: int, consumer: str = NOBODY) -> dict[int, str]:
        with self._reading() as connection:
            feed_id, _ = find_feed(connection, feed)
            return cursor_sets.load(connection, (feed_id, feed), name, n, consumer)

    def saved_cursors(self, feed: str, name: str) -> dict[int, dict[int, str]]:
        with self._reading() as connection:
            found = cursor_sets.every(connection, find_feed(connection, feed)[0], name)
        return {n: dict(cursors) for each in found for n, cursors in each.cursors.items()}

    def cursor_sets(self, feed: str) -> list[CursorSet]:
        with self._reading() as connection:
            return cursor_sets.every(connection, find_feed(connection, feed)[0])

    def delete_cursor_set(self, feed: str, name: str, *, by: Actor | None = None) -> bool:
        def work(connection: Connection) -> tuple[bool, dict[str, Any] | None]:
            found = cursor_sets.forget(connection, find_feed(connection, feed)[0], name)
            return found, {} if found else None

        return self._administer(by, Action.DELETE_CURSOR_SET, work, feed=feed, subject=name)

    def tokens(self) -> list[Token]:
        with self._reading() as connection:
            return tokens.every(connection)

    def add_token(self, token: Token, *, by: Actor | None = None) -> None:
        def work(connection: Connection) -> tuple[None, dict[str, Any]]:
            tokens.add(connection, token)
            return None, token.told

        self._administer(by, Action.CREATE_TOKEN, work, subject=token.id)

    def revoke_token(self, which: str, *, by: Actor | None = None) -> list[str]:
        def work(connection: Connection) -> tuple[list[str], dict[str, Any] | None]:
            revoked = tokens.revoke(connection, which, self.now())
            return revoked, {"ids": revoked} if revoked else None

        return self._administer(by, Action.REVOKE_TOKEN, work, subject=which)

    def acts(self, wanted: ActFilter = EVERY_ACT, limit: int = ACTS_SHOWN) -> list[Act]:
        with self._reading() as connection:
            return acts.newest(connection, wanted, limit)

    def record(self, done: Sequence[Act]) -> None:
        self._write(partial(acts.add, done=done))
        for each in done:
            if not each.id:
                log_act(each)

    def clock_seen(self) -> int:
        with self._reading() as connection:
            return int(connection.scalar(select(clocks.c.seen)) or 0)

    def see_clock(self, now: int, *, by: Actor | None = None) -> None:
        def work(connection: Connection) -> tuple[None, dict[str, Any]]:
            before = int(connection.scalar(select(clocks.c.seen)) or 0)
            if not connection.execute(update(clocks).values(seen=now)).rowcount:
                connection.execute(insert(clocks), {"id": 1, "seen": now})
            return None, {"before": before, "accepted": now}

        if by:
            self._administer(by, Action.ACCEPT_CLOCK, work)
            return
        with suppress(IntegrityError):  # another publisher was the first
            self._write(work, durable=False)

    def version(self) -> int:
        with self._errors():
            return self._database.version()

    def stored_version(self) -> int:
        with self._reading() as connection:
            return self._database.stored_version(connection)

    def free_bytes(self) -> int:
        with self._reading() as connection:
            return self._database.free_bytes(connection)

    def close(self) -> None:
        self._database.close()


def _share(declared: Declared) -> float:
    events, tasks = declared.content.events, len(declared.attempts)
    return max(events / GROUP_EVENTS, tasks / GROUP_TASKS)
