"""The shell around feeds: runs their calls in threads, waits for more events, and makes answers.

Rule for editors: feeds and stores block, so call them in worker threads only, and in short calls.
Nothing is held while a client is slow.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import anyio
import anyio.to_thread

from zeh_spark.errors import StoreError
from zeh_spark.service.app import answers
from zeh_spark.service.app.answers import Answer, Taken
from zeh_spark.service.app.long_polling import FeedWatch, Run, State
from zeh_spark.service.network.draining import POLL_SECONDS, Draining
from zeh_spark.service.network.shares import Shares, Unsent
from zeh_spark.service.reads.answer_cache import AnswerCache
from zeh_spark.service.reads.feed import ChunkFeed, Feed
from zeh_spark.service.store.interface import Store, UnknownFeedError
from zeh_spark.service.store.log import FeedState
from zeh_spark.service.telemetry.exchange import Exchange, Tally
from zeh_spark.service.telemetry.lag import Backlogs
from zeh_spark.service.telemetry.rare_log import RareLog
from zeh_spark.wire.direct_reads import PartitionLag

log = logging.getLogger("zeh_spark.publisher")

WORKERS = 8
"""Threads that read feeds. The last ones are for clients that have less than their share of them.

Memory is bounded by them and by what clients have not taken yet.
"""

WRITERS = 2
"""Threads that keep cursors, so that a wait for a database's writer does not delay readers.

The store has so many, and each feed beside it, whose service may hold its lock for long.
"""

LARGE_BYTES, LARGE = 16 << 10, 2
"""Bytes of cursors, about, from which on a read is large, and how many are looked up at a time.

Each takes as much of Python's time as hundreds of others. Writes and other reads would wait.
"""

CONSUMER_SECONDS = 0.25
"""Seconds between two looks at a consumer's cursors, for all who wait: they have no version."""

_OBJECTS = 1024
"""Bytes of memory, about, of what is kept of an answer beside its parts and its request."""

T = TypeVar("T")


@dataclass(slots=True)
class Begun:
    """An answer of which the first part is there.

    Attributes:
        lineage: What the feed's `lineage` was before the answer was begun, if the answer stays the
            same while the feed only grows; else None.
    """

    begun: Taken | None
    served: Tally
    lineage: object | None


class Asker(NamedTuple):
    """The client (see `access.gate.client_of`), and the bytes of the read's cursors, about."""

    client: str
    size: int = 0

    @property
    def is_large(self) -> bool:
        return self.size >= LARGE_BYTES


NOBODY = Asker("")


