"""Long polling: readers that wait, and the one poll that wakes them all.

A version is asked for every few ms, in a worker thread, and only while somebody waits. That notices commits of every process
in the same way [a direct call for commits of this process would be a second mechanism, for 4 ms].
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio
from starlette.requests import Request

log = logging.getLogger("zeh_spark.publisher")

POLL_SECONDS = 0.008


class Pulse:
    """Wakes readers when a version changes. Belongs to one event loop."""

    def __init__(self, version: Callable[[], Awaitable[object]]) -> None:
        self._version = version
        self._waiting: dict[anyio.Event, object] = {}
        self._polling = False
        self._stopped = False

    async def changed(self, seen: object, timeout: float) -> None:
        """Returns once the version is not the one `seen`, the time is over, or `stop` was called."""
        if self._stopped:
            return
        news = anyio.Event()
        self._waiting[news] = seen
        try:
            with anyio.move_on_after(timeout):
                if self._polling:
                    await news.wait()
                else:
                    await self._poll(news)
        finally:
            del self._waiting[news]

    async def _poll(self, own: anyio.Event) -> None:
        """Poll for all who wait, until there is news for this one; then somebody else takes over."""
        self._polling = True
        try:
            while not own.is_set():
                now = await self._version()
                for news, seen in self._waiting.items():
                    if seen != now:
                        news.set()
                if not own.is_set():
                    await anyio.sleep(POLL_SECONDS)
        finally:
            self._polling = False
            for news in self._waiting:
                news.set()  # spurious for some: they look, find nothing, and wait again

    def stop(self) -> None:
        """Nobody waits any more: the server stops."""
        self._stopped = True
        for news in self._waiting:
            news.set()

    @property
    def stopped(self) -> bool:
        return self._stopped


async def unless_gone(request: Request, wait: Callable[[], Awaitable[None]]) -> bool:
    """Wait; False if the client went away meanwhile."""
    gone = False
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            nonlocal gone
            while (await request.receive())["type"] != "http.disconnect":
                pass
            gone = True
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        await wait()
        tasks.cancel_scope.cancel()
    return not gone
