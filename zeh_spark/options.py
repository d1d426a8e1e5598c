"""Declare and parse options; and the options that source and sink share.

Rule for editors: a new option is a field of such a class, with its default as a user would write
it. `python docs/generate.py` then writes the tables of the docs. An option that holds a secret has
`token`, `secret` or `password` in its name, because Spark hides such options in plans. It has
`repr=False` here.

Parsing touches neither network nor files. It runs wherever a DataSource is made: on the driver, and
in the Python process in which Spark plans a query.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import ipaddress
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from zeh_spark.errors import OptionError, UnknownOptionError

HEADER_PREFIX = "http.header."
SECRET_HEADER_PREFIX = "http.secret.header."
MAX_PARTITIONS = 100_000
"""The largest `partitionCount`. More is a mistake: each batch would send a request for each."""

FIRST_CONTACT = 10.0
"""Seconds after which an address that never answered is taken for a wrong one."""

_OF_KAFKA = {
    "maxoffsetspertrigger": "maxEventsPerTrigger",
    "minoffsetspertrigger": "minEventsPerTrigger",
    "startingoffsets": "startingCursors",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "startingoffsetsbytimestampstrategy": "startingTimestamp",
    "endingoffsets": "endingCursors",
    "endingoffsetsbytimestamp": "endingCursors",
    "endingtimestamp": "endingCursors",
    "subscribe": "url",
    "topic": "url",
    "kafka.bootstrap.servers": "url",
}
"""What options of Spark's Kafka connector are called here, by their lower-cased names."""
_OAUTH = "oauth_"
_CREDENTIAL_HEADERS = {"authorization", "cookie", "proxy-authorization"}
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?"
)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 30 * 24 * 3600.0
_LONGEST_AGE = 1000 * 366 * 86_400.0  # databases keep 64 bits, and dates end with the year 9999
_MOST_BYTES = 10**6 << 40
"""The largest size that an option may have; databases keep 64 bits."""

_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class FeedUrl:
    """A feed's address. `str()` gives it without its query, which may hold a key.

    Args:
        full: the whole address with its query, for requests only.
    """

    full: str = field(repr=False)

    @property
    def parts(self) -> SplitResult:
        """The parts of the whole address."""
        return urlsplit(self.full)

    def __str__(self) -> str:
        return self.parts._replace(query="", fragment="").geturl()

    @property
    def identity(self) -> str:
        """What an offset keeps to distinguish feeds: the URL, with its query as SHA-256."""
        query = self.parts.query
        return f"{self}?{hashlib.sha256(query.encode()).hexdigest()}" if query else str(self)


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port. Credentials are sent only to the origin they are for."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def parse_url(text: str) -> FeedUrl:
    """Return the address of a feed. Raises ValueError if it is incomplete or holds a password."""
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError("must be the feed's whole address, like https://orders.example/feed/v1")
    if "@" in parts.netloc:
        raise ValueError(
            f"must not hold a user name or password, because Spark shows it in plans: use 'token' "
            f"or '{SECRET_HEADER_PREFIX}Authorization'"
        )
    return FeedUrl(parts._replace(fragment="").geturl())


def parse_duration(text: str) -> float:
    """Return the seconds of `0.5`, `500ms`, `30s`, `5m` or `1h`; at most 30 days."""
    if (seconds := parse_age(text)) > _LONGEST:
        raise ValueError("must be at most 30 days")
    return seconds


