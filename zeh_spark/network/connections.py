"""The socket that listens, with bounds: connections accepted at a time, and connections open.

asyncio accepts as many connections in one turn of its loop as may wait in the kernel, and while it
does, nobody is served. If the process has no file descriptor left, it tries again as often and logs
each failure. So `accept` of this socket says after a few connections that none is there: the
selector tells the loop in its next turn that there are more. Above the bound of open connections it
takes a connection, answers 503 and closes it, because a client that is left in the kernel's queue
waits without being told why.

Rejected: uvicorn's `limit_concurrency`, because it refuses requests, and a silent connection has
none; it also logs each refusal.

Runs in the publisher's event loop.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import socket
import time
from collections.abc import Callable
from typing import Any

import msgspec

from zeh_spark.protocol import problems
from zeh_spark.store.problems import Problem

log = logging.getLogger("zeh_spark.publisher")

TURN = 32
"""Connections that are accepted in one turn of the event loop."""

MOST = 16_384
"""Most open connections, if the process may have as many files open."""

LOG_SECONDS = 60.0
"""Least seconds between two warnings that connections are refused."""

Refused = Callable[[Problem, str], object]
"""Is told what a client was refused with, and its address, before there was a request."""

_OWN_FILES = 256  # of the store, of uploads, and of the process
_NO_FILE = (errno.EMFILE, errno.ENFILE)


def allowed_connections() -> int:
    """Return how many connections the process can have open, after it has raised its limit.

    The soft limit of open files becomes the hard one, as far as it is needed. A part of them is
    left for everything but connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + _OWN_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS allows less than its hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST
    return max(1, min(MOST, soft - min(_OWN_FILES, soft // 2)))


class Listener(socket.socket):
    """A socket that accepts a few connections at a time, and refuses those above a bound.

    Guarantee: at most `most` connections that it accepted are open, and one that is being refused.
    """

    most = MOST
    """Most open connections."""

    open = 0
    """Connections that it accepted and that are open."""

    refused: Refused
    """Is told of each connection that it refuses."""

    _taken = 0
    _refused = 0
    _told = -LOG_SECONDS
    _spare: int | None = None

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.refused = nobody

    def accept(self) -> tuple[socket.socket, Any]:
        """Return a connection (see `socket.accept`).

        Raises:
            BlockingIOError: There is none, or the event loop has its turn.
        """
        while self._taken < TURN:
            self._taken += 1
            try:
                found, address = self._accepted()
            except BlockingIOError:
                break
            if found is None:
                continue
            if self.open < self.most:
                self.open += 1
                return found, address
            self._refuse(found, address)
        self._taken = 0
        raise BlockingIOError(errno.EAGAIN, "no connection in this turn")

    def _accepted(self) -> tuple[_Connection | None, Any]:
        """Return a connection; None for one that was closed because no file can be opened."""
        if self._spare is None:
            self._spare = _spare_file()
        try:
            number, address = self._accept()  # type: ignore[attr-defined]  # as `socket.accept`
        except OSError as exc:
            if exc.errno not in _NO_FILE:
                raise
            self._tell(f"the process can open no more files ({exc.strerror})")
            if self._spare is None:
                raise BlockingIOError(errno.EAGAIN, "no file can be opened") from exc
            # It is closed to have a file for the connection, which has to leave the queue: as long
            # as it is there, the selector wakes the loop.
            os.close(self._spare)
            self._spare = None
            with contextlib.suppress(OSError):
                found, address = super().accept()
                _answer(found)
                self.refused(_PROBLEM, shown_address(address))
            return None, None
        return _Connection(self, number), address

    def _refuse(self, found: _Connection, address: Any) -> None:
        self.open += 1  # it is closed at once, and counted then
        self._tell(f"{self.most} connections are open")
        _answer(found)
        self.refused(_PROBLEM, shown_address(address))

    def _tell(self, why: str) -> None:
        self._refused += 1
        if time.monotonic() - self._told >= LOG_SECONDS:
            log.warning(
                "connections are refused with 503, %d since the last warning: %s. Raise the limit "
                "of open files (ulimit -n), or put a proxy before the publisher",
                self._refused,
                why,
            )
            self._told, self._refused = time.monotonic(), 0

    def closed(self) -> None:
        """Note that a connection that it accepted is closed."""
        self.open -= 1

    def close(self) -> None:
        """Close the socket (see `socket.close`)."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        super().close()


class _Connection(socket.socket):
    """A connection that tells its listener when it is closed."""

    _listener: Listener | None

    def __init__(self, listener: Listener, number: int) -> None:
        super().__init__(listener.family, listener.type, listener.proto, fileno=number)
        self._listener = listener

    def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.closed()
        super().close()


def nobody(problem: Problem, address: str) -> None:
    """Tell nobody of a refusal."""


def shown_address(address: Any) -> str:
    """Return an address as `socket.accept` returns it, as text; empty if there is none."""
    return f"{address[0]}:{address[1]}" if address else ""


def _spare_file() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _answer(refused: socket.socket) -> None:
    """Tell a client that its connection is refused, and close it."""
    with contextlib.suppress(OSError), refused:
        refused.setblocking(False)
        refused.send(_REFUSAL)
        refused.shutdown(socket.SHUT_WR)
        refused.recv(1 << 16)  # a request that is left unread would take the answer back


_PROBLEM = Problem(
    problems.TOO_MANY_CONNECTIONS, "the publisher has too many connections; try again later"
)


def _refusal() -> bytes:
    problem = _PROBLEM
    body = msgspec.json.encode(problem.document())
    head = (
        f"HTTP/1.1 {problem.status} Service Unavailable\r\nContent-Type: {problems.CONTENT_TYPE}"
        f"\r\nContent-Length: {len(body)}\r\nCache-Control: no-store\r\nRetry-After: 1"
        f"\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


_REFUSAL = _refusal()
