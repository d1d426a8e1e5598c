"""Where a publisher keeps its feeds: the interface of every store, and the rules they share.

A feed is a log of chunks. A chunk holds events of one partition and gets its position g, feed-wide
and without gaps from 1, when its batch is committed. A batch is staged first, in uploads that
nobody sees, then committed whole.

Rule for editors: what a store decides is in `commit_decision`, `commit_plan` and the functions
here, the same for every store; `zeh_spark.testing.store_contract` holds all of them against it.
Runs in the publisher and in commands that write, never on an event loop.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from zeh_spark.errors import StoreError
from zeh_spark.protocol.feed_identity import FeedIdentity
from zeh_spark.store import refusals
from zeh_spark.store.batches import Call, Declared, ProducerState, StoredReceipt, Upload

MAX_PARTITIONS = 1024
STAGED_FOR = 24 * 3600.0
"""Seconds after its last request in which a batch that is not committed is kept: a longer silence
means that its writer has crashed.
"""

IDLE = 600.0
"""The same where the producer's quota is used up."""

Clock = Callable[[], int]
"""The time in ms since 1970. Every store takes one, as its keyword `clock`; `now_ms` unless it is
given.
"""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RESERVED_NAMES = {"healthz", "metrics", "openapi.json"}


class UnknownFeedError(StoreError):
    """The store has no feed of that name."""


class StoreBusyError(StoreError):
    """Another process holds the store; trying again later may work."""


class StoreOutcomeUnknownError(StoreError):
    """Whether a commit took effect is not known yet; asking again, or committing again, tells."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A committed chunk, without its lines: `blob` is what `frames` takes.

    `sequence`: the producer's number of its first event, in the chunk's partition. Chunks of stores
    that are older than producers have none of the last three.
    """

    g: int
    partition: int
    events: int
    size: int
    time: int
    tag: str
    blob: int
    producer: str | None = None
    batch: int | None = None
    sequence: int | None = None

    @property
    def cursor(self) -> str:
        return f"{self.g}.{self.tag}"


@dataclass(frozen=True, slots=True)
class FeedState:
    """A feed as of now. `origin` is random, the history before its first chunk; its first 8 bytes
    are the feed's id. `history` is the one up to `head`. `time` is that of the last commit or of
    the last epoch, whichever is later, in ms since 1970.
    """

    name: str
    partitions: int
    origin: bytes
    head: int
    history: bytes
    time: int


@dataclass(frozen=True, slots=True)
class FeedSummary:
    """`time` of the last commit or epoch in ms since 1970, 0 if there was none."""

    name: str
    partitions: int
    events: int
    size: int
    time: int


@dataclass(frozen=True, slots=True)
class Anchor:
    """The last chunk that retention has removed of a partition."""

    g: int
    tag: str

    @property
    def cursor(self) -> str:
        return f"{self.g}.{self.tag}"


@dataclass(frozen=True, slots=True)
class Retention:
    """What a feed keeps: events younger than `age_ms`, and the newest `bytes` of them; all, if
    neither is set. Nothing goes that one of the `readers`, by the names of their cursor sets, has
    not passed.
    """

    age_ms: int | None = None
    bytes: int | None = None
    readers: tuple[str, ...] = ()


class StagingResult(Enum):
    """What became of an upload: NEW, or the SAME as one that was there already."""

    NEW = auto()
    SAME = auto()


