"""Pauses that a publisher asks its clients for: 429 with Retry-After (RFC 6585, 4).

The refusal is meant for the client, not for one partition of it. If the other partitions continued
to send requests, a publisher that limits its clients would continue to refuse them. So a pause
holds for all requests of this process that go to the same origin with the same token.

Rule for editors: nothing sleeps here. A request during a pause fails with TransientError, so that
`Retry` decides whether there is time to wait, and `stop` ends the wait.

Runs wherever a client runs. Threads may share it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_LONGEST = 300.0
"""The longest pause for other requests than the refused one, in seconds.

A server that asks for a day, perhaps by mistake, would otherwise stop this process for a day: a new
query could not even ask whether the limit is still there.
"""

Client = tuple[tuple[str, str | None, int | None], str | None]
"""The origin that a request goes to, and the token that it has."""


class Pauses:
    """The pauses that publishers asked this process for."""

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
