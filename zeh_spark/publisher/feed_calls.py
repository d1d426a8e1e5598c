"""The shell around feeds: runs their calls in threads, waits for more events, and streams answers.

Rule for editors: feeds and stores block, so call them in worker threads only, and in short calls.
Nothing is held while a client is slow. A fault after the first byte aborts the connection, because
a body that ends in order would pass for a whole answer.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from zeh_spark.publisher.long_polling import FeedWatch, State
from zeh_spark.store.feed import ChunkFeed, Feed, TellsState
from zeh_spark.store.interface import Store, UnknownFeedError

log = logging.getLogger("zeh_spark.publisher")

WORKERS = 8
"""Threads that read feeds. Memory is bounded by them and by what clients have not taken yet."""

WRITERS = 2
"""Threads that keep cursors, so that a wait for a database's writer does not delay readers.

The store has so many, and each feed beside it, whose service may hold its lock for long.
"""

SEND_SECONDS = 60.0
"""Seconds for which a client may take nothing. After that its connection and memory are freed."""

_PIECE = 256 * 1024

T = TypeVar("T")


class FeedCalls:
    """The calls of feeds, for the APIs that read them.

    Attributes:
        stopped: Whether the server is about to stop: then nothing waits any more.

    Args:
        store: The store whose feeds are served, if there is one.
        named: More feeds, by name.
        send_timeout: Seconds for which a client may take nothing before it is dropped.
    """

    def __init__(self, store: Store | None, named: Mapping[str, Feed], send_timeout: float) -> None:
        self.stopped = False
        self._store = store
        self._named = named
        self._send_timeout = send_timeout
        self._limiter = anyio.CapacityLimiter(WORKERS)
        self._limiters = {each: anyio.CapacityLimiter(WORKERS) for each in named}
        self._writer = anyio.CapacityLimiter(WRITERS)
        self._writers = {each: anyio.CapacityLimiter(WRITERS) for each in named}
        self._watches: dict[str | None, FeedWatch] = {}

    def stop(self) -> None:
        """End all long polls."""
        self.stopped = True
        for watch in self._watches.values():
            watch.stop()

    async def feed(self, name: str) -> Feed:
        """Return a feed. Raises UnknownFeedError."""
        if name in self._named:
            return self._named[name]
        return await self.in_thread("", partial(self._stored, name))

    def _stored(self, name: str) -> Feed:
        if self._store is None:
            raise UnknownFeedError(f"there is no feed {name!r} here", anchor="unknown-feed")
        return ChunkFeed(self._store, name)

    async def wait(
        self, request: Request, name: str, feed: Feed, seen: object, timeout: float
    ) -> bool:
        """Wait until a feed may have more events; return False if the client disconnected.

        Args:
            request: The client's request.
            name: The feed's name.
            feed: The feed.
            seen: Its state before it was last looked at (see `state_of`).
            timeout: Most seconds to wait.
        """
        key = name if name in self._named else None  # all feeds of a store share one watch
        if key not in self._watches:
            # It has a thread of its own, which it keeps for as long as a reader waits.
            run = partial(anyio.to_thread.run_sync, limiter=anyio.CapacityLimiter(1))
            self._watches[key] = FeedWatch(feed.version, run)
        return await self._watches[key].changed(request, name, state_of(feed), seen, timeout)

    def in_thread(self, name: str, call: Callable[[], T], *, writes: bool = False) -> Awaitable[T]:
        """Run a call in a thread of this feed, so that a slow database delays only its readers."""
        limiters, shared = self._limiters, self._limiter
        if writes:
            limiters, shared = self._writers, self._writer
        return anyio.to_thread.run_sync(call, limiter=limiters.get(name, shared))

    def answer(
        self,
        name: str,
        pieces: Iterator[bytes],
        headers: Mapping[str, str],
        media_type: str,
        ended: Callable[[], object] = lambda: None,
    ) -> StreamingResponse:
        """Return an answer that streams pieces, each made in a thread of the feed.

        Args:
            name: The feed's name.
            pieces: The answer's body.
            headers: The answer's headers.
            media_type: Its media type.
            ended: Called once when the answer was sent, or broke off.
        """
        return PatientResponse(
            self._send_timeout,
            ended,
            self._streamed(name, pieces),
            headers=headers,
            media_type=media_type,
        )

    async def _streamed(self, name: str, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        try:
            while piece := await self.in_thread(name, partial(next, pieces, b"")):
                for begin in range(0, len(piece), _PIECE):
                    yield piece[begin : begin + _PIECE]
        except Exception as exc:
            log.error("the answer of feed %r is aborted: %s", name, exc)
            raise


def state_of(feed: Feed) -> State:
    """Return the call that tells whether a feed has changed."""
    return feed.state if isinstance(feed, TellsState) else feed.version


class PatientResponse(StreamingResponse):
    """A streamed answer that is aborted if the client takes nothing for `send_timeout` seconds."""

    def __init__(
        self, send_timeout: float, ended: Callable[[], object], *args: Any, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._send_timeout = send_timeout
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, and say that it has ended (see `StreamingResponse`)."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()

    async def stream_response(self, send: Send) -> None:
        """Send the answer (see `StreamingResponse`)."""

        async def send_in_time(message: Message) -> None:
            with anyio.fail_after(self._send_timeout):
                await send(message)

        try:
            await super().stream_response(send_in_time)
        except TimeoutError:
            log.warning("a client took nothing for %g s and is dropped", self._send_timeout)
            raise