class FeedCalls:
    """The calls of feeds, for the APIs that read them.

    Attributes:
        stopped: Whether the server is about to stop: then nothing waits any more.
        backlogs: What the store's feeds have after which position, if there is a store.

    Args:
        send_timeout: Seconds for which a client may take nothing before it is dropped.
        draining: Whether the server is about to stop: then nothing waits for long.
    """

    def __init__(
        self,
        store: Store | None,
        named: Mapping[str, Feed],
        send_timeout: float,
        cache_bytes: int,
        draining: Draining | None = None,
        unsent: Unsent | None = None,
    ) -> None:
        self.stopped = False
        self.unsent = unsent or Unsent()
        self._draining = draining or Draining()
        self.cache = AnswerCache(cache_bytes)
        self.backlogs = Backlogs(store) if store else None
        self._rare = RareLog(log)
        self._store = store
        self._named = named
        self._send_timeout = send_timeout
        self._threads = {each: _Threads(WORKERS) for each in (None, *named)}
        self._writers = {each: _Threads(WRITERS) for each in (None, *named)}
        self._watches: dict[str | None, FeedWatch] = {}
        self._consumers = FeedWatch(lambda: time.monotonic() // CONSUMER_SECONDS, _thread())
        self._turns: dict[Hashable, _Turns] = {}

    def drain(self) -> None:
        """End the long polls that wait longer than they may while the server drains."""
        for watch in (self._consumers, *self._watches.values()):
            watch.wake()

    def left(self, begin: float, wait: float) -> float:
        """Return for how many seconds a request may still wait for events; 0 or less for none.

        `begin` is when the request came, by the monotonic clock.
        """
        if self.stopped:
            return 0.0
        if self._draining.has_begun:
            wait = min(wait, POLL_SECONDS)
        return begin + wait - time.monotonic()

    def stop(self) -> None:
        self.stopped = True
        for watch in (self._consumers, *self._watches.values()):
            watch.stop()

    def waiting(self) -> dict[str, int]:
        """Return how many readers wait, by feed, for feeds that some wait for."""
        found: Counter[str] = Counter()
        for watch in list(self._watches.values()):
            for key, count in watch.waiting().items():
                found[key.partition("\n")[0]] += count
        return found

    def find(self, name: str) -> Feed:
        """Return a feed. Raises UnknownFeedError; a store's feed may do so when it is asked."""
        if name in self._named:
            return self._named[name]
        if self._store is None:
            raise UnknownFeedError(f"there is no feed {name!r} here", anchor="unknown-feed")
        return ChunkFeed(self._store, name, self.cache)

    def named(self, name: str, exchange: Exchange) -> Feed | None:
        """Return the feed of this name for the reader of a request; None if it is of the store."""
        feed = self._named.get(name)
        return feed.for_reader(exchange.token, exchange.consumer) if feed else None

    def lineage(self, name: str) -> object | None:
        """Return a feed's lineage (see `Store`); None if its answers are not kept whole."""
        return self._store.lineage(name) if self._store and name not in self._named else None

    async def whole(
        self,
        name: str,
        cache: AnswerCache,
        key: Hashable,
        size: int,
        make: Callable[[], Awaitable[Any]],
    ) -> Any:
        """Return what `make` returns, or what it did, if that was whole and has a lineage.

        `size` is that of the request in bytes. See `Begun`.
        """
        found = cache.find(key)
        if found is None or found.lineage != self.lineage(name):
            found = await make()
            if found.lineage and found.begun and found.begun.rest is None:
                cache.keep(key, found, found.begun.size + 8 * size + _OBJECTS)
        return found

    def lag_after(
        self, feed: FeedState, n: int, cursors: Mapping[str, str]
    ) -> dict[str, PartitionLag] | None:
        """Return how far a reader of a feed of the store is behind (see `Backlogs.after`).

        It may block. It returns None for a replica, whose primary may have more; and if the store
        fails: what was read is good without it.
        """
        if self.backlogs is None or feed.replica:
            return None
        try:
            return self.backlogs.after(feed, n, cursors)
        except StoreError as exc:
            said = "feed %r: how far readers are behind is not told: %s"
            self._rare.warning(("lag", feed.name), said, feed.name, exc)
            return None

    async def wait(
        self, gone: asyncio.Future[None], name: str, feed: Feed, seen: object, timeout: float
    ) -> bool:
        """Wait until a feed may have more events; return False if the client disconnected.

        `gone` ends when the client disconnects. `seen` is the feed's state before it was last
        looked at (see `Feed.own_version`).
        """
        key = name if name in self._named else None  # all feeds of a store share one watch
        if key not in self._watches:
            watched = self._named.get(name, feed)
            self._watches[key] = FeedWatch(watched.version, _thread())
        if feed is not self._named.get(name, feed):  # another one answers this reader
            name += f"\n{id(feed)}"
        return await self._watches[key].changed(gone, name, feed.own_version, seen, timeout)

    async def wait_for_consumer(
        self, gone: asyncio.Future[None], key: str, kept: State, seen: object, timeout: float
    ) -> bool:
        """Wait as `wait` does, until the cursors that are `kept` for a consumer are not `seen`."""
        return await self._consumers.changed(gone, key, kept, seen, timeout)

    def in_thread(
        self, name: str, call: Callable[[], T], asker: Asker = NOBODY, *, writes: bool = False
    ) -> Awaitable[T]:
        """Run a call in a thread of this feed, so that a slow database delays only its readers.

        It waits while its client has its share of the threads (see `network.shares`).
        """
        return self._of(name, writes=writes).run(asker, call)

    def _of(self, name: str, *, writes: bool = False) -> _Threads:
        return (self._writers if writes else self._threads)[name if name in self._named else None]

    async def shared(
        self, name: str, key: Hashable, call: Callable[[], T], asker: Asker = NOBODY
    ) -> T:
        """Run a call in a thread of this feed; equal calls that have to wait for it share one.

        The call that a caller gets the result of always begins after the caller asked for it, so
        the result has what was committed before. Calls of the same key return the same. A client
        that has its share of the threads shares only its own calls, so that nobody else waits for
        its turn.
        """
        if self._of(name).is_full(asker):
            key = asker.client, key
        turns = self._turns.setdefault(key, _Turns())
        if turns.next is None:
            turns.next, turns.asker = asyncio.get_running_loop().create_future(), asker
        if turns.task is None:
            turns.task = asyncio.create_task(self._take_turns(name, key, turns, call))
        return await asyncio.shield(turns.next)

    async def _take_turns(
        self, name: str, key: Hashable, turns: _Turns, call: Callable[[], object]
    ) -> None:
        waiting: asyncio.Future[Any] | None = None
        try:
            while (waiting := turns.next) is not None:
                turns.next = None
                done, error = None, None
                try:
                    done = await self.in_thread(name, call, turns.asker)
                except Exception as exc:  # noqa: BLE001  # the callers raise it
                    error = exc
                if waiting.cancelled():
                    continue
                if error is None:
                    waiting.set_result(done)
                else:
                    waiting.set_exception(error)
                    waiting.exception()  # it may be that nobody is left who waits
        finally:
            del self._turns[key]
            for each in (waiting, turns.next):
                if each is not None:
                    each.cancel()

    def taken(self, pieces: Iterator[Sequence[bytes]]) -> Taken:
        """Return the next part of an answer: a short one if many bytes wait for their clients."""
        return answers.taken(pieces, self.unsent.at_once)

    def answer(
        self,
        name: str,
        begun: Taken,
        headers: Mapping[str, str],
        media_type: str,
        ended: Callable[[], object] = lambda: None,
        gone: asyncio.Future[None] | None = None,
        asker: Asker = NOBODY,
    ) -> Answer:
        """Return an answer whose parts are taken in threads of the feed (see `Answer`)."""

        async def take(rest: Iterator[Sequence[bytes]], client: str) -> Taken:
            held = 0
            try:
                held = await self.unsent.turn(client)
                part = await self.in_thread(name, partial(self.taken, rest), asker)
                self.unsent.hold(client, part.size)
                return part
            except Exception as exc:
                self._rare.error(
                    ("aborted", name), "the answer of feed %r is aborted: %s", name, exc
                )
                raise
            finally:
                self.unsent.release(client, held)

        return Answer(
            begun,
            take,
            headers,
            media_type,
            send_timeout=self._send_timeout,
            unsent=self.unsent,
            ended=ended,
            gone=gone,
            rare=self._rare,
        )


def _thread() -> Run:
    """Return a thread for a watch, which it keeps for as long as somebody waits."""
    return partial(anyio.to_thread.run_sync, limiter=anyio.CapacityLimiter(1))


class _Threads:
    """Threads of which each client has its share, and few of which make large reads."""

    def __init__(self, most: int) -> None:
        self._turns = Shares(most, "threads that read are busy")
        self._large = Shares(LARGE, "large reads are made")
        self._limiter = anyio.CapacityLimiter(most)

    def is_full(self, asker: Asker) -> bool:
        """Return whether a call waits because of other calls of its client."""
        return (self._large if asker.is_large else self._turns).is_full(asker.client)

    async def run(self, asker: Asker, call: Callable[[], T]) -> T:
        large = self._large.place(asker.client) if asker.is_large else nullcontext()
        async with large, self._turns.place(asker.client):
            return await anyio.to_thread.run_sync(call, limiter=self._limiter)


@dataclass(slots=True)
class _Turns:
    """Equal calls: the one that callers wait for whose thread has not begun, and what runs them.

    `asker` has asked for it first.
    """

    asker: Asker = NOBODY
    next: asyncio.Future[Any] | None = None
    task: asyncio.Task[None] | None = None
