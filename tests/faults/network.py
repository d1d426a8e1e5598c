"""The way from all clients to the publisher: a proxy that cuts, stalls and slows connections."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time

from tests.fix_middlemen import RESET, Proxy

PIECE = 200
"""Bytes that pass at a time while it is slow."""


class Network(Proxy):
    """Passes bytes on, but for the faults of the moment."""

    def __init__(self, server_port: int) -> None:
        self._flows = threading.Event()
        self._flows.set()
        self._pause = 0.0
        super().__init__(server_port)

    def cut(self, chance: random.Random) -> None:
        """Break about half of the open connections, and half of those by a reset."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    if chance.random() < 0.5:
                        continue
                    if chance.random() < 0.5:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    connection.shutdown(socket.SHUT_RDWR)

    def stall(self) -> None:
        """Hold back all that is under way, until `heal`."""
        self._flows.clear()

    def slow(self) -> None:
        """Let some kilobytes a second pass on each connection, until `heal`."""
        self._pause = 0.02

    def heal(self) -> None:
        self._pause = 0.0
        self._flows.set()

    def carry(self, data: bytes, target: socket.socket) -> None:
        begin = 0
        while begin < len(data):
            self._flows.wait()
            end = begin + PIECE if self._pause else len(data)
            time.sleep(self._pause)  # the fault itself: a slow network
            target.sendall(data[begin:end])
            begin = end

    def stop(self) -> None:
        self.heal()
        super().stop()
