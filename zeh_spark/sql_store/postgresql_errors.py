"""What errors of PostgreSQL mean: which ones pass by themselves, and what the others say in our
words. Pure.
"""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, OperationalError

from zeh_spark.errors import StoreError
from zeh_spark.store.interface import StoreBusyError

_AGAIN = {
    "40001",  # serialization failure
    "40P01",  # deadlock
    "23505",  # somebody else has just inserted the row,
    "23503",  # or deleted the one that this one refers to
}
_PASSING = ("08", "53", "55", "57", "25006")
"""SQLSTATEs that may pass: no connection, no room, a lock, shutting down, a standby."""


def is_in_the_way(exc: DBAPIError) -> bool:
    """Whether another transaction was in the way: work that is done anew may succeed."""
    return sqlstate(exc) in _AGAIN


def sqlstate(exc: DBAPIError) -> str:
    """PostgreSQL's code of an error, empty if it did not even answer."""
    return str(getattr(exc.orig, "sqlstate", None) or "")


def explained(exc: DBAPIError) -> StoreError:
    """An error in our words; one that may pass by itself is a StoreBusyError."""
    state, reason = sqlstate(exc), reason_of(exc)
    if exc.connection_invalidated or (not state and isinstance(exc, OperationalError)):
        return StoreBusyError(f"the database does not answer: {reason}", anchor="store-busy")
    if state.startswith(_PASSING) or state in _AGAIN:
        return StoreBusyError(f"the database cannot do it now: {reason}", anchor="store-busy")
    return StoreError(f"the database refuses: {reason}")


def reason_of(exc: DBAPIError) -> str:
    """What the database says, in one line."""
    return " ".join(str(exc.orig).split())
