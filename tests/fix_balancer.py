"""A TCP load balancer, which sends connections to the publishers that say that they are ready."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading

import requests


class Balancer:
    """Passes each new connection to the next publisher in rotation.

    It asks each publisher twenty times a second. One that does not answer, or that closes its
    connections after the answer, is out of rotation, and its connections go on to their ends.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._in_rotation: dict[int, bool] = {}
        self._turns = itertools.count()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.lost: list[str] = []
        """Connections for which no publisher was there."""
        for run in (self._accept, self._look):
            threading.Thread(target=run, daemon=True).start()

    def add(self, port: int) -> None:
        self._in_rotation[port] = False

    def remove(self, port: int) -> None:
        del self._in_rotation[port]

    def sends_to(self, port: int) -> bool:
        return self._in_rotation[port]

    def close(self) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            for port in list(self._in_rotation):
                ready = False
                with contextlib.suppress(requests.RequestException):
                    found = requests.get(f"http://127.0.0.1:{port}/openapi.json", timeout=5)
                    ready = found.headers.get("Connection") != "close"
                if port in self._in_rotation:
                    self._in_rotation[port] = ready

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        ready = [port for port, is_ready in self._in_rotation.items() if is_ready]
        port = ready[next(self._turns) % len(ready)] if ready else 0
        try:
            server = socket.create_connection(("127.0.0.1", port))
        except OSError as exc:
            self.lost.append(f"{port}: {exc}")
            client.close()
            return
        back = threading.Thread(target=_copy, args=(server, client), daemon=True)
        back.start()
        _copy(client, server)
        back.join()
        client.close()
        server.close()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Pass on what comes, and then that nothing more comes."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
