"""A store in this process's memory."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from zeh_spark.errors import StoreError
from zeh_spark.publisher.store import (
    Chunk,
    FeedState,
    FeedSummary,
    Moved,
    StagedChunk,
    committed,
    new_feed,
    now_ms,
    unknown_feed,
)


class MemoryStore:
    """Feeds in this process's memory: for tests, and for services that fill a feed themselves.

    Guarantee: as every store's; durable as long as the process lives.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._feeds: dict[str, FeedState] = {}
        self._logs: dict[str, list[Chunk]] = {}
        self._by_partition: dict[tuple[str, int], list[Chunk]] = {}
        self._blobs: list[bytes] = []
        self._staged: dict[str, list[Moved]] = {}
        self._cursors: dict[tuple[str, str, int], dict[int, str]] = {}
        self._version = 0

    def create(self, name: str, partitions: int) -> FeedState:
        feed = new_feed(name, partitions)
        with self._lock:
            if name in self._feeds:
                raise StoreError(f"feed {name!r} exists already")
            self._feeds[name] = feed
            self._logs[name] = []
            self._by_partition.update({(name, each): [] for each in range(partitions)})
        return feed

    def feed(self, name: str) -> FeedState:
        try:
            return self._feeds[name]
        except KeyError:
            raise unknown_feed(name) from None

    def feeds(self) -> list[FeedSummary]:
        with self._lock:
            return [
                FeedSummary(
                    name,
                    feed.partitions,
                    events=sum(each.events for each in self._logs[name]),
                    size=sum(each.size for each in self._logs[name]),
                    time=feed.time,
                )
                for name, feed in sorted(self._feeds.items())
            ]

    def stage(self, batch: str, chunks: Iterable[StagedChunk]) -> int:
        count = 0
        for chunk in chunks:
            with self._lock:
                self._blobs.append(chunk.frame)
                moved = Moved(
                    len(self._blobs) - 1, chunk.partition, chunk.events, chunk.size, chunk.digest
                )
                self._staged.setdefault(batch, []).append(moved)
            count += 1
        return count

    def commit(self, feed: str, batch: str, chunks: int) -> FeedState:
        with self._lock:
            before = self.feed(feed)
            after, added = committed(before, self._staged.get(batch, []), chunks, now_ms())
            self._staged.pop(batch, None)
            self._logs[feed].extend(added)
            for each in added:
                self._by_partition[feed, each.partition].append(each)
            self._feeds[feed] = after  # last: readers go by the head, without the lock
            self._version += 1
        return after

    def discard(self, batch: str) -> None:
        with self._lock:
            for each in self._staged.pop(batch, []):
                self._blobs[each.blob] = b""

    def chunks(self, feed: str, positions: Mapping[int, int], upto: int, limit: int) -> list[Chunk]:
        found: list[Chunk] = []
        for partition, position in positions.items():
            log = self._by_partition[feed, partition]
            first = bisect_right(log, position, key=_position)
            found += [each for each in log[first : first + limit] if each.g <= upto]
        return sorted(found, key=_position)

    def frames(self, blobs: Sequence[int]) -> list[bytes]:
        return [self._blobs[blob] for blob in blobs]

    def tags(self, feed: str, positions: Iterable[int]) -> dict[int, str]:
        log = self._logs[feed]
        return {g: log[g - 1].tag for g in positions if 0 < g <= len(log)}

    def last(self, feed: str, partitions: Iterable[int], upto: int) -> Chunk | None:
        found = []
        for partition in partitions:
            log = self._by_partition[feed, partition]
            found += log[: bisect_right(log, upto, key=_position)][-1:]
        return max(found, key=_position, default=None)

    def save_cursors(self, feed: str, name: str, n: int, cursors: Mapping[int, str]) -> None:
        with self._lock:
            self._cursors.setdefault((feed, name, n), {}).update(cursors)

    def load_cursors(self, feed: str, name: str, n: int) -> dict[int, str]:
        return dict(self._cursors.get((feed, name, n), {}))

    def version(self) -> int:
        return self._version

    def close(self) -> None:
        """Nothing to let go of."""


def _position(chunk: Chunk) -> int:
    return chunk.g
