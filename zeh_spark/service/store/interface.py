"""Where a publisher keeps its feeds: the interface of every store, and the rules that they share.

A feed is a log of chunks. A chunk holds events of one partition. It gets its position g, which
counts from 1 without gaps over all partitions, when its batch is committed. A batch is first
staged, in uploads that no reader sees, then committed as a whole.

Rule for editors: what a store decides is in `commit_decision`, `commit_plan` and the functions
here, the same for every store; `tests.store_contract` checks each store against them.
Runs in the publisher and in commands that write, never on an event loop.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from zeh_spark.errors import StoreError
from zeh_spark.service.store.acts import ACTS_SHOWN, EVERY_ACT, Act, ActFilter, Actor
from zeh_spark.service.store.batches import Batches
from zeh_spark.service.store.contracts import FeedSchema
from zeh_spark.service.store.cursor_sets import CursorSets
from zeh_spark.service.store.log import BlockPlace, FeedState, Log
from zeh_spark.service.store.token_rights import Token
from zeh_spark.wire.feed_identity import FeedIdentity

MAX_PARTITIONS = 1024
"""Most partitions of a feed."""

STAGED_FOR = 24 * 3600.0
"""Seconds for which a batch that is not committed is kept after its last request.

A longer silence means that its writer has crashed.
"""

IDLE = 600.0
"""The same in seconds, if the producer's quota is used up."""

Clock = Callable[[], int]
"""Returns the time in ms since 1970. Every store takes one, as its keyword `clock`."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
RESERVED_NAMES = frozenset({"console", "docs", "healthz", "metrics", "openapi.json", "readyz"})
"""What no feed is called, because the publisher answers there itself."""


class UnknownFeedError(StoreError):
    """The store has no feed of that name."""


class StoreBusyError(StoreError):
    """Another process holds the store. A later try may succeed."""


class StoreSilentError(StoreBusyError):
    """The store's database does not answer. The message may name its address, host and user.

    So it is for the operator: a publisher writes it into its log, and tells clients less.
    """


class StoreReadOnlyError(StoreBusyError):
    """The store's database is a replica, which takes no writes unless it is promoted."""


class StorageBusyError(StoreBusyError):
    """The storage of objects fails or is slow, or too many wait for it; the cause may tell more."""


class ObjectError(StoreError):
    """The storage cannot do it now. The message names location and object, never a secret."""

    anchor = "a-location-of-segments-cannot-be-used"


class NoObjectError(ObjectError):
    """There is no object of that name."""

    anchor = "segment-lost"


class LocationAwayError(NoObjectError):
    """There is no marker in its location, either: all that is there may be away for a time."""

    anchor = "a-location-of-segments-cannot-be-used"


class DamagedObjectError(ObjectError):
    """An object is there, and is not what was written."""

    anchor = "segment-lost"


class StoreOutcomeUnknownError(StoreError):
    """It is not known yet whether a commit took effect. Asking or committing again tells."""


NAMES_MS = 90 * 86_400_000
"""For how many milliseconds a feed can compare the contents of batches with names, by default."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What a feed keeps; every event if neither `age_ms` nor `bytes` is set.

    Attributes:
        age_ms: Events younger than this, in milliseconds, are kept.
        bytes: The newest events up to this size are kept.
        readers: Cursor sets of readers. Nothing is removed that one of them has not passed.
        names_ms: For how many milliseconds receipts of batches with names are kept; None means for
            ever. After that, their names are still known, and refused.
        producers_ms: After how many milliseconds without a batch a producer expires; None means
            that none does.
    """

    age_ms: int | None = None
    bytes: int | None = None
    readers: tuple[str, ...] = ()
    names_ms: int | None = NAMES_MS
    producers_ms: int | None = None


