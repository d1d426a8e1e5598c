"""From options as a user gives them to their values, or to an error that names the remedy.

Parsing touches neither network nor files.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.option_metadata import Declared, declared
from zeh_spark.errors import OptionError, UnknownOptionError
from zeh_spark.wire.option_values import (
    HEADER_PREFIX,
    SECRET_HEADER_PREFIX,
    parse_url,
)

Options = TypeVar("Options", bound=ClientOptions)

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
_CREDENTIAL_HEADERS = {"authorization", "cookie", "proxy-authorization"}


def refuse_unknown(given: Mapping[str, str], known: Collection[str]) -> None:
    """Raise UnknownOptionError if there is no such option."""
    names = {name.lower() for name in known}
    for key in _with_url(given):
        if key not in names and not key.startswith((HEADER_PREFIX, SECRET_HEADER_PREFIX)):
            raise _unknown(key, known)


def parse(
    kind: type[Options], given: Mapping[str, object], also: Collection[str] = frozenset()
) -> Options:
    """Return the values of options as Spark hands them over, or as a program gives them.

    The case of a name does not matter, and a value of None counts as not given. `also` has the
    public names of options that may be given, too, and are passed over. Raises OptionError, which
    names the option, its value unless that is secret, and what is allowed.
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


def _with_url(given: Mapping[str, object]) -> dict[str, str]:
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
    if suggestion:
        what_else = f"; did you mean {suggestion!r}?"
    else:
        names = ", ".join(sorted(known))
        what_else = f". Known: {names}, {HEADER_PREFIX}<Name>, {SECRET_HEADER_PREFIX}<Name>"
    return UnknownOptionError(
        f"unknown option {key!r}{what_else}",
        option=key,
        suggestion=suggestion,
    )


def _parsed(text: str, about: Declared) -> Any:
    try:
        return about.parse(text)
    except ValueError as exc:
        is_url = about.parse is parse_url or "://" in text
        hidden = about.secret or (is_url and "@" in text)
        got = "(hidden)" if hidden else repr(text.partition("?")[0] if is_url else text)
        raise OptionError(f"option {about.name!r} {exc}; got {got}", option=about.name) from None