class Store(Protocol):
    """Every method may block, and may be called from any thread.

    A store is opened with the keywords `clock` (see `Clock`) and `receipts`, how many of a producer
    it keeps (`batches.RECEIPTS`).

    Guarantee: a committed batch is durable as far as the store is, and visible whole, in all
    partitions at once; whoever sees position g sees all before it.
    """

    def create(self, name: str, partitions: int) -> FeedState:
        """Raises StoreError for a name that exists or is not allowed."""

    def feed(self, name: str) -> FeedState:
        """Raises UnknownFeedError."""

    def feeds(self) -> list[FeedSummary]:
        """All feeds by name."""

    def identity(self, feed: str) -> FeedIdentity:
        """Return the feed's id and its epochs. Raises UnknownFeedError."""

    def begin_epoch(
        self, feed: str, *, copy: bool = False, since: int | None = None
    ) -> FeedIdentity:
        """Begin an epoch of a feed: after a restore, before anything is published.

        Events committed before have a `zeh-time` below the epoch's time, events committed after it
        have one at or above it, also if the clock goes back. Unless it goes back, the epoch's
        number is higher than that of any epoch that began in an earlier second, even if a restore
        has taken that one back; whoever begins an epoch waits until `epochs.over_at`.

        What `epochs.next_epoch` decides is written in one transaction, with the feed's row locked
        and its `time` set to the epoch's, if that is later.

        Args:
            copy: the store is a copy that goes on beside the original: its feed is another feed
                from now on, with a new id.
            since: the `zeh-time`, in ms since 1970, from which events belong to the epoch, if some
                were published between the restore and this call.

        Raises:
            StoreError: the store has no such feed, the clock is far ahead, or `since` is in the
                future or not after the beginning of the last epoch.
        """

    def admit(self, feed: str, call: Call) -> StoredReceipt | None:
        """Whether an upload is wanted, as of now; the receipt if its batch is committed.

        Raises Problem.
        """

    def stage(
        self, feed: str, call: Call, upload: Upload, quota: int | None = None
    ) -> StagingResult | StoredReceipt:
        """Keep an upload until `commit`, invisible; the receipt if its batch is committed.

        `quota`: bytes that the producer may have staged. Raises Problem.
        """

    def commit(self, feed: str, call: Call, declared: Declared) -> tuple[StoredReceipt, bool]:
        """Make a batch visible, of exactly the attempts that are named; and whether it is new.

        Its order: by partition, task, number of the upload, order in the upload. Raises Problem.
        """

    def release(
        self,
        feed: str,
        producer: str,
        batch: int | None,
        run: str,
        attempt: tuple[int, int] | None = None,
    ) -> int:
        """Drop what a run, or one attempt (task, attempt) of it, has staged for a batch, and
        nothing that is committed; returns how many uploads.
        """

    def producers(self, feed: str, after: str = "", limit: int = 1 << 31) -> list[ProducerState]:
        """Those that ever published, by name, with a name behind `after`."""

    def producer(self, feed: str, name: str) -> ProducerState:
        """All zero for one that never published. Certain, as `receipt` is."""

    def next_sequences(self, feed: str, name: str) -> dict[int, int]:
        """The number that a producer's next event gets, by stored partition; else it is 0."""

    def receipt(
        self, feed: str, name: str, batch: int, incarnation: str | None
    ) -> StoredReceipt | None:
        """Of the current incarnation if none is named. Certain: None is answered only when nobody
        is about to commit that batch. Raises Problem for one whose receipt is gone.
        """

    def receipts(self, feed: str, name: str, below: int, limit: int) -> list[StoredReceipt]:
        """The newest ones with a number less than `below`, newest first."""

    def delete_producer(self, feed: str, name: str) -> None:
        """For ever: it publishes no more, under any incarnation. What it published stays."""

    def chunks(self, feed: str, positions: Mapping[int, int], upto: int, limit: int) -> list[Chunk]:
        """Chunks of the stored partitions in `positions`, each from behind its position up to g =
        `upto`.

        At most `limit` of each partition; all in order of g.
        """

    def frames(self, blobs: Sequence[int]) -> list[bytes]:
        """The frames of chunks, in the order asked for. One short read."""

    def tags(self, feed: str, positions: Iterable[int]) -> dict[int, str]:
        """The tags of chunks by g, as far as they exist."""

    def last(self, feed: str, partitions: Iterable[int], upto: int) -> Chunk | None:
        """The chunk with the highest g, at most `upto`, among these stored partitions."""

    def anchors(self, feed: str) -> dict[int, Anchor]:
        """What was removed last, by stored partition, of those of which something was."""

    def remove(self, feed: str, upto: int) -> None:
        """Remove all chunks up to g = `upto`, in one transaction, and leave their anchors."""

    def retention(self, feed: str) -> Retention:
        """As `set_retention` left it."""

    def set_retention(self, feed: str, retention: Retention) -> None: ...

    def save_cursors(self, feed: str, name: str, n: int, cursors: Mapping[int, str]) -> None:
        """Keep a consumer's cursors under a name, for each partition of its n the last one."""

    def load_cursors(self, feed: str, name: str, n: int) -> dict[int, str]:
        """What `save_cursors` kept."""

    def saved_cursors(self, feed: str, name: str) -> dict[int, dict[int, str]]:
        """The same for every n."""

    def now(self) -> int:
        """The time by the store's clock, in ms since 1970."""

    def version(self) -> int:
        """A number that changes soon after anybody, in any process, has committed events: mostly at
        once, after a second at the latest. Cheap.
        """

    def close(self) -> None:
        """Let go of files and connections."""


def check_new_feed(name: str, partitions: int) -> None:
    """Raises StoreError."""
    if not _NAME.fullmatch(name) or name in _RESERVED_NAMES:
        raise StoreError(
            f"a feed cannot be called {name!r}: at most 100 letters, digits, '.', '_' and '-', the "
            f"first one a letter or digit, and none of {', '.join(sorted(_RESERVED_NAMES))}"
        )
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise StoreError(
            f"a feed cannot have {partitions} partitions: allowed are 1 to {MAX_PARTITIONS}"
        )


def new_feed(name: str, partitions: int) -> FeedState:
    check_new_feed(name, partitions)
    origin = secrets.token_bytes(32)
    return FeedState(name, partitions, origin, head=0, history=origin, time=0)


def check_partitions(call: Call, upload: Upload, partition_count: int) -> None:
    """Raises Problem for events that nobody would read."""
    for each in upload.chunks:
        if not 0 <= each.partition < partition_count:
            raise refusals.partition_lacking(call, each.partition, partition_count)


def unknown_feed(name: str) -> UnknownFeedError:
    return UnknownFeedError(
        f"there is no feed {name!r} in this store", anchor="there-is-no-store-or-no-feed"
    )


def frame_missing(blob: int) -> StoreError:
    return StoreError(
        f"the store is damaged: it has no frame {blob}; restore it", anchor="the-store-is-damaged"
    )


def now_ms() -> int:
    """The time by the system's clock, in ms since 1970."""
    return time.time_ns() // 1_000_000
