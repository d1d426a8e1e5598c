"""The HTTP protocol of a connection, with bounds: on the head of a request, and on silence.

Uvicorn keeps the head of a request in memory however long it grows, and waits for its end for ever.
Here a head is refused when it is too long (414, 431), when it is not HTTP or does not name one host
(400), and when it is not complete within 30 s (408). A connection that says nothing is closed. What
one client gets wrong is told to the function `refused`, which bounds what is logged: any stranger
could fill the log.

The limits of bodies are in `bodies`, those of connections in `connections`. Runs in the publisher's
event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from zeh_spark.service.network.connections import (
    Idle,
    Refused,
    address_of,
    refusal,
    shown_address,
)
from zeh_spark.service.network.direct_sends import NAME, DirectSends
from zeh_spark.service.network.shares import Unsent
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import problems

URL_BYTES = 60 << 10
"""Most bytes of a request's URL: cursors for 1,024 partitions take half of it. The parser of URLs
takes 64 KiB.
"""

HEADER_BYTES = 64 << 10
"""Most bytes of a request's headers."""

HEAD_SECONDS = 30.0
"""Seconds in which the head of a request has to come, from its first byte; or the first byte, from
the connection's beginning.
"""

IDLE_SECONDS = 75
"""Seconds for which a connection may be idle between two requests.

More than the 60 s of usual load balancers. Otherwise one could send a request just while the
connection is being closed.
"""

PIPELINED = 64
"""Most requests of a connection that wait for the answers to those before them."""

STALLED_SECONDS = 60.0
"""Seconds for which a client may take nothing of what it asked for."""

LINGER_SECONDS, LINGER_BYTES = 2.0, 1 << 20
"""How long a refused connection stays open so that the client can read the refusal, and how many
bytes the client may still send meanwhile.
"""


_AFTER_HEAD = HEADER_BYTES + (256 << 10)  # asyncio reads 256 KiB at a time


