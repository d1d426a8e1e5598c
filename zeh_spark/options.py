"""The options of the source: one declaration each, with its default as a user would write it.

Rule for editors: a new option is a field below and a row in the README's table (a test compares
them). Whatever holds a secret has `token`, `secret` or `password` in its name, because Spark hides
such options in plans, and `repr=False` here.

Parsing touches neither network nor files. It runs wherever a DataSource is made: driver and
planner.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from urllib.parse import SplitResult, urlsplit

from zeh_spark import wire
from zeh_spark.errors import OptionError

Cursors = Literal["first", "last"] | dict[int, str]

HEADER_PREFIX = "http.header."
SECRET_HEADER_PREFIX = "http.secret.header."
_CREDENTIAL_HEADERS = {"authorization", "cookie", "proxy-authorization"}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


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
    """Seconds from `0.5`, `500ms`, `30s`, `5m` or `1h`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", text.strip())
    if not match:
        raise ValueError("must be a duration: seconds, or a number with ms, s, m or h, like 500ms")
    return float(match[1]) * _UNITS[match[2] or "s"]


def parse_timeout(text: str) -> float:
    if not (seconds := parse_duration(text)):
        raise ValueError("must be longer than 0")
    return seconds


def parse_size(text: str) -> int:
    """Bytes from `1048576`, `64k`, `128m` or `1g`."""
    match = re.fullmatch(r"(\d+)\s*([bkmg]?)(?:i?b)?", text.strip().lower())
    if not match or int(match[1]) == 0:
        raise ValueError("must be a number of bytes greater than 0, or with a unit, like 128m")
    return int(match[1]) * _SIZES[match[2]]


def parse_count(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text.strip()) or int(text) == 0:
        raise ValueError("must be a whole number greater than 0")
    return int(text)


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


def parse_cursors(text: str) -> Cursors:
    """`first`, `last`, or JSON with a cursor for every partition: {"0": "…", "1": "_first"}."""
    if text.lower() in {"first", "last"}:
        return "first" if text.lower() == "first" else "last"
    complaint = (
        "must be first, last, or JSON with a cursor for every partition, "
        'like {"0": "1024", "1": "_first"}'
    )
    try:
        given = json.loads(text)
        cursors = {int(partition): cursor for partition, cursor in given.items()}
    except (ValueError, AttributeError):
        raise ValueError(complaint) from None
    if len(cursors) != len(given) or sorted(cursors) != list(range(len(cursors))) or not cursors:
        raise ValueError(
            f"{complaint}; partitions given: {sorted(cursors)}, needed: every one from 0 without "
            f"a gap"
        )
    if not all(isinstance(cursor, str) and cursor for cursor in cursors.values()):
        raise ValueError(f"{complaint}; each cursor must be a string that is not empty")
    return dict(sorted(cursors.items()))


def parse_headers(text: str) -> tuple[str, ...]:
    """Names of headers to ask for; empty for `none`."""
    if text.lower() == "none":
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if (
        not all(names)
        or len(set(names)) != len(names)
        or (wire.ALL_HEADERS in names and names != (wire.ALL_HEADERS,))
    ):
        raise ValueError("must be _all, none, or different names with commas between them")
    return names


def parse_staging(text: str) -> str:
    """An absolute path, or a URI that pyarrow.fs knows; `s3a:` and `dbfs:/Volumes` are read as what
    they mean.
    """
    location = re.sub(r"^s3a:", "s3:", re.sub(r"^dbfs:/+Volumes/", "/Volumes/", text)).rstrip("/")
    scheme = re.match(r"^([a-z][a-z0-9+]*):", location)
    if not location.startswith("/") and (
        not scheme or scheme[1] not in {"file", "s3", "gs", "abfs", "abfss"}
    ):
        raise ValueError(
            "must be an absolute path that driver and executors share, or a URI with "
            "file, s3, s3a, gs, abfs or abfss"
        )
    return location


