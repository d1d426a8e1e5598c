"""What the texts of options mean: each function returns the value of a text.

Rule for editors: a function raises ValueError with a phrase like "must be …", which follows the
option's name in the message. Commands and the publisher's configuration use these functions, too.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, urlsplit

HEADER_PREFIX = "http.header."
SECRET_HEADER_PREFIX = "http.secret.header."
MAX_PARTITIONS = 100_000
"""The largest `partitionCount`. More is a mistake: each batch would send a request for each."""

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?"
)
_AMBIGUOUS = re.compile(r"[\\\s\x00-\x1f\x7f-\x9f]")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 30 * 24 * 3600.0
_LONGEST_AGE = 1000 * 366 * 86_400.0  # databases keep 64 bits, and dates end with the year 9999
_MOST_BYTES = 10**6 << 40
"""The largest size that an option may have; databases keep 64 bits."""

_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_PARAMETERS = {
    "file": set(),
    "s3": {"region", "scheme", "endpoint_override", "force_virtual_addressing"},
    "gs": {"scheme", "endpoint_override", "retry_limit_seconds"},
    "abfs": {
        "blob_storage_authority",
        "client_id",
        "credential_kind",
        "dfs_storage_authority",
        "enable_tls",
        "tenant_id",
    },
}
"""The parameters that the URI of a location may have, by its scheme. None of them is a secret."""


@dataclass(frozen=True, slots=True)
class FeedUrl:
    """A feed's address. `str()` gives it without its query, which may hold a key.

    Args:
        full: the whole address with its query, for requests only.
    """

    full: str = field(repr=False)

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.full)

    def __str__(self) -> str:
        return self.parts._replace(query="", fragment="").geturl()

    @property
    def identity(self) -> str:
        """What an offset keeps to distinguish feeds: the URL, with its query as SHA-256."""
        query = self.parts.query
        return f"{self}?{hashlib.sha256(query.encode()).hexdigest()}" if query else str(self)


def split_address(url: str) -> SplitResult:
    """Return the parts of an http address, if every library finds the same host in it.

    `urlsplit` removes spaces and control characters, and takes a backslash for a part of the host;
    urllib3, which sends the requests, ends the host there. Raises ValueError if it is no whole http
    address, or libraries may disagree about it.
    """
    if _AMBIGUOUS.search(url):
        raise ValueError("must not hold spaces, backslashes or control characters")
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0:
        raise ValueError("must begin with http:// or https://, and have a host")
    return parts


Origin = tuple[str, str | None, int]
"""Scheme, host and port of an address."""


def origin(url: str) -> Origin:
    """Return scheme, host and port. Credentials are sent only to the origin they are for.

    Raises ValueError if it is no address (see `split_address`).
    """
    parts = split_address(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme]


def parse_url(text: str) -> FeedUrl:
    """Return the address of a feed. Raises ValueError if it is incomplete or holds a password."""
    try:
        parts = split_address(text)
    except ValueError:
        raise ValueError(
            "must be the feed's whole address without spaces and backslashes, like "
            "https://orders.example/feed/v1"
        ) from None
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

    The message of its ValueError is a sentence that says what to write.
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

    Raises ValueError if it is 0, or more than a million TiB, which no store could keep.
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


def parse_partitions(text: str) -> tuple[int, ...]:
    """Return the partitions of a text like `0-3` or `0,2,5-7`, in ascending order."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,5})(?:\s*-\s*([0-9]{1,5}))?\s*", part)
        some = range(int(match[1]), int(match[2] or match[1]) + 1) if match else ()
        if not some:
            raise ValueError("must be partitions and ranges of them, like 0-3 or 0,2,5-7")
        found += some
    if twice := sorted(each for each in {*found} if found.count(each) > 1):
        raise ValueError(f"must name each partition once, and names {twice[0]} twice")
    return tuple(sorted(found))


def parse_bool(text: str) -> bool:
    """Return whether the text is `true`; `false` is the only other one, in any case."""
    if text.lower() not in {"true", "false"}:
        raise ValueError("must be true or false")
    return text.lower() == "true"


def parse_choice(*allowed: str) -> Callable[[str], str]:
    """Return a parser that finds a text among those allowed, whatever its case."""

    def parse(text: str) -> str:
        for choice in allowed:
            if parse_value(text).lower() == choice.lower():
                return choice
        raise ValueError(f"must be one of {', '.join(allowed)}")

    return parse


def parse_value(text: str) -> str:
    """Return the text. Raises ValueError for what a variable without a value becomes as text.

    `str(None)` is no name, and is not the word `none`, with which some options give up a promise.
    """
    if text != "none" and text.strip().lower() in {"none", "null"}:
        raise ValueError(
            "must have a value: this is the text of a variable without one. Give it a value, "
            "or leave it out if it is not required; where the word none is allowed, it is in lower "
            "case"
        )
    return text


def parse_text(text: str) -> str:
    """Return the text, which must not be empty."""
    if not text:
        raise ValueError("must not be empty")
    return parse_value(text)


def parse_token(text: str) -> str:
    """Return the token, if HTTP allows it in a header.

    A library that refuses a header prints its value, and this is a secret. So it is checked here.
    """
    if not re.fullmatch(r"[!-~]+", parse_value(text)):
        raise ValueError("must be printable ASCII without spaces and newlines")
    return text


def parse_token_url(text: str) -> str:
    """Return the address of a token server, which must have TLS unless it is on this machine."""
    try:
        parts = split_address(text)
    except ValueError:
        parts = None
    if not parts or "@" in parts.netloc:
        raise ValueError("must be a whole address without a user, like https://login.example/token")
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ValueError("must begin with https:, because the client's secret is sent there")
    return parts._replace(fragment="").geturl()


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, whose loopback no network carries."""
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


def parse_location(text: str) -> str:
    """Return an absolute path, or a URI that pyarrow.fs knows.

    Spark shows options in plans, and errors show the location, so it never holds a secret.
    pyarrow does not know `s3a:` and `dbfs:/Volumes/`: they become `s3:` and `/Volumes/`.

    Raises ValueError if it is neither, or if it holds what may be a secret.
    """
    location = re.sub(r"^dbfs:/+Volumes/", "/Volumes/", text)
    if location.startswith("/"):
        return location.rstrip("/") or "/"
    location = re.sub(r"^s3a:", "s3:", location)
    scheme = location.partition(":")[0]
    scheme = "abfs" if scheme == "abfss" else scheme
    if scheme not in _PARAMETERS:
        raise ValueError(
            "must be an absolute path of a folder that all who use it share, or a URI with file, "
            "s3, s3a, gs, abfs or abfss"
        )
    parts = urlsplit(location)
    user, _, host = parts.netloc.rpartition("@")
    # A secret may have a slash: in s3://KEY:SEC/RET@bucket the host is KEY:SEC.
    named = ":" in user or (":" in host and not (scheme == "abfs" and user))
    told = any("@" in value for _, value in parse_qsl(parts.query))
    if named or told or (user and scheme != "abfs" and (scheme, user) != ("gs", "anonymous")):
        raise ValueError(
            "must not hold credentials, because it is shown, as in Spark's plans: give them to "
            "all who use it by the environment or the machine's role"
        )
    names = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)}
    if unknown := sorted(names - _PARAMETERS[scheme]):
        known = ", ".join(sorted(_PARAMETERS[scheme])) or "none"
        raise ValueError(
            f"must not have the parameter {unknown[0]!r}, because it is shown: those of {scheme} "
            f"are {known}, and credentials come from the environment"
        )
    return parts._replace(path=parts.path.rstrip("/"), fragment="").geturl()
