"""How the roles of a SQL store read and write: each call of a store is one transaction, or a few.

Rule for editors: a read is one short statement or a few; it is never held open while a client is
waited for. A write is one short transaction. Runs in the publisher and in commands that write, on
threads that may block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnection

from zeh_spark.errors import StoreError
from zeh_spark.service.sql import acts
from zeh_spark.service.sql.execution import Database
from zeh_spark.service.sql.producers import Lock, find_feed
from zeh_spark.service.store.acts import Act, Action, Actor, log_act, new_act
from zeh_spark.service.store.batches import RECEIPTS
from zeh_spark.service.store.interface import Clock, StoreBusyError, now_ms

T = TypeVar("T")


class Transactions:
    """What the roles of a store have in common: its database, its clock, and its transactions.

    Args:
        receipts: how many receipts of a producer the store keeps.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock = now_ms,
        receipts: int = RECEIPTS,
    ) -> None:
        self.now = clock
        self._receipts = receipts
        self._database = database

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._errors(), self._database.read() as connection:
            yield connection

    @contextmanager
    def _reading_of(self, feed: str) -> Iterator[tuple[Connection, int]]:
        """Read with the id of a feed's row. Raises UnknownFeedError."""
        with self._reading() as connection:
            yield connection, find_feed(connection, feed)[0]

    def _read(self, work: Callable[[Connection], T]) -> T:
        with self._reading() as connection:
            return work(connection)

    def _write(self, work: Callable[[Connection], T], *, durable: bool = True) -> T:
        with self._errors():
            return self._database.writes.write(work, durable=durable)

    def _write_to(
        self,
        feed: str,
        work: Callable[[Connection, int], T],
        *,
        lock: Lock | None = None,
        durable: bool = True,
    ) -> T:
        return self._write(_in_feed(feed, work, lock), durable=durable)

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
        with self._errors():
            return self._database.writes.consistent_read(feed, _in_feed(feed, work, Lock.CERTAIN))

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


def _in_feed(
    feed: str, work: Callable[[Connection, int], T], lock: Lock | None
) -> Callable[[Connection], T]:
    """Return work that is given the id of the feed's row, which it locks."""
    return lambda connection: work(connection, find_feed(connection, feed, lock)[0])
