"""Answers as they are sent: whole ones at once, long ones piece by piece.

Rule for editors: a fault after the first byte aborts the connection, because a body that ends in
order would pass for a whole answer. Nothing is held while a client is slow, but what it is sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from zeh_spark.publisher.pieces import SEND_BYTES
from zeh_spark.telemetry.rare_log import RareLog

log = logging.getLogger("zeh_spark.publisher")

TAKE_BYTES, TAKE_SECONDS = 2 << 20, 0.005
"""About how much one call in a worker thread takes of an answer, and how long it takes at most.

The first bounds memory, the second the wait of other readers.
"""

_JOINED_BYTES = 32 << 10


def json_answer(value: object, status: int = 200) -> Response:
    """Return a value as a JSON answer that nobody on the way keeps."""
    return Response(
        msgspec.json.encode(value),
        status_code=status,
        media_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


class ClientStalledError(TimeoutError):
    """A client took nothing of its answer, which is logged, and is dropped."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A part of an answer.

    Attributes:
        sends: Bytes, to be sent one after the other.
        rest: What follows; None if nothing does.
    """

    sends: list[bytes]
    rest: Iterator[bytes] | None


def taken(sends: Iterator[bytes]) -> Taken:
    """Return the next part of an answer. Small pieces are joined.

    Raises what `sends` raises, if that is before the first piece. After it, the next part does.
    """
    found: list[bytes] = []
    small: list[bytes] = []
    size = joining = 0
    end = time.monotonic() + TAKE_SECONDS
    rest: Iterator[bytes] | None = None
    try:
        for each in sends:
            size += len(each)
            if small and (joining + len(each) > SEND_BYTES or len(each) > _JOINED_BYTES):
                found.append(b"".join(small))
                small, joining = [], 0
            if len(each) > _JOINED_BYTES:
                found.append(each)
            else:
                small.append(each)
                joining += len(each)
            if size >= TAKE_BYTES or time.monotonic() > end:
                rest = sends
                break
    except Exception as exc:
        if not size:
            raise
        rest = _failing(exc)
    if small:
        found.append(b"".join(small))
    return Taken(found, rest)


def _failing(error: Exception) -> Iterator[bytes]:
    raise error
    yield  # makes a generator of it


async def disconnected(receive: Receive) -> None:
    """Return when the client has disconnected, or has got its answer."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Answer(Response):
    """An answer of which the first part is there. A client that takes nothing is dropped.

    Args:
        begun: The first part.
        take: Returns the next part, given what is left.
        headers: The headers.
        media_type: The media type.
        send_timeout: Seconds for which a client may take nothing.
        ended: Called once when the answer was sent, or broke off.
        gone: A task that ends when the client disconnects, if there is one already.
        rare: Where dropped clients are logged.
    """

    def __init__(
        self,
        begun: Taken,
        take: Callable[[Iterator[bytes]], Awaitable[Taken]],
        headers: Mapping[str, str],
        media_type: str,
        *,
        send_timeout: float,
        ended: Callable[[], object] = lambda: None,
        gone: asyncio.Future[None] | None = None,
        rare: RareLog | None = None,
    ) -> None:
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]  # of the body that it does not have
        self._begun = begun
        self._take = take
        self._send_timeout = send_timeout
        self._ended = ended
        self._gone = gone
        self._rare = rare or RareLog(log)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer (see `Response`)."""
        patience = _Patience(self._send_timeout)
        try:
            if scope["method"] == "HEAD":
                await self._send_whole(send, patience, [])
            elif self._begun.rest is None and sum(map(len, self._begun.sends)) <= SEND_BYTES:
                self.headers["content-length"] = str(sum(map(len, self._begun.sends)))
                await self._send_whole(send, patience, self._begun.sends)
            else:
                if self._gone is None:
                    self._gone = asyncio.ensure_future(disconnected(receive))
                await self._send_parts(send, patience, self._gone)
        except asyncio.CancelledError:
            if not patience.is_over:
                raise
            waited = self._send_timeout
            self._rare.warning("stalled", "a client took nothing for %g s and is dropped", waited)
            raise ClientStalledError("a client took nothing") from None
        finally:
            patience.stop()
            if self._gone:
                self._gone.cancel()
            self._ended()

    async def _send_whole(self, send: Send, patience: _Patience, sends: list[bytes]) -> None:
        patience.begin()
        await send(self._start())
        await send({"type": "http.response.body", "body": b"".join(sends)})

    async def _send_parts(
        self, send: Send, patience: _Patience, gone: asyncio.Future[None]
    ) -> None:
        patience.begin()
        await send(self._start())
        part = self._begun
        while True:
            for each in part.sends:
                if gone.done():
                    return
                patience.begin()
                await send({"type": "http.response.body", "body": each, "more_body": True})
            if part.rest is None:
                break
            patience.stop()
            part = await self._take(part.rest)
        patience.begin()
        await send({"type": "http.response.body", "body": b""})

    def _start(self) -> Message:
        return {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }


class _Patience:
    """Cancels the present task if one of its steps takes longer than some seconds.

    It costs a timer for each answer. Rejected: `anyio.fail_after` for each step, which took an
    eighth of the event loop's time.
    """

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._begun: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Begin a step, and end the one before."""
        self._begun = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_at(self._begun + self._seconds, self._look)

    def stop(self) -> None:
        """End a step, after which none may begin soon."""
        self._begun = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._begun is None or self._task is None:
            return
        end = self._begun + self._seconds
        if self._loop.time() < end:
            self._timer = self._loop.call_at(end, self._look)
            return
        self.is_over = True
        self._task.cancel()
