"""Where a publisher keeps its feeds: the interface of every store, and the rules they share.

A feed is a log of chunks. A chunk holds events of one partition and gets its position g, feed-wide
and without gaps from 1, when its batch is committed. A batch is staged first, which nobody sees,
then committed whole.

Rule for editors: what a store decides is in the functions here (`history`, `committed`,
`check_name`), the same for every store; tests/contract runs one text against all of them. Runs in
the publisher and in commands that write, never on an event loop.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from zeh_spark.errors import StoreError

MAX_PARTITIONS = 1024
STAGED_FOR = 24 * 3600.0
"""Seconds after which a batch that was never committed is dropped: its writer crashed."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RESERVED_NAMES = {"healthz", "metrics"}


class UnknownFeedError(StoreError):
    """The store has no feed of that name."""


class StoreBusyError(StoreError):
    """Another process holds the store; trying again later may work."""


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """A chunk before its commit: one zstd frame (with content size) of whole lines of one
    partition.

    `size` is the lines' bytes before compression.
    """

    partition: int
    events: int
    size: int
    frame: bytes

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.frame).digest()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A committed chunk, without its lines: `blob` is what `frames` takes."""

    g: int
    partition: int
    events: int
    size: int
    time: int
    tag: str
    blob: int

    @property
    def cursor(self) -> str:
        return f"{self.g}.{self.tag}"


@dataclass(frozen=True, slots=True)
class FeedState:
    """A feed as of now. `origin` is its random id, the history before its first chunk; `history`
    the one up to `head`.
    """

    name: str
    partitions: int
    origin: bytes
    head: int
    history: bytes
    time: int


@dataclass(frozen=True, slots=True)
class FeedSummary:
    """`time` of the last commit in ms since 1970, 0 if there was none."""

    name: str
    partitions: int
    events: int
    size: int
    time: int


@dataclass(frozen=True, slots=True)
class Moved:
    """A staged chunk on its way into the feed."""

    blob: int
    partition: int
    events: int
    size: int
    digest: bytes


@runtime_checkable
class Store(Protocol):
    """Every method may block, and may be called from any thread.

    Guarantee: a committed batch is durable as far as the store is, and visible whole, in all
    partitions at once; whoever sees position g sees all before it.
    """

    def create(self, name: str, partitions: int) -> FeedState:
        """Raises StoreError for a name that exists or is not allowed."""

    def feed(self, name: str) -> FeedState:
        """Raises UnknownFeedError."""

    def feeds(self) -> list[FeedSummary]:
        """All feeds by name."""

    def stage(self, batch: str, chunks: Iterable[StagedChunk]) -> int:
        """Keep chunks until `commit`, invisible; returns how many. Drops batches that crashed
        writers left.
        """

    def commit(self, feed: str, batch: str, chunks: int) -> FeedState:
        """Make the batch visible, in the order of staging. Raises StoreError unless exactly
        `chunks` are moved.
        """

    def discard(self, batch: str) -> None:
        """Drop what is staged of a batch; one that is committed or unknown is left alone."""

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

    def save_cursors(self, feed: str, name: str, n: int, cursors: Mapping[int, str]) -> None:
        """Keep a consumer's cursors under a name, for each partition of its n the last one."""

    def load_cursors(self, feed: str, name: str, n: int) -> dict[int, str]:
        """What `save_cursors` kept."""

    def version(self) -> int:
        """A number that changes whenever anybody, in any process, has committed. Cheap."""

    def close(self) -> None:
        """Let go of files and connections."""


def tag(history: bytes) -> str:
    return history[:4].hex()


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


def committed(
    feed: FeedState, moved: Sequence[Moved], expected: int, now: int
) -> tuple[FeedState, list[Chunk]]:
    """The feed after a commit, and the positions it gives to the moved chunks.

    H(g) = SHA-256(H(g-1) ‖ partition, 4 bytes ‖ SHA-256 of the frame). Raises StoreError if the
    batch is not whole.
    """
    if len(moved) != expected:
        raise StoreError(
            f"the batch has {len(moved)} staged chunks, its writer counted {expected}: it was "
            f"discarded meanwhile, or committed before; nothing was published"
        )
    if wrong := sorted({each.partition for each in moved if each.partition >= feed.partitions}):
        raise StoreError(
            f"the batch has chunks of partition {wrong[0]}, but feed {feed.name!r} has "
            f"{feed.partitions} partitions; nothing was published"
        )
    moment, history = max(now, feed.time), feed.history
    chunks = []
    for g, each in enumerate(moved, feed.head + 1):
        link = history + each.partition.to_bytes(4, "big") + each.digest
        history = hashlib.sha256(link).digest()
        chunks.append(
            Chunk(g, each.partition, each.events, each.size, moment, tag(history), each.blob)
        )
    return replace(feed, head=feed.head + len(moved), history=history, time=moment), chunks


def unknown_feed(name: str) -> UnknownFeedError:
    return UnknownFeedError(f"there is no feed {name!r} in this store")


def now_ms() -> int:
    return time.time_ns() // 1_000_000
