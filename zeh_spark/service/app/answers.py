"""Answers as they are sent: whole ones at once, long ones piece by piece.

Rule for editors: a fault after the first byte aborts the connection, because a body that ends in
order would pass for a whole answer. Nothing is held while a client is slow, but what it is sent,
and that is counted (see `network.shares`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from zeh_spark.service.app.rendering import SEND_BYTES
from zeh_spark.service.network import direct_sends
from zeh_spark.service.network.shares import Unsent
from zeh_spark.service.telemetry.exchange import exchange_of
from zeh_spark.service.telemetry.rare_log import RareLog

log = logging.getLogger("zeh_spark.publisher")

TAKE_SECONDS = 0.05
"""How long one call in a worker thread takes parts of an answer, about, while others wait."""

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
    """A part of an answer."""

    sends: list[bytes]
    rest: Iterator[Sequence[bytes]] | None

    @property
    def size(self) -> int:
        return sum(map(len, self.sends))


def taken(pieces: Iterator[Sequence[bytes]], most: int) -> Taken:
    """Return the next part of an answer: whole pieces, up to one that makes it `most` bytes long.

    Small sends are joined. Raises what `pieces` raises, if that is before the first piece. After
    it, the next part does.
    """
    found: list[bytes] = []
    small: list[bytes] = []
    size = joining = 0
    end = time.monotonic() + TAKE_SECONDS
    rest: Iterator[Sequence[bytes]] | None = None
    try:
        for piece in pieces:
            for each in piece:
                size += len(each)
                if small and (joining + len(each) > SEND_BYTES or len(each) > _JOINED_BYTES):
                    found.append(b"".join(small))
                    small, joining = [], 0
                if len(each) > _JOINED_BYTES:
                    found.append(each)
                else:
                    small.append(each)
                    joining += len(each)
            if size >= most or time.monotonic() > end:
                rest = pieces
                break
    except Exception as exc:
        if not size:
            raise
        rest = _failing(exc)
    if small:
        found.append(b"".join(small))
    return Taken(found, rest)


def _failing(error: Exception) -> Iterator[Sequence[bytes]]:
    raise error
    yield  # makes a generator of it


async def disconnected(receive: Receive) -> None:
    """Return when the client has disconnected, or has got its answer."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Answer(Response):
    """An answer of which the first part is there. A client that takes nothing is dropped.

    Args:
        take: Returns the next part, given what is left, and the client for which it is counted.
        send_timeout: Seconds for which a client may take nothing.
        ended: Called once when the answer was sent, or broke off.
        gone: A task that ends when the client disconnects, if there is one already.
    """

    def __init__(
        self,
        begun: Taken,
        take: Callable[[Iterator[Sequence[bytes]], str], Awaitable[Taken]],
        headers: Mapping[str, str],
        media_type: str,
        *,
        send_timeout: float,
        unsent: Unsent,
        ended: Callable[[], object] = lambda: None,
        gone: asyncio.Future[None] | None = None,
        rare: RareLog | None = None,
    ) -> None:
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]  # of the body that it does not have
        self._begun = begun
        self._take = take
        self._send_timeout = send_timeout
        self._unsent = unsent
        self._held = 0
        self._client = ""
        self._ended = ended
        self._gone = gone
        self._rare = rare or RareLog(log)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        patience = _Patience(self._send_timeout)
        self._client = scope.get("state", {}).get("client", "")
        self._hold(self._begun.size)
        try:
            if scope["method"] == "HEAD":
                await self._send_whole(send, patience, [])
                return
            if self._begun.rest is None:
                self.headers["content-length"] = str(self._begun.size)
            if self._begun.rest is None and self._begun.size <= SEND_BYTES:
                await self._send_whole(send, patience, self._begun.sends)
                return
            if self._gone is None:
                self._gone = asyncio.ensure_future(disconnected(receive))
            await self._send_parts(_sender(scope, send, patience), send, patience, self._gone)
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
            self._hold(0)
            self._ended()

    def _hold(self, size: int) -> None:
        """Count so many bytes as those of the present part."""
        self._unsent.hold(self._client, size)
        self._unsent.release(self._client, self._held)
        self._held = size

    async def _send_whole(self, send: Send, patience: _Patience, sends: list[bytes]) -> None:
        patience.begin()
        await send(self._start())
        await send({"type": "http.response.body", "body": b"".join(sends)})

    async def _send_parts(
        self,
        send_all: Callable[[Sequence[bytes]], Awaitable[None]],
        send: Send,
        patience: _Patience,
        gone: asyncio.Future[None],
    ) -> None:
        patience.begin()
        await send(self._start())
        part, self._begun = self._begun, _NOTHING
        while True:
            await send_all(part.sends)
            if gone.done():
                return
            if part.rest is None:
                break
            patience.begin()
            await send({"type": "http.response.body", "body": b"", "more_body": True})  # all taken
            patience.stop()
            rest, part = part.rest, _NOTHING
            self._hold(0)
            part = await self._take(rest, self._client)
            self._held = part.size
        patience.begin()
        await send({"type": "http.response.body", "body": b""})

    def _start(self) -> Message:
        return {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }


_NOTHING = Taken([], None)


def _sender(
    scope: Scope, send: Send, patience: _Patience
) -> Callable[[Sequence[bytes]], Awaitable[None]]:
    """Return what sends pieces of a body, without a copy if the server can (`direct_sends`)."""
    directly = scope.get("extensions", {}).get(direct_sends.NAME)
    exchange = exchange_of(Request(scope))

    async def send_directly(pieces: Sequence[bytes]) -> None:
        patience.begin()
        exchange.sent += sum(map(len, pieces))
        await directly(pieces, patience.begin)

    async def send_each(pieces: Sequence[bytes]) -> None:
        for each in pieces:
            for at in range(0, len(each), SEND_BYTES):
                patience.begin()
                part = each[at : at + SEND_BYTES]
                await send({"type": "http.response.body", "body": part, "more_body": True})

    return send_directly if directly else send_each


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
