"""HTTP connections that refuse an answer whose headers were cut.

Python's `http.client` takes the end of the connection for the end of the headers. An answer that is
cut there looks like a whole answer with an empty body: a page without events, or a refusal without
an explanation. These connections read the headers up to their empty line (RFC 9112, 2.1), and fail
as they do when the publisher does not answer.

Rule for editors: only reading of the header lines is watched. What the lines mean stays the
libraries' business. Runs wherever a client runs.
"""

from __future__ import annotations

import http.client
from typing import Any, cast

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager, ProxyManager
from urllib3.connection import HTTPConnection, HTTPSConnection


class _Lines:
    """A file that remembers the last line that was read."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.last = b""

    def readline(self, *limit: int) -> bytes:
        self.last = cast("bytes", self.file.readline(*limit))
        return self.last

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class _Response(http.client.HTTPResponse):
    """An answer; RemoteDisconnected if its headers do not end with an empty line."""

    def begin(self) -> None:
        lines = _Lines(self.fp)
        self.fp = cast("Any", lines)
        try:
            super().begin()
        finally:
            if cast("Any", self.fp) is lines:  # else it was closed: there is no body
                self.fp = lines.file
        if lines.last not in (b"\r\n", b"\n"):
            raise http.client.RemoteDisconnected("the headers of the answer were cut")


class _HttpConnection(HTTPConnection):
    response_class = _Response


class _HttpsConnection(HTTPSConnection):
    response_class = _Response


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


class WholeHeadersAdapter(HTTPAdapter):
    """Sends the requests of a session through such connections, also through an HTTP proxy."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        _use_own_pools(self.poolmanager)

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*arguments, **options)
        if isinstance(manager, ProxyManager):  # not one of SOCKS, which has pools of its own
            _use_own_pools(manager)
        return manager


def _use_own_pools(manager: PoolManager) -> None:
    manager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