class BoundedProtocol(HttpToolsProtocol):
    """A connection whose requests have bounded heads, and whose unsent bytes are counted.

    A request is answered once the client has taken the answers before it, so that the bytes that
    wait in the connection's buffer are those of one answer. They count for its client, which the
    app tells as `client` in the state of the scope.
    """

    def __init__(
        self,
        *given: Any,
        refused: Refused,
        unsent: Unsent,
        idle: Idle,
        **named: Any,
    ) -> None:
        super().__init__(*given, **named)
        self._tell_refused = refused
        self._unsent = unsent
        self._idle = idle
        self._held: tuple[str, int] | None = None
        self._scope: Any = None
        """Of the request that is answered, or was answered last."""
        self._answered: Any = None
        self._served, self.app = self.app, self._serve
        self._head: int | None = 0
        """Bytes of the head that is coming; None while none is."""
        self._is_over = False
        """Whether the last request came whole, so that the next byte begins another one."""
        self._headers_size = 0
        self._after_head = 0
        """Bytes since the head, or since the last part of the body: of trailers, for instance."""
        self._stalled: asyncio.TimerHandle | None = None
        self._refused = False
        self._discarded = 0
        self._timer: asyncio.TimerHandle | None = None
        self._direct: DirectSends | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # All that waits is counted. A transport pauses above `high`, and that of TLS at it.
        is_plain = transport.get_extra_info("sslcontext") is None
        transport.set_write_buffer_limits(high=0 if is_plain else 1, low=0)
        self._direct = DirectSends(transport) if is_plain else None
        self._rest()
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        self.resume_writing()
        self._idle.remove(self)
        self.pipeline.clear()
        if self._answered is not None and not self._answered.response_complete:
            # uvicorn tells this only the request that came last.
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._discarded += len(data)
            if self._discarded > LINGER_BYTES:
                self.transport.close()
            return
        if self._head is None and self._is_over:
            self._expect_head()
        if self._head is not None:
            self._head += len(data)
        else:
            self._after_head += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the answer is that of a request without an upgrade (RFC 9110, 7.8)
        except httptools.HttpParserError as exc:
            self._refuse(Problem(problems.BAD_HTTP, f"the request is not HTTP: {exc}"))
        if (self._head or 0) > URL_BYTES + HEADER_BYTES or self._after_head > _AFTER_HEAD:
            self._refuse(Problem(problems.HEADERS_TOO_LARGE, _limits()))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._headers_size, self._after_head, self._is_over = 0, 0, False
        if self._head is None:  # it began in the packet in which the one before ended
            self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, but no trailer: that would pass for one."""
        if self._head is None:
            return
        self._headers_size += len(name) + len(value)
        if self._headers_size <= HEADER_BYTES:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Answer a request whose head is complete, or refuse it."""
        self._head = None
        self._cancel_timer()
        self._unset_keepalive_if_required()
        if self._refused:
            return
        if len(self.url) > URL_BYTES:
            self._refuse(Problem(problems.URL_TOO_LONG, _limits()))
        elif self._headers_size > HEADER_BYTES:
            self._refuse(Problem(problems.HEADERS_TOO_LARGE, _limits()))
        elif (said := self._wrong_hosts()) is not None:
            self._refuse(Problem(problems.BAD_HTTP, said))
        else:
            self._idle.remove(self)
            super().on_headers_complete()
            if len(self.pipeline) > PIPELINED:
                self._refuse(Problem(problems.BAD_HTTP, "too many requests at a time"))

    def _wrong_hosts(self) -> str | None:
        """Return what is wrong with the number of headers `Host` (RFC 9112, 3.2)."""
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts == 1 or (hosts == 0 and self.parser.get_http_version() == "1.0"):
            return None
        return f"the request has {hosts or 'no'} headers Host. Send one"

    def on_body(self, body: bytes) -> None:
        self._after_head = 0
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request. What comes next is the head of another one."""
        self._is_over = True
        if not self._refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Answer the next request, and read no more while others wait."""
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()
        self._rest()

    def close_after_answer(self) -> None:
        """Close the connection after the answer that is being made, and tell the client so.

        Answers that have begun, and those that others wait for, do not tell it: they stay.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.response_started or self.pipeline:
            return
        cycle.default_headers = [*cycle.default_headers, (b"connection", b"close")]

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also one whose client has not taken its last answers."""
        self.transport.abort()

    def pause_writing(self) -> None:
        """Wait for a client that takes nothing, for a while (see `asyncio.Protocol`)."""
        super().pause_writing()
        if self._held is None:
            client = (self._scope or {}).get("state", {}).get("client", "")
            self._held = client, self.transport.get_write_buffer_size()
            self._unsent.hold(*self._held)
        if self._stalled is None:
            self._stalled = self.loop.call_later(STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        if self._held is not None:
            held, self._held = self._held, None
            self._unsent.release(*held)
        super().resume_writing()
        self._rest()

    def end(self) -> None:
        self.transport.abort()

    def _rest(self) -> None:
        answers = self.cycle is not None and not self.cycle.response_complete
        if not (answers or self.pipeline or self.flow.write_paused or self.transport.is_closing()):
            self._idle.add(self, address_of(self.client[0] if self.client else ""))

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        await self.flow.drain()
        self._answered = receive.__self__  # uvicorn's cycle
        if self.parser is None:  # the connection is lost
            self._answered.disconnected = True
            return
        self._scope = scope
        if self.client in self._idle.spare:
            scope["state"]["spare"] = True
        if self._direct and scope["method"] != "HEAD":
            self._direct.begin(self._answered)
            scope["extensions"] = {NAME: partial(self._send_directly, self._direct, self._answered)}
        try:
            await self._served(scope, receive, send)
        except asyncio.CancelledError:  # the publisher stops; uvicorn would answer with 500
            self.transport.abort()
            raise

    async def _send_directly(
        self,
        direct: DirectSends,
        cycle: Any,
        pieces: Sequence[bytes],
        progress: Callable[[], object],
    ) -> None:
        """Send pieces of a body (see `direct_sends`) as uvicorn's cycle would send them."""
        await self.flow.drain()
        size = sum(map(len, pieces))
        if cycle.disconnected or not size:  # a chunk without bytes would end the body
            return
        head = direct.take_head()
        if cycle.chunked_encoding:
            pieces = [b"%s%x\r\n" % (head, size), *pieces, b"\r\n"]
        else:
            pieces = [head, *pieces] if head else pieces
            cycle.expected_content_length -= size
        try:
            await direct.send(pieces, progress, self.flow.drain)
        except OSError:
            self.transport.abort()  # the client is gone

    def _expect_head(self) -> None:
        self._head = 0
        self._cancel_timer()
        self._timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _head_is_late(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # We may not be reading: the answer before comes first.
            self._timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)
            return
        if self._head:
            late = f"the head of the request did not come within {HEAD_SECONDS:.0f} s"
            self._refuse(Problem(problems.HEAD_TOO_SLOW, late))
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, problem: Problem) -> None:
        """Answer with a problem, and close the connection once the client has read it."""
        if self._refused or self.transport.is_closing():
            return
        self._refused, self._head = True, None
        self._cancel_timer()
        self._tell_refused(problem, shown_address(self.client))
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # another request's answer is on its way
            return
        self.transport.write(refusal(problem))
        # Closing while the client sends would take the answer back.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing."""


def _limits() -> str:
    return (
        f"a URL has at most {URL_BYTES >> 10} KiB, and the headers of a request together at most "
        f"{HEADER_BYTES >> 10} KiB. Ask for fewer partitions at a time, or send fewer headers"
    )
