"""Limits for each client, so that one client cannot take all slots of uploads, commits and reads.

A client is the token that its request has, because several machines work for one query; of a JWT,
its subject. Without tokens it is the address from which the request comes. Behind a proxy, clients
without tokens have one share together.

Rule for editors: a share is taken before the body of a request is read. Runs in the publisher's
event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from starlette.requests import Request

from zeh_spark.network import bodies
from zeh_spark.network.bodies import Budget
from zeh_spark.network.connections import address_of
from zeh_spark.protocol import problems
from zeh_spark.store.access import Token
from zeh_spark.store.problems import Problem

SHARE = 4
"""The number of shares; a client gets one of them."""


def note_token(request: Request, token: Token) -> None:
    """Note what tells the token that a request was let through with from others."""
    request.state.token_id = token.id or (token.name and f"of {token.name}")  # a JWT has no id


def client_of(request: Request) -> str:
    """Return what tells the client of a request from others."""
    if token := getattr(request.state, "token_id", None):
        return f"token {token}"
    return address_of(request.client.host if request.client else "")


@dataclass(slots=True)
class _Own:
    budget: Budget
    users: int = 0


class SharedBudget:
    """Room for so many requests at a time, of which each client has at most a share.

    A request waits for its turn, among those of its client and then among all.

    Args:
        total: How many there are at a time.
    """

    def __init__(self, total: int) -> None:
        self._whole = Budget(total)
        self._share = max(1, total // SHARE)
        self._of: dict[str, _Own] = {}

    @asynccontextmanager
    async def room(self, client: str) -> AsyncIterator[None]:
        """Hold room for one request of a client.

        Raises:
            Problem: It got none for `bodies.TURN_SECONDS`.
        """
        own = self._of.setdefault(client, _Own(Budget(self._share)))
        own.users += 1
        try:
            async with own.budget.room(1), self._whole.room(1):
                yield
        finally:
            own.users -= 1
            if not own.users:
                del self._of[client]


class Turns:
    """Places for calls. The last ones are for clients that have less than their share; others wait.

    The calls of a client get places in the order in which they came, and clients one after the
    other. Belongs to one event loop.

    Args:
        most: How many places there are.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._share = -(-most // SHARE)
        self._taken: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def is_full(self, client: str) -> bool:
        """Return whether a client has its share, and the places that are left are for others."""
        return self._taken[client] >= self._share and self._left <= self._share

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Hold a place.

        Raises:
            Problem: There was none for `bodies.TURN_SECONDS`.
        """
        if self._left and not self.is_full(client):
            self._take(client)
        else:
            await self._wait(client)
        try:
            yield
        finally:
            self._give_back(client)

    async def _wait(self, client: str) -> None:
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(place)
        try:
            with anyio.fail_after(bodies.TURN_SECONDS):
                await place
        except BaseException as exc:
            if place.done() and not place.cancelled():
                self._give_back(client)
            place.cancel()
            if isinstance(exc, TimeoutError):
                raise Problem(
                    problems.READS_BUSY,
                    f"other reads have taken {bodies.TURN_SECONDS:g} s; ask again in a second",
                ) from None
            raise

    def _take(self, client: str) -> None:
        self._left -= 1
        self._taken[client] += 1

    def _give_back(self, client: str) -> None:
        self._left += 1
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]
        for each in list(self._waiting):
            if not self._left:
                return
            self._hand_on(each)

    def _hand_on(self, client: str) -> None:
        """Give a place to the first call of a client that waits, unless the client is full."""
        waiting = self._waiting[client]
        while waiting and waiting[0].done():  # it waits no longer
            waiting.popleft()
        if waiting and not self.is_full(client):
            waiting.popleft().set_result(None)
            self._take(client)
            self._waiting.move_to_end(client)
        if not waiting:
            del self._waiting[client]


class Slots:
    """Counts what is under way. The last slots are for clients that have less than their share.

    So one client uses most of them while no other one is there.

    Args:
        most: How many slots there are.
        what: What they are for, for the error.
    """

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._share = max(1, most // SHARE)
        self._what = what
        self._left = most
        self._taken: Counter[str] = Counter()

    def take(self, client: str) -> None:
        """Take a slot. Raises Problem if there is none for this client."""
        left, own = self._left, self._taken.get(client, 0)
        if left < 1:
            raise self._busy(f"{self._most} {self._what} are under way")
        if left <= self._share <= own:
            raise self._busy(
                f"{own} {self._what} of this client are under way; the rest is reserved for others"
            )
        self._left -= 1
        self._taken[client] += 1

    def give_back(self, client: str) -> None:
        """Give a slot back."""
        self._left += 1
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]

    def _busy(self, why: str) -> Problem:
        return Problem(problems.READS_BUSY, f"{why}; ask again in a second")
