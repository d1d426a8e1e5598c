"""Options: one declaration each, with its default as a user would write it; and those that source
and sink share.

Rule for editors: a new option is a field of such a class; `python docs/generate.py` then writes the
tables of the docs. Whatever holds a secret has `token`, `secret` or `password` in its name, because
Spark hides such options in plans, and `repr=False` here.

Parsing touches neither network nor files. It runs wherever a DataSource is made: driver and
planner.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from zeh_spark.errors import OptionError, UnknownOptionError

HEADER_PREFIX = "http.header."
SECRET_HEADER_PREFIX = "http.secret.header."
MAX_PARTITIONS = 100_000
"""More is a mistake: every batch would ask for each of them."""

_CREDENTIAL_HEADERS = {"authorization", "cookie", "proxy-authorization"}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 30 * 24 * 3600.0
_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class FeedUrl:
    """Where the feed is. `str()` gives the URL without its query, which may hold a key."""

    full: str = field(repr=False)

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.full)

    def __str__(self) -> str:
        return self.parts._replace(query="", fragment="").geturl()

    @property
    def identity(self) -> str:
        """What the offset keeps to tell feeds apart: the URL, its query as SHA-256."""
        query = self.parts.query
        return f"{self}?{hashlib.sha256(query.encode()).hexdigest()}" if query else str(self)


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port: whoever answers there may get the same credentials."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def parse_url(text: str) -> FeedUrl:
    try:
        parts = urlsplit(text)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError("must be the feed's whole address, like https://orders.example/feed/v1")
    if "@" in parts.netloc:
        raise ValueError(
            f"must not hold a user name or password, because Spark shows it in plans; use "
            f"'token', or '{SECRET_HEADER_PREFIX}Authorization'"
        )
    return FeedUrl(parts._replace(fragment="").geturl())


def parse_duration(text: str) -> float:
    """Seconds from `0.5`, `500ms`, `30s`, `5m` or `1h`, 30 days at most."""
    if (seconds := parse_age(text)) > _LONGEST:
        raise ValueError("must be at most 30 days")
    return seconds


def parse_age(text: str) -> float:
    """Seconds, as of `parse_duration`, without a limit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", text.strip())
    if not match:
        raise ValueError(
            "must be a duration: seconds, or a number with ms, s, m, h or d, like 500ms"
        )
    return float(match[1]) * _UNITS[match[2] or "s"]


def parse_timeout(text: str) -> float:
    if not (seconds := parse_duration(text)):
        raise ValueError("must be longer than 0")
    return seconds


def parse_size(text: str) -> int:
    """Bytes from `1048576`, `64k`, `128m` or `1g`."""
    match = re.fullmatch(r"(\d+)\s*([bkmgt]?)(?:i?b)?", text.strip().lower())
    if not match or int(match[1]) == 0:
        raise ValueError("must be a number of bytes greater than 0, or with a unit, like 128m")
    return int(match[1]) * _SIZES[match[2]]


def parse_count(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text.strip()) or int(text) == 0:
        raise ValueError("must be a whole number greater than 0")
    return int(text)


def parse_partition_count(text: str) -> int:
    if (count := parse_count(text)) > MAX_PARTITIONS:
        raise ValueError(f"must be at most {MAX_PARTITIONS}")
    return count