class Administration(Protocol):
    """What an operator decides about a store, and what its upkeep removes (see `Store`).

    Methods that take `by` do administrative acts (see `store.acts`). In the transaction of the
    change, they write who did it: `by`, or whoever runs this process if it is None. If nothing
    changes, they write nothing. `remove` and `see_clock` write an act only if `by` is given,
    because the publisher's own upkeep calls them, too.
    """

    def create(self, name: str, partitions: int, *, by: Actor | None = None) -> FeedState:
        """Create a feed. Raises StoreError if the name exists or is not allowed."""

    def schema(self, feed: str, version: int | None = None) -> FeedSchema | None:
        """Return a version of a feed's schema, by default the latest; None if it has none."""

    def set_schema(
        self, feed: str, document: bytes, *, compatible: bool = True, by: Actor | None = None
    ) -> FeedSchema:
        """Give a feed's schema another version, unless it has this document already.

        Events that are uploaded from then on are checked with it. A batch that was uploaded before
        is committed if the versions between are compatible, and refused (`schema-changed`) if not.
        Raises StoreError as `contracts.next_version`.
        """

    def begin_epoch(
        self,
        feed: str,
        *,
        copy: bool = False,
        since: int | None = None,
        by: Actor | None = None,
    ) -> FeedIdentity:
        """Begin an epoch of a feed: after a restore, before anything is published.

        Events committed before have a `zeh-time` below the epoch's time, events committed after it
        have one at or above it, also if the clock goes back. Unless it goes back, the epoch's
        number is higher than that of any epoch that began in an earlier second, even if a restore
        has taken that one back. The caller waits until `epochs.over_at`.

        What `epochs.next_epoch` decides is written in one transaction, with the feed's row locked
        and its `time` set to the epoch's, if that is later.

        Args:
            copy: The store is a copy that is used beside the original. Its feed is another feed
                from now on, with a new id.
            since: The `zeh-time`, in ms since 1970, from which events belong to the epoch, if some
                were published between the restore and this call.
            by: Who does it.

        Raises:
            StoreError: The store has no such feed, the clock is far ahead (see `store.clock`), or
                `since` is in the future or not after the beginning of the last epoch.
        """

    def delete_producer(self, feed: str, name: str, *, by: Actor | None = None) -> None:
        """Permanently delete a producer: it can publish no more. What it published stays."""

    def remove(self, feed: str, upto: int, *, by: Actor | None = None) -> None:
        """Remove all chunks up to g = `upto`, in one transaction, and leave their anchors.

        With `by`, an act tells how much was removed.
        """

    def seal(self, feed: str, before: int) -> int:
        """Pack the oldest chunks that are in no pack yet (see `packs`), in one transaction.

        Args:
            before: The time, in ms since 1970, before which they were committed.

        Returns:
            How many chunks were packed; 0 if they do not fill a pack, were changed meanwhile, or
            the database has to write down first what is waiting.
        """

    def retention(self, feed: str) -> Retention:
        """Return what the feed keeps (see `set_retention`)."""

    def set_retention(
        self,
        feed: str,
        retention: Retention,
        *,
        before: Retention | None = None,
        by: Actor | None = None,
    ) -> None:
        """Set what the feed keeps. Raises StoreError if it is not what it was `before`."""

    def expire_names(self, feed: str, before: int, limit: int) -> int:
        """Delete the receipts of batches with names that were committed before a time.

        The names stay: a batch that is published again under one is refused as `batch-expired`.

        Args:
            before: The time, in ms since 1970.
            limit: Most batches that are changed, in one transaction.

        Returns:
            The number of batches that were changed.
        """

    def expire_producers(self, feed: str, before: int, limit: int) -> int:
        """Delete producers that have published nothing since a time, with their receipts.

        Their names stay, as those of producers that `delete_producer` deleted. A producer stays if
        one of its batches with names was committed since, and so do batches with names. Arguments
        and result are as in `expire_names`, of producers.
        """

    def delete_cursor_set(self, feed: str, name: str, *, by: Actor | None = None) -> bool:
        """Forget the cursors of a name, and to whom it is bound. Return whether there were any."""

    def clock_seen(self) -> int:
        """Return the time that `see_clock` got last, in ms since 1970; 0 if there was none."""

    def see_clock(self, now: int, *, by: Actor | None = None) -> None:
        """Note a time, in ms since 1970, at which the clock was right (see `store.clock`).

        With `by`, somebody says so: an act tells it.
        """

    def skew(self) -> int:
        """Return by how many ms this machine's clock is ahead of the store's; 0 if it is that.

        The store's clock is read again for it, and `now` goes by that.
        """

    def tokens(self) -> list[Token]:
        """Return all tokens, also those that are not valid, in the order they were made in."""

    def add_token(self, token: Token, *, by: Actor | None = None) -> None:
        """Keep a new token."""

    def revoke_token(self, which: str, *, by: Actor | None = None) -> list[str]:
        """Revoke the tokens of an id or a name, for ever.

        Returns:
            The ids of those that were not revoked yet.
        """

    def acts(self, wanted: ActFilter = EVERY_ACT, limit: int = ACTS_SHOWN) -> list[Act]:
        """Return at most `limit` administrative acts, the newest first.

        To continue, ask for those `before` the id of the last one.
        """

    def record(self, done: Sequence[Act]) -> None:
        """Keep acts that change nothing else here, in their order, each under a new id.

        Such acts are a restore, and what was done in the store that a restored copy replaces. The
        latter have an id there, and are not written to the log again.
        """


