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

from zeh_spark.service.store.interface import Store, now_ms
from zeh_spark.service.store.log import FeedState
from zeh_spark.service.telemetry.lag import Backlogs, Lag, TableLook, Unread
from zeh_spark.service.telemetry.metrics import FEEDS

CURSOR_SETS = 200
"""Most cursor sets of a feed whose lag is told, the first ones by name."""

SCAN_SECONDS, FEED_SECONDS = 1.0, 0.25
"""Seconds that a look reads chunks, in all and of one feed."""

_LABELS = ("feed", "cursorset", "n")
"""The labels of gauges, which have none of them, the first one, or all."""

_GAUGES = {
    "zeh_waiting_readers": "Readers that wait here.",
    "zeh_open_connections": "Open connections.",
    "zeh_table_up": "Whether the table of a feed can be read.",
    "zeh_store_up": "Whether the store has answered the last question for metrics.",
    "zeh_replica_lag_seconds": "How far a replica is behind its primary; 0 at a primary.",
    "zeh_staged_bytes": "Bytes that are uploaded and not committed.",
    "zeh_table_held_seconds": "For how long committed rows of a table have waited for an open "
    "transaction.",
    "zeh_unpacked_chunks": "Chunks that are in no pack.",
    "zeh_segment_bytes": "Bytes of events that were moved to objects.",
    "zeh_segments_moved_timestamp_seconds": "When this publisher has last moved what is old, or "
    "was started.",
    "zeh_feed_head": "Position of the newest chunk; the newest id of a table.",
    "zeh_feed_last_commit_timestamp_seconds": "When the last batch was committed, or the newest "
    "row of a table written.",
    "zeh_consumer_lag_events": "Events that a cursor set has not passed. Of a table, a limited "
    "number is counted.",
    "zeh_consumer_lag_at_least": "Whether there may be more than zeh_consumer_lag_events, because "
    "they were counted up to a limit.",
    "zeh_consumer_lag_seconds": "Age of the oldest event that a cursor set has not passed.",
    "zeh_consumer_partitions": "In how many of its n partitions a cursor set has a position. The "
    "lag is of these.",
}
"""What each gauge tells."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the last look has found."""

    feeds: list[FeedState] = field(default_factory=list)
    staged: Mapping[str, int] = field(default_factory=dict)
    storage: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    lags: list[tuple[str, Lag]] = field(default_factory=list)
    now: int = 0
    replica_lag: int = 0
    is_up: bool = False


@dataclass(eq=False)
class StoreGauges(Collector):
    """Gauges of a store and of this process (see `prometheus_client`'s Collector).

    Attributes:
        tables_up: For each feed of a table, whether it could be read at the last look.
    """

    store: Store | None
    waiting: Callable[[], Mapping[str, int]]
    connections: Callable[[], int] | None
    backlogs: Backlogs | None = None
    tables: Mapping[str, Callable[[], TableLook]] = field(default_factory=dict)
    moved: Callable[[], float] | None = None
    tables_up: Mapping[str, bool] = field(default_factory=dict, init=False)
    _turn: int = field(default=0, init=False)
    _seen: _Seen = field(default_factory=_Seen, init=False)
    _seen_tables: dict[str, TableLook] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.tables = dict(sorted(self.tables.items())[:FEEDS])
        if self.store and not self.backlogs:
            self.backlogs = Backlogs(self.store)

    def look(self) -> list[str]:
        """Ask the store, and return the names of its feeds. Raises StoreError."""
        if self.store is None:
            return []
        self._seen = _Seen()
        feeds = self.store.feeds()[:FEEDS]
        lags = list(self._lags(self.store, feeds))
        staged, behind = self.store.staged(), self.store.replica_lag() or 0
        storage = self.store.storage()
        self._seen = _Seen(feeds, staged, storage, lags, self.store.now(), behind, is_up=True)
        return [each.name for each in feeds]

    @property
    def looks(self) -> Mapping[str, Callable[[], object]]:
        """Return, for each table feed, the function that refreshes its gauges."""
        return {name: partial(self._look_at, name) for name in self.tables}

    def _look_at(self, name: str) -> None:
        try:
            self._seen_tables[name] = self.tables[name]()
        except BaseException:  # raised again; what was seen before may be wrong now
            self._seen_tables.pop(name, None)
            raise

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
        told: dict[str, GaugeMetricFamily] = {}
        for name, value, labels in self._values():
            if name not in told:
                told[name] = GaugeMetricFamily(name, _GAUGES[name], labels=_LABELS[: len(labels)])
            told[name].add_metric(labels, value)
        return iter(told.values())

    def _values(self) -> Iterator[tuple[str, float, tuple[str, ...]]]:
        """Yield a gauge, its value, and its labels."""
        seen = self._seen
        waiting = {**{each.name: 0 for each in seen.feeds}, **self.waiting()}
        for name, count in sorted(waiting.items())[:FEEDS]:
            yield "zeh_waiting_readers", count, (name,)
        if self.connections is not None:
            yield "zeh_open_connections", self.connections(), ()
        if self.moved is not None:
            yield "zeh_segments_moved_timestamp_seconds", self.moved(), ()
        for name, is_up in sorted(self.tables_up.items())[:FEEDS]:
            yield "zeh_table_up", is_up, (name,)
        if self.store is not None:
            yield "zeh_store_up", seen.is_up, ()
            if seen.is_up:
                yield "zeh_replica_lag_seconds", seen.replica_lag / 1000, ()
        for feed in seen.feeds:
            yield "zeh_feed_head", feed.head, (feed.name,)
            yield "zeh_feed_last_commit_timestamp_seconds", feed.time / 1000, (feed.name,)
            yield "zeh_staged_bytes", seen.staged.get(feed.name, 0), (feed.name,)
            unpacked, moved = seen.storage.get(feed.name, (0, 0))
            yield "zeh_unpacked_chunks", unpacked, (feed.name,)
            yield "zeh_segment_bytes", moved, (feed.name,)
        for name, look in sorted(self._seen_tables.items()):
            yield "zeh_table_held_seconds", look.held_seconds, (name,)
            if look.last and isinstance(look.last.id, int):
                yield "zeh_feed_head", look.last.id, (name,)
            if look.last and look.last.time is not None:
                yield "zeh_feed_last_commit_timestamp_seconds", look.last.time / 1000, (name,)
        for name, lag in self.lags():
            labels = name, lag.name, str(lag.n)
            yield "zeh_consumer_lag_events", lag.events, labels
            yield "zeh_consumer_lag_at_least", lag.more, labels
            yield "zeh_consumer_partitions", lag.partitions, labels
            now = now_ms() if name in self.tables else seen.now
            age = Unread(lag.events, lag.since, lag.more).as_told(now).ms
            if age is not None:
                yield "zeh_consumer_lag_seconds", age / 1000, labels

    def _lags(self, store: Store, feeds: list[FeedState]) -> Iterator[tuple[str, Lag]]:
        end = time.monotonic() + SCAN_SECONDS
        first, self._turn = self._turn % max(1, len(feeds)), self._turn + 1
        for feed in feeds[first:] + feeds[:first]:  # each is the first one at times
            if self.backlogs is None or not (sets := store.cursor_sets(feed.name)[:CURSOR_SETS]):
                continue
            left = max(0.0, min(end - time.monotonic(), FEED_SECONDS))
            with self.backlogs.up_to_date(feed, left) as backlog:
                if backlog:
                    with store.snapshot(feed.name) as log:
                        anchors = log.anchors
                    found = [lag for each in sets for lag in backlog.lags(each, anchors)]
                    yield from ((feed.name, lag) for lag in found)
