"""Bytes of answers that clients have not taken yet: a bound for all, and a share for each client.

They are in the part of an answer that is being sent, and in the buffers of connections. Above the
bound an answer is refused before it begins. One that has begun waits for its next part with nothing
in memory. Otherwise each reader that takes nothing would hold 1 to 3 MiB.

Rule for editors: bytes that are there are counted (`hold`), whatever the bound; ask `check` or
`turn` before they are made. Belongs to the publisher's event loop; any thread may ask `is_ample`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from zeh_spark.protocol import problems
from zeh_spark.store.problems import Problem

MOST = 128 << 20
"""Most bytes that wait, by default."""

SHARE = 4
"""The number of shares. The last one is for clients that have less than a share."""

PIECE = 1 << 20
"""About how much an answer has at least in memory while it is sent."""

SMALL = 16 << 10
"""Bytes of an answer that is never refused. The kernel takes it at once."""

TURN_SECONDS = 30.0
"""Seconds for which an answer that has begun waits for room."""


class Unsent:
    """Counts the bytes that clients have not taken.

    Args:
        most: Most bytes.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._share = max(1, most // SHARE)
        self._piece = min(PIECE, self._share)
        self._total = 0
        self._of: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def total(self) -> int:
        """The bytes that wait."""
        return self._total

    @property
    def is_ample(self) -> bool:
        """Whether so few bytes wait that an answer may take much at a time."""
        return self._total < self._share

    def check(self, client: str, size: int = PIECE) -> None:
        """Raise Problem if a client may not have so many bytes more.

        An answer that is longer than a share is let through if there is room for a share.
        """
        if size > SMALL and self._room(client) < min(size, self._share):
            raise self._full(client)

    def hold(self, client: str, size: int) -> None:
        """Count bytes more."""
        self._total += size
        self._of[client] += size

    def release(self, client: str, size: int) -> None:
        """Count bytes less. Those that wait for room get their turns."""
        self._total -= size
        self._of[client] -= size
        if not self._of[client]:
            del self._of[client]
        while self._waiting and self._most - self._total >= self._piece:
            # Fewer than SHARE clients are passed over, because they have more than a share.
            who = next((each for each in self._waiting if self._has_room(each)), None)
            if who is None:
                return
            turn = self._waiting[who].popleft()
            if not self._waiting[who]:
                del self._waiting[who]
            self.hold(who, self._piece)
            turn.set_result(None)

    async def turn(self, client: str) -> int:
        """Wait for room for the next part of an answer. Return how many bytes are held for it.

        Raises:
            Problem: There was none for TURN_SECONDS.
        """
        if self._has_room(client):
            self.hold(client, self._piece)
            return self._piece
        turn = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(client, deque())
        waiting.append(turn)
        try:
            await asyncio.wait({turn}, timeout=TURN_SECONDS)
        except asyncio.CancelledError:
            if turn.done():
                self.release(client, self._piece)
            raise
        finally:
            if not turn.done():
                turn.cancel()
                waiting.remove(turn)
                if not waiting:
                    del self._waiting[client]
        if turn.cancelled():
            raise self._full(client)
        return self._piece

    def _has_room(self, client: str) -> bool:
        return self._room(client) >= self._piece

    def _room(self, client: str) -> int:
        left = self._most - self._total
        return left - self._share if self._of.get(client, 0) >= self._share else left

    def _full(self, client: str) -> Problem:
        own, total = self._of.get(client, 0) >> 20, self._total >> 20
        return Problem(
            problems.READS_BUSY,
            f"{total} MiB of answers wait until clients take them, {own} MiB of them for this "
            f"client; take these, and ask again in a second",
        )
