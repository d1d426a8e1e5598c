"""Limits for each client, so that one client cannot take all slots of uploads, commits and reads.

A client is the token that its request has, because several machines work for one query; of a JWT,
its subject. Without tokens it is the address from which the request comes. Behind a proxy, clients
without tokens have one share together.

Rule for editors: a share is taken before the body of a request is read. Runs in the publisher's
event loop.
"""

from __future__ import annotations

from starlette.requests import Request

from zeh_spark.service.network.connections import address_of
from zeh_spark.service.store.access import Token


def note_token(request: Request, token: Token) -> None:
    """Note what tells the token that a request was let through with from others."""
    request.state.token_id = token.id or (token.name and f"of {token.name}")  # a JWT has no id


def client_of(request: Request) -> str:
    """Return what tells the client of a request from others."""
    if token := getattr(request.state, "token_id", None):
        return f"token {token}"
    return address_of(request.client.host if request.client else "")
