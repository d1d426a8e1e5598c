"""What a publisher counts of its own requests, for Prometheus.

Each publisher counts its own; what several publishers of one store have in common is in
`store_gauges`.

Rule for editors: the number of series is bounded. A feed becomes a label only if the store has it,
which a good answer shows, and some problems; the first FEEDS of them do. Requests that match no
route, and methods that nobody knows, share a label. Runs in the publisher's event loop.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
)

import zeh_spark
from zeh_spark.protocol import problems
from zeh_spark.telemetry.exchange import Exchange

FEEDS = 1000
"""Most feeds that have series of their own."""

NONE, OTHER_FEEDS = "(none)", "(others)"
"""The labels of requests for no feed, or an unknown one, and of feeds above FEEDS. No feed can be
called so.
"""

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Counts requests and what they carried.

    Attributes:
        registry: What /metrics shows.

    Args:
        feeds: Feeds that are known from the beginning.
    """

    def __init__(self, feeds: Iterable[str] = ()) -> None:
        self.registry = own = CollectorRegistry()
        self._known = set(sorted(feeds)[:FEEDS])
        ProcessCollector(registry=own)
        PlatformCollector(registry=own)
        GCCollector(registry=own)
        Info("zeh_publisher", "The publisher.", registry=own).info(
            {"version": zeh_spark.__version__}
        )
        self._requests = Counter(
            "zeh_requests", "Requests that were answered, or broke off.",
            ["route", "method", "status"], registry=own,
        )  # fmt: skip
        self._seconds = Histogram(
            "zeh_request_seconds", "Seconds from the head of a request to the end of its answer.",
            ["route"], buckets=_SECONDS, registry=own,
        )  # fmt: skip
        self._received = Counter(
            "zeh_received_bytes", "Bytes of bodies of requests.", ["feed"], registry=own
        )
        self._sent = Counter(
            "zeh_sent_bytes", "Bytes of bodies of answers, as they are sent.", ["feed"],
            registry=own,
        )  # fmt: skip
        self._served = Counter("zeh_served_events", "Events in answers.", ["feed"], registry=own)
        self._published = Counter(
            "zeh_published_events", "Events that were committed here.", ["feed"], registry=own
        )
        self._refusals = Counter(
            "zeh_refusals", "Requests that were answered with a problem.", ["feed", "problem"],
            registry=own,
        )  # fmt: skip
        self._fences = Counter(
            "zeh_fences", "Calls of runs from which another run has taken over.", ["feed"],
            registry=own,
        )  # fmt: skip
        self._commits = Histogram(
            "zeh_commit_seconds", "Seconds that the store took to commit a batch.",
            buckets=_SECONDS, registry=own,
        )  # fmt: skip

    def know(self, feeds: Iterable[str]) -> None:
        """Take names of feeds that the store has as labels."""
        for each in feeds:
            if len(self._known) >= FEEDS:
                return
            self._known.add(each)

    def count(self, exchange: Exchange, method: str, feed: str, seconds: float) -> None:
        """Count a request that has ended.

        Args:
            exchange: The request and its answer.
            method: Its HTTP method.
            feed: The feed that its path names; empty if it names none.
            seconds: How long it took.
        """
        route = exchange.route or NONE
        known = method if method in _METHODS else "(other)"
        self._requests.labels(route, known, str(exchange.status)).inc()
        self._seconds.labels(route).observe(seconds)
        if not exchange.route:
            return
        name = self._label(feed, exchange)
        if exchange.sent:
            self._sent.labels(name).inc(exchange.sent)
        if exchange.received:
            self._received.labels(name).inc(exchange.received)
        if exchange.served.events:
            self._served.labels(name).inc(exchange.served.events)
        if exchange.published:
            self._published.labels(name).inc(exchange.published)
        if exchange.commit_seconds is not None:
            self._commits.observe(exchange.commit_seconds)
        if exchange.problem:
            self._refusals.labels(name, exchange.problem).inc()
            if exchange.problem == problems.FENCED.name:
                self._fences.labels(name).inc()

    def _label(self, feed: str, exchange: Exchange) -> str:
        if feed in self._known:
            return feed
        if not feed or not (exchange.is_decided or 200 <= exchange.status < 300):
            return NONE
        if len(self._known) >= FEEDS:
            return OTHER_FEEDS
        self._known.add(feed)
        return feed