class Store(Batches, CursorSets, Administration, Protocol):
    """Keeps the feeds of a publisher. Every method may block, and may be called from any thread.

    A store is opened with the keywords `clock` (see `Clock`) and `receipts`, the number of receipts
    that it keeps for each producer (`batches.RECEIPTS`). Every method raises UnknownFeedError for
    an unknown feed, and StoreBusyError or StoreError if the store cannot answer.
    """

    def feed(self, name: str) -> FeedState:
        """Return a feed as of now. Raises UnknownFeedError."""

    def feeds(self) -> list[FeedState]:
        """Return all feeds in the order of their names."""

    def snapshot(self, feed: str, positions: Iterable[int] = ()) -> AbstractContextManager[Log]:
        """Read a feed's log as of one moment, with the tags at some positions.

        It is one short transaction. Nothing is awaited in it but the store, and after a bound
        (`sql.log.SNAPSHOT_SECONDS`) a read in it raises StoreBusyError. So what takes long is read
        in several (`reading.Reading`). Raises UnknownFeedError.
        """

    def read_blocks(self, places: Iterable[BlockPlace]) -> Iterator[tuple[BlockPlace, bytes]]:
        """Yield blocks of objects. Never called in a snapshot: it waits for the storage.

        Raises StoreBusyError if the storage fails or is slow, and NoObjectError or
        DamagedObjectError if an object is missing or another one.
        """

    def storage(self) -> Mapping[str, tuple[int, int]]:
        """Return of each feed how many chunks are in no pack, and the bytes of its segments."""

    def identity(self, feed: str) -> FeedIdentity:
        """Return the feed's id and its epochs. Raises UnknownFeedError."""

    def now(self) -> int:
        """Return the time by the store's clock, in ms since 1970."""

    def version(self) -> int:
        """Return a number that changes soon after any process has committed events.

        Mostly it changes at once, after a second at the latest. The call is cheap.
        """

    def lineage(self, feed: str) -> object | None:
        """Return a value that differs once chunks of a feed were removed or replaced.

        It never waits, and returns None if that cannot be told without.
        """

    def stored_version(self) -> int:
        """Return the version of the tables as of now, which another process may have upgraded."""

    def free_bytes(self) -> int:
        """Return the bytes that can be written before the store's file grows, as far as known."""

    def replica_lag(self) -> int | None:
        """Return how far a replica may be behind its primary, in ms; None if it is not a replica.

        It is 0 if the replica has all that its primary has sent, and receives more; otherwise the
        age of the last transaction that it has.
        """

    def close(self) -> None:
        """Close files and connections."""


def check_feed_name(name: str) -> None:
    """Raise StoreError for a name that no feed may have, because its address would be another's."""
    if not _NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise StoreError(
            f"a feed cannot be called {name!r}: at most 100 letters, digits, '.', '_' and '-', the "
            f"first one a letter or digit, and none of {', '.join(sorted(RESERVED_NAMES))}"
        )


def new_feed(name: str, partitions: int) -> FeedState:
    """Return a new feed, with a random origin.

    Raises StoreError if it cannot have this name or number of partitions.
    """
    check_feed_name(name)
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise StoreError(
            f"a feed cannot have {partitions} partitions: allowed are 1 to {MAX_PARTITIONS}"
        )
    origin = secrets.token_bytes(32)
    return FeedState(name, partitions, origin, head=0, history=origin, time=0)


def unknown_feed(name: str) -> UnknownFeedError:
    """Return the error for a feed that the store does not have."""
    return UnknownFeedError(
        f"there is no feed {name!r} in this store", anchor="there-is-no-store-or-no-feed"
    )


def now_ms() -> int:
    """Return the time by the system's clock, in ms since 1970."""
    return time.time_ns() // 1_000_000
