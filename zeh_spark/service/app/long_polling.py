"""Long polling: readers that wait, and the one watch of a store that wakes them.

While readers wait, a worker thread asks for the store's version every few milliseconds. It notices
commits of every process in the same way. Only when the version has changed does it ask for the
states of the feeds that readers wait for, and the readers of feeds that changed wake. So a reader
that waits costs nothing until then. Rejected: a direct call for commits of this process, which
would be a second mechanism and save 4 ms.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from zeh_spark.errors import StoreError
from zeh_spark.service.telemetry.exchange import current
from zeh_spark.service.telemetry.rare_log import RareLog

log = logging.getLogger("zeh_spark.publisher")

POLL_SECONDS = 0.008
"""Seconds between two looks at the version."""

LOOK_SECONDS = 1.0
"""Seconds for which a worker thread looks before it returns: its event loop may have ended."""

FAILED_SECONDS = 0.2
"""Seconds after which readers wake if the version or a state cannot be told."""

State = Callable[[], object]
"""Returns a value that differs once a feed may have more events. It blocks."""

News = tuple[object, dict[str, object]]
"""A version, and the states of feeds by name."""


Run = Callable[[Callable[[], News]], Awaitable[News]]
"""Runs a call in a worker thread."""


@dataclass(slots=True)
class _Waiting:
    """The readers that wait for a feed: each future with the state that its reader has seen."""

    state: State
    readers: dict[asyncio.Future[None], object] = field(default_factory=dict)
    known: object = None
    is_known: bool = False


class FeedWatch:
    """Wakes readers when their feed changes. Belongs to one event loop.

    Args:
        version: Returns the present version of all feeds that are watched. It is compared only for
            equality, and blocks.
        run: Runs a call in a worker thread. One call is under way while readers wait.
    """

    def __init__(self, version: State, run: Run) -> None:
        self._version = version
        self._run = run
        self._rare = RareLog(log)
        self._feeds: dict[str, _Waiting] = {}
        self._look_now = threading.Event()
        self._watch: asyncio.Task[None] | None = None
        self._stopped = False

    async def changed(
        self, gone: asyncio.Future[None], name: str, state: State, seen: object, timeout: float
    ) -> bool:
        """Wait until a feed's state is not `seen`; return False if the client disconnected.

        It also ends when `timeout` seconds are over, or when `stop` is called. `gone` ends when the
        client disconnects.
        """
        if self._stopped:
            return True
        loop = asyncio.get_running_loop()
        news: asyncio.Future[None] = loop.create_future()

        def wake(_: object = None) -> None:
            if not news.done():
                news.set_result(None)

        over = loop.call_later(timeout, wake)
        gone.add_done_callback(wake)
        self._add(name, state, news, seen)
        try:
            await news
            return not gone.done()
        finally:
            over.cancel()
            gone.remove_done_callback(wake)
            self._remove(name, news)

    def wake(self) -> None:
        """Wake all readers, so that each decides again how long it waits."""
        for feed in self._feeds.values():
            feed.is_known = False
            for news in feed.readers:
                if not news.done():
                    news.set_result(None)

    def waiting(self) -> dict[str, int]:
        """Return how many readers wait, by feed, for feeds that some wait for."""
        return {name: len(feed.readers) for name, feed in list(self._feeds.items())}

    def stop(self) -> None:
        """Wake all readers, and let none wait from now on, because the server stops."""
        self._stopped = True
        self.wake()
        self._look_now.set()

    def _add(self, name: str, state: State, news: asyncio.Future[None], seen: object) -> None:
        feed = self._feeds.setdefault(name, _Waiting(state))
        feed.readers[news] = seen
        if not feed.is_known or feed.known != seen:
            feed.is_known = False
            self._look_now.set()
        if not self._watch or self._watch.done():
            self._watch = asyncio.create_task(self._keep_watch())

    def _remove(self, name: str, news: asyncio.Future[None]) -> None:
        feed = self._feeds[name]
        del feed.readers[news]
        if not feed.readers:
            del self._feeds[name]
            if not self._feeds:
                self._look_now.set()  # the thread has nothing more to look for

    async def _keep_watch(self) -> None:
        """Look until no reader waits. If that fails, all wake after a while and meet the error."""
        version: object = None
        current.set(None)  # it is no part of the request that was the first to wait
        try:
            while self._feeds and not self._stopped:
                self._look_now.clear()
                states = {name: feed.state for name, feed in self._feeds.items()}
                unknown = {name for name, feed in self._feeds.items() if not feed.is_known}
                version, found = await self._run(partial(self._look, version, states, unknown))
                self._tell(found)
        except Exception as exc:  # noqa: BLE001  # it is logged, and readers meet it
            # A reader that meets no error waits again. Without a pause it would do so at once.
            await asyncio.sleep(FAILED_SECONDS)
            bug = None if isinstance(exc, StoreError) else exc
            self._rare.warning("woken", "waiting readers are woken: %s", exc, exc_info=bug)
        finally:
            self.wake()

    def _look(self, before: object, states: dict[str, State], unknown: set[str]) -> News:
        """Wait for another version than `before`; return it, and the states of feeds at it.

        If nothing changes, it returns the states of the `unknown` feeds, or ends before there is
        any, so that feeds of new readers are looked at. It runs in a worker thread.
        """
        end = time.monotonic() + LOOK_SECONDS
        while (now := self._version()) == before and not unknown:
            if self._look_now.wait(POLL_SECONDS) or time.monotonic() > end:
                return now, {}
        wanted = states if now != before else unknown
        return now, {name: states[name]() for name in wanted}

    def _tell(self, found: dict[str, object]) -> None:
        for name, state in found.items():
            if feed := self._feeds.get(name):
                feed.known, feed.is_known = state, True
                for news, seen in feed.readers.items():
                    if seen != state and not news.done():
                        news.set_result(None)
