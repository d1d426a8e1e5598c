"""The metrics of a publisher's own requests, for Prometheus.

Each publisher counts its own requests; metrics that all publishers of a store share are in
`store_gauges`.

Rule for editors: the number of series is bounded. A feed becomes a label only if the store has it
(a successful answer shows this, and some problems do), and only the first FEEDS of them. Requests
that match no route share a label, and so do unknown methods.

Counting runs in the publisher's event loop, `collect` in a thread. Rejected: the counters of
`prometheus_client`, whose locks and labels took 15 us of each request, against 2 us.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Info,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

import zeh_spark
from zeh_spark.service.telemetry.exchange import Exchange
from zeh_spark.service.telemetry.rates import Rates
from zeh_spark.wire import problems

FEEDS = 1000
"""Most feeds that have series of their own."""

PAIRS = 1000
"""Most pairs of a feed and the token of a reader that have series of their own."""

NONE, OTHERS = "(none)", "(others)"
"""The labels of requests for no feed, or an unknown one, and of feeds above FEEDS. No feed can be
called so. The same of tokens.
"""

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
_REQUESTS, _RECEIVED, _SENT = "zeh_requests", "zeh_received_bytes", "zeh_sent_bytes"
_SERVED, _PUBLISHED = "zeh_served_events", "zeh_published_events"
_READ = "zeh_reader_events"
_REFUSALS, _FENCES, _REPEATS = "zeh_refusals", "zeh_fences", "zeh_repeated_batches"
_COUNTERS = {
    _REQUESTS: ("Requests that were answered, or broke off.", ["route", "method", "status"]),
    _RECEIVED: ("Bytes of bodies of requests.", ["feed"]),
    _SENT: ("Bytes of bodies of answers, as they are sent.", ["feed"]),
    _SERVED: ("Events in answers.", ["feed"]),
    _READ: ("Events in answers, by the token of the reader.", ["feed", "token"]),
    _PUBLISHED: ("Events that were committed here.", ["feed"]),
    _REFUSALS: ("Requests and connections that were answered with a problem.", ["feed", "problem"]),
    _FENCES: ("Calls of runs from which another run has taken over.", ["feed"]),
    _REPEATS: ("Commits of batches that were committed before, and added nothing.", ["feed"]),
}
"""For each counter what it counts, and the names of its labels."""


class _Durations:
    """How many durations were at most so long, and their sum."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(_SECONDS, seconds)] += 1
        self._sum += seconds

    def told(self) -> tuple[list[tuple[str, float]], float]:
        """Return the buckets as Prometheus has them, and the sum."""
        bounds = (*map(str, _SECONDS), "+Inf")
        return list(zip(bounds, accumulate(self._counts), strict=True)), self._sum


class Metrics(Collector):
    """Counts requests and what they carried (see `prometheus_client`'s Collector).

    Attributes:
        registry: What /metrics shows.

    Args:
        feeds: Feeds that are known from the beginning.
    """

    def __init__(
        self, feeds: Iterable[str] = (), seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self.registry = own = CollectorRegistry()
        self._known = set(sorted(feeds)[:FEEDS])
        self._pairs: set[tuple[str, str]] = set()
        self._counts: dict[tuple[str, tuple[str, ...]], int] = defaultdict(int)
        self._requests: dict[str, _Durations] = defaultdict(_Durations)
        self._commits = _Durations()
        self.rates = Rates(seconds)
        ProcessCollector(registry=own)
        PlatformCollector(registry=own)
        GCCollector(registry=own)
        version = {"version": zeh_spark.__version__}
        Info("zeh_publisher", "The publisher.", registry=own).info(version)
        own.register(self)

    def know(self, feeds: Iterable[str]) -> None:
        for each in feeds:
            if len(self._known) >= FEEDS:
                return
            self._known.add(each)

    def collect(self) -> Iterator[Metric]:
        families = {
            name: CounterMetricFamily(name, about, labels=labels)
            for name, (about, labels) in _COUNTERS.items()
        }
        for (name, labels), count in sorted(dict(self._counts).items()):
            families[name].add_metric(labels, count)
        yield from families.values()
        seconds = HistogramMetricFamily(
            "zeh_request_seconds", "Seconds from the head of a request to the end of its answer.",
            labels=["route"],
        )  # fmt: skip
        for route, durations in sorted(dict(self._requests).items()):
            seconds.add_metric([route], *durations.told())
        yield seconds
        commits = HistogramMetricFamily(
            "zeh_commit_seconds", "Seconds that the store took to commit a batch."
        )
        commits.add_metric([], *self._commits.told())
        yield commits

    def count(self, exchange: Exchange, method: str, feed: str, seconds: float) -> None:
        route, counts = exchange.route or NONE, self._counts
        known = method if method in _METHODS else "(other)"
        counts[_REQUESTS, (route, known, str(exchange.status))] += 1
        self._requests[route].add(seconds)
        if not exchange.route:
            return
        name = (self._label(feed, exchange),)
        counts[_SENT, name] += exchange.sent
        if exchange.received:
            counts[_RECEIVED, name] += exchange.received
        if exchange.served.events:
            counts[_SERVED, name] += exchange.served.events
            counts[_READ, self._pair(*name, exchange.token)] += exchange.served.events
        if exchange.published:
            counts[_PUBLISHED, name] += exchange.published
        if exchange.published or exchange.served.events:
            self.rates.add(name[0], exchange.published, exchange.served.events)
        if exchange.commit_seconds is not None:
            self._commits.add(exchange.commit_seconds)
        if exchange.is_repeat:
            counts[_REPEATS, name] += 1
        if exchange.problem:
            counts[_REFUSALS, (*name, exchange.problem)] += 1
            if exchange.problem == problems.FENCED.name:
                counts[_FENCES, name] += 1

    def repeated(self, feed: str) -> tuple[int, int]:
        """Return the recognized repeats and the fenced calls of a feed, since the start."""
        found = (self._counts.get((name, (feed,)), 0) for name in (_REPEATS, _FENCES))
        return next(found), next(found)

    def count_refused(self, problem: str) -> None:
        """Count what was refused before there was a request, by the name of its problem."""
        self._counts[_REFUSALS, (NONE, problem)] += 1

    def _pair(self, feed: str, token: str) -> tuple[str, str]:
        """Return the labels of a feed and a token, of which the first PAIRS have their own."""
        pair = feed, token or NONE
        if pair in self._pairs or len(self._pairs) < PAIRS:
            self._pairs.add(pair)
            return pair
        return feed, OTHERS

    def _label(self, feed: str, exchange: Exchange) -> str:
        if feed in self._known:
            return feed
        if not feed or not (exchange.is_decided or 200 <= exchange.status < 300):
            return NONE
        if len(self._known) >= FEEDS:
            return OTHERS
        self._known.add(feed)
        return feed
