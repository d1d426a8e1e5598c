"""Send requests on one connection, and look at every byte that comes back.

The libraries of the readers forget what comes after an answer, or connect again. Other clients take
it for the beginning of the next answer. So this reads with a buffer that outlives an answer.

Rule for editors: it sends what the readers' transport sends, to the feed's own origin only.
"""

from __future__ import annotations

import io
import ssl
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, cast

import certifi
from requests import Request
from requests.utils import get_environ_proxies

from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.tools.check.asking import Answer
from zeh_spark.wire import wire

_FEW_SECONDS = 5.0
_MOST_BYTES = 4 << 20


class _Kept(io.BufferedReader):
    """A connection's incoming bytes, which the end of an answer does not close."""

    def makefile(self, *_: object) -> _Kept:
        return self

    def close(self) -> None:
        """Do nothing: the next answer is read from here."""

    flush = close


def exchange(
    options: ClientOptions, token: str | None, requests: Iterable[tuple[str, Mapping[str, str]]]
) -> Iterator[Answer]:
    """Send GET requests, one after the other; each is a query and some header fields.

    Yields the whole answers with status 200, and an answer with the error that came instead of one.
    It ends early if the publisher says that it closes the connection, or answers another status, or
    more than 4 MiB, packed or not.
    With a proxy it does nothing, because the connection is not one to the publisher.
    """
    if options.url.parts.scheme in get_environ_proxies(options.url.full):
        return
    headers = {"Accept": wire.CONTENT_TYPE, "Accept-Encoding": "identity", **options.http_headers}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    query = ""
    try:
        with (
            closing(_connection(options)) as connection,
            connection.sock.makefile("rb", buffering=0) as raw,
        ):
            kept: Any = _Kept(cast("Any", raw))
            connection.response_class = cast("Any", lambda _, **named: HTTPResponse(kept, **named))
            for query, own in requests:
                url = Request("GET", options.url.full, params=query).prepare().path_url
                connection.request("GET", url, headers={**headers, **own})
                response = connection.getresponse()
                body, rest = response.read(_MOST_BYTES), b""
                if response.status != 200 or not response.isclosed():
                    break
                if response.headers.get("Content-Encoding") == "gzip":
                    unpack = zlib.decompressobj(31)
                    body, rest = unpack.decompress(body, _MOST_BYTES), unpack.unused_data
                    if unpack.unconsumed_tail:
                        break
                problem = f"{len(rest):,} bytes come after the first gzip member" if rest else ""
                yield Answer(query, 200, cast("Any", response.headers), body, problem)
                if response.will_close:
                    break
    except (HTTPException, OSError, zlib.error) as exc:
        yield Answer(query, problem=f"{type(exc).__name__}: {str(exc)[:80]!r}", error=exc)


def _connection(options: ClientOptions) -> HTTPConnection:
    """Connect, for once: it does not connect again if the publisher closes the connection."""
    parts, timeout = options.url.parts, min(_FEW_SECONDS, options.read_timeout)
    host = parts.hostname or ""
    connection = HTTPConnection(host, parts.port, timeout=timeout)
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=options.ca_file or certifi.where())
        if options.client_cert_file:
            context.load_cert_chain(options.client_cert_file, options.client_key_file)
        connection = HTTPSConnection(host, parts.port, timeout=timeout, context=context)
    connection.connect()
    connection.auto_open = 0
    return connection
