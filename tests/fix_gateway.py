"""A gateway between a client and its publisher: it loses, holds, cuts and repeats what passes."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.fix_publisher import Publisher


@dataclass(frozen=True)
class Passing:
    """A request on its way, as it was sent."""

    number: int
    method: str
    target: str
    raw: bytes

    @property
    def head(self) -> int:
        """Bytes before its body."""
        return self.raw.index(b"\r\n\r\n") + 4


@dataclass(frozen=True)
class Given:
    """What the client gets: these bytes; then its connection is kept or closed."""

    raw: bytes = b""
    keep: bool = False


Fate = Callable[["Gateway", Passing], Given]


def passed(gateway: Gateway, request: Passing) -> Given:
    return Given(gateway.forward(request.raw), keep=True)


def lost(gateway: Gateway, request: Passing) -> Given:
    return Given()


def answer_lost(gateway: Gateway, request: Passing) -> Given:
    gateway.forward(request.raw)
    return Given()


def twice(gateway: Gateway, request: Passing) -> Given:
    gateway.forward(request.raw)
    return passed(gateway, request)


def twice_at_once(gateway: Gateway, request: Passing) -> Given:
    other = threading.Thread(target=gateway.forward, args=(request.raw,))
    other.start()
    given = passed(gateway, request)
    other.join()
    return given


def held(gateway: Gateway, request: Passing) -> Given:
    """The client takes it for lost; `deliver` brings it after all."""
    gateway.held.append(request)
    return Given()


def copied(gateway: Gateway, request: Passing) -> Given:
    """It arrives, and a copy of it stays on the way."""
    gateway.held.append(request)
    return passed(gateway, request)


def request_cut(where: Callable[[Passing], int]) -> Fate:
    def fate(gateway: Gateway, request: Passing) -> Given:
        gateway.forward(request.raw[: where(request)], cut=True)
        return Given()

    return fate


def answer_cut(where: Callable[[bytes], int]) -> Fate:
    def fate(gateway: Gateway, request: Passing) -> Given:
        answer = gateway.forward(request.raw)
        return Given(answer[: where(answer)])

    return fate


class Gateway:
    """Takes whole requests and lets `fate` decide about each; `held` are those on their way."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.fate: Fate = passed
        self.requests: list[Passing] = []
        self.held: list[Passing] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def script(self, *fates: Fate) -> None:
        """One for each of the next requests, in order of arrival; then all pass."""
        left = list(fates)

        def fate(gateway: Gateway, request: Passing) -> Given:
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
        head += [f"{name}: {value}" for name, value in answer.getheaders()]
        return "\r\n".join([*head, "", ""]).encode() + body

    def deliver(self, *which: int) -> list[bytes]:
        """Bring what is on its way, in this order, or all as they were sent; the answers."""
        order = which or range(len(self.held))
        return [self.forward(self.held[each].raw) for each in order]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            self._open.add(client)
        with contextlib.suppress(OSError), client, client.makefile("rb") as reader:
            while raw := _whole_request(reader):
                method, target, _ = raw.split(b" ", 2)
                with self._lock:
                    number = len(self.requests)
                    request = Passing(number, method.decode(), target.decode(), raw)
                    self.requests.append(request)
                given = self.fate(self, request)
                client.sendall(given.raw)
                if not given.keep:
                    client.shutdown(socket.SHUT_RDWR)
                    break
        with self._lock:
            self._open.discard(client)


def _whole_request(reader: Any) -> bytes:
    head, length = b"", 0
    while line := reader.readline():
        head += line
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
        if line == b"\r\n":
            return head + reader.read(length)
    return b""


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
    monkeypatch.setattr("zeh_spark.client.retry.backoff", lambda attempt, jitter: 0.005)
