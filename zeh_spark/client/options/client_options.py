"""The options that source and sink share: how to talk to the publisher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from zeh_spark.client.options.auth import Auth, parse_auth
from zeh_spark.client.options.option_metadata import option, option_name
from zeh_spark.errors import OptionError
from zeh_spark.wire.option_values import (
    SECRET_HEADER_PREFIX,
    FeedUrl,
    parse_choice,
    parse_duration,
    parse_text,
    parse_timeout,
    parse_token,
    parse_token_url,
    parse_traceparent,
    parse_url,
)

FIRST_CONTACT = 10.0
"""Seconds after which an address that never answered is taken for a wrong one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options that say how to talk to the publisher."""

    url: FeedUrl = option(parse_url, "**required**: the feed's address; `.load(url)` does the same")
    token: str | None = option(parse_token, "bearer token", repr=False)
    token_file: str | None = option(
        parse_text,
        "file with the bearer token; read again when the publisher answers 401",
        repr=False,
    )
    oauth_token_url: str | None = option(
        parse_token_url,
        "OAuth2 client credentials, instead of a token: the token server's address (`https:`)",
    )
    oauth_client_id: str | None = option(parse_text, "OAuth2: the client's id")
    oauth_client_secret: str | None = option(parse_token, "OAuth2: the client's secret", repr=False)
    oauth_scope: str | None = option(
        parse_text, "OAuth2: the scope to request, if the token server needs one"
    )
    auth: Auth | None = option(
        parse_auth, "tokens from what `zeh_spark.register_auth` has registered by this name"
    )
    auth_scope: str | None = option(parse_text, "the scope to request from it")
    ca_file: str | None = option(
        parse_text, "PEM file of the authorities to trust instead of the system's"
    )
    client_cert_file: str | None = option(parse_text, "PEM file of the client's certificate")
    client_key_file: str | None = option(
        parse_text, "PEM file of that certificate's key, if it is not in the same file"
    )
    connect_timeout: float = option(
        parse_timeout, "how long to wait for a connection", default="10s"
    )
    read_timeout: float = option(
        parse_timeout,
        "how long to wait for more data of an answer; in a stream, longer than `wait`",
        default="60s",
    )
    retry_timeout: float = option(
        parse_duration,
        "how long to retry if the publisher does not answer, or answers 408, 425, 429 or 5xx; if "
        "it is not set, a new query whose address has never answered fails after 10 s",
        default="2m",
    )
    compression: str = option(
        parse_choice("none", "gzip"), "`gzip` for slow networks, or `none`", default="none"
    )
    traceparent: str | None = option(
        parse_traceparent,
        "the trace that all requests belong to (W3C Trace Context); by default that of the "
        "environment variable `TRACEPARENT`",
    )
    first_contact: float | None = field(default=FIRST_CONTACT, compare=False)
    """Seconds for which the address is tried while it has never answered; None for `retry_timeout`.

    It is no option: it is None if `retryTimeout` is given.
    """
    http_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret_headers: frozenset[str] = frozenset()

    @property
    def credentials(self) -> list[str]:
        """The options from which credentials come, by their public names; empty without any."""
        sources = [option_name(each) for each in _SOURCES if getattr(self, each)]
        return sources + [SECRET_HEADER_PREFIX + each for each in sorted(self.secret_headers)]

    def impatient(self, seconds: float) -> ClientOptions:
        """Return options for one try: so many seconds for a connection, and then for an answer."""
        return replace(
            self,
            connect_timeout=min(seconds, self.connect_timeout),
            read_timeout=min(seconds, self.read_timeout),
            retry_timeout=0.0,
        )

    def check(self) -> None:
        """Refuse options that contradict each other. Raises OptionError."""
        refuse_two_tokens({name: getattr(self, name) for name in _SOURCES})
        self._check_oauth()
        if self.auth_scope and not self.auth:
            raise OptionError("option 'auth.scope' needs 'auth'. Set both", option="auth.scope")
        if self.client_key_file and not self.client_cert_file:
            raise OptionError(
                "option 'clientKeyFile' needs 'clientCertFile'. Set both options",
                option="clientKeyFile",
            )
        if any(getattr(self, name) for name in _SOURCES) and "authorization" in self.http_headers:
            raise OptionError(
                f"'{SECRET_HEADER_PREFIX}Authorization' and a token exclude each other. Set one of "
                f"them",
                option="token",
            )

    def _check_oauth(self) -> None:
        names = ("oauth_token_url", "oauth_client_id", "oauth_client_secret")
        given = {option_name(name): getattr(self, name) for name in names}
        missing = [name for name, value in given.items() if not value]
        if missing and (len(missing) < len(given) or self.oauth_scope):
            raise OptionError(
                f"option {missing[0]!r} is missing: OAuth2 needs {', '.join(given)}. Set them all",
                option=missing[0],
            )


_SOURCES = ("token", "token_file", "oauth_token_url", "auth")
"""The fields each of which says where tokens come from."""

NO_TOKENS: dict[str, Any] = dict.fromkeys(
    (*_SOURCES, "oauth_client_id", "oauth_client_secret", "oauth_scope", "auth_scope")
)
"""The fields from which tokens come, without values, for feeds that must not get them."""


def refuse_two_tokens(given: Mapping[str, object], prefix: str = "") -> None:
    """Raise OptionError if a feed has two sources of tokens."""
    names = [option_name(each, prefix) for each in _SOURCES if given.get(each)]
    if len(names) > 1:
        raise OptionError(
            f"options {names[0]!r} and {names[1]!r} exclude each other. Set one of them",
            option=names[1],
        )
