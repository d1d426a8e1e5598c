"""The log of outages: one line when an outage begins, and one when it ends.

If a database is down, every request fails. A line for each request would say nothing new; no line
at all, as for errors of clients, would hide the outage.

Rule for editors: an outage ends with a request that needed what had failed, not with time. Belongs
to the publisher's event loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass

from zeh_spark.service.telemetry.exchange import Exchange
from zeh_spark.service.telemetry.rare_log import RareLog

log = logging.getLogger("zeh_spark.publisher")

BODIES = "receiving bodies in the temporary directory"
READS, WRITES = "reading the store", "writing to the store"

_READING = ("/plan", "/chunks")


@dataclass(slots=True)
class _Outage:
    """Something that fails: since when, how often, and what the log says of it."""

    since: float
    failures: int = 0
    why: str = ""
    is_told: bool = False


class Outages:
    """What fails now.

    Args:
        named: Feeds that are not in the store; each fails by itself.
        spooled: Bytes from which on a body is in the temporary directory.
    """

    def __init__(self, named: Collection[str], spooled: int) -> None:
        self._named = frozenset(named)
        self._spooled = spooled
        self._failing: dict[str, _Outage] = {}
        self._rare = RareLog(log)

    def failed(self, what: str, why: str) -> None:
        """Note a failure. The first one is logged, and another reason, once a minute at most."""
        outage = self._failing.setdefault(what, _Outage(time.monotonic()))
        outage.failures += 1
        if outage.is_told and why != outage.why:
            self._rare.error((what, "again"), "%s still fails: %s", what, why)
        elif not outage.is_told and self._rare.left_out(what) is not None:
            log.error("%s fails: %s", what, why)
            outage.is_told = True
        outage.why = why

    def worked(self, what: str) -> None:
        """Note that something works. If it had failed, that is logged."""
        outage = self._failing.pop(what, None)
        if outage is not None and outage.is_told:
            log.warning(
                "%s works again, after %.0f s and %d failures",
                what, time.monotonic() - outage.since, outage.failures,
            )  # fmt: skip

    def request_failed(self, exchange: Exchange, method: str, feed: str, why: str) -> None:
        """Note that the store, or a feed beside it, failed a request."""
        self.failed(self._needed(exchange, method, feed), why)

    def request_ended(self, exchange: Exchange, method: str, feed: str) -> None:
        """Note what a request shows to work."""
        if not self._failing or not feed or not 200 <= exchange.status < 300:
            return
        self.worked(self._needed(exchange, method, feed))
        if exchange.received > self._spooled:
            self.worked(BODIES)

    def _needed(self, exchange: Exchange, method: str, feed: str) -> str:
        if feed in self._named:
            return f"reading feed {feed!r}"
        reads = method in ("GET", "HEAD") or exchange.route.endswith(_READING)
        return READS if reads else WRITES
