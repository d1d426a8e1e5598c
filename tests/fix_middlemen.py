"""Middlemen between clients and a publisher: they lose, hold, cut and repeat what passes."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.fix_publisher import Publisher
from tests.fix_raw_server import Answer, Listener, RawServer, Request

NOTHING = Answer((), "close")
"""The client's connection ends without an answer."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, for 0 seconds: closing drops what was not sent and resets."""


class Proxy(Listener):
    """Passes bytes on to a port of this machine, until told otherwise.

    `cut_after(n)`: each new connection breaks once n bytes came from the server. `stop()`: refuses
    connections, and breaks those that are open. `restart()`: as it was at first, at the same port.
    """

    def __init__(self, server_port: int = 0) -> None:
        self.server_port = server_port
        self._limit: int | None = None
        self._reset = False
        super().__init__()

    def cut_after(self, size: int, *, reset: bool = False) -> None:
        """Close, or reset, each new connection after `size` bytes from the server."""
        self._limit, self._reset = size, reset

    def restart(self) -> None:
        self.stop()
        self._limit = None
        self.start()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server_port))

    def serve(self, client: socket.socket, number: int) -> None:
        server = self.connect()
        with self._kept(server):
            back = threading.Thread(target=self._pass, args=(client, server, None), daemon=True)
            back.start()
            self._pass(server, client, self._limit)
            back.join()

    def carry(self, data: bytes, target: socket.socket) -> None:
        target.sendall(data)

    def _pass(self, source: socket.socket, target: socket.socket, limit: int | None) -> None:
        """Pass bytes on, and then end both connections: that wakes the other direction, too."""
        left = limit
        with contextlib.suppress(OSError):
            while left != 0 and (data := source.recv(min(65536, left or 65536))):
                self.carry(data, target)
                left = None if left is None else left - len(data)
        if left == 0 and self._reset:
            with contextlib.suppress(OSError):
                target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        for each in (target, source):
            with contextlib.suppress(OSError):
                # closing sends the reset; shutting down both ways would say a polite end before it
                resets = each.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == RESET
                each.shutdown(socket.SHUT_RD if resets else socket.SHUT_RDWR)


Fate = Callable[["Gateway", Request], Answer]


def passed(gateway: Gateway, request: Request) -> Answer:
    return Answer((gateway.forward(request.raw),))


def lost(gateway: Gateway, request: Request) -> Answer:
    return NOTHING


def answer_lost(gateway: Gateway, request: Request) -> Answer:
    gateway.forward(request.raw)
    return NOTHING


def twice(gateway: Gateway, request: Request) -> Answer:
    gateway.forward(request.raw)
    return passed(gateway, request)


def twice_at_once(gateway: Gateway, request: Request) -> Answer:
    other = threading.Thread(target=gateway.forward, args=(request.raw,))
    other.start()
    given = passed(gateway, request)
    other.join()
    return given


def held(gateway: Gateway, request: Request) -> Answer:
    """The client takes it for lost; `deliver` brings it after all."""
    gateway.held.append(request)
    return NOTHING


def copied(gateway: Gateway, request: Request) -> Answer:
    """It arrives, and a copy of it stays on the way."""
    gateway.held.append(request)
    return passed(gateway, request)


def request_cut(where: Callable[[Request], int]) -> Fate:
    def fate(gateway: Gateway, request: Request) -> Answer:
        gateway.forward(request.raw[: where(request)], cut=True)
        return NOTHING

    return fate


def answer_cut(where: Callable[[bytes], int]) -> Fate:
    def fate(gateway: Gateway, request: Request) -> Answer:
        answer = gateway.forward(request.raw)
        return Answer((answer[: where(answer)],), "close")

    return fate


class Gateway(RawServer):
    """Takes whole requests and lets `fate` decide about each; `held` are those on their way."""

    def __init__(self, server_port: int) -> None:
        super().__init__()
        self.server_port = server_port
        self.fate: Fate = passed
        self.held: list[Request] = []
        self.respond = lambda request: self.fate(self, request)

    def script(self, *fates: Fate) -> None:
        """One for each of the next requests, in order of arrival; then all pass."""
        left = list(fates)

        def fate(gateway: Gateway, request: Request) -> Answer:
            with self._lock:
                chosen = left.pop(0) if left else passed
            return chosen(gateway, request)

        self.fate = fate

    def forward(self, raw: bytes, *, cut: bool = False) -> bytes:
        """Over a connection of its own, which ends where a request is cut."""
        with socket.create_connection(("127.0.0.1", self.server_port), 60) as server:
            server.sendall(raw)
            if cut:
                server.shutdown(socket.SHUT_WR)
                with contextlib.suppress(OSError):
                    while server.recv(65536):
                        pass
                return b""
            answer = http.client.HTTPResponse(server, method=raw.split(b" ", 1)[0].decode())
            answer.begin()
            body = answer.read()
        head = [f"HTTP/1.1 {answer.status} forwarded"]
        for name, value in answer.getheaders():  # a slow answer came in chunks, this one does not
            chunked = name.lower() == "transfer-encoding"
            head.append(f"Content-Length: {len(body)}" if chunked else f"{name}: {value}")
        return "\r\n".join([*head, "", ""]).encode() + body

    def deliver(self, *which: int) -> list[bytes]:
        """Bring what is on its way, in this order, or all as they were sent; the answers."""
        order = which or range(len(self.held))
        return [self.forward(self.held[each].raw) for each in order]


@pytest.fixture
def start_proxy() -> Iterator[Callable[[int], Proxy]]:
    """`start_proxy(port)` puts a proxy before the server at that port of this machine."""
    with contextlib.ExitStack() as stack:
        yield lambda port: stack.enter_context(contextlib.closing(Proxy(port)))


@pytest.fixture
def gateway(publisher: Publisher) -> Iterator[Gateway]:
    """Before the test's publisher."""
    with contextlib.closing(Gateway(int(publisher.base.rpartition(":")[2]))) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def faulty(quiet_publisher: Publisher) -> Iterator[tuple[Publisher, Gateway]]:
    """A publisher for all tests of a module, and a gateway before it."""
    with contextlib.closing(Gateway(int(quiet_publisher.base.rpartition(":")[2]))) as gateway:
        yield quiet_publisher, gateway


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other at once."""
    monkeypatch.setattr("zeh_spark.client.http.retry.backoff", lambda attempt, jitter: 0.005)