def _option(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """How to talk to the publisher."""

    url: FeedUrl = _option(
        parse_url, None, "**required**: the feed's address; `.load(url)` does the same"
    )
    token: str | None = _option(parse_token, None, "bearer token", repr=False)
    token_file: str | None = _option(
        parse_text,
        None,
        "file that holds the bearer token; read again when the publisher answers 401",
        repr=False,
    )
    ca_file: str | None = _option(
        parse_text, None, "PEM file of the authorities to trust instead of the system's"
    )
    client_cert_file: str | None = _option(parse_text, None, "PEM file of the client's certificate")
    client_key_file: str | None = _option(
        parse_text, None, "PEM file of its key, if that is not in the same file"
    )
    connect_timeout: float = _option(parse_timeout, "10s", "longest wait for a connection")
    read_timeout: float = _option(
        parse_timeout, "60s", "longest silence within an answer; more than `wait`"
    )
    retry_timeout: float = _option(
        parse_duration,
        "2m",
        "how long to retry when the publisher does not answer, or with 408, 425, 429 or 5xx",
    )
    compression: str = _option(
        parse_choice("none", "gzip"), "none", "`gzip` for slow networks, or `none`"
    )
    max_concurrent_requests: int = _option(
        parse_count,
        "32",
        "most requests at a time; with more partitions than that there is no long polling",
        query="streaming",
    )
    http_headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ClientOptions):
    """All options of `spark.readStream` and `spark.read` with format `zeroeventhub`."""

    partition_count: int | None = _option(
        parse_count,
        None,
        "number of partitions, the spec's `n`; learned where the publisher tells it",
    )
    starting_cursors: Cursors = _option(
        parse_cursors,
        "first",
        "where a new query starts: `first`, `last`, or JSON with a cursor for every partition",
    )
    ending_cursors: Cursors = _option(
        parse_cursors,
        "last",
        "where a batch query ends: `last`, or JSON with a cursor for every partition",
        query="batch",
    )
    headers: tuple[str, ...] = _option(
        parse_headers,
        "_all",
        "event headers to ask for: `_all`, `none`, or names with commas between them",
    )
    page_size_hint: int = _option(parse_count, "10000", "events a request asks for")
    max_events_per_trigger: int | None = _option(
        parse_count,
        None,
        "most events in a micro-batch, as far as checkpoints allow",
        query="streaming",
    )
    max_bytes_per_trigger: int = _option(
        parse_size,
        "128m",
        "most bytes in a micro-batch, as far as checkpoints allow; memory follows it",
        query="streaming",
    )
    min_partitions: int | None = _option(
        parse_count,
        None,
        "least number of Spark partitions for a large micro-batch; the driver's cores if not set",
        query="streaming",
    )
    wait: float = _option(
        parse_duration,
        "10s",
        "long polling: how long the publisher may hold an answer until there is an event; 0: off",
        query="streaming",
    )
    poll_interval: float = _option(
        parse_duration,
        "1s",
        "pause before a partition without news is asked again",
        query="streaming",
    )
    staging_location: str | None = _option(
        parse_staging,
        None,
        "directory that driver and executors share: batches wait there until Spark has them",
        query="streaming",
    )
    replay: str = _option(
        parse_choice("strict", "accept"),
        "strict",
        "`accept` lets a batch that the feed no longer gives as it was pass once, changed",
        query="streaming",
    )
    feed_id: str | None = _option(
        parse_text,
        None,
        "name of the feed in the checkpoint, instead of its URL",
        query="streaming",
    )
    fail_on_data_loss: bool = _option(
        parse_bool,
        "true",
        "`false` goes on with the oldest events left when the publisher removed unread ones",
        query="streaming",
    )
    mode: str = _option(
        parse_choice("FAILFAST", "PERMISSIVE"),
        "FAILFAST",
        "`PERMISSIVE` puts lines that are not events into the corrupt-record column",
    )
    column_name_of_corrupt_record: str = _option(
        parse_text, "_corrupt_record", "that column's name; it has to be in the schema"
    )

    @property
    def feed(self) -> str:
        """The feed's identity in the checkpoint."""
        return self.feed_id or self.url.identity

    def check_partitions(self, partition_count: int) -> None:
        """Explicit cursors name every partition. Raises OptionError."""
        for name, cursors in (
            ("startingCursors", self.starting_cursors),
            ("endingCursors", self.ending_cursors),
        ):
            if isinstance(cursors, dict) and len(cursors) != partition_count:
                raise OptionError(
                    f"option {name!r} has cursors for {len(cursors)} partitions, but the feed "
                    f"{self.url} has {partition_count}: give one for each of 0 to "
                    f"{partition_count - 1} ('_first' for a partition's beginning)",
                    option=name,
                )


