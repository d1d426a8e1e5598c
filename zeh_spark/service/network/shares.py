"""What clients share: places, threads, and the bytes of answers that they have not taken yet.

A client that has a share gets more only of what is left beyond one share. So one client uses most
of it while it is alone, and the last share is for those that have less than one.

Rule for editors: what is there is counted (`hold`), whatever the bound. Before it is there, call
`check`, or wait for a `turn`. Belongs to the publisher's event loop; any thread may ask `at_once`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from zeh_spark.service.network import bodies
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import problems

SHARE = 4
"""The number of shares."""

MOST = 128 << 20
"""Most bytes of answers that wait for their clients, by default."""

PIECE = 1 << 20
"""About how many bytes an answer has at least in memory while it is sent."""

SMALL = 16 << 10
"""Bytes of an answer that is never refused. The kernel takes it at once."""


class Shares:
    """Something that clients share. Clients that wait for more get it one after the other."""

    def __init__(self, most: int, what: str, unit: int = 1) -> None:
        self.total = 0
        self._most, self._what, self._unit = most, what, unit
        self._share = max(1, most // SHARE)
        self._of: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def room(self, client: str) -> int:
        left = self._most - self.total
        return left - self._share if self._of.get(client, 0) >= self._share else left

    def is_full(self, client: str) -> bool:
        """Return whether a client has to wait for a turn."""
        return self.room(client) < self._unit

    def check(self, client: str, size: int = 1) -> None:
        """Raise Problem if a client may not have so much more."""
        if self.room(client) < size:
            raise self._busy(client)

    def take(self, client: str) -> None:
        """Hold one more. Raises Problem if a client may not have it."""
        self.check(client)
        self.hold(client)

    def hold(self, client: str, size: int = 1) -> None:
        self.total += size
        self._of[client] += size

    def release(self, client: str, size: int = 1) -> None:
        self.total -= size
        self._of[client] -= size
        if not self._of[client]:
            del self._of[client]
        while self._waiting and self._most - self.total >= self._unit:
            # Fewer than SHARE clients are passed over, because they have more than a share.
            who = next((each for each in self._waiting if not self.is_full(each)), None)
            if who is None:
                return
            waiting = self._waiting.pop(who)
            turn = waiting.popleft()
            if waiting:
                self._waiting[who] = waiting  # behind the others
            self.hold(who, self._unit)
            turn.set_result(None)

    async def turn(self, client: str) -> int:
        """Wait until a client may have a unit, and hold it. Return how much that is.

        Raises Problem if it may not within `bodies.TURN_SECONDS`.
        """
        if not self.is_full(client):
            self.hold(client, self._unit)
            return self._unit
        turn = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(client, deque())
        waiting.append(turn)
        try:
            await asyncio.wait({turn}, timeout=bodies.TURN_SECONDS)
        except asyncio.CancelledError:
            if turn.done():
                self.release(client, self._unit)
            raise
        finally:
            if not turn.done():
                waiting.remove(turn)
                if not waiting:
                    del self._waiting[client]
        if not turn.done():
            raise self._busy(client)
        return self._unit

    @asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[None]:
        """Hold a unit, after a wait for it (see `turn`)."""
        size = await self.turn(client)
        try:
            yield
        finally:
            self.release(client, size)

    def _busy(self, client: str) -> Problem:
        return Problem(
            problems.READS_BUSY,
            f"{self.total:,} of {self._most:,} {self._what}, {self._of.get(client, 0):,} of them "
            f"for this client; ask again in a second",
        )


class Quotas(Shares):
    """Places of which no client gets more than a share, also while it is alone."""

    def __init__(self, most: int) -> None:
        super().__init__(most, "places are taken")

    def room(self, client: str) -> int:
        return min(self._most - self.total, self._share - self._of.get(client, 0))

    def _busy(self, client: str) -> Problem:
        return Problem(problems.BUSY, "too many bodies at a time; send it again later")


class Unsent(Shares):
    """The bytes of answers that clients have not taken yet.

    They are in the part of an answer that is being sent, and in the buffers of connections. Above
    the bound an answer is refused before it begins. One that has begun waits for its next part with
    little in memory. Otherwise each reader that takes nothing would hold 1 to 3 MiB.
    """

    def __init__(self, most: int = MOST) -> None:
        share = max(1, most // SHARE)
        super().__init__(most, "bytes of answers wait until clients take them", min(PIECE, share))

    @property
    def at_once(self) -> int:
        """About how many bytes an answer may take at a time: few, if many wait for clients."""
        return self._share // 4 if self.total < self._share else SMALL

    def check(self, client: str, size: int = PIECE, *, whole: bool = True) -> None:
        """Raise Problem if a client may not have so many bytes more.

        If they are not the `whole` answer, there has to be room for the turn of the next part, too:
        the kernel may take the first one at once, and what makes the next one takes memory while it
        waits. An answer that is longer than a share is let through if there is room for a share.
        """
        if not whole:
            size = max(size, PIECE)
        if size > SMALL:
            super().check(client, min(size, self._share))
