"""The access log: one line for each request, without its secrets.

Rule for editors: only query parameters that are known not to be secrets are shown with their
values. The read API ignores parameters that it does not know, and one of them may be a token. Runs
in the publisher's event loop.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_plus

from zeh_spark.service.store.problems import Problem
from zeh_spark.service.telemetry.exchange import Exchange
from zeh_spark.service.telemetry.logs import ACCESS, FIELDS
from zeh_spark.service.telemetry.metrics import Metrics
from zeh_spark.service.telemetry.rare_log import RareLog
from zeh_spark.wire import wire

log = logging.getLogger(ACCESS)

MOST = 1000
"""Most characters of a path and its query that are shown."""

_SHOWN = frozenset(
    {
        "n", "pagesizehint", "headers", "only", "wait", "cursorset", "resume", "store_cursor",
        "await", "time", "version", "incarnation", "run", "attempt", "after", "below", "limit",
        wire.STARTING, wire.SPLIT_BY, *wire.REMEDIES,
    }
)  # fmt: skip
_CURSOR = re.compile(r"cursor[0-9]{1,9}")


def write(exchange: Exchange, scope: Mapping[str, Any], seconds: float) -> None:
    client = scope.get("client")
    fields = {
        "method": scope["method"],
        "path": shown_target(scope.get("raw_path") or b"", scope["query_string"]),
        "status": exchange.status,
        "received": exchange.received,
        "sent": exchange.sent,
        "seconds": round(seconds, 6),
        "peer": f"{client[0]}:{client[1]}" if client else "",
        "token": exchange.token,
        "consumer": exchange.consumer,
        "problem": exchange.problem,
        **exchange.ids,
    }
    told = {name: each for name, each in fields.items() if each != ""}
    log.info("request", extra={FIELDS: told})


def shown_target(path: bytes, query: bytes) -> str:
    """Return a path and its query, with the values of unknown parameters as ***."""
    shown = path.decode("latin-1")
    if query:
        shown += "?" + "&".join(map(_parameter, query[: 8 * MOST].decode("latin-1").split("&")))
    return shown if len(shown) <= MOST else f"{shown[:MOST]}…"


def _parameter(text: str) -> str:
    name, equals, _ = text.partition("=")
    known = unquote_plus(name)
    if equals and (known in _SHOWN or _CURSOR.fullmatch(known)):
        shown, more, _ = text.partition(";")  # some clients mean it to end a parameter
        return f"{shown};***" if more else shown
    return "***" if not equals else f"{name}=***"


class EarlyRefusals:
    """Counts what is refused before there is a request: bad heads, too many connections.

    The log is limited, unlike the lines about requests: a stranger needs no token to be refused
    here.

    Args:
        writes: Whether there is an access log. It gets at most one line a minute for each type of
            problem.
    """

    def __init__(self, metrics: Metrics, *, writes: bool) -> None:
        self._metrics = metrics
        self._writes = writes
        self._rare = RareLog(log)

    def __call__(self, problem: Problem, peer: str) -> None:
        """Note that a client was refused. `peer` is the address of the client, with its port."""
        self._metrics.count_refused(problem.name)
        left_out = self._rare.left_out(problem.name) if self._writes else None
        if left_out is None:
            return
        fields = {
            "status": problem.status, "peer": peer, "problem": problem.name,
            "detail": problem.detail, **({"left_out": left_out} if left_out else {}),
        }  # fmt: skip
        log.info("refused before a request", extra={FIELDS: fields})
