"""What errors of PostgreSQL mean: which of them pass by themselves, and what to raise for them.

Rule for editors: decide by SQLSTATE, never by a text. Pure functions; they run in the publisher, in
commands that write, and for tables of a service's own.
"""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, OperationalError

from zeh_spark.errors import StoreError
from zeh_spark.service.sql.upgrades import upgraded_meanwhile
from zeh_spark.service.store.interface import StoreBusyError, StoreReadOnlyError, StoreSilentError

_AGAIN = {
    "40001",  # serialization failure; on a standby, a read that is in the way of the replay
    "40P01",  # deadlock
    "23505",  # another transaction has just inserted the row
    "23503",  # another transaction has just deleted the row that this one refers to
}
_PASSING = ("08", "53", "55", "57")
"""How SQLSTATEs begin that may pass: no connection, no room, a lock, shutting down."""

READ_ONLY = "25006"
"""The SQLSTATE of a write to a standby, which may be promoted."""

NOT_ALLOWED = "42501"
"""The SQLSTATE of a statement for which the role has no right."""

OTHER_VERSION = "55Z08"
"""The SQLSTATE of a write to a store of another version, which a trigger refuses."""


def is_in_the_way(exc: DBAPIError) -> bool:
    """Return whether another transaction was in the way; the work may succeed if it is repeated."""
    return sqlstate(exc) in _AGAIN


def sqlstate(exc: DBAPIError) -> str:
    """Return PostgreSQL's code of an error; empty if the database did not answer."""
    return str(getattr(exc.orig, "sqlstate", None) or "")


def explained(exc: DBAPIError) -> StoreError:
    """Return the error as a StoreError; as a StoreBusyError if it may pass by itself.

    Without an answer of the database, it is a StoreSilentError.
    """
    state, reason = sqlstate(exc), reason_of(exc)
    if state == OTHER_VERSION:
        return upgraded_meanwhile()
    is_silent = exc.connection_invalidated or (not state and isinstance(exc, OperationalError))
    if is_silent and state not in _AGAIN:
        return StoreSilentError(
            f"there is no connection to the database: {reason}. Start the database, or correct its "
            f"address or role in the URL",
            anchor="store-busy",
        )
    if state == READ_ONLY:
        return StoreReadOnlyError(
            f"the database takes no writes: {reason}. If it is a replica, use the primary, or a "
            f"publisher of it; or try again after it was promoted",
            anchor="replica-read-only",
        )
    if state.startswith(_PASSING) or state in _AGAIN:
        return StoreBusyError(
            f"the database cannot do it now: {reason}. Try again in a few seconds",
            anchor="store-busy",
        )
    if state == NOT_ALLOWED:
        return StoreError(
            f"the role of this connection may not do this: {reason}. Use the role that owns the "
            f"tables in the store's address: only that role makes and revokes tokens, and upgrades "
            f"the store. If a publisher's role lacks other rights, run conf/postgresql-roles.sql "
            f"as the owner",
            anchor="permission-denied",
        )
    return StoreError(f"the database refuses: {reason}. Check the role's rights and the tables")


def reason_of(exc: DBAPIError) -> str:
    """Return what the database says, in one line."""
    return " ".join(str(exc.orig).split())
