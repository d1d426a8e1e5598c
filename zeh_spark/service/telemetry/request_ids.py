"""The ids of a request: its request id, and the ids of its trace (W3C Trace Context).

Rule for editors: ids that a client sends are taken only in a bounded form, because they are written
into logs, answers and errors. Pure, but for the randomness of new ids.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

HEADER = b"x-request-id"
"""The header of requests and answers, as ASGI has it."""

_VALID = re.compile(rb"[A-Za-z0-9._:-]{1,100}")
_TRACE = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")


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
    """Return trace id and span id of a `traceparent` header; None if it is not valid.

    See https://www.w3.org/TR/trace-context/#traceparent-header.
    """
    found = _TRACE.fullmatch(value)
    if not found or (value[:2] == b"00" and len(value) != 55):
        return None
    trace, span = found[1].decode(), found[2].decode()
    return (trace, span) if trace.strip("0") and span.strip("0") else None
