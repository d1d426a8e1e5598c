"""The middleware that observes each request, from its head to the end of its answer.

Rule for editors: each request pays for what is done here. It looks at no body and waits for
nothing. Runs in the publisher's event loop.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeh_spark.service.telemetry import access_log
from zeh_spark.service.telemetry.exchange import HEADER, Exchange, begin
from zeh_spark.service.telemetry.metrics import Metrics
from zeh_spark.service.telemetry.outages import Outages

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_WITHOUT_BODY = ("GET", "HEAD")


@dataclass(frozen=True, eq=False)
class Observer:
    """Counts the requests of an ASGI app, and the bytes of their bodies.

    Args:
        outages: Where it notes what works.
        writes: Whether each request gets a line in the log.
    """

    app: ASGIApp
    metrics: Metrics
    outages: Outages
    writes: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, exchange = time.monotonic(), begin(scope)
        named = (HEADER, exchange.request_id.encode())

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.body":
                exchange.sent += len(message.get("body", b""))
            else:
                exchange.status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), named]}
            await send(message)

        receiving = receive if scope["method"] in _WITHOUT_BODY else _counted(receive, exchange)
        try:
            await self.app(scope, receiving, sending)
        except Exception:
            exchange.status = exchange.status or 500  # what the server answers then
            raise
        finally:
            exchange.ended()
            feed = scope.get("path_params", {}).get("feed", "")
            seconds = time.monotonic() - begun
            self.metrics.count(exchange, scope["method"], feed, seconds)
            self.outages.request_ended(exchange, scope["method"], feed)
            if self.writes:
                access_log.write(exchange, scope, seconds)


def _counted(receive: Receive, exchange: Exchange) -> Receive:
    async def receiving() -> Message:
        message = await receive()
        if message["type"] == "http.request":
            exchange.received += len(message.get("body", b""))
        return message

    return receiving
