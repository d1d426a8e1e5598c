"""Limits for each client, so that one client cannot take all slots of uploads, commits and reads.

A client is the token that its request has, because several machines work for one query; of a JWT,
its subject. Without tokens it is the address from which the request comes; an IPv6 host chooses
among the addresses of its network, so that counts as one. Behind a proxy, clients without tokens
have one share together.

Rule for editors: a share is taken before the body of a request is read. Runs in the publisher's
event loop.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.requests import Request

from zeh_spark.network.bodies import Budget
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
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # of a socket that has no address
        return f"address {host}"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return f"network {ipaddress.ip_network((address, 64), strict=False)}"
    return f"address {host}"


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
        self._taken: Counter[str] = Counter()

    def take(self, client: str) -> None:
        """Take a slot. Raises Problem if there is none for this client."""
        left, own = self._most - self._taken.total(), self._taken[client]
        if left < 1:
            raise self._busy(f"{self._most} {self._what} are under way")
        if left <= self._share <= own:
            raise self._busy(
                f"{own} {self._what} of this client are under way; the rest is reserved for others"
            )
        self._taken[client] += 1

    def give_back(self, client: str) -> None:
        """Give a slot back."""
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]

    def _busy(self, why: str) -> Problem:
        return Problem(problems.READS_BUSY, f"{why}; ask again in a second")