def parse_bool(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("must be true or false")
    return text.lower() == "true"


def parse_choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        for choice in allowed:
            if text.lower() == choice.lower():
                return choice
        raise ValueError(f"must be one of {', '.join(allowed)}")

    return parse


def parse_text(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def parse_token(text: str) -> str:
    """What HTTP lets stand in a header; libraries print what they refuse, and this is a secret."""
    if not re.fullmatch(r"[!-~]+", text):
        raise ValueError("must be printable ASCII without spaces and newlines")
    return text


def option(
    parse: Callable[[str], Any],
    default: str | None,
    meaning: str,
    *,
    query: str = "both",
    repr: bool = True,
) -> Any:
    """Declare an option. `default` is text, None where it has none; `query` says which queries use
    it.
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

    Their values are parsed as those of the options without it. The field holds those that were
    given, by the names of the fields that they are for. It is not shown: some are secrets.

    Args:
        prefix: Of the public names: `deadLetter` makes `deadLetterUrl` of `url`.
        meanings: What each means there, by the name of its field.
    """
    about = {"prefix": prefix, "meanings": meanings}
    return field(default_factory=dict, metadata=about, repr=False)


@dataclass(frozen=True, slots=True)
class Declared:
    """An option as users know it: its public name, its default as a user would write it, None if it
    has none, and which queries use it. `field`: of its class; `group`: the field that holds it,
    with others of one prefix.
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
    """How to talk to the publisher."""

    url: FeedUrl = option(
        parse_url, None, "**required**: the feed's address; `.load(url)` does the same"
    )
    token: str | None = option(parse_token, None, "bearer token", repr=False)
    token_file: str | None = option(
        parse_text,
        None,
        "file that holds the bearer token; read again when the publisher answers 401",
        repr=False,
    )
    ca_file: str | None = option(
        parse_text, None, "PEM file of the authorities to trust instead of the system's"
    )
    client_cert_file: str | None = option(parse_text, None, "PEM file of the client's certificate")
    client_key_file: str | None = option(
        parse_text, None, "PEM file of its key, if that is not in the same file"
    )
    connect_timeout: float = option(parse_timeout, "10s", "longest wait for a connection")
    read_timeout: float = option(
        parse_timeout, "60s", "longest silence within an answer; more than `wait`"
    )
    retry_timeout: float = option(
        parse_duration,
        "2m",
        "how long to retry when the publisher does not answer, or with 408, 425, 429 or 5xx",
    )
    compression: str = option(
        parse_choice("none", "gzip"), "none", "`gzip` for slow networks, or `none`"
    )
    http_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret_headers: frozenset[str] = frozenset()

    def check(self) -> None:
        """Refuse options that contradict each other. Raises OptionError."""
        refuse_two_tokens({"token": self.token, "token_file": self.token_file})
        if self.client_key_file and not self.client_cert_file:
            raise OptionError(
                "option 'clientKeyFile' needs 'clientCertFile'", option="clientKeyFile"
            )
        if (self.token or self.token_file) and "authorization" in self.http_headers:
            raise OptionError(
                f"'{SECRET_HEADER_PREFIX}Authorization' and a token exclude each other",
                option="token",
            )


Options = TypeVar("Options", bound=ClientOptions)


def refuse_two_tokens(given: Mapping[str, object], prefix: str = "") -> None:
    """Raises OptionError if a feed has both a token and a file with one."""
    if given.get("token") and given.get("token_file"):
        token, file = (option_name(each, prefix) for each in ("token", "token_file"))
        raise OptionError(f"options {token!r} and {file!r} exclude each other", option=file)


def option_name(field_name: str, prefix: str = "") -> str:
    """`max_bytes_per_trigger` → `maxBytesPerTrigger`; with a prefix, `deadLetterKeepFirst`."""
    first, *rest = [prefix, *field_name.split("_")] if prefix else field_name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def declared(kind: type[ClientOptions]) -> dict[str, Declared]:
    """The declared options of a kind by their public names."""
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


def parse(kind: type[Options], given: Mapping[str, str]) -> Options:
    """Options as Spark hands them over, names in any case.

    Raises OptionError naming option, value and what is allowed.
    """
    known = declared(kind)
    names = {name.lower(): name for name in known}
    values: dict[str, Any] = {}
    headers: dict[str, str] = {}
    secret: set[str] = set()
    for key, text in _with_url(given).items():
        if key.startswith((HEADER_PREFIX, SECRET_HEADER_PREFIX)):
            name, value = _http_header(key, text)
            headers[name] = value
            secret |= {name} if key.startswith(SECRET_HEADER_PREFIX) else set()
        elif key not in names:
            raise _unknown(key, known)
        else:
            about = known[names[key]]
            into = values.setdefault(about.group, {}) if about.group else values
            into[about.field] = _parsed(text, about)
    if "url" not in values:
        raise OptionError(
            "option 'url' is missing: the address of the feed, also as .load(url), .start(url) or "
            ".save(url)",
            option="url",
        )
    options = kind(**values, http_headers=headers, secret_headers=frozenset(secret))
    options.check()
    return options


def _with_url(given: Mapping[str, str]) -> dict[str, str]:
    """Lower-cased names; `.load(url)` arrives as `path`."""
    options = {str(key).lower(): str(value) for key, value in given.items() if value is not None}
    if "paths" in options:
        raise OptionError(
            "load() takes the address of one feed; unite several frames", option="url"
        )
    path = options.pop("path", None)
    if path is not None and options.setdefault("url", path) != path:
        raise OptionError(
            "option 'url' and the path that is given name different feeds; give one of them",
            option="url",
        )
    return options


def _http_header(key: str, value: str) -> tuple[str, str]:
    secret = key.startswith(SECRET_HEADER_PREFIX)
    name = key.removeprefix(SECRET_HEADER_PREFIX if secret else HEADER_PREFIX)
    valid = re.fullmatch(r"[!#$%&'*+.^_`|~0-9a-z-]+", name)
    if not valid or not re.fullmatch(r"(?! )[ -~]*(?<! )", value):
        raise OptionError(
            f"option {key!r} is not a valid HTTP header: the name must be a token, the value "
            f"printable ASCII without spaces around it",
            option=key,
        )
    if name in _CREDENTIAL_HEADERS and not secret:
        raise OptionError(
            f"option {key!r}: Spark would show its value in plans; use 'token', or "
            f"'{SECRET_HEADER_PREFIX}{name}'",
            option=key,
        )
    return name, value


def _unknown(key: str, known: Mapping[str, object]) -> UnknownOptionError:
    close = difflib.get_close_matches(key, [name.lower() for name in known], n=1)
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
        shown = _shown_url(text) if about.parse is parse_url else repr(text)
        got = "(hidden)" if about.secret else shown
        raise OptionError(f"option {about.name!r} {exc}; got {got}", option=about.name) from None


def _shown_url(text: str) -> str:
    """What of an address is no secret."""
    return "(hidden)" if "@" in text else repr(text.partition("?")[0])