def parse_age(text: str) -> float:
    """Return the seconds of a text as in `parse_duration`, without a limit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", text.strip())
    if not match:
        raise ValueError(
            "must be a duration: seconds, or a number with ms, s, m, h or d, like 500ms"
        )
    return float(match[1]) * _UNITS[match[2] or "s"]


def parse_age_ms(text: str) -> int:
    """Return the milliseconds of an age like `30d` or `12h`: more than 0, at most 1,000 years.

    Raises:
        ValueError: It is none. The message is a sentence that says what to write.
    """
    if text.strip().replace(".", "", 1).isdigit():
        raise ValueError(
            f"{text!r} has no unit. Add d (days), h (hours), m (minutes) or s (seconds), like "
            f"{text.strip()}d"
        )
    try:
        seconds = parse_age(text)
    except ValueError as exc:
        raise ValueError(f"{text!r} {exc}") from None
    if seconds > _LONGEST_AGE:
        raise ValueError(f"{text!r} is longer than 1,000 years. Leave it out, if it is for ever")
    if not (ms := round(seconds * 1000)):
        raise ValueError(f"{text!r} is too short. Give a duration longer than 0, like 30d")
    return ms


def parse_timeout(text: str) -> float:
    """Return the seconds of a text as in `parse_duration`, which must be more than 0."""
    if not (seconds := parse_duration(text)):
        raise ValueError("must be longer than 0")
    return seconds


def parse_size(text: str) -> int:
    """Return the bytes of `1048576`, `64k`, `128m` or `1g`; `k` is 1024 bytes.

    Raises:
        ValueError: It is no size, is 0, or is more than a million TiB, which no store could keep.
    """
    match = re.fullmatch(r"(\d+)\s*([bkmgt]?)(?:i?b)?", text.strip().lower())
    if not match or int(match[1]) == 0:
        raise ValueError("must be a number of bytes greater than 0, or with a unit, like 128m")
    if (size := int(match[1]) * _SIZES[match[2]]) > _MOST_BYTES:
        raise ValueError("must be at most a million TiB: 1000000t")
    return size


def parse_count(text: str) -> int:
    """Return a whole number from 1 to 2**63-1, the largest LONG."""
    if not re.fullmatch(r"[0-9]{1,19}", text.strip()) or not 0 < int(text) < 1 << 63:
        raise ValueError(f"must be a whole number greater than 0, and at most {(1 << 63) - 1}")
    return int(text)


def parse_partition_count(text: str) -> int:
    """Return a number of partitions, from 1 to `MAX_PARTITIONS`."""
    if (count := parse_count(text)) > MAX_PARTITIONS:
        raise ValueError(f"must be at most {MAX_PARTITIONS}")
    return count


def parse_bool(text: str) -> bool:
    """Return whether the text is `true`; `false` is the only other one, in any case."""
    if text.lower() not in {"true", "false"}:
        raise ValueError("must be true or false")
    return text.lower() == "true"


def parse_choice(*allowed: str) -> Callable[[str], str]:
    """Return a parser that finds a text among those allowed, whatever its case."""

    def parse(text: str) -> str:
        for choice in allowed:
            if text.lower() == choice.lower():
                return choice
        raise ValueError(f"must be one of {', '.join(allowed)}")

    return parse


def parse_text(text: str) -> str:
    """Return the text, which must not be empty."""
    if not text:
        raise ValueError("must not be empty")
    return text


def parse_token(text: str) -> str:
    """Return the token, if HTTP allows it in a header.

    A library that refuses a header prints its value, and this is a secret. So it is checked here.
    """
    if not re.fullmatch(r"[!-~]+", text):
        raise ValueError("must be printable ASCII without spaces and newlines")
    return text


def parse_token_url(text: str) -> str:
    """Return the address of a token server, which must have TLS unless it is on this machine."""
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
        valid = parts.scheme in {"http", "https"} and bool(host) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or "@" in parts.netloc:
        raise ValueError("must be a whole address without a user, like https://login.example/token")
    if parts.scheme == "http" and not _is_loopback(host):
        raise ValueError("must begin with https:, because the client's secret is sent there")
    return parts._replace(fragment="").geturl()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_traceparent(text: str) -> str:
    """Return a `traceparent` of W3C Trace Context, if it is valid.

    See https://www.w3.org/TR/trace-context/#traceparent-header. Of a later version it may be longer
    than of version 00.
    """
    found = _TRACEPARENT.fullmatch(text)
    if not found or (text[:2] == "00" and len(text) != 55):
        raise ValueError(
            "must be a traceparent of W3C Trace Context, like "
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        )
    return text


def option(
    parse: Callable[[str], Any],
    default: str | None,
    meaning: str,
    *,
    query: str = "both",
    repr: bool = True,
) -> Any:
    """Declare an option as a field of a class of options.

    Args:
        parse: returns the value of a text, or raises ValueError with a phrase like "must be …".
        default: the default as a user would write it; None if there is none.
        meaning: one phrase for the docs, in Markdown, with unit and limits. It begins with
            `**required**` if the option must be given.
        query: which queries use it: "streaming", "batch" or "both".
        repr: false for a secret.
    """
    about = {"parse": parse, "default": default, "meaning": meaning, "query": query}
    value = dataclasses.MISSING if default is None else parse(default)
    if default is None and meaning.startswith("**required**"):
        return field(metadata=about, repr=repr)
    if isinstance(value, dict):
        raise TypeError("a default must not be mutable")
    return field(default=None if default is None else value, metadata=about, repr=repr)


def prefixed(prefix: str, **meanings: str) -> Any:
    """Declare some of a class's own options a second time, with a prefix, for another feed.

    Their values are parsed as those of the options without the prefix. The field holds the options
    that were given, by the names of the fields that they stand for. It is never shown, because some
    of them are secrets.

    Args:
        prefix: the first word of the public names: `deadLetter` makes `deadLetterUrl` of `url`.
        meanings: what each option means there, by the name of its field.
    """
    about = {"prefix": prefix, "meanings": meanings}
    return field(default_factory=dict, metadata=about, repr=False)


@dataclass(frozen=True, slots=True)
class Declared:
    """An option as users know it.

    Args:
        name: its public name, like `maxBytesPerTrigger`.
        field: the field of its class.
        parse: returns the value of a text.
        default: the default as a user would write it; None if there is none.
        meaning: one phrase for the docs.
        query: which queries use it, as in `option`.
        secret: whether its value must never be shown.
        group: the field that holds it with the other options of one prefix; None without a prefix.
    """

    name: str
    field: str
    parse: Callable[[str], Any]
    default: str | None
    meaning: str
    query: str
    secret: bool
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options that say how to talk to the publisher."""

    url: FeedUrl = option(
        parse_url, None, "**required**: the feed's address; `.load(url)` does the same"
    )
    token: str | None = option(parse_token, None, "bearer token", repr=False)
    token_file: str | None = option(
        parse_text,
        None,
        "file with the bearer token; read again when the publisher answers 401",
        repr=False,
    )
    oauth_token_url: str | None = option(
        parse_token_url,
        None,
        "OAuth2 client credentials, instead of a token: the token server's address (`https:`)",
    )
    oauth_client_id: str | None = option(parse_text, None, "OAuth2: the client's id")
    oauth_client_secret: str | None = option(
        parse_token, None, "OAuth2: the client's secret", repr=False
    )
    oauth_scope: str | None = option(
        parse_text, None, "OAuth2: the scope to request, if the token server needs one"
    )
    ca_file: str | None = option(
        parse_text, None, "PEM file of the authorities to trust instead of the system's"
    )
    client_cert_file: str | None = option(parse_text, None, "PEM file of the client's certificate")
    client_key_file: str | None = option(
        parse_text, None, "PEM file of that certificate's key, if it is not in the same file"
    )
    connect_timeout: float = option(parse_timeout, "10s", "how long to wait for a connection")
    read_timeout: float = option(
        parse_timeout,
        "60s",
        "how long to wait for more data of an answer; in a stream, longer than `wait`",
    )
    retry_timeout: float = option(
        parse_duration,
        "2m",
        "how long to retry if the publisher does not answer, or answers 408, 425, 429 or 5xx; if "
        "it is not set, a new query whose address has never answered fails after 10 s",
    )
    compression: str = option(
        parse_choice("none", "gzip"), "none", "`gzip` for slow networks, or `none`"
    )
    traceparent: str | None = option(
        parse_traceparent,
        None,
        "the trace that all requests belong to (W3C Trace Context); by default that of the "
        "environment variable `TRACEPARENT`",
    )
    first_contact: float | None = field(default=FIRST_CONTACT, compare=False)
    """Seconds for which the address is tried while it has never answered; None for `retry_timeout`.

    It is no option: it is None if `retryTimeout` is given.
    """
    http_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret_headers: frozenset[str] = frozenset()

    def check(self) -> None:
        """Refuse options that contradict each other. Raises OptionError."""
        refuse_two_tokens({"token": self.token, "token_file": self.token_file})
        self._check_oauth()
        if self.client_key_file and not self.client_cert_file:
            raise OptionError(
                "option 'clientKeyFile' needs 'clientCertFile'. Set both options",
                option="clientKeyFile",
            )
        tokens = self.token, self.token_file, self.oauth_token_url
        if any(tokens) and "authorization" in self.http_headers:
            raise OptionError(
                f"'{SECRET_HEADER_PREFIX}Authorization' and a token exclude each other. Set one of "
                f"them",
                option="token",
            )

    def _check_oauth(self) -> None:
        names = ("oauth_token_url", "oauth_client_id", "oauth_client_secret")
        given = {option_name(name): getattr(self, name) for name in names}
        missing = [name for name, value in given.items() if not value]
        if len(missing) < len(given) or self.oauth_scope:
            if missing:
                raise OptionError(
                    f"option {missing[0]!r} is missing: OAuth2 needs {', '.join(given)}. Set all "
                    f"of them",
                    option=missing[0],
                )
            if self.token or self.token_file:
                raise OptionError(
                    "'oauth.tokenUrl' and a token exclude each other. Set one of them",
                    option="oauth.tokenUrl",
                )


