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
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

NAME = "zeh_spark.send"
STEP_BYTES = 256 << 10
"""A client that has taken so many bytes makes progress."""

_AT_ONCE = 512  # pieces; the kernel takes 1,024
_WAITS = 1024  # bytes that the transport is given, to write them when the kernel has room again


class DirectSends:
    """Sends on a connection beside its transport, which must have nothing to write.

    To uvicorn's cycle it is the transport. It sends the head of an answer with what follows it,
    because a client that gets it alone wakes up for nothing.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self._socket = transport.get_extra_info("socket")

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

    async def send(
        self,
        pieces: Sequence[bytes],
        progress: Callable[[], object],
        has_room: Callable[[], Awaitable[object]],
    ) -> None:
        """Raises OSError if the connection is lost.

        `has_room` returns when the transport has nothing to write any more.
        """
        left = [memoryview(each) for each in pieces]
        at = taken = 0
        while not self._transport.is_closing():
            sent = 0
            with suppress(BlockingIOError):
                sent = os.writev(self._socket.fileno(), left[at : at + _AT_ONCE])
            taken += sent
            while at < len(left) and sent >= len(left[at]):
                sent -= len(left[at])
                at += 1
            if at == len(left):
                return
            if taken >= STEP_BYTES:
                taken = 0
                progress()
            # asyncio waits for a descriptor of a transport only on behalf of the transport.
            next_part = left[at][sent : sent + _WAITS]
            left[at] = left[at][sent + len(next_part) :]
            self._transport.write(bytes(next_part))
            await has_room()
