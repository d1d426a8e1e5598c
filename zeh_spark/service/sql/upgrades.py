"""The versions of a store's tables: which one a program works with, and how a store is upgraded.

A program works with the tables of one version, VERSION. It refuses to open a store of another one,
and `zeh-spark migrate` upgrades an older store. A program that has the store open meanwhile
continues to read, and is refused at its next write: each transaction that writes compares the
versions. So two versions may run side by side for as long as the older one only reads.

Rule for editors: an upgrade may only add, or drop constraints, or rename what older programs must
not read any more. The rest of what they read stays, or they would read something wrong while they
are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from zeh_spark.errors import StoreError
from zeh_spark.service.sql import acts
from zeh_spark.service.sql.schema import VERSION
from zeh_spark.service.store.acts import Act, Action, Actor, new_act
from zeh_spark.service.store.interface import StoreBusyError

ANCHOR = "the-store-is-of-version"
"""Where the docs describe the errors about versions."""

FIRST = 10
"""The version of the first release. Only states of the repository before it wrote lower ones."""

_SCHEMAS = [
    f"{table} ADD COLUMN {column} INTEGER DEFAULT '0' NOT NULL"
    for table, column in (
        ("feeds", "schema_version"), ("feeds", "schema_since"), ("uploads", "schema_version"),
    )
]  # fmt: skip

SQLITE: Mapping[int, tuple[str, ...]] = {
    10: ("ALTER TABLE chunks RENAME TO recent_chunks",),
    11: tuple(f"ALTER TABLE {each}" for each in _SCHEMAS),
}
"""The statements that upgrade a store of a version to the next one, for each version from FIRST on.

Tables that are missing are made after them.
"""

PACKED = tuple(
    f"ALTER TABLE zeroeventhub.{table} SET (autovacuum_vacuum_scale_factor = 0.02)"
    for table in ("recent_chunks", "blobs")
)
"""Has PostgreSQL clean up more often what packing leaves: by default it waits for a fifth."""

POSTGRESQL: Mapping[int, tuple[str, ...]] = {
    10: ("ALTER TABLE zeroeventhub.chunks RENAME TO recent_chunks", *PACKED),
    11: tuple(f"ALTER TABLE zeroeventhub.{each}" for each in _SCHEMAS),
}
"""The same for PostgreSQL, whose tables are in the schema `zeroeventhub`."""


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


def migration(version: int, steps: Mapping[int, tuple[str, ...]]) -> Migration:
    """Return how a store of a version is upgraded. Raises StoreError if it cannot be."""
    check_known(version)
    statements = [each for step in range(version, VERSION) for each in steps[step]]
    return Migration(version, VERSION, tuple(statements))


def note_migration(connection: Connection, done: Migration, by: Actor | None, now: int) -> Act:
    """Keep the act of an upgrade, in its transaction, and return it."""
    act = new_act(by, Action.MIGRATE, now, before=done.before, after=done.after)
    acts.add(connection, [act])
    return act


def check_version(version: int) -> None:
    """Raise StoreError unless a store is of the version that this program works with."""
    check_known(version)
    if version < VERSION:
        raise StoreError(
            f"the store is of version {version}, and this zeh-spark works with version {VERSION}. "
            f"Back it up, and upgrade it with zeh-spark migrate. After that, publishers of the "
            f"older version can only read it",
            anchor=ANCHOR,
        )


def check_known(version: int) -> None:
    """Raise StoreError unless a store's version is one that this program knows."""
    if version > VERSION:
        raise StoreError(
            f"the store is of version {version}, and this zeh-spark knows versions up to "
            f"{VERSION}. Upgrade zeh-spark",
            anchor=ANCHOR,
        )
    if version < FIRST:
        raise StoreError(
            f"the store is of version {version}, which no release of zeh-spark has written: the "
            f"first one is {FIRST}. It cannot be upgraded. Make a new store elsewhere with "
            f"zeh-spark create, and publish its events again",
            anchor=ANCHOR,
        )


def upgraded_meanwhile() -> StoreBusyError:
    """Return the error of a write to a store that was upgraded after this program opened it."""
    return StoreBusyError(
        f"the store was upgraded, and this zeh-spark, which writes version {VERSION}, may only "
        f"read it now. Replace this process with one of the newer zeh-spark",
        anchor=ANCHOR,
    )
