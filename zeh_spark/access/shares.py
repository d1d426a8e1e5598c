"""Limits for each client, so that one client cannot take all slots of uploads, commits and reads.

A client is the token that its request has, because several machines work for one query; of a JWT,
its subject. Without tokens it is the address from which the request comes. Behind a proxy, clients
without tokens have one share together.

Rule for editors: a share is taken before the body of a request is read. Runs in the publisher's
event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.requests import Request

from zeh_spark.network.bodies import Budget
from zeh_spark.network.connections import address_of
from zeh_spark.network.shares import SHARE
from zeh_spark.store.access import Token


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
    """

    def __init__(self, total: int) -> None:
        self._whole = Budget(total)
        self._share = max(1, total // SHARE)
        self._of: dict[str, _Own] = {}

    @asynccontextmanager
    async def room(self, client: str) -> AsyncIterator[None]:
        """Hold room for one request of a client.

        Raises Problem if it got none for `bodies.TURN_SECONDS`.
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
