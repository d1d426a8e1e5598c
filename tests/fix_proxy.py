"""A TCP proxy that fails on demand, between a real client and a real server."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, for 0 seconds: closing drops what was not sent and resets."""


class Proxy:
    """Passes bytes on, until told otherwise.

    `cut_after(n)`: each new connection breaks once n bytes came from the server. `deaf()`: takes
    connections and says nothing. `stop()`: refuses connections, and breaks those that are open.
    `start()`: as it was at first, at the same port.
    """

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.connections = 0
        self._limit: int | None = None
        self._reset = False
        self._deaf = False
        self._open: set[socket.socket] = set()
        self._silent: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._spawn(self._accept, self._listener)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut_after(self, size: int, *, reset: bool = False) -> None:
        """Close, or reset, each new connection after `size` bytes from the server."""
        self._limit, self._reset = size, reset

    def deaf(self) -> None:
        self._deaf = True

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                if connection in self._silent:
                    connection.close()
            self._open -= self._silent

    def start(self) -> None:
        self.stop()
        self._limit, self._deaf = None, False
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._spawn(self._accept, self._listener)

    def _spawn(self, run: Callable[..., None], *args: object) -> None:
        threading.Thread(target=run, args=args, daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            self._keep(client)
            if self._deaf:
                self._silent.add(client)
            else:
                self._spawn(self._join, client)

    def _join(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.server_port))
        except OSError:
            self._drop(client)
            return
        self._keep(server)
        self._spawn(self._pass, client, server, None)
        self._pass(server, client, self._limit)

    def _pass(self, source: socket.socket, target: socket.socket, limit: int | None) -> None:
        left = limit
        with contextlib.suppress(OSError):
            while left != 0 and (data := source.recv(min(65536, left or 65536))):
                target.sendall(data)
                left = None if left is None else left - len(data)
        if left == 0 and self._reset:
            with contextlib.suppress(OSError):
                target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._drop(target)
        self._drop(source)

    def _keep(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)

    def _drop(self, connection: socket.socket) -> None:
        """Wake the other direction's thread too, whose recv() would keep the connection open."""
        with self._lock:
            self._open.discard(connection)
        with contextlib.suppress(OSError):
            # closing sends the reset; shutting down both ways would say a polite end before it
            resets = connection.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == _RESET
            connection.shutdown(socket.SHUT_RD if resets else socket.SHUT_RDWR)
        connection.close()


@pytest.fixture
def start_proxy() -> Iterator[Callable[[int], Proxy]]:
    """`start_proxy(port)` puts a proxy before the server at that port of this machine."""
    proxies: list[Proxy] = []

    def start(port: int) -> Proxy:
        proxies.append(Proxy(port))
        return proxies[-1]

    yield start
    for proxy in proxies:
        proxy.stop()
