"""Whose a location is: the marker object, and the token of the store that may write there.

A copy of a store names the same objects as the original. If both moved and deleted, each would
delete what the other one needs. So a marker in the location has the token of one store, and only
that store writes and deletes. The token is of the database itself, so that no copy has it: of
SQLite the device and number of the file; of PostgreSQL system identifier, timeline and database.

Rule for editors: read the marker in each round in which something is deleted: an operator may have
given the location to another store meanwhile. Runs in the publisher and in commands.
"""

from __future__ import annotations

import msgspec

from zeh_spark.errors import StoreError
from zeh_spark.service.segments.objects import Objects
from zeh_spark.service.store.interface import NoObjectError

MARKER = "owner.json"
"""The name of the marker."""

_LONGEST = 4096


class Marker(msgspec.Struct, frozen=True):
    """What a marker says.

    Attributes:
        owner: The token of the store that may write.
    """

    owner: str
    version: int = 1


class OwnerError(StoreError):
    """The location is another store's, or nobody's: nothing may be written or deleted there."""


def read_marker(objects: Objects) -> Marker | None:
    """Return what a location's marker says; None if it has none."""
    try:
        found = objects.read(MARKER, 0, min(objects.size(MARKER), _LONGEST))
    except NoObjectError:
        return None
    try:
        return msgspec.json.decode(found, type=Marker)
    except msgspec.DecodeError:
        raise OwnerError(
            f"{objects.name_of(MARKER)} is no marker of a store. If no other program uses the "
            f"location, run zeh-spark segments adopt"
        ) from None


def adopt(objects: Objects, token: str) -> None:
    """Make a location a store's own, whoever had it. The one that had it writes no more."""
    objects.put(MARKER, [msgspec.json.encode(Marker(token))])


def check_owner(objects: Objects, token: str, *, is_used: bool) -> None:
    """Return if a store may write and delete in a location. Raises OwnerError if not.

    A location without a marker becomes the store's, unless it has been used (`is_used`) by it: the
    marker was lost then, or a folder is not mounted.
    """
    found = read_marker(objects)
    if found is None and not is_used:
        adopt(objects, token)
        found = read_marker(objects)
    if found and found.owner == token:
        return
    if found is None:
        raise OwnerError(
            f"{objects.name_of(MARKER)} is missing: a folder may not be mounted. Nothing is moved "
            f"there or deleted. If the segments are there, run zeh-spark segments adopt"
        )
    raise OwnerError(
        f"the location {objects.location} belongs to another store ({found.owner}), and this one "
        f"is {token}. Nothing is moved there or deleted. If the other store is gone for ever, as "
        f"after a restore or a failover, run zeh-spark segments adopt; otherwise give this store "
        f"a location of its own"
    )
