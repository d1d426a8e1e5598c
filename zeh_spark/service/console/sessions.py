"""Sessions of browsers, which cannot send a token with each request.

Whoever signs in with a token gets a cookie with a random id. The token stays in this process and is
checked again at each request, exactly as if the request had brought it: a session ends when its
token is revoked or expires, when it was not used for IDLE_SECONDS, after SESSION_SECONDS at the
latest, and with the process.

Rejected: a signed cookie with the token's id, because a JWT that an identity provider no longer
backs could not be checked again, and because signing out could not end it.

Belongs to the publisher's event loop.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

SESSION_SECONDS, IDLE_SECONDS = 12 * 3600.0, 3600.0
"""How long a session lasts, and how long it lasts unused."""

SESSIONS, SESSIONS_OF_ONE = 1000, 20
"""Sessions at a time, and those of one token, or of the JWTs of one subject. The one that was used
least recently ends first.
"""


@dataclass(slots=True)
class _Session:
    token: str = field(repr=False)
    client: str
    begun: float
    used: float


class Sessions:
    """The sessions of a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._open: OrderedDict[str, _Session] = OrderedDict()

    def begin(self, request: Request, answer: Response, token: str, client: str) -> None:
        """Begin a session, whose cookie the answer sets."""
        self.end(request, answer)
        name, now = secrets.token_urlsafe(32), self._clock()
        own = [each for each, session in self._open.items() if session.client == client]
        if len(own) >= SESSIONS_OF_ONE:
            del self._open[own[0]]
        self._open[name] = _Session(token, client, now, now)
        if len(self._open) > SESSIONS:
            self._open.popitem(last=False)
        answer.set_cookie(
            _cookie(request),
            name,
            path=_path(request),
            httponly=True,
            samesite="strict",
            secure=request.scope["scheme"] == "https",
        )

    def end(self, request: Request, answer: Response) -> None:
        """End the session of a request, and have the browser forget its cookie."""
        if self._open.pop(_id(request), None):
            answer.delete_cookie(
                _cookie(request), path=_path(request), httponly=True, samesite="strict"
            )

    def credential(self, request: Request) -> str:
        """Return what a request shows of itself: its own header, or the token of its session."""
        own = request.headers.get("authorization")
        if own is not None:
            return own
        session = self._session(_id(request))
        return f"Bearer {session.token}" if session else ""

    def form_key(self, request: Request) -> str:
        """Return what a form of this session has to bring back, which no other page knows."""
        whose = _id(request)
        name = whose if self._session(whose) else ""
        return hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()

    def is_own_form(self, request: Request, key: str) -> bool:
        """Return whether a form is one of this session.

        A request with a token of its own does not come from a page: a page cannot send one. A
        user's name and password it can, if the browser was asked for them once.
        """
        if request.headers.get("authorization", "").lower().startswith("bearer "):
            return True
        return hmac.compare_digest(self.form_key(request).encode(), key.encode())

    def _session(self, name: str) -> _Session | None:
        session, now = self._open.get(name), self._clock()
        if session is None:
            return None
        if now - session.begun > SESSION_SECONDS or now - session.used > IDLE_SECONDS:
            del self._open[name]
            return None
        session.used = now
        self._open.move_to_end(name)
        return session


def _cookie(request: Request) -> str:
    """Return the cookie's name. It has the port, because browsers tell only hosts apart."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"zeh_console_{port if port.isdecimal() else request.scope['scheme']}"


def _path(request: Request) -> str:
    return f"{request.scope.get('root_path', '')}/console"


def _id(request: Request) -> str:
    return request.cookies.get(_cookie(request), "")
