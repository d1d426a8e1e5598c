"""Long polling: readers that wait, and the one poll that wakes them all.

The version is asked for every few milliseconds, in a worker thread, and only while a reader waits.
It notices commits of every process in the same way. Rejected: a direct call for commits of this
process, which would be a second mechanism and save 4 ms.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import anyio
from starlette.requests import Request

from zeh_spark.errors import StoreError

log = logging.getLogger("zeh_spark.publisher")

POLL_SECONDS = 0.008
"""Seconds between two looks at the version."""


class VersionPoller:
    """Wakes readers when a version changes. Belongs to one event loop.

    Args:
        version: Returns the present version, which is compared only for equality.
    """

    def __init__(self, version: Callable[[], Awaitable[object]]) -> None:
        self._version = version
        self._waiting: dict[asyncio.Event, object] = {}
        self._poller: asyncio.Task[None] | None = None
        self._stopped = False

    async def changed(self, seen: object, timeout: float) -> None:
        """Wait until the version is not `seen`, `timeout` seconds are over, or `stop` is called."""
        if self._stopped:
            return
        news = asyncio.Event()
        self._waiting[news] = seen
        if not self._poller or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        try:
            with anyio.move_on_after(timeout):
                await news.wait()
        finally:
            del self._waiting[news]

    async def _poll(self) -> None:
        """Poll until no reader waits. If the store fails, all wake and meet the error."""
        try:
            while self._waiting:
                now = await self._version()
                for news, seen in self._waiting.items():
                    if seen != now:
                        news.set()
                await asyncio.sleep(POLL_SECONDS)
        except StoreError as exc:
            log.warning("waiting readers are woken: %s", exc)
        finally:
            self._wake()

    def stop(self) -> None:
        """Wake all readers, and let none wait from now on, because the server stops."""
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        for news in self._waiting:
            news.set()


async def unless_gone(request: Request, wait: Callable[[], Awaitable[None]]) -> bool:
    """Wait; return False if the client disconnected meanwhile."""
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
