"""Whose a location is: the marker object, and the store that may write there.

A copy of a store names the same objects as the original. If both moved and deleted, each would
delete what the other one needs. So a marker in the location says whose it is, and only that store
writes and deletes:

- by its *token*, which is of the database itself, so that most restored backups have another one:
  of SQLite the number of the file; of PostgreSQL system identifier, timeline and database;
- by a *nonce*, which the owner changes in each round, first in its database, then in the marker. A
  clone of a whole disk has the token, too, but not the nonces that came after it: of the two, the
  one that comes second is refused.

Rule for editors: check the owner in each round in which something is written or deleted. The marker
is read before the nonces, because its nonce was in the database before it was in the marker. Runs
in the publisher and in commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from zeh_spark.errors import StoreError
from zeh_spark.service.segments.objects import Objects
from zeh_spark.service.store.interface import NoObjectError, ObjectError

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

    def locations(self) -> Sequence[str]:
        """Return the locations of all objects that the store names."""

    def keep_garbage(self) -> None:
        """Keep what is garbage as long as if it were new: a later backup may name it."""

    def knows(self, nonce: str) -> bool:
        """Return whether a nonce is one of the store's."""

    def new_nonce(self, known: str | None) -> str | None:
        """Return a new nonce, which is kept durably; None if a nonce is not one of the store's.

        `known` is that nonce, which is kept as long as the new one; None asks for no other one.
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
        found = objects.start(MARKER, _LONGEST)
    except NoObjectError:
        return None
    try:
        return msgspec.json.decode(found, type=Marker)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise OwnerError(
            f"{objects.name_of(MARKER)} is no marker of a store. If no other program uses the "
            f"location, run zeh-spark segments adopt"
        ) from None


def owns(store: Owner, marker: Marker) -> bool:
    """Return whether a location is a store's own. Files of other volumes may have its token."""
    return marker.owner == store.owner() and store.knows(marker.nonce)


def adopt(objects: Objects, store: Owner) -> None:
    """Make a location a store's own, whoever had it. The one that had it writes no more."""
    store.keep_garbage()
    objects.put(MARKER, [_encoded(store.owner(), store.new_nonce(None))])


def check_owner(objects: Objects, store: Owner, *, writes: bool = True) -> None:
    """Return if a store may write and delete in a location. Raises OwnerError if not.

    A location without a marker becomes the store's, unless the store names objects there: the
    marker was lost then, or a folder is not mounted. With `writes=False` a location is left as it
    is if it cannot be written to: what is deleted there makes room.
    """
    token, found = store.owner(), read_marker(objects)
    if found is None and objects.location in store.locations():
        raise missing(objects)
    nonce = None
    if found is None or found.owner == token:
        nonce = store.new_nonce(found.nonce if found else None)
    if nonce is None:
        other = found.owner if found else ""
        copy = ", a copy of this one" if other == token else ""
        raise OwnerError(
            f"the location {objects.location} belongs to another store ({other}{copy}), and this "
            f"one is {token}. Nothing is moved there or deleted. If the "
            f"other store is gone for ever, as after a restore or a failover, or this one was "
            f"copied with its disk, run zeh-spark segments adopt; otherwise give this store a "
            f"location of its own"
        )
    try:
        objects.put(MARKER, [_encoded(token, nonce)])
    except ObjectError:
        if writes or found is None:
            raise


def _encoded(owner: str, nonce: str | None) -> bytes:
    return msgspec.json.encode(Marker(owner, nonce or ""))
