"""The end of a publisher: it becomes unready, drains within a time limit, and stops.

The first SIGTERM or SIGINT begins this. While `delay` lasts, everything is answered as before, with
`Connection: close`, and long polls end soon, so that load balancers and clients go elsewhere. Then
the socket closes, and answers that have begun get the seconds of `grace`. A second signal ends the
process at once. Nothing is half done then: the store takes what was committed, and nothing else.

Rule for editors: a signal's handler runs between any two steps of the main thread, so it takes no
lock and starts no thread. Runs in the publisher's process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

log = logging.getLogger("zeh_spark.publisher")

GRACE_SECONDS = 3.0
"""Seconds that answers already begun may take to end when the publisher stops, by default."""

CLOSE_SECONDS = 2.0
"""Seconds in which the store has to be closed after that. Then the process ends all the same."""

POLL_SECONDS = 1.0
"""Most seconds for which a request waits for events while the publisher drains."""


@dataclass(frozen=True, slots=True)
class StopTimes:
    """How long a publisher takes to stop.

    Attributes:
        delay: Seconds for which it is unready and answers everything.
        grace: Seconds after that in which answers that have begun may end.
    """

    delay: float = 0.0
    grace: float = GRACE_SECONDS

    @property
    def bound(self) -> float:
        """Seconds after the signal after which the process is gone, whatever hangs."""
        return self.delay + self.grace + CLOSE_SECONDS


class Draining:
    """Whether a publisher is about to stop. Any thread may ask it, and any may begin it."""

    def __init__(self) -> None:
        self._since: float | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the publisher is about to stop, so that it is not ready for more clients."""
        return self._since is not None

    @property
    def seconds(self) -> float:
        """The seconds since it began; 0 before."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def begin(self) -> None:
        """Note that the publisher is about to stop. To call it again changes nothing."""
        if self._since is None:
            self._since = time.monotonic()


def stop_on_signals(draining: Draining) -> None:
    """Let the first SIGINT or SIGTERM begin to drain, and the second one end the process."""

    def told(number: int, frame: FrameType | None) -> None:
        if draining.has_begun:
            os._exit(128 + number)
        draining.begin()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, told)


@contextmanager
def stopping_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` in the event loop, too, when the server gets a signal to stop.

    A server waits for its requests before it ends the app's lifespan, and so for readers that wait
    for events. A signal that no server handles is left alone. Call it in the main thread.
    """
    loop = asyncio.get_running_loop()
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def told(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop)
        if callable(before := handlers[signal.Signals(number)]):
            before(number, frame)

    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if callable(handler) and handler is not signal.default_int_handler:
                signal.signal(number, told)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is told:
                signal.signal(number, handler)


def end_after(seconds: float) -> None:
    """End the process with exit code 0 after so many seconds, if it did not end by itself.

    A thread may wait for a database that does not answer, and Python waits for its threads.
    """

    def ended() -> None:
        time.sleep(seconds)
        log.warning(
            "the publisher did not stop within %.1f s, because a call of its store has not ended; "
            "it ends now. What was acknowledged is in the store",
            seconds,
        )
        logging.shutdown()
        os._exit(0)

    threading.Thread(target=ended, name="zeh-end", daemon=True).start()
