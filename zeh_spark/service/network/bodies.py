"""Receive the bodies of requests: in bounded memory, and not slower than a rate.

Rule for editors: while a body arrives it waits in a file of the system's temporary directory; it
gets memory when it is whole. So a slow client holds neither a thread, nor a lock, nor room that
others wait for.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from tempfile import SpooledTemporaryFile
from typing import IO

import anyio
from starlette.requests import ClientDisconnect, Request

from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import problems

BODY_MEMORY = 256 << 10
"""Bytes of a body that stay in memory while it arrives."""

TURN_SECONDS = 30.0
"""Seconds for which a body waits for its turn, to arrive or to be looked into."""

BODY_SECONDS, BODY_RATE, IDLE_SECONDS = 30.0, 64 << 10, 10.0
"""A body may take BODY_SECONDS, and a second more for each BODY_RATE bytes of it that arrived.

No pause may be longer than IDLE_SECONDS.
"""


def check_length(text: str | None, most: int) -> int:
    """Return a request's Content-Length. Raises Problem if it is missing or above `most`."""
    if text is None or not re.fullmatch(r"[0-9]{1,18}", text):
        raise Problem(problems.LENGTH_REQUIRED, "Content-Length is missing, and is needed here")
    if int(text) > most:
        raise Problem(
            problems.BODY_TOO_LARGE,
            f"the body has {int(text):,} bytes; at most {most:,} are allowed",
            maximum=most,
        )
    return int(text)


class Budget:
    """Room for bodies, in bytes, first come, first served. Belongs to one event loop."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._left = total
        self._changed = anyio.Condition()
        self._turn = anyio.Lock()

    @asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Hold room for `size` bytes, or all room if there is less in total.

        Raises Problem if there was not enough room for TURN_SECONDS.
        """
        size = min(size, self._total)
        try:
            with anyio.fail_after(TURN_SECONDS):
                async with self._turn, self._changed:
                    while self._left < size:
                        await self._changed.wait()
                    self._left -= size
        except TimeoutError:
            raise Problem(problems.BUSY, "too many bodies at a time; send it again later") from None
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                async with self._changed:
                    self._left += size
                    self._changed.notify_all()


@asynccontextmanager
async def received(request: Request, length: int) -> AsyncIterator[IO[bytes]]:
    """Yield a whole body.

    Raises Problem if the client is too slow or has disconnected, or the temporary directory has no
    room.
    """
    is_whole = False
    try:
        with SpooledTemporaryFile(BODY_MEMORY) as body:
            await _receive(request, length, body)
            body.seek(0)
            is_whole = True
            yield body
    except OSError as exc:  # also of the end of `with`, which writes what is left
        if is_whole:
            raise
        raise Problem(
            problems.NO_ROOM_FOR_BODIES,
            f"the publisher cannot keep the body while it arrives: {exc.strerror or exc}",
        ) from exc


async def _receive(request: Request, length: int, body: IO[bytes]) -> None:
    size, began, pieces = 0, anyio.current_time(), request.stream()
    try:
        while True:
            end = began + BODY_SECONDS + size / BODY_RATE
            with anyio.fail_after(min(IDLE_SECONDS, end - anyio.current_time())):
                size += body.write(await anext(pieces))
    except StopAsyncIteration:
        pass
    except TimeoutError:
        raise Problem(
            problems.BODY_TOO_SLOW,
            f"{size} of {length} bytes of the body came within "
            f"{anyio.current_time() - began:.0f} s, the last of them too long ago",
        ) from None
    except ClientDisconnect:
        raise Problem(problems.BODY_INCOMPLETE, "the client went away while it sent") from None
    if size != length:
        raise Problem(
            problems.BODY_INCOMPLETE, f"the body has {size} bytes, Content-Length is {length}"
        )
