"""The versions of a store's tables: which one a program works with, and how a store is upgraded.

A program works with the tables of one version, VERSION. It refuses to open a store of another one,
and `zeh-spark migrate` upgrades an older store. A program that has the store open meanwhile
continues to read, and is refused at its next write: each transaction that writes compares the
versions. So two versions may run side by side for as long as the older one only reads.

Rule for editors: an upgrade may only add, or drop constraints. What older programs read stays, or
they would read something wrong while they are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from zeh_spark.errors import StoreError
from zeh_spark.sql_store import acts
from zeh_spark.sql_store.schema import VERSION
from zeh_spark.store.acts import Act, Action, Actor, new_act
from zeh_spark.store.interface import NAMES_MS, StoreBusyError

ANCHOR = "the-store-is-of-version"
"""Where the docs describe the errors about versions."""

_TOTALS = (
    "UPDATE {0}feeds SET"
    " events = (SELECT coalesce(sum(c.events), 0) FROM {0}chunks c WHERE c.feed = {0}feeds.id),"
    " size = (SELECT coalesce(sum(c.size), 0) FROM {0}chunks c WHERE c.feed = {0}feeds.id)"
)

SQLITE: Mapping[int, tuple[str, ...]] = {
    1: (  # adds producers and uploads; drops what was staged and not committed
        "DELETE FROM blobs WHERE id IN (SELECT blob FROM staged)",
        "DROP TABLE staged",
        "ALTER TABLE chunks ADD COLUMN producer VARCHAR(201)",
        "ALTER TABLE chunks ADD COLUMN batch BIGINT",
        "ALTER TABLE chunks ADD COLUMN sequence BIGINT",
        "CREATE TABLE sequences (producer INTEGER NOT NULL REFERENCES producers (id),"
        " partition INTEGER NOT NULL, next BIGINT NOT NULL, PRIMARY KEY (producer, partition))",
    ),
    2: (  # adds retention
        "CREATE TABLE retentions (feed INTEGER NOT NULL PRIMARY KEY REFERENCES feeds (id),"
        " age_ms BIGINT, bytes BIGINT, readers VARCHAR NOT NULL)",
    ),
    3: (),  # adds epochs
    4: (  # adds how long names of batches are kept, and with which numbers producers began
        f"ALTER TABLE retentions ADD COLUMN names_ms BIGINT DEFAULT {NAMES_MS}",
        "ALTER TABLE sequences ADD COLUMN first BIGINT NOT NULL DEFAULT 0",
    ),
    5: (),  # adds the consumers to which cursor sets are bound
    6: (),  # adds tokens
    7: (  # adds the totals of feeds, and the clock
        "ALTER TABLE feeds ADD COLUMN events BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE feeds ADD COLUMN size BIGINT NOT NULL DEFAULT 0",
        _TOTALS.format(""),
    ),
    8: (),  # adds administrative acts
    # adds the clients that began names, and when idle producers expire; drops the foreign key of
    # chunks, which SQLite never looked at: there it stays
    9: ("ALTER TABLE retentions ADD COLUMN producers_ms BIGINT",),
}
"""The statements that upgrade a store of a version to the next version.

Tables that are missing are made after them.
"""


def postgresql(schema: str) -> Mapping[int, tuple[str, ...]]:
    """Return the same for PostgreSQL, with tables in a schema."""
    return {
        3: (),
        4: (
            f"ALTER TABLE {schema}.retentions ADD COLUMN names_ms bigint DEFAULT {NAMES_MS}",
            f"ALTER TABLE {schema}.sequences ADD COLUMN first bigint NOT NULL DEFAULT 0",
        ),
        5: (),
        6: (),
        7: (
            f"ALTER TABLE {schema}.feeds ADD COLUMN events bigint NOT NULL DEFAULT 0,"
            f" ADD COLUMN size bigint NOT NULL DEFAULT 0",
            _TOTALS.format(f"{schema}."),
        ),
        8: (),
        9: (
            f"ALTER TABLE {schema}.retentions ADD COLUMN producers_ms bigint",
            f"ALTER TABLE {schema}.chunks DROP CONSTRAINT chunks_blob_fkey",
        ),
    }


@dataclass(frozen=True, slots=True)
class Migration:
    """The upgrade of a store.

    Attributes:
        before: The version that it has.
        after: The version that it gets; the same if there is nothing to do.
        statements: What is done, besides making the tables that are missing.
    """

    before: int
    after: int
    statements: tuple[str, ...]


def migration(version: int, upgrades: Mapping[int, tuple[str, ...]]) -> Migration:
    """Return how a store of a version is upgraded. Raises StoreError if it cannot be."""
    if version > VERSION:
        raise later_version(version)
    if version < min(upgrades):
        raise StoreError(
            f"the store is of version {version}, and this zeh-spark upgrades stores of versions "
            f"from {min(upgrades)}. Upgrade it with an older zeh-spark first",
            anchor=ANCHOR,
        )
    statements = [each for step in range(version, VERSION) for each in upgrades[step]]
    return Migration(version, VERSION, tuple(statements))


def note_migration(connection: Connection, done: Migration, by: Actor | None, now: int) -> Act:
    """Keep the act of an upgrade, in its transaction, and return it."""
    act = new_act(by, Action.MIGRATE, now, before=done.before, after=done.after)
    acts.add(connection, [act])
    return act


def check_version(version: int) -> None:
    """Raise StoreError unless a store is of the version that this program works with."""
    if version > VERSION:
        raise later_version(version)
    if version < VERSION:
        raise StoreError(
            f"the store is of version {version}, and this zeh-spark works with version {VERSION}. "
            f"Back it up, and upgrade it with zeh-spark migrate. After that, publishers of the "
            f"older version can only read it",
            anchor=ANCHOR,
        )


def later_version(version: int) -> StoreError:
    """Return the error for a store that a later zeh-spark has made or upgraded."""
    return StoreError(
        f"the store is of version {version}, and this zeh-spark knows versions up to {VERSION}. "
        f"Upgrade zeh-spark",
        anchor=ANCHOR,
    )


def upgraded_meanwhile() -> StoreBusyError:
    """Return the error of a write to a store that was upgraded after this program opened it."""
    return StoreBusyError(
        f"the store was upgraded, and this zeh-spark, which writes version {VERSION}, may only "
        f"read it now. Replace this process with one of the newer zeh-spark",
        anchor=ANCHOR,
    )