Options = TypeVar("Options", bound=ClientOptions)

NO_TOKENS: dict[str, Any] = dict.fromkeys(
    (
        "token",
        "token_file",
        "oauth_token_url",
        "oauth_client_id",
        "oauth_client_secret",
        "oauth_scope",
    )
)
"""The fields from which tokens come, without values, for feeds that must not get them."""


def refuse_two_tokens(given: Mapping[str, object], prefix: str = "") -> None:
    """Raise OptionError if a feed has both a token and a file with one."""
    if given.get("token") and given.get("token_file"):
        token, file = (option_name(each, prefix) for each in ("token", "token_file"))
        raise OptionError(
            f"options {token!r} and {file!r} exclude each other. Set one of them", option=file
        )


def option_name(field_name: str, prefix: str = "") -> str:
    """Return the public name: `max_bytes_per_trigger` → `maxBytesPerTrigger`.

    With the prefix `deadLetter`, `keep_first` becomes `deadLetterKeepFirst`. The options of OAuth2
    have a dot, as elsewhere: `oauth_token_url` becomes `oauth.tokenUrl`.
    """
    if field_name.startswith(_OAUTH):
        return f"oauth.{option_name(field_name.removeprefix(_OAUTH))}"
    first, *rest = [prefix, *field_name.split("_")] if prefix else field_name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def declared(kind: type[ClientOptions]) -> dict[str, Declared]:
    """Return the declared options of a class by their public names."""
    fields = [each for each in dataclasses.fields(kind) if each.metadata]
    own = {
        each.name: Declared(
            option_name(each.name), each.name, **each.metadata, secret=not each.repr
        )
        for each in fields
        if "parse" in each.metadata
    }
    found = [
        option
        for each in fields
        for option in ([own[each.name]] if each.name in own else _prefixed(each, own))
    ]
    return {option.name: option for option in found}


