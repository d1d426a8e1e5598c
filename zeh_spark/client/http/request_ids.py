"""The ids that a client gives its requests: request ids, and spans of a trace (W3C Trace Context).

The ids of a transport's requests are `3f9a1c2e-1`, `3f9a1c2e-2`, and so on. Each try has a number
of its own: also one that repeats a request, or follows a redirect. So the publisher's log tells the
tries apart, and the part before the hyphen finds all of them. Rejected: one id for all tries of a
request, because a log could not tell which of them was answered.

Runs wherever a client runs. Threads may share it.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets

from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.wire.option_values import parse_traceparent

REQUEST_ID, TRACEPARENT = "X-Request-ID", "traceparent"
"""The names of the headers."""

VARIABLE = "TRACEPARENT"
"""The environment variable with the trace that this process is a part of."""

log = logging.getLogger(__name__)


class RequestIds:
    """Makes the ids of the requests of one transport."""

    def __init__(self, options: ClientOptions) -> None:
        self._client = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._given = options.http_headers.get(REQUEST_ID.lower())
        self._trace = options.traceparent or _trace_of_process()

    def headers(self) -> dict[str, str]:
        """Return the headers of one request, with ids that no other request has.

        The request id is that of the option `http.header.X-Request-ID` if it is set. There is no
        traceparent if neither the option nor the environment tells one.
        """
        made = {REQUEST_ID: self._given or f"{self._client}-{next(self._numbers)}"}
        if self._trace:
            trace, flags = self._trace[3:35], self._trace[53:55]
            span = secrets.randbelow((1 << 64) - 1) + 1  # 0 is not valid
            made[TRACEPARENT] = f"00-{trace}-{span:016x}-{flags}"
        return made


def _trace_of_process() -> str | None:
    """Return the traceparent of the environment; None if there is none, or it is not valid."""
    found = os.environ.get(VARIABLE)
    if not found:
        return None
    try:
        return parse_traceparent(found)
    except ValueError as exc:
        log.warning("the environment variable %s is ignored: it %s", VARIABLE, exc)
        return None
