"""The connections of a process, which its transports share, one after the other.

A transport lives for one task, and connections outlive it: a Python worker of Spark that runs many
small tasks connects once. What belongs to a transport stays with it: token, headers, cookies,
timeouts, retries, and whether it was stopped. Shared is only what a connection consists of: the
address, the proxy, the authorities it was checked against, and the client's certificate.

Rule for editors: a connection is used by one request at a time, and by the process that opened it.
What else makes a connection belongs to the key. Of an answer, only the reading of status and header
lines is watched; what they mean stays the libraries' business. Runs wherever a client runs.
"""

from __future__ import annotations

import http.client
import os
import queue
import time
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager, ProxyManager
from urllib3.connection import HTTPConnection, HTTPSConnection

from zeh_spark.client.http.credentials import check_tls_files
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.wire.option_values import Origin, origin

IDLE_SECONDS = 50.0
"""Seconds after which an idle connection is not used again.

Load balancers forget idle connections after 60 s or more, and some do so without a word: a request
would wait for `readTimeout`.
"""

_MOST_IDLE = 1000
"""Most idle connections to an address: as many as requests may be under way at a time."""

_POOLS = 10
"""Most addresses that one address leads to, by redirects, with connections that are kept."""

_ADDRESSES = 32
"""Of how many addresses connections are kept: of those that were asked last."""

_TlsFile = tuple[str, int, int, int] | None
"""A file's path, and what differs if it was replaced; None for no file."""


def find_adapter(options: ClientOptions) -> PoolingAdapter:
    """Return what sends a transport's requests, over connections that others may have opened.

    Raises OptionError if a file of TLS cannot be used.
    """
    files = options.ca_file, options.client_cert_file, options.client_key_file
    return _make_adapter(origin(options.url.full), *map(_look_at, files))


@lru_cache(_ADDRESSES)
def _make_adapter(home: Origin, *files: _TlsFile) -> PoolingAdapter:
    """Make the adapter of transports to one address.

    They present their certificate there and nowhere else, also where redirects lead. Rejected: one
    adapter for all addresses, because requests before 2.32 mixes up the certificates of two feeds.
    """
    check_tls_files(*(file and file[0] for file in files))
    return PoolingAdapter()


def _look_at(path: str | None) -> _TlsFile:
    """Return which file a path names now: a certificate that was renewed is another one."""
    if not path:
        return None
    try:
        found = os.stat(path)
    except OSError:  # `check_tls_files` says it
        return path, 0, 0, 0
    return path, found.st_ino, found.st_size, found.st_mtime_ns


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


_MOST_INTERIM = 100
"""Answers before the final one."""


class _Response(http.client.HTTPResponse):
    """An answer; RemoteDisconnected if its headers do not end with an empty line (RFC 9112, 2.1).

    Python's `http.client` takes the end of the connection for the end of the headers. An answer
    that is cut there looks like a whole answer with an empty body: a page without events, or a
    refusal without an explanation.

    Of the answers that may precede the final one (RFC 9110, 15.2), `http.client` skips only those
    of status 100. After another one, the final answer would be read as that to the connection's
    next request. So all are skipped here, up to a limit.
    """

    _interim = 0

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

    def _read_status(self) -> tuple[str, int, str]:
        version, status, reason = super()._read_status()  # type: ignore[misc]  # is not in its stub
        if status == HTTPStatus.SWITCHING_PROTOCOLS:
            raise http.client.RemoteDisconnected("the protocol was switched, unasked")
        self._interim += status < HTTPStatus.OK
        if self._interim > _MOST_INTERIM:
            raise http.client.RemoteDisconnected("the final answer did not come")
        return version, HTTPStatus.CONTINUE if status < HTTPStatus.OK else status, reason


class _HttpConnection(HTTPConnection):
    response_class = _Response


class _HttpsConnection(HTTPSConnection):
    response_class = _Response


class _AgingPool:
    """A pool that uses no connection again after it was idle for `IDLE_SECONDS`."""

    def _put_conn(self, conn: Any) -> None:
        if conn is not None:
            conn.idle_since = time.monotonic()
        super()._put_conn(conn)  # type: ignore[misc]  # of a pool of urllib3

    def _get_conn(self, timeout: float | None = None) -> Any:
        conn = super()._get_conn(timeout)  # type: ignore[misc]  # as above
        idle = time.monotonic() - getattr(conn, "idle_since", time.monotonic())
        if idle > IDLE_SECONDS or _has_rest(conn):
            conn.close()  # it connects again
        return conn


def _has_rest(conn: Any) -> bool:
    """Return whether bytes that came after the last answer are decrypted, but not read.

    The socket does not tell of them. They would be read as the answer to the next request.
    """
    pending = getattr(conn.sock, "pending", None)
    return pending is not None and pending() > 0


class _HttpPool(_AgingPool, HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(_AgingPool, HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


class PoolingAdapter(HTTPAdapter):
    """Sends the requests of sessions through such pools, also through an HTTP proxy.

    Guarantee: a process that was forked opens connections of its own.
    """

    def __init__(self) -> None:
        super().__init__(_POOLS, _MOST_IDLE)

    def send(self, *arguments: Any, **options: Any) -> requests.Response:
        if self._process != os.getpid():
            self.proxy_manager = {}
            self.init_poolmanager(_POOLS, _MOST_IDLE)
        return super().send(*arguments, **options)

    def init_poolmanager(
        self, connections: int, maxsize: int, block: bool = False, **pool: Any
    ) -> None:
        manager = PoolManager(connections, maxsize=maxsize, block=block, **pool)
        _use_own_pools(manager)
        self.poolmanager = manager  # last, because threads of a forked process may all do this
        self._process = os.getpid()

    def close_idle(self) -> None:
        """Close the connections that no request uses now."""
        for manager in (self.poolmanager, *self.proxy_manager.values()):
            for key in manager.pools.keys():
                with suppress(queue.Empty):
                    while idle := getattr(manager.pools.get(key), "pool", None):
                        if connection := idle.get_nowait():
                            connection.close()

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*arguments, **options)
        if isinstance(manager, ProxyManager):  # not one of SOCKS, which has pools of its own
            _use_own_pools(manager)
        return manager


def _use_own_pools(manager: PoolManager) -> None:
    manager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