def _prefixed(group: dataclasses.Field[Any], own: Mapping[str, Declared]) -> list[Declared]:
    prefix, meanings = group.metadata["prefix"], group.metadata["meanings"]
    return [
        dataclasses.replace(
            own[name],
            name=option_name(name, prefix),
            default=None,
            meaning=meaning,
            group=group.name,
        )
        for name, meaning in meanings.items()
    ]


def refuse_unknown(given: Mapping[str, str], known: Collection[str]) -> None:
    """Raise UnknownOptionError if there is no such option.

    Args:
        given: texts by name; the case of a name does not matter.
        known: the public names of all options.
    """
    names = {name.lower() for name in known}
    for key in _with_url(given):
        if key not in names and not key.startswith((HEADER_PREFIX, SECRET_HEADER_PREFIX)):
            raise _unknown(key, known)


def parse(
    kind: type[Options], given: Mapping[str, str], also: Collection[str] = frozenset()
) -> Options:
    """Return the values of options as Spark hands them over.

    Args:
        kind: the class of options to make.
        given: texts by name; the case of a name does not matter.
        also: the public names of options that may be given, too, and are passed over.

    Raises:
        OptionError: an option is unknown, missing, not valid, or contradicts another one. The
            message names the option, its value unless that is secret, and what is allowed.
    """
    known = declared(kind)
    names = {name.lower(): name for name in known}
    passed_over = {name.lower() for name in also} - names.keys()
    values: dict[str, Any] = {}
    headers: dict[str, str] = {}
    secret: set[str] = set()
    for key, text in _with_url(given).items():
        if key.startswith((HEADER_PREFIX, SECRET_HEADER_PREFIX)):
            name, value = _http_header(key, text)
            headers[name] = value
            secret |= {name} if key.startswith(SECRET_HEADER_PREFIX) else set()
        elif key not in names and key not in passed_over:
            raise _unknown(key, known)
        elif key in names:
            about = known[names[key]]
            into = values.setdefault(about.group, {}) if about.group else values
            into[about.field] = _parsed(text, about)
    if "url" not in values:
        raise OptionError(
            "option 'url' is missing. Set it to the feed's address, or give the address to "
            ".load(url), .start(url) or .save(url). In SQL, INSERT INTO needs it for a table: "
            "INSERT INTO f WITH (url = 'https://…', …) SELECT …",
            option="url",
            anchor="a-table-in-sql-does-not-find-its-feed",
        )
    if "retry_timeout" in values:
        values["first_contact"] = None
    options = kind(**values, http_headers=headers, secret_headers=frozenset(secret))
    options.check()
    return options


