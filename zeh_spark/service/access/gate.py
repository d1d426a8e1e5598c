"""Asks requests for tokens, and keeps web pages of other origins out.

Each route is made by `Gate.route`, with what its requests need, so that none can be forgotten. The
store's tokens are kept for a second, so a token that is revoked is refused by every publisher of
the store within about a second. An answer that has begun is not taken back.

Rule for editors: an answer tells nobody without the right whether a feed exists. Runs in the
publisher's event loop; the store is asked in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from zeh_spark.service.network import MOST_CONNECTIONS
from zeh_spark.service.network.connections import address_of
from zeh_spark.service.network.shares import Shares, Unsent
from zeh_spark.service.store.acts import Actor, Via
from zeh_spark.service.store.batches import base
from zeh_spark.service.store.interface import Store, StoreBusyError, now_ms
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.store.token_rights import Need, Right, Token, id_in, is_text_of
from zeh_spark.service.telemetry.exchange import exchange_of
from zeh_spark.wire import problems

if TYPE_CHECKING:
    from zeh_spark.service.access.jwt_tokens import JwtTokens

Endpoint = Callable[[Request], Awaitable[Response]]
Needs = Callable[[Request], Sequence[Sequence[Need]] | None]
"""What a request needs: one of each group. None if anybody may send it."""

Credential = Callable[[Request], str]
"""Returns what a request shows of itself, in the form of the header `Authorization`."""

FRESH_SECONDS, STALE_SECONDS = 1.0, 10.0
"""The age at which tokens are read again, and the age up to which the old ones are still used if
reading takes long.
"""

PATIENCE_SECONDS = 0.5
"""Seconds for which requests wait for tokens before they make do with the old ones."""

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


# What requests need


def reads(request: Request) -> Sequence[Sequence[Need]]:
    """Return what a request for events needs: the feed, and the cursor set that it names."""
    feed = _feed(request)
    query: bytes = request.scope["query_string"]
    given = parse_qsl(query.decode("latin-1"), True) if b"set" in query or b"%" in query else ()
    names = [value for name, value in given if name == "cursorset"]
    return [[Need(Right.READ, feed)], *([Need(Right.CONSUME, feed, name)] for name in names)]


def reads_feed(feed: str) -> Needs:
    """Return the needs of requests that tell something about one feed."""

    def needs(request: Request) -> Sequence[Sequence[Need]]:
        return [[Need(Right.READ, feed)]]

    return needs


def publishes(request: Request) -> Sequence[Sequence[Need]]:
    return [[_producer(request)]]


def sees_producer(request: Request) -> Sequence[Sequence[Need]]:
    return [[_producer(request), Need(Right.AUDIT, _feed(request))]]


def sees_producers(request: Request) -> Sequence[Sequence[Need]]:
    return [[Need(Right.AUDIT, _feed(request))]]


def sees_feed(request: Request) -> Sequence[Sequence[Need]]:
    """Return what a request for facts about a feed needs, which tell nothing of its events."""
    feed = _feed(request)
    return [[Need(Right.READ, feed), Need(Right.AUDIT, feed)]]


def finds_cursors(request: Request) -> Sequence[Sequence[Need]]:
    """Return what a request for cursors needs. One that awaits a reader keeps nothing for it."""
    given = parse_qsl(request.scope["query_string"].decode("latin-1"), True)
    return sees_feed(request) if "await" in dict(given) else reads(request)


def watches(request: Request) -> Sequence[Sequence[Need]]:
    return [[Need(Right.AUDIT, "*")]]


def administers(request: Request) -> Sequence[Sequence[Need]]:
    """Return what a request needs that changes settings: all rights on all feeds."""
    return [[Need(right, "*")] for right in Right]


def knows_anything(request: Request) -> Sequence[Sequence[Need]]:
    """Return that any valid token is enough: the answer has only what the token may see."""
    return []


def nothing(request: Request) -> None:
    """Return that anybody may send the request: its answer depends on no feed."""
    return None


def authorization(request: Request) -> str:
    """Return the header `Authorization` of a request; empty without one (see `Credential`)."""
    return request.headers.get("authorization", "")


def holder_of(request: Request) -> Token | None:
    """Return the token that a guarded request was let through with; None if none was asked for."""
    token: Token | None = request.state.token
    return token


def _feed(request: Request) -> str:
    feed: str = request.path_params.get("feed", "")
    return feed


def _producer(request: Request) -> Need:
    return Need(Right.PUBLISH, _feed(request), base(request.path_params["producer"]))


# Who is asked


class Gate:
    """Lets requests through that may do what they ask for.

    Args:
        store: The store whose tokens count; None to let every request through, because whatever
            mounts the app decides.
        is_open: Whether a store that never had a token lets every request through.
        hosts: The host names under which an open publisher is asked; None for any.
        checks_origin: Whether requests of web pages of other origins are refused.
        issued: Tells the tokens of an identity provider; None if there is none. With one, each
            request needs a token, also of an open publisher.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        is_open: bool = False,
        hosts: Collection[str] | None = None,
        checks_origin: bool = True,
        issued: JwtTokens | None = None,
    ) -> None:
        self._store = store
        self._is_open = is_open and issued is None
        self._issued = issued
        self._checks_origin = checks_origin
        self._hosts = None if hosts is None else {each.lower() for each in hosts}
        self._tokens: dict[str, Token] = {}
        self._read_at = float("-inf")
        self._reading: asyncio.Task[Exception | None] | None = None
        self._patience: asyncio.Future[Any] | None = None
        self._limiter = anyio.CapacityLimiter(1)
        self.unsent = Unsent()
        """The bytes of answers that clients have not taken."""
        self.requests = Shares(MOST_CONNECTIONS, "requests are under way")
        """The requests that are answered."""

    def use_hosts(self, hosts: Collection[str]) -> None:
        """Use other host names from now on. One that answers to any name does so still."""
        if self._hosts is not None:
            self._hosts = {each.lower() for each in hosts}

    def route(
        self,
        path: str,
        endpoint: Endpoint,
        needs: Needs,
        *,
        methods: list[str] | None = None,
        credential: Credential = authorization,
    ) -> Route:
        """Return a route whose endpoint runs only if the request may do what it needs."""

        async def guarded(request: Request) -> Response:
            exchange_of(request).route = path
            await self.check(request, needs, credential)
            request.state.client = client = client_of(request)
            if needs not in (nothing, watches):
                self._check_room(request, client, needs)
            response = await endpoint(request)
            if needs is not watches:
                self.unsent.check(client, len(response.body))
            return response

        return Route(path, guarded, methods=methods, name=needs.__name__)

    def _check_room(self, request: Request, client: str, needs: Needs) -> None:
        """Raise Problem if this client has more than its share of what all need."""
        token: Token | None = getattr(request.state, "token", None)
        if getattr(request.state, "spare", False) and not (token and token.is_admin):
            raise Problem(
                problems.TOO_MANY_CONNECTIONS,
                "the publisher has too many connections, or this address has; this one is kept for "
                "health checks and the administrator. Try again later",
            )
        if needs is reads:
            self.unsent.check(client)  # before a thread works for it
        self.requests.take(client)
        exchange_of(request).ended = partial(self.requests.release, client)

    async def check(
        self, request: Request, needs: Needs, credential: Credential = authorization
    ) -> None:
        """Raise Problem unless the request may do what it needs. Note who sent it."""
        if self._checks_origin:
            _check_origin(request)
        if (wanted := needs(request)) is None:
            return
        request.state.token = token = await self.token(request, credential(request))
        if token is None:
            return
        note_token(request, token)
        exchange_of(request).token = token.name
        for group in wanted:
            if not any(map(token.may, group)):
                wanting = " or ".join(map(str, group))
                raise Problem(problems.FORBIDDEN, f"this token does not have the right {wanting}")

    async def token(self, request: Request, shown: str) -> Token | None:
        """Return the token that a request shows; None if every request is let through.

        Raises Problem if the token does not count, or the publisher is asked under a foreign name.
        """
        if self._store is None and self._issued is None:
            self._check_host(request)
            return None
        if self._store is not None:
            await self._refresh(self._store)
        if not self._tokens and self._is_open:
            self._check_host(request)
            return None
        return await self._token(shown, self._store.now() if self._store else now_ms())

    async def _token(self, authorization: str, now: int) -> Token:
        scheme, _, text = authorization.partition(" ")
        text = text.strip()
        if scheme.lower() != "bearer" or not text:
            raise Problem(problems.UNAUTHORIZED, "a token is needed: Authorization: Bearer TOKEN")
        token = self._tokens.get(id_in(text) or "")
        if token is not None and not is_text_of(text, token):
            token = None
        if token is None and self._issued is not None and text.count(".") == 2:
            token = await self._issued.token(text)
        if token is None or not token.is_valid(now):
            raise Problem(
                problems.UNAUTHORIZED, "the token is not valid: it is unknown, expired or revoked"
            )
        return token

    async def _refresh(self, store: Store) -> None:
        age = time.monotonic() - self._read_at
        if age < FRESH_SECONDS:
            return
        if (reading := self._reading) is None:
            reading = self._reading = asyncio.create_task(self._read(store))
            # All requests share it: thousands of timers would take longer than the reading.
            self._patience = asyncio.create_task(asyncio.wait({reading}, timeout=PATIENCE_SECONDS))
        if age < STALE_SECONDS and self._patience:
            await asyncio.shield(self._patience)
        elif failure := await asyncio.shield(reading):
            raise _untold(failure) from failure

    async def _read(self, store: Store) -> Exception | None:
        """Read the tokens. Return why it failed, so that everybody who waits for it learns it."""
        begun = time.monotonic()
        try:
            found = await anyio.to_thread.run_sync(store.tokens, limiter=self._limiter)
        except Exception as exc:  # noqa: BLE001  # whoever waits raises it
            return exc
        else:
            self._tokens, self._read_at = {each.id: each for each in found}, begun
            return None
        finally:
            self._reading = None

    def _check_host(self, request: Request) -> None:
        """Raise Problem if a publisher without tokens is asked under a foreign name.

        A web page can make its own name mean this address (DNS rebinding). Then the browser takes
        both for one origin.
        """
        host = _split(f"//{request.headers.get('host', '')}").hostname or ""
        if self._hosts is not None and host not in self._hosts:
            raise Problem(
                problems.FOREIGN_ORIGIN,
                f"the publisher is asked as {host!r}, and without tokens it answers only as "
                f"{', '.join(sorted(self._hosts))}",
            )


