"""Cleaning up in the background: one thread repeats steps until there is nothing left to do.

Rule for editors: a step is one short transaction, so that other writes do not wait long for it.
Runs in the publisher and in commands that write.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from zeh_spark.service.sql.dialect import Step
from zeh_spark.service.store.outcome import logged

log = logging.getLogger("zeh_spark.publisher")

PAUSE_SECONDS = 0.2
"""Seconds between rounds, so that a step that many ask for is done once."""


class Chores:
    """A thread that cleans up, from the first step until `close`.

    A step that fails is not tried again until it is added again.
    """

    def __init__(self, write: Callable[..., bool]) -> None:
        self._write = write
        self._steps: dict[Step, None] = {}
        self._news = threading.Condition()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, step: Step) -> None:
        """Have a step repeated until nothing is left to do; return at once."""
        with self._news:
            self._steps[step] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="zeh-chores", daemon=True)
                self._thread.start()
            self._news.notify()

    def close(self) -> None:
        """End the thread, after the step under way; wait for it."""
        self._ended.set()
        with self._news:
            self._news.notify()
        if self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            with self._news:
                self._news.wait_for(lambda: self._steps or self._ended.is_set())
                steps, self._steps = self._steps, {}
            for step in steps:
                logged(log, "cleaning up waits", partial(self._finish, step))
            self._ended.wait(PAUSE_SECONDS)

    def _finish(self, step: Step) -> None:
        while not self._ended.is_set() and self._write(step, durable=False):
            pass
