"""Whose a location is: the marker object, and the store that may write there.

A copy of a store names the same objects as the original. If both moved and deleted, each would
delete what the other one needs. So a marker in the location says whose it is, and only that store
writes and deletes:

- by its *token*, which is of the database itself, so that a restored backup has another one: of
  SQLite the device and number of the file; of PostgreSQL system identifier, timeline and database;
- by a *nonce*, which the owner changes in each round, first in its database, then in the marker. A
  clone of a whole disk has the token, too, but not the nonces that came after it: one of the two is
  refused from the first round on.

Rule for editors: check the owner in each round in which something is written or deleted. Runs in
the publisher and in commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from zeh_spark.errors import StoreError
from zeh_spark.service.segments.objects import Objects
from zeh_spark.service.store.interface import NoObjectError

MARKER = "owner.json"
"""The name of the marker."""

_LONGEST = 4096


class Marker(msgspec.Struct, frozen=True):
    """What a marker says: the token of the store that may write, and its newest nonce."""

    owner: str
    nonce: str
    version: int = 1


class Owner(Protocol):
    """A store that moves blocks."""

    def owner(self) -> str:
        """Return the store's token."""

    def new_nonce(self, location: str) -> tuple[Sequence[str], str]:
        """Return the newest nonces of a location, none if it was never used, and a new one.

        The new one is kept durably.
        """


class OwnerError(StoreError):
    """The location is another store's, or nobody's: nothing may be written or deleted there."""

    anchor = "a-location-of-segments-belongs-to-another-store"


def missing(objects: Objects) -> OwnerError:
    """Return the error of a location that was used, and has no marker."""
    return OwnerError(
        f"{objects.name_of(MARKER)} is missing: a folder may not be mounted. Nothing is moved "
        f"there or deleted. If the segments are there, run zeh-spark segments adopt"
    )


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


def adopt(objects: Objects, store: Owner) -> None:
    """Make a location a store's own, whoever had it. The one that had it writes no more."""
    _, nonce = store.new_nonce(objects.location)
    objects.put(MARKER, [msgspec.json.encode(Marker(store.owner(), nonce))])


def check_owner(objects: Objects, store: Owner) -> None:
    """Return if a store may write and delete in a location. Raises OwnerError if not.

    A location without a marker becomes the store's, unless the store has used it: the marker was
    lost then, or a folder is not mounted.
    """
    token = store.owner()
    known, nonce = store.new_nonce(objects.location)
    found = read_marker(objects)
    mine = not known if found is None else found.owner == token and found.nonce in known
    if mine:
        objects.put(MARKER, [msgspec.json.encode(Marker(token, nonce))])
        return
    if found is None:
        raise missing(objects)
    raise OwnerError(
        f"the location {objects.location} belongs to another store ({found.owner}), and this one "
        f"is {token}. Nothing is moved there or deleted. If the other store is gone for ever, as "
        f"after a restore or a failover, or this one was copied with its disk, run zeh-spark "
        f"segments adopt; otherwise give this store a location of its own"
    )
