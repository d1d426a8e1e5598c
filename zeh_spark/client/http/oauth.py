"""Tokens of OAuth2 client credentials (RFC 6749, 4.4): asked for, kept until they expire, renewed.

All transports of a process that have the same credentials share one token. Rejected: a library
(requests-oauthlib, authlib), because the grant is one request, and what remains here, to keep and
to renew the token for many threads, they leave to their callers.

Rule for editors: no error and no log shows the secret or a token. Runs wherever a client runs.
"""

from __future__ import annotations

import base64
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

import requests
import urllib3
from requests.auth import HTTPBasicAuth

from zeh_spark.client.http.credentials import masked
from zeh_spark.client.http.responses import TransientError, body_text, innermost, problem_document
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.errors import AccessError, OptionAdvice, UnavailableError
from zeh_spark.wire import problems
from zeh_spark.wire.option_values import parse_token

_MARGIN = 30.0
"""Seconds before a token expires from which on another one is asked for."""

_AGAIN = 5.0
"""Seconds after a failure until another token is asked for, while the old one is valid."""

_RECENT = 10
"""How many tokens are hidden in errors: the newest, and those that answers may still quote."""

_CREDENTIALS = OptionAdvice(
    "check {}, {}, {} and {}",
    ("oauth.tokenUrl", "oauth.clientId", "oauth.clientSecret", "oauth.scope"),
)
_ANCHOR = "the-token-server-gives-no-token"


class _Token(NamedTuple):
    """A token, and when it was asked for, has to be renewed, and expires."""

    text: str
    asked_at: float
    renew_at: float
    expires_at: float


class OAuthTokens:
    """The tokens that a token server gives for some credentials.

    One thread at a time asks the server. The others use the token that they have while it is valid;
    else they wait, and share the answer, or the failure.
    """

    def __init__(self, options: ClientOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._lock = threading.Lock()
        self._token: _Token | None = None
        self._failure: tuple[float, TransientError] | None = None
        self._name, self._secret = (
            quote(each or "", safe="")
            for each in (options.oauth_client_id, options.oauth_client_secret)
        )
        self._recent: deque[str] = deque()
        basic = base64.b64encode(f"{self._name}:{self._secret}".encode()).decode()
        masked.add(options.oauth_client_secret, self._secret, basic)

    def token(self) -> str:
        """Return a token that is valid now, as far as the server has told."""
        now, held = self._clock(), self._token
        if held and now < held.renew_at:
            return held.text
        is_valid = held is not None and now < held.expires_at
        if not self._lock.acquire(blocking=not is_valid):
            assert held is not None
            return held.text  # another thread asks for the next one
        try:
            if self._token is not held and self._token:
                return self._token.text
            return self._fetched(now).text
        except TransientError:
            if held is None or not is_valid:
                raise
            self._token = held._replace(renew_at=self._clock() + _AGAIN)
            return held.text
        finally:
            self._lock.release()

    def instead_of(self, refused: str | None) -> str:
        """Return another token than one that the publisher refused (errors as in `token`).

        Any thread may have asked for it before. It is the same one if the server gives it again.
        """
        now = self._clock()
        with self._lock:
            held = self._token
            if held is None or (held.text == refused and held.asked_at <= now):
                held = self._fetched(now)
            return held.text

    def _fetched(self, since: float) -> _Token:
        """Ask the server for a token, and keep it.

        `since` is when this thread began to wait. A failure since then is this thread's, too: a
        server that is silent for a minute is not asked by all threads, one after the other.
        """
        if self._failure and self._failure[0] > since:
            failure = self._failure[1]
            raise TransientError(failure.final, within=failure.within)
        try:
            self._token = self._fetch()
        except TransientError as exc:
            self._failure = self._clock(), exc
            raise
        return self._token

    def _fetch(self) -> _Token:
        began = self._clock()
        document = self._asked()
        try:
            token = parse_token(str(document["access_token"]))
            lifetime = float(document.get("expires_in", float("inf")))
            kind = str(document.get("token_type", "bearer")).lower()
        except (KeyError, ValueError, TypeError):
            raise self._refused("its answer has no valid access_token and expires_in") from None
        if kind != "bearer":
            raise self._refused(f"its token is of type {kind[:50]!r} instead of 'Bearer'")
        masked.add(token)
        if token in self._recent:  # the server gives one until it expires
            self._recent.remove(token)
        self._recent.append(token)
        if len(self._recent) > _RECENT:
            masked.forget(self._recent.popleft())
        expires_at = began + lifetime
        return _Token(token, began, expires_at - min(_MARGIN, lifetime / 5), expires_at)

    def _asked(self) -> dict[str, Any]:
        options = self._options
        form = {"grant_type": "client_credentials"}
        if options.oauth_scope:
            form["scope"] = options.oauth_scope
        try:
            with (
                requests.Session() as session,
                session.post(
                    options.oauth_token_url or "",
                    data=form,
                    auth=HTTPBasicAuth(self._name, self._secret),
                    headers={"Accept": "application/json"},
                    allow_redirects=False,
                    stream=True,
                    verify=options.ca_file or True,
                    timeout=(options.connect_timeout, options.read_timeout),
                ) as response,
            ):
                status, text = response.status_code, body_text(response)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as exc:
            reason = innermost(exc)
            raise self._unavailable(f"({type(reason).__name__}: {reason})") from reason
        document = problem_document(text)
        if status == 200:
            return document
        said = [str(document[each]) for each in ("error", "error_description") if each in document]
        answer = masked(": ".join([str(status), *said]))[:500]
        if problems.is_transient(status):
            raise self._unavailable(f"(it answered {answer})")
        raise self._refused(f"it answered {answer}", status)

    def _refused(self, why: str, status: int | None = None) -> AccessError:
        return AccessError(
            f"the token server {self._server} gives no token: {why}",
            status=status,
            advice=_CREDENTIALS,
            anchor=_ANCHOR,
        )

    def _unavailable(self, why: str) -> TransientError:
        final = UnavailableError(
            f"the token server {self._server} does not answer {why}. Start again once it does",
            advice=OptionAdvice("check {}", ("oauth.tokenUrl",)),
            anchor=_ANCHOR,
        )
        within = self._options.first_contact if self._token is None else None
        return TransientError(final, within=within)

    @property
    def _server(self) -> str:
        return (self._options.oauth_token_url or "").partition("?")[0]


_tokens: dict[tuple[object, ...], OAuthTokens] = {}
"""The tokens of this process by their credentials."""

_lock = threading.Lock()


def tokens_for(options: ClientOptions) -> OAuthTokens | None:
    """Return the tokens for some options; None if they have no OAuth2 credentials."""
    if not options.oauth_token_url:
        return None
    key = (
        options.oauth_token_url,
        options.oauth_client_id,
        options.oauth_client_secret,
        options.oauth_scope,
        options.ca_file,
    )
    with _lock:
        return _tokens.setdefault(key, OAuthTokens(options))
