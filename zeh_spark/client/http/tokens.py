"""Tokens that a source gives: asked for, kept until they expire, renewed, and shared by threads.

A source is what `register_auth` has registered, or a token server, for OAuth2 client credentials
(RFC 6749, 4.4). Rejected: a library (requests-oauthlib, authlib), because the grant is one request,
and what remains here, to keep and to renew the token for many threads, they leave to their callers.

Rule for editors: no error and no log shows a secret or a token. Runs wherever a client runs.
"""

from __future__ import annotations

import base64
import threading
import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import quote

import requests
import urllib3
from requests.auth import HTTPBasicAuth

from zeh_spark.client.http.credentials import masked
from zeh_spark.client.http.responses import TransientError, body_text, innermost, problem_document
from zeh_spark.client.options.client_options import NO_TOKENS, ClientOptions
from zeh_spark.errors import AccessError, OptionAdvice, UnavailableError, ZeroEventHubError
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


class Tokens:
    """The tokens of the source that some options name.

    One thread at a time asks it. The others use the token that they have while it is valid; else
    they wait, and share the answer, or the failure.
    """

    def __init__(self, options: ClientOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._source: Any = None
        self._lock = threading.Lock()
        self._token: _Token | None = None
        self._failure: tuple[float, TransientError] | None = None
        self._recent: deque[str] = deque()

    def token(self) -> str:
        """Return a token that is valid now, as far as the source has told."""
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

        Any thread may have asked for it before. It is the same one if the source gives it again.
        """
        now = self._clock()
        with self._lock:
            held = self._token
            if held is None or (held.text == refused and held.asked_at <= now):
                held = self._fetched(now)
            return held.text

    def _fetched(self, since: float) -> _Token:
        """Ask the source for a token, and keep it.

        `since` is when this thread began to wait. A failure since then is this thread's, too: a
        source that is silent for a minute is not asked by all threads, one after the other.
        """
        if self._failure and self._failure[0] > since:
            failure = self._failure[1]
            raise TransientError(failure.final, within=failure.within)
        try:
            self._token = self._fetch()
        except TransientError as exc:
            exc.within = self._options.first_contact if self._token is None else None
            self._failure = self._clock(), exc
            raise
        return self._token

    def _fetch(self) -> _Token:
        began, now = self._clock(), time.time()
        options, auth = self._options, self._options.auth
        scope = options.auth_scope or options.oauth_scope
        try:
            self._source = self._source or (auth.factory() if auth else ClientCredentials(options))
            given = self._source.get_token(*([scope] if scope else []))
            text = getattr(given, "token", given)
            if not isinstance(text, str):
                raise TypeError(f"get_token gave {type(text).__name__} instead of a text")
            token = parse_token(text)
            lifetime = float(getattr(given, "expires_on", None) or "inf") - now
        except (TransientError, ZeroEventHubError):
            raise
        except Exception as exc:  # noqa: BLE001 - of a user's code, and raised as another one
            plain = f"{type(exc).__name__}: {exc}"
            said = masked(plain)[:500]
            final = AccessError(
                f"auth {auth and auth.name!r} gives no token ({said}). Check what its factory "
                f"needs in this process: the driver and each executor ask it themselves",
                anchor=_ANCHOR,
            )
            # It may be gone at the next try.
            raise TransientError(final) from (exc if masked(plain) == plain else None)
        masked.add(token)
        if token in self._recent:  # a source gives one until it expires
            self._recent.remove(token)
        self._recent.append(token)
        if len(self._recent) > _RECENT:
            masked.forget(self._recent.popleft())
        expires_at = began + lifetime
        return _Token(token, began, expires_at - min(_MARGIN, lifetime / 5), expires_at)


class ClientCredentials:
    """Gives the tokens that a token server has for some credentials."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._name, self._secret = (
            quote(each or "", safe="")
            for each in (options.oauth_client_id, options.oauth_client_secret)
        )
        basic = base64.b64encode(f"{self._name}:{self._secret}".encode()).decode()
        masked.add(options.oauth_client_secret, self._secret, basic)

    def get_token(self, *scopes: str) -> SimpleNamespace:
        """Ask for a token. Raises AccessError if the server refuses, TransientError if it fails."""
        began = time.time()
        document = self._asked(scopes)
        try:
            token = parse_token(str(document["access_token"]))
            lifetime = float(document.get("expires_in", float("inf")))
            kind = str(document.get("token_type", "bearer")).lower()
        except (KeyError, ValueError, TypeError):
            raise self._refused("its answer has no valid access_token and expires_in") from None
        if kind != "bearer":
            raise self._refused(f"its token is of type {kind[:50]!r} instead of 'Bearer'")
        return SimpleNamespace(token=token, expires_on=began + lifetime)

    def _asked(self, scopes: tuple[str, ...]) -> dict[str, Any]:
        options = self._options
        form = {"grant_type": "client_credentials"}
        if scopes:
            form["scope"] = " ".join(scopes)
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
        return TransientError(final)

    @property
    def _server(self) -> str:
        return (self._options.oauth_token_url or "").partition("?")[0]


_tokens: dict[tuple[object, ...], Tokens] = {}
"""The tokens of this process by their sources."""

_KEY = (*sorted(NO_TOKENS.keys() - {"token", "token_file"}), "ca_file")
_lock = threading.Lock()


def tokens_for(options: ClientOptions) -> Tokens | None:
    """Return the tokens for some options; None if they name no source of tokens."""
    if not options.auth and not options.oauth_token_url:
        return None
    with _lock:
        return _tokens.setdefault(tuple(getattr(options, each) for each in _KEY), Tokens(options))
