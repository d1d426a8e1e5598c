"""Retry requests: how long one difficulty may last, and how long to pause between two tries.

Rule for editors: every request to a publisher that is repeated goes through `Retry`, so that the
option `retryTimeout`, the pauses and the log lines are the same everywhere.

Runs in threads of the driver, in tasks, in services and in commands.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from zeh_spark.client.http.responses import TransientError

log = logging.getLogger(__name__)

T = TypeVar("T")

_LONGEST = 300.0
"""The longest pause for other requests than the refused one, in seconds.

A server that asks for a day, perhaps by mistake, would otherwise stop this process for a day: a new
query could not even ask whether the limit is still there.
"""

Client = tuple[tuple[str, str | None, int | None], str | None]
"""The origin that a request goes to, and the token that it has."""


@dataclass(slots=True)
class Retry:
    """The retries of one difficulty, from its first failure to the next progress.

    Attributes:
        timeout: the seconds that the difficulty may last: the option `retryTimeout`.
        sleep: sleeps for so many seconds; returns true if nobody waits for an answer any more.
        random: returns a number from 0 to 1.
        since: when the first of them failed, in seconds of the clock.
    """

    timeout: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    random: Callable[[], float] = random.random
    attempts: int = 0
    since: float = 0.0
    begun: float = 0.0

    def __post_init__(self) -> None:
        self.begun = self.clock()

    @property
    def lasted(self) -> float:
        """Seconds since the first failure; 0 if there was none since the last progress."""
        return self.clock() - self.since if self.attempts else 0.0

    def progress(self) -> None:
        """Begin anew: the next failure is the first one of another difficulty."""
        self.attempts = 0

    def call(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns, after as many tries as it takes.

        When the time is over, it raises the `final` error of the last TransientError.
        """
        while True:
            try:
                return attempt()
            except TransientError as failure:
                self.wait(failure)

    def wait(self, failure: TransientError) -> None:
        """Sleep before the next try; raise the failure's final error if the time is over."""
        now = self.clock()
        if self.attempts == 0:
            self.since = now
        self.attempts += 1
        pause = max(backoff(self.attempts, self.random()), failure.retry_after or 0.0)
        end = self.since + self.timeout
        if failure.within is not None:
            end = min(end, self.begun + failure.within)
        if now + pause > end:
            raise failure.final from failure
        level = logging.DEBUG if self.attempts & (self.attempts - 1) else logging.WARNING
        left = end - now  # a warning at 1, 2, 4, 8, … attempts
        until = f"for at most {left:.0f} s" if left < math.inf else "for as long as it takes"
        log.log(level, "%s; trying again in %.1f s, %s", failure, pause, until)
        if self.sleep(pause):
            raise failure.final from failure


def backoff(attempt: int, jitter: float) -> float:
    """Return the seconds to pause after try number `attempt`, from 1.

    They double from 0.2 to at most 10. Half of them depends on `jitter`, a number from 0 to 1.
    """
    return float(min(10.0, 0.1 * 2 ** min(attempt, 10))) * (0.5 + jitter / 2)


class Pauses:
    """The pauses that publishers asked this process for: 429 with Retry-After (RFC 6585, 4).

    The refusal is meant for the client, not for one partition of it. If the other partitions
    continued to send requests, a publisher that limits its clients would continue to refuse them.
    So a pause holds for all requests of this process that go to the same origin with the same
    token. Nothing sleeps here: a request during a pause fails with TransientError, so that `Retry`
    decides whether there is time to wait, and `stop` ends the wait.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[Client, float] = {}

    def begin(self, client: Client, seconds: float) -> None:
        """Note a pause from now on. It never shortens one that is there."""
        until = self._clock() + min(seconds, _LONGEST)
        with self._lock:
            self._until[client] = max(until, self._until.get(client, until))

    def left(self, client: Client) -> float:
        """Return the seconds that are left of the client's pause; 0 if there is none."""
        with self._lock:
            until = self._until.get(client)
            if until is None:
                return 0.0
            left = until - self._clock()
            if left <= 0:
                del self._until[client]
            return max(0.0, left)


PAUSES = Pauses()
"""The pauses of all clients of this process."""
