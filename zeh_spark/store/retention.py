"""How long a feed keeps its events: what may go, and how it goes.

Chunks go whole, oldest first, in order of g over all partitions, a few at a time. What was removed
last of each partition stays known (its anchor): only who has not read what is gone is told so.

Rule for editors: what may go is decided by `removable`, pure; it is always a beginning of the log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from zeh_spark.store.feed import in_order, parse_cursor
from zeh_spark.store.interface import Chunk, Retention, Store
from zeh_spark.store.outcome import logged
from zeh_spark.store.problems import Problem

EVERY_SECONDS = 60.0
STEP_CHUNKS, STEP_BYTES = 64, 16 << 20
"""What goes in one transaction, at most: others wait that long."""

log = logging.getLogger("zeh_spark.publisher")


@dataclass(frozen=True, slots=True)
class Removal:
    """What may go, or has gone. `upto`: the last position; `held_by`: the reader that has not
    passed the next one, which else would go, too.
    """

    chunks: int = 0
    events: int = 0
    bytes: int = 0
    upto: int = 0
    newest: int = 0
    held_by: str | None = None

    def with_chunk(self, chunk: Chunk) -> Removal:
        events, size = self.events + chunk.events, self.bytes + chunk.size
        return Removal(self.chunks + 1, events, size, chunk.g, chunk.time)

    def with_step(self, step: Removal) -> Removal:
        events, size = self.events + step.events, self.bytes + step.bytes
        return Removal(self.chunks + step.chunks, events, size, step.upto, step.newest)


def removable(
    oldest: Iterable[Chunk],
    size: int,
    retention: Retention,
    now: int,
    unread_by: Callable[[Chunk], str | None],
) -> Iterator[Removal]:
    """What may go, chunk by chunk: all so far. `oldest`: the log from its beginning; `size`: its
    bytes; `now` in ms; `unread_by`: a reader that is waited for and has not passed a chunk.
    """
    removal = Removal()
    for chunk in oldest:
        too_old = retention.age_ms is not None and chunk.time < now - retention.age_ms
        too_much = retention.bytes is not None and size - removal.bytes > retention.bytes
        if not too_old and not too_much:
            return
        if reader := unread_by(chunk):
            yield replace(removal, held_by=reader)
            return
        removal = removal.with_chunk(chunk)
        yield removal


def plan(store: Store, feed: str, retention: Retention) -> Removal:
    """What would go now."""
    newest = deque(_steps(store, feed, retention), maxlen=1)
    return newest.pop() if newest else Removal()


def prune(store: Store, feed: str, retention: Retention | None = None) -> Removal:
    """Remove what may go now, by the feed's own retention if none is given; what that was.

    Step by step, each after a look at what may go then: who changes the retention, or a reader that
    goes back, is heeded. Several may do it at a time.
    """
    done = Removal()
    while True:
        step = Removal()
        for step in _steps(store, feed, retention or store.retention(feed)):
            if step.chunks >= STEP_CHUNKS or step.bytes >= STEP_BYTES:
                break
        if not step.chunks:
            return replace(done, held_by=step.held_by)
        store.remove(feed, step.upto)
        done = done.with_step(step)


def _steps(store: Store, feed: str, retention: Retention) -> Iterator[Removal]:
    if retention.age_ms is None and retention.bytes is None:
        return iter(())
    state = store.feed(feed)
    positions = dict.fromkeys(range(state.partitions), 0)
    positions.update({each: anchor.g for each, anchor in store.anchors(feed).items()})

    def look_up(positions: Mapping[int, int], limit: int) -> list[Chunk]:
        return store.chunks(feed, positions, state.head, limit)

    size = 0
    if retention.bytes is not None:
        size = next(each.size for each in store.feeds() if each.name == feed)
    passed = Readers(store, feed, retention.readers)
    return removable(in_order(look_up, positions), size, retention, store.now(), passed.unread_by)


class Readers:
    """Those that are waited for: what each has passed, by all cursors that it keeps here."""

    def __init__(self, store: Store, feed: str, names: Iterable[str]) -> None:
        self._cursors = {name: _passed(store, feed, name) for name in names}

    def unread_by(self, chunk: Chunk) -> str | None:
        for name, by_n in self._cursors.items():
            if not by_n:
                return name  # it never kept any
            for n, passed in by_n.items():
                if passed.get(chunk.partition % n, 0) < chunk.g:
                    return name
        return None


def _passed(store: Store, feed: str, name: str) -> dict[int, dict[int, int]]:
    """By n and partition: the position behind which a reader is."""
    found: dict[int, dict[int, int]] = {}
    for n, cursors in store.saved_cursors(feed, name).items():
        given = {each: _position(each, cursor) for each, cursor in cursors.items()}
        tags = store.tags(feed, (g for g, _ in given.values()))
        tags.update({anchor.g: anchor.tag for anchor in store.anchors(feed).values()})
        found[n] = {each: g for each, (g, tag) in given.items() if tags.get(g) == tag}
    return found


def _position(partition: int, cursor: str) -> tuple[int, str]:
    try:
        return parse_cursor(partition, cursor) or (0, "")
    except Problem:
        return 0, ""


class Pruner:
    """A context manager that prunes all feeds of a store from time to time, in a thread.

    Args:
        store: The store whose feeds are pruned.
        every_seconds: Seconds between two rounds; 60 by default.
    """

    def __init__(self, store: Store, *, every_seconds: float = EVERY_SECONDS) -> None:
        self._store = store
        self._every_seconds = every_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zeh-retention", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            logged(log, "old events stay for now", self._prune_all)
            if self._ended.wait(self._every_seconds):
                return

    def _prune_all(self) -> None:
        for feed in self._store.feeds():
            self._prune(feed.name)

    def _prune(self, feed: str) -> None:
        began = time.monotonic()
        removal = prune(self._store, feed)
        if removal.chunks:
            log.info(
                "feed %r: %d events, %d bytes, up to position %d are gone, in %.1f s",
                feed, removal.events, removal.bytes, removal.upto, time.monotonic() - began,
            )  # fmt: skip