def actor_of(request: Request, via: Via = Via.HTTP) -> Actor:
    """Return who sends a request that was let through, for the log of administrative acts.

    It is the name of the token, or `jwt:` and the subject of the JWT. If no token was asked for, it
    is `anonymous@` and the address of the client.
    """
    if token := holder_of(request):
        return Actor(token.name or "jwt:", via)
    return Actor(f"anonymous@{request.client.host if request.client else '-'}", via)


def _untold(failure: Exception) -> Exception:
    """Return what a stranger may learn of a failure: nothing of the database, which is named."""
    if not isinstance(failure, StoreBusyError):
        return failure
    return StoreBusyError(
        "the publisher cannot read its tokens now; its log says why. Try again in a few seconds",
        anchor="store-busy",
    )


def _check_origin(request: Request) -> None:
    origin = request.headers.get("origin")
    if origin is not None and _split(origin).netloc != request.headers.get("host", ""):
        raise Problem(problems.FOREIGN_ORIGIN, f"the request comes from a page of {origin!r}")
    # An image of another page asks without an origin, and may move the position of a reader.
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Problem(problems.FOREIGN_ORIGIN, "the request comes from a page of another origin")


def _split(url: str) -> SplitResult:
    """Return the parts of a URL. Raises Problem if it is none."""
    try:
        return urlsplit(url)
    except ValueError:
        raise Problem(problems.FOREIGN_ORIGIN, "Host or Origin is no address") from None


def own_hosts(host: str, more: Collection[str]) -> frozenset[str]:
    """Return the names under which a publisher on a loopback address is asked."""
    return _LOOPBACK_NAMES | {host.lower(), *(each.lower() for each in more)}


def note_token(request: Request, token: Token) -> None:
    """Note what tells the token that a request was let through with from others."""
    request.state.token_id = token.id or (token.name and f"of {token.name}")  # a JWT has no id


def client_of(request: Request) -> str:
    """Return what tells the client of a request from others: its token, or its address.

    Several machines work for one query with one token. Clients without tokens behind a proxy are
    one client.
    """
    if token := getattr(request.state, "token_id", None):
        return f"token {token}"
    return address_of(request.client.host if request.client else "")
