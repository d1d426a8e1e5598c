"""The metrics of a store and of tables, for Prometheus: heads of feeds, lag of consumers.

They are the same at every publisher of the store. The store and the tables are queried when
/metrics is scraped; scrapes within a few seconds share one result.

Rule for editors: a look at the store is bounded. It reads the chunks that are new since the last
look, and of a long feed a part at a time. Runs in one worker thread at a time; `collect` runs in
another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from zeh_spark.service.store.interface import FeedState, Store, now_ms
from zeh_spark.service.telemetry.lag import Backlogs, Lag, TableLook
from zeh_spark.service.telemetry.metrics import FEEDS

CURSOR_SETS = 200
"""Most cursor sets of a feed whose lag is told, the first ones by name."""

SCAN_SECONDS, FEED_SECONDS = 1.0, 0.25
"""Seconds that a look reads chunks, in all and of one feed."""

_FEED = ["feed"]
_CONSUMER = ["feed", "cursorset", "n"]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the last look has found. `error` says why it failed."""

    feeds: list[FeedState] = field(default_factory=list)
    staged: Mapping[str, int] = field(default_factory=dict)
    lags: list[tuple[str, Lag]] = field(default_factory=list)
    now: int = 0
    replica_lag: int = 0
    is_up: bool = False


class StoreGauges(Collector):
    """Gauges of a store and of this process (see `prometheus_client`'s Collector)."""

    def __init__(
        self,
        store: Store | None,
        waiting: Callable[[], Mapping[str, int]],
        connections: Callable[[], int] | None,
        backlogs: Backlogs | None = None,
        tables: Mapping[str, Callable[[], TableLook]] | None = None,
    ) -> None:
        self._store = store
        self._tables = dict(sorted((tables or {}).items())[:FEEDS])
        self._seen_tables: dict[str, TableLook] = {}
        self._waiting = waiting
        self._connections = connections
        self._backlogs = backlogs or (Backlogs(store) if store else None)
        self.tables_up: Mapping[str, bool] = {}
        """For each feed of a table, whether it could be read at the last look."""
        self._turn = 0
        self._seen = _Seen()

    def look(self) -> list[str]:
        """Ask the store, and return the names of its feeds. Raises StoreError."""
        if self._store is None:
            return []
        self._seen = _Seen()
        feeds = self._store.feeds()[:FEEDS]
        lags = list(self._lags(self._store, feeds))
        staged, behind = self._store.staged(), self._store.replica_lag() or 0
        self._seen = _Seen(feeds, staged, lags, self._store.now(), behind, is_up=True)
        return [each.name for each in feeds]

    @property
    def looks(self) -> Mapping[str, Callable[[], object]]:
        """What has a table be looked at, by feed. It raises StoreError, and then forgets it."""
        return {name: partial(self._look_at, name) for name in self._tables}

    def _look_at(self, name: str) -> None:
        self._seen_tables.pop(name, None)
        self._seen_tables[name] = self._tables[name]()

    def table(self, name: str) -> TableLook | None:
        """Return how a table stood at the last look; None if that failed."""
        return self._seen_tables.get(name)

    def lags(self) -> list[tuple[str, Lag]]:
        """Return the lags of cursor sets, with their feeds, as of the last look."""
        of_tables = [
            (name, lag) for name, look in sorted(self._seen_tables.items()) for lag in look.lags
        ]
        return [*self._seen.lags, *of_tables]

    def collect(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily("zeh_waiting_readers", "Readers that wait here.", labels=_FEED)
        counted = {**{each.name: 0 for each in self._seen.feeds}, **self._waiting()}
        for name, count in sorted(counted.items())[:FEEDS]:
            waiting.add_metric([name], count)
        yield waiting
        if self._connections is not None:
            yield GaugeMetricFamily(
                "zeh_open_connections", "Open connections.", value=self._connections()
            )
        if self.tables_up:
            tables = GaugeMetricFamily(
                "zeh_table_up", "Whether the table of a feed can be read.", labels=_FEED
            )
            for name, is_up in sorted(self.tables_up.items())[:FEEDS]:
                tables.add_metric([name], is_up)
            yield tables
        if self._store is not None:
            up = "Whether the store has answered the last question for metrics."
            yield GaugeMetricFamily("zeh_store_up", up, value=self._seen.is_up)
            if self._seen.is_up:
                behind = "How far a replica is behind its primary; 0 at a primary."
                lag = self._seen.replica_lag / 1000
                yield GaugeMetricFamily("zeh_replica_lag_seconds", behind, value=lag)
        yield from self._of_feeds()
        yield from self._of_consumers()

    def _of_feeds(self) -> Iterator[Metric]:
        seen = self._seen
        heads = GaugeMetricFamily(
            "zeh_feed_head", "Position of the newest chunk; the newest id of a table.", labels=_FEED
        )
        times = GaugeMetricFamily(
            "zeh_feed_last_commit_timestamp_seconds",
            "When the last batch was committed, or the newest row of a table written.",
            labels=_FEED,
        )
        held = GaugeMetricFamily(
            "zeh_table_held_seconds",
            "For how long committed rows of a table have waited for an open transaction.",
            labels=_FEED,
        )
        staged = GaugeMetricFamily(
            "zeh_staged_bytes", "Bytes that are uploaded and not committed.", labels=_FEED
        )
        for each in seen.feeds:
            heads.add_metric([each.name], each.head)
            times.add_metric([each.name], each.time / 1000)
            staged.add_metric([each.name], seen.staged.get(each.name, 0))
        for name, look in sorted(self._seen_tables.items()):
            held.add_metric([name], look.held_seconds)
            if look.last and isinstance(look.last.id, int):
                heads.add_metric([name], look.last.id)
            if look.last and look.last.time is not None:
                times.add_metric([name], look.last.time / 1000)
        if self._store is not None:
            yield staged
        if self._tables:
            yield held
        yield from (heads, times)

    def _of_consumers(self) -> Iterator[Metric]:
        seen = self._seen
        events = GaugeMetricFamily(
            "zeh_consumer_lag_events",
            "Events that a cursor set has not passed. Of a table, a limited number is counted.",
            labels=_CONSUMER,
        )
        seconds = GaugeMetricFamily(
            "zeh_consumer_lag_seconds", "Age of the oldest event that a cursor set has not passed.",
            labels=_CONSUMER,
        )  # fmt: skip
        partitions = GaugeMetricFamily(
            "zeh_consumer_partitions",
            "In how many of its n partitions a cursor set has a position. The lag is of these.",
            labels=_CONSUMER,
        )
        for feed, lag in self.lags():
            labels = [feed, lag.name, str(lag.n)]
            events.add_metric(labels, lag.events)
            now = now_ms() if feed in self._tables else seen.now
            if lag.has_times or not lag.events:
                age = 0.0 if lag.since is None else max(0, now - lag.since) / 1000
                seconds.add_metric(labels, age)
            partitions.add_metric(labels, lag.partitions)
        yield from (events, seconds, partitions)

    def _lags(self, store: Store, feeds: list[FeedState]) -> Iterator[tuple[str, Lag]]:
        end = time.monotonic() + SCAN_SECONDS
        first, self._turn = self._turn % max(1, len(feeds)), self._turn + 1
        for feed in feeds[first:] + feeds[:first]:  # each is the first one at times
            if self._backlogs is None or not (sets := store.cursor_sets(feed.name)[:CURSOR_SETS]):
                continue
            left = max(0.0, min(end - time.monotonic(), FEED_SECONDS))
            with self._backlogs.up_to_date(feed, left) as backlog:
                if backlog:
                    with store.snapshot(feed.name) as log:
                        anchors = log.anchors
                    found = [lag for each in sets for lag in backlog.lags(each, anchors)]
                    yield from ((feed.name, lag) for lag in found)