Options = TypeVar("Options", bound=ClientOptions)


def option_name(field_name: str) -> str:
    """`max_bytes_per_trigger` → `maxBytesPerTrigger`."""
    first, *rest = field_name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def declared(kind: type[ClientOptions]) -> dict[str, dataclasses.Field[Any]]:
    """The declared options of a kind by their public names."""
    return {option_name(each.name): each for each in dataclasses.fields(kind) if each.metadata}


def parse(kind: type[Options], given: Mapping[str, str]) -> Options:
    """Options as Spark hands them over, names in any case.

    Raises OptionError naming option, value and what is allowed.
    """
    known = declared(kind)
    names = {name.lower(): name for name in known}
    values: dict[str, Any] = {}
    headers: dict[str, str] = {}
    for key, text in _with_url(given).items():
        if key.startswith((HEADER_PREFIX, SECRET_HEADER_PREFIX)):
            name, value = _http_header(key, text)
            headers[name] = value
        elif key not in names:
            raise _unknown(key, known)
        else:
            about = known[names[key]]
            values[about.name] = _parsed(names[key], text, about)
    if "url" not in values:
        raise OptionError(
            "option 'url' is missing: the address of the feed, also as .load(url)", option="url"
        )
    options = kind(**values, http_headers=headers)
    _check(options)
    return options


def _with_url(given: Mapping[str, str]) -> dict[str, str]:
    """Lower-cased names; `.load(url)` arrives as `path`."""
    options = {str(key).lower(): str(value) for key, value in given.items() if value is not None}
    path = options.pop("path", None)
    if path is not None and options.setdefault("url", path) != path:
        raise OptionError(
            "option 'url' and the argument of load() name different feeds; give one of them",
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


def _unknown(key: str, known: Mapping[str, object]) -> OptionError:
    close = difflib.get_close_matches(key, [name.lower() for name in known], n=1)
    meant = next((f"; did you mean {name!r}?" for name in known if [name.lower()] == close), ".")
    return OptionError(
        f"unknown option {key!r}{meant} Known: {', '.join(sorted(known))}, {HEADER_PREFIX}<Name>, "
        f"{SECRET_HEADER_PREFIX}<Name>",
        option=key,
    )


def _parsed(name: str, text: str, about: dataclasses.Field[Any]) -> Any:
    try:
        return about.metadata["parse"](text)
    except ValueError as exc:
        shown = repr(text) if about.repr and name != "url" else "(hidden)"
        raise OptionError(f"option {name!r} {exc}; got {shown}", option=name) from None


def _check(options: ClientOptions) -> None:
    """Refuse options that contradict each other."""
    if options.token and options.token_file:
        raise OptionError("options 'token' and 'tokenFile' exclude each other", option="tokenFile")
    if options.client_key_file and not options.client_cert_file:
        raise OptionError("option 'clientKeyFile' needs 'clientCertFile'", option="clientKeyFile")
    if (options.token or options.token_file) and "authorization" in options.http_headers:
        raise OptionError(
            f"'{SECRET_HEADER_PREFIX}Authorization' and a token exclude each other", option="token"
        )
    if isinstance(options, SourceOptions):
        _check_source(options)


def _check_source(options: SourceOptions) -> None:
    if options.wait and options.read_timeout <= options.wait:
        raise OptionError(
            f"option 'readTimeout' ({options.read_timeout:g} s) must be more than 'wait' "
            f"({options.wait:g} s): a publisher may stay silent that long",
            option="readTimeout",
        )
    if options.ending_cursors == "first":
        raise OptionError(
            "option 'endingCursors' must be last or JSON with cursors; got 'first'",
            option="endingCursors",
        )
    ends = options.ending_cursors
    if isinstance(ends, dict) and {wire.FIRST, wire.LAST} & set(ends.values()):
        raise OptionError(
            "option 'endingCursors' needs real cursors, not '_first' or '_last'",
            option="endingCursors",
        )
    if options.partition_count is not None:
        options.check_partitions(options.partition_count)
