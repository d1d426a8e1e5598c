"""The socket that listens, with bounds: connections accepted at a time, and connections open.

asyncio accepts as many connections in one turn of its loop as may wait in the kernel, and while it
does, nobody is served. If the process has no file descriptor left, it tries again as often and logs
each failure. So `accept` of this socket says after a few connections that none is there: the
selector tells the loop in its next turn that there are more.

One address has a part of the open connections at most, unless it is a gateway's. If there are as
many as are allowed, the one that has been idle longest is closed for a new one. If none is idle, a
few more are taken, to answer health checks and the administrator. All others get 503 and are
closed, because a client that is left in the kernel's queue waits without being told why.

Rejected: uvicorn's `limit_concurrency`, because it refuses requests, and a silent connection has
none; it also logs each refusal.

Runs in the publisher's event loop.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol

import msgspec

from zeh_spark.service.network import MOST_CONNECTIONS
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import problems

log = logging.getLogger("zeh_spark.publisher")

TURN = 32
"""Connections that are accepted in one turn of the event loop, at most."""

SPARE = 16
"""Connections for health checks and the administrator, or an eighth of all if that is less."""

LOG_SECONDS = 60.0
"""Least seconds between two warnings that connections are refused."""

Refused = Callable[[Problem, str], object]
"""Is told what a client was refused with, and its address, before there was a request."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_OWN_FILES = 256  # of the store, of uploads, and of the process
_NO_FILE = (errno.EMFILE, errno.ENFILE)


def allowed_connections() -> int:
    """Return how many connections the process can have open, after it has raised its limit.

    The soft limit of open files becomes the hard one, as far as it is needed. A part of them is
    left for everything but connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + _OWN_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS allows less than its hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(1, min(MOST_CONNECTIONS, soft - min(_OWN_FILES, soft // 2)))


@lru_cache(maxsize=4096)
def address_of(host: str) -> str:
    """Return what tells a client's address from others.

    An IPv6 host chooses among the addresses of its network, so that counts as one.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # of a socket that has no address
        return f"address {host}"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return f"network {ipaddress.ip_network((address, 64), strict=False)}"
    return f"address {host}"


class CanEnd(Protocol):
    """A connection."""

    @property
    def client(self) -> tuple[str, int] | None:
        """The peer."""

    def end(self) -> None:
        """Close it at once."""


class Idle:
    """Open connections that answer no request, those first that have been so for long.

    Attributes:
        spare: The peers whose connections are for health checks and the administrator only.
    """

    def __init__(self) -> None:
        self.spare: set[Any] = set()
        self._all: dict[CanEnd, str] = {}
        self._of: dict[str, dict[CanEnd, None]] = {}

    def add(self, connection: CanEnd, address: str) -> None:
        if connection not in self._all:
            self._all[connection] = address
            self._of.setdefault(address, {})[connection] = None

    def remove(self, connection: CanEnd) -> None:
        if (address := self._all.pop(connection, None)) is not None:
            del self._of[address][connection]
            if not self._of[address]:
                del self._of[address]

    def end_oldest(self, address: str | None = None) -> bool | None:
        """Close the one that has been idle longest, of an address or of all, spare ones last.

        Return whether it was spare, as the one in its place has to be; None without one.
        """
        among = self._all if address is None else self._of.get(address)
        if not among:
            return None
        usual = (each for each in among if each.client not in self.spare)
        oldest = next(usual, None) or next(iter(among))
        was_spare = oldest.client in self.spare
        self.remove(oldest)
        oldest.end()
        return was_spare


