"""The facts about one request and its answer, for metrics and for the log.

The middleware `Observer` makes an `Exchange`. The handlers of the request add facts: the gate adds
the route and the token, the APIs add the events, the error handlers add the problem.

Rule for editors: ids that a client sends are taken only in a bounded form, because they are written
into logs, answers and errors. Belongs to the publisher's event loop; a `Tally` is written by one
worker thread at a time.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zeh_spark.wire import wire
from zeh_spark.wire.option_values import parse_traceparent

if TYPE_CHECKING:
    from starlette.requests import Request

HEADER = b"x-request-id"
"""The header of requests and answers, as ASGI has it."""

_VALID = re.compile(rb"[A-Za-z0-9._:-]{1,100}")
_CONSUMER = wire.CONSUMER_HEADER.lower().encode()
_VALID_CONSUMER = re.compile(rb"[A-Za-z0-9._:@=-]{1,100}")
_KEY = "zeh_spark.exchange"


@dataclass(slots=True)
class Tally:
    """Counts the events of an answer while it is made."""

    events: int = 0

    def add(self, events: int) -> None:
        self.events += events


@dataclass(slots=True)
class Exchange:
    """A request, and its answer as far as it is sent.

    Attributes:
        trace: The ids of its trace and span; None if it has none.
        token: The name of the token with which it was let through; empty if none was asked for.
        consumer: What a reader says of itself in ZEH-Consumer; empty if that is not allowed.
        route: The path of its route, like "/{feed}"; empty if there is no such route.
        problem: The name of the problem that it was answered with; empty if there was none.
        is_decided: Whether the problem shows that the feed exists.
        status: The status of the answer; 0 if there was none.
        commit_seconds: How long the store took to commit; None if it did not.
        is_repeat: Whether it is the commit of a batch that was committed before.
        ended: Is called when the answer was sent, or broke off.
    """

    request_id: str = ""
    trace: tuple[str, str] | None = None
    token: str = ""
    consumer: str = ""
    route: str = ""
    problem: str = ""
    is_decided: bool = False
    status: int = 0
    received: int = 0
    sent: int = 0
    served: Tally = field(default_factory=Tally)
    published: int = 0
    commit_seconds: float | None = None
    is_repeat: bool = False
    ended: Callable[[], object] = lambda: None

    @property
    def ids(self) -> dict[str, str]:
        """The ids of the request, for a log line."""
        found = {"request_id": self.request_id} if self.request_id else {}
        if self.trace:
            found["trace_id"], found["span_id"] = self.trace
        return found


current: ContextVar[Exchange | None] = ContextVar("current", default=None)
"""The request that is handled, in its task and in the threads that work for it."""


def begin(scope: Any) -> Exchange:
    """Return the exchange of a new request, which `exchange_of` finds from now on."""
    request_id, trace = ids_in(scope["headers"])
    found = Exchange(request_id, trace)
    for name, value in scope["headers"]:
        if name == _CONSUMER and _VALID_CONSUMER.fullmatch(value):
            found.consumer = value.decode()
    scope[_KEY] = found
    current.set(found)
    return found


def exchange_of(request: Request) -> Exchange:
    """Return the exchange of a request; one that nobody looks at if the request is not observed."""
    found: Exchange | None = request.scope.get(_KEY)
    return found or Exchange()


def ids_in(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, tuple[str, str] | None]:
    """Return the request id of a request, a new one if it has none; and the ids of its trace.

    The trace is the trace id and span id of a valid `traceparent`, else None.
    """
    request_id, trace = None, None
    for name, value in headers:
        if name == HEADER and request_id is None and _VALID.fullmatch(value):
            request_id = value.decode()
        elif name == b"traceparent":
            trace = trace_in(value)
    return request_id or f"{random.getrandbits(64):016x}", trace


def trace_in(value: bytes) -> tuple[str, str] | None:
    """Return trace id and span id of a `traceparent` header; None if it is not valid."""
    try:
        _, trace, span, *_ = parse_traceparent(value.decode("latin-1")).split("-")
    except ValueError:
        return None
    return trace, span
