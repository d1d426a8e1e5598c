"""Send requests on one connection, and look at every byte that comes back.

The libraries of the readers forget what comes after an answer, or connect again. Other clients take
it for the beginning of the next answer. So this reads with a buffer that outlives an answer.

Rule for editors: it sends what the readers' transport sends, to the feed's own origin only.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    RemoteDisconnected,
)
from typing import IO, Any, cast

import certifi
import requests

from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.wire import wire

_FEW_SECONDS = 5.0
_MOST_BYTES = 4 << 20


@dataclass(slots=True)
class Exchange:
    """What came on one connection.

    Args:
        answers: the bodies of the answers with status 200, as they came, and their packing.
        problem: what is wrong after them, in words.
        closed: whether the publisher closed the connection and had not said so.
    """

    answers: list[tuple[bytes, str]] = field(default_factory=list)
    problem: str = ""
    closed: bool = False


class _Kept:
    """A connection's incoming bytes, which the end of an answer does not close."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def makefile(self, *_: object) -> _Kept:
        return self

    def close(self) -> None:
        """Do nothing: the next answer is read from here."""

    flush = close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def is_direct(options: ClientOptions) -> bool:
    """Return whether requests go to the publisher without a proxy."""
    url = options.url
    return url.parts.scheme not in requests.utils.get_environ_proxies(url.full)


def exchange(
    options: ClientOptions, token: str | None, queries: Sequence[tuple[str, str]], into: Exchange
) -> None:
    """Send GET requests, one after the other; each is a query and its Accept-Encoding.

    It ends early if the publisher says that it closes the connection, or answers another status.
    """
    full = options.url.full
    headers = {"Accept": wire.CONTENT_TYPE, **options.http_headers}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection = _connection(options)
    try:
        connection.connect()
        connection.auto_open = 0
        kept: Any = _Kept(connection.sock.makefile("rb"))
        connection.response_class = cast("Any", lambda _, **named: HTTPResponse(kept, **named))
        for query, encoding in queries:
            url = requests.Request("GET", f"{full}{'&' if '?' in full else '?'}{query}").prepare()
            sent = {**headers, "Accept-Encoding": encoding}
            connection.request("GET", url.path_url, headers=sent)
            response = connection.getresponse()
            body = response.read(_MOST_BYTES)
            if response.status != 200 or not response.isclosed():
                break
            into.answers.append((body, response.headers.get("Content-Encoding", "identity")))
            if response.will_close:
                break
    except RemoteDisconnected:
        into.closed = bool(into.answers)
    except HTTPException as exc:
        into.problem = f"{type(exc).__name__}: {str(exc)[:80]!r}" if into.answers else ""
    except OSError as exc:
        into.closed = bool(into.answers) and isinstance(exc, ConnectionError)
    finally:
        connection.close()


def _connection(options: ClientOptions) -> HTTPConnection:
    parts, timeout = options.url.parts, min(_FEW_SECONDS, options.read_timeout)
    if parts.scheme == "http":
        return HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    context = ssl.create_default_context(cafile=options.ca_file or certifi.where())
    if options.client_cert_file:
        context.load_cert_chain(options.client_cert_file, options.client_key_file)
    return HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout, context=context)