class Listener(socket.socket):
    """A socket that accepts a few connections at a time, and refuses those above a bound.

    Guarantee: at most `most` connections that it accepted are open, and those that are being
    closed, of which a turn of the loop adds TURN at most.
    """

    most = MOST_CONNECTIONS
    """Most open connections."""

    each: int | None = None
    """Most open connections of one address; three quarters of `most` if it is None."""

    gateways: Sequence[Network] = ()
    """Addresses that stand for many clients, so that they have no limit of their own."""

    turn = TURN
    """Connections that it accepts in one turn of the event loop."""

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
        self.idle = Idle()
        self._of: Counter[str] = Counter()

    def accept(self) -> tuple[socket.socket, Any]:
        """Return a connection (see `socket.accept`).

        Raises BlockingIOError if there is none, or the event loop has its turn.
        """
        while self._taken < self.turn:
            self._taken += 1
            try:
                found, address = self._accepted()
            except BlockingIOError:
                break
            if found is None:
                continue
            if self._has_room(found, address):
                return found, address
            self._refuse(found, address)
        self._taken = 0
        raise BlockingIOError(errno.EAGAIN, "no connection in this turn")

    def _has_room(self, found: _Connection, peer: Any) -> bool:
        """Return whether a connection is taken, perhaps in another one's place."""
        host, peer = peer[0] if peer else "", peer[:2]  # as uvicorn tells it, also of IPv6
        address, spare = address_of(host), min(SPARE, self.most // 8)
        usual = self.most - spare
        own = max(1, usual * 3 // 4) if self.each is None else self.each
        has_many = self._of[address] >= own and not self._is_gateway(host)
        is_spare = has_many or self.open - len(self.idle.spare) >= usual
        if is_spare or self.open >= self.most:
            ended = self.idle.end_oldest(address if has_many else None)
            if ended is None and self.open >= self.most:
                return False
            is_spare = is_spare and ended is not False
        if is_spare:
            self._tell(f"{self.open} connections are open, {self._of[address]} from {host}")
            self.idle.spare.add(peer)
        self.open += 1
        self._of[address] += 1
        found.taken_from(address, peer)
        return True

    def _is_gateway(self, host: str) -> bool:
        if not self.gateways:
            return False
        return any(ipaddress.ip_address(host) in each for each in self.gateways)

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
        self._tell(f"{self.open} connections are open")
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

    def closed(self, address: str, peer: Any) -> None:
        self.open -= 1
        self.idle.spare.discard(peer)
        self._of[address] -= 1
        if not self._of[address]:
            del self._of[address]

    def close(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        super().close()

    def allow(self, most: int, each: int | None, gateways: Sequence[Network]) -> None:
        """Set the bounds. Of a few connections, a turn takes fewer: they are idle a turn later."""
        self.most, self.each, self.gateways = most, each, gateways
        self.turn = max(1, min(TURN, most // TURN))


class _Connection(socket.socket):
    """A connection that tells its listener when it is closed."""

    def __init__(self, listener: Listener, number: int) -> None:
        super().__init__(listener.family, listener.type, listener.proto, fileno=number)
        self._listener = listener
        self._from: tuple[str, Any] | None = None

    def taken_from(self, address: str, peer: Any) -> None:
        """Note that the listener counts it."""
        self._from = address, peer

    def close(self) -> None:
        taken_from, self._from = self._from, None
        if taken_from is not None:
            self._listener.closed(*taken_from)
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
    with contextlib.suppress(OSError), refused:
        refused.setblocking(False)
        refused.send(_REFUSAL)
        refused.shutdown(socket.SHUT_WR)
        refused.recv(1 << 16)  # a request that is left unread would take the answer back


def refusal(problem: Problem, more: str = "") -> bytes:
    """Return the last answer on a connection, given before a request; `more` are header lines."""
    body = msgspec.json.encode(problem.document())
    head = (
        f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\n"
        f"content-type: {problems.CONTENT_TYPE}\r\ncontent-length: {len(body)}\r\n"
        f"cache-control: no-store\r\nconnection: close\r\n{more}\r\n"
    )
    return head.encode() + body


_PROBLEM = Problem(
    problems.TOO_MANY_CONNECTIONS, "the publisher has too many connections; try again later"
)
_REFUSAL = refusal(_PROBLEM, "retry-after: 1\r\n")
