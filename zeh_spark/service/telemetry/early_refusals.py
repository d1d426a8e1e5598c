"""What is refused before there is a request: heads that are not HTTP, and connections.

The server refuses them before the app sees them, so `Observer` does not. Each is counted. The log
is limited, unlike its lines about requests: a stranger needs no token to be refused here.

Runs in the publisher's event loop.
"""

from __future__ import annotations

import logging

from zeh_spark.service.store.problems import Problem
from zeh_spark.service.telemetry.logs import ACCESS, FIELDS
from zeh_spark.service.telemetry.metrics import Metrics
from zeh_spark.service.telemetry.rare_log import RareLog

log = logging.getLogger(ACCESS)


class EarlyRefusals:
    """Counts what is refused before there is a request, and logs some of it.

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
        fields: dict[str, object] = {
            "status": problem.status,
            "peer": peer,
            "problem": problem.name,
            "detail": problem.detail,
        }
        if left_out:
            fields["left_out"] = left_out
        log.info("refused before a request", extra={FIELDS: fields})
