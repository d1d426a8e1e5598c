"""Parts of an answer, sent to the socket from where they are in memory.

uvicorn joins each message with its frame, and asyncio before Python 3.12 copies what the socket
does not take at once, and once more whenever it has taken some of it. With pages that are kept,
these copies took half of the time. So `BoundedProtocol` offers an extension of ASGI under NAME:

    await scope["extensions"][NAME](pieces, progress)

It sends pieces of a body that has begun, and calls `progress` now and then while the client takes
them. It returns when the kernel has all of them, or the client is gone. There is none with TLS,
whose bytes the transport makes.

Runs in the publisher's event loop.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

NAME = "zeh_spark.send"
STEP_BYTES = 256 << 10
"""A client that has taken so many bytes makes progress."""

_AT_ONCE = 512  # pieces; the kernel takes 1,024


class DirectSends:
    """Sends on a connection beside its transport, which must have nothing to write.

    To uvicorn's cycle it is the transport. It sends the head of an answer with what follows it,
    because a client that gets it alone wakes up for nothing.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self._socket = transport.get_extra_info("socket")
        self._copy: socket.socket | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def begin(self, cycle: Any) -> None:
        """Send the answer of a cycle."""
        self._cycle, self._head, cycle.transport = cycle, None, self

    def write(self, data: bytes) -> None:
        if self._head is None and self._cycle.response_started:
            self._head = data
        else:
            self._transport.write(self.take_head() + data)

    def take_head(self) -> bytes:
        head, self._head = self._head or b"", b""
        return head

    async def send(self, pieces: Sequence[bytes], progress: Callable[[], object]) -> None:
        """Raises OSError if the connection is lost."""
        # asyncio waits for a transport's own descriptor only on behalf of the transport.
        with socket.socket(fileno=os.dup(self._socket.fileno())) as self._copy:
            self._copy.setblocking(False)
            await _send(self._copy, [memoryview(each) for each in pieces], progress)
        self._copy = None

    def break_off(self) -> None:
        """End what is being sent: the transport has lost the connection, or has given it up."""
        if self._copy is not None:
            with suppress(OSError):
                self._copy.shutdown(socket.SHUT_RDWR)


async def _send(to: socket.socket, left: list[memoryview], progress: Callable[[], object]) -> None:
    """Send what is left: as much as the kernel takes, as often as it has room again."""
    at = taken = 0
    while True:
        sent = 0
        with suppress(BlockingIOError):
            sent = to.sendmsg(left[at : at + _AT_ONCE])
        taken += sent
        while at < len(left) and sent >= len(left[at]):
            sent -= len(left[at])
            at += 1
        if at == len(left):
            return
        left[at] = left[at][sent:]
        if taken >= STEP_BYTES:
            taken = 0
            progress()
        await _has_room(to)


async def _has_room(to: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    room = loop.create_future()
    loop.add_writer(to, room.set_result, None)
    try:
        await room
    finally:
        loop.remove_writer(to)