def _with_url(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options with lower-cased names; Spark passes `.load(url)` as `path`."""
    options = {str(key).lower(): str(value) for key, value in given.items() if value is not None}
    if "paths" in options:
        raise OptionError(
            "load() takes the address of one feed. To read several feeds, unite their frames",
            option="url",
        )
    path = options.pop("path", None)
    if path is not None and options.setdefault("url", path) != path:
        raise OptionError(
            "option 'url' and the path that is given name different feeds. Give one of them",
            option="url",
        )
    return options


def _http_header(key: str, value: str) -> tuple[str, str]:
    secret = key.startswith(SECRET_HEADER_PREFIX)
    name = key.removeprefix(SECRET_HEADER_PREFIX if secret else HEADER_PREFIX)
    valid = re.fullmatch(r"[!#$%&'*+.^_`|~0-9a-z-]+", name)
    if not valid or not re.fullmatch(r"(?! )[ -~]*(?<! )", value):
        raise OptionError(
            f"option {key!r} is not a valid HTTP header. The name must be a token as in RFC 9110, "
            f"and the value printable ASCII without spaces around it",
            option=key,
        )
    if name in _CREDENTIAL_HEADERS and not secret:
        raise OptionError(
            f"option {key!r} is refused, because Spark would show its value in plans. Use 'token' "
            f"or '{SECRET_HEADER_PREFIX}{name}'",
            option=key,
        )
    return name, value


def _unknown(key: str, known: Collection[str]) -> UnknownOptionError:
    close = [_OF_KAFKA[key].lower()] if key in _OF_KAFKA else None
    close = close or difflib.get_close_matches(key, [name.lower() for name in known], n=1)
    suggestion = next((name for name in known if [name.lower()] == close), None)
    meant = f"; did you mean {suggestion!r}?" if suggestion else "."
    return UnknownOptionError(
        f"unknown option {key!r}{meant} Known: {', '.join(sorted(known))}, {HEADER_PREFIX}<Name>, "
        f"{SECRET_HEADER_PREFIX}<Name>",
        option=key,
        suggestion=suggestion,
    )


def _parsed(text: str, about: Declared) -> Any:
    try:
        return about.parse(text)
    except ValueError as exc:
        is_url = about.parse is parse_url or "://" in text
        got = "(hidden)" if about.secret else _shown_url(text) if is_url else repr(text)
        raise OptionError(f"option {about.name!r} {exc}; got {got}", option=about.name) from None


def _shown_url(text: str) -> str:
    """Return what may be shown of an address that is not valid."""
    return "(hidden)" if "@" in text else repr(text.partition("?")[0])
