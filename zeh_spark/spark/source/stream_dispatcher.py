"""The driver's side of a stream: what Spark asks, and which source of batches answers.

There are two sources with one contract (`batch_source`). Which one makes the batches is decided
once in a run: `PlannedSource` if tasks can fetch, else `PagedSource`. Never pickled.

Rule for editors: `partitions` may run again for the same batch, and gives the same each time. What
a source does is no matter of this module.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from zeh_spark.client.http import direct_client, lag
from zeh_spark.client.http.discovery import discover
from zeh_spark.client.http.feed_client import FeedClient, PageRequest
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.polling.feed_end_probes import first_checkpoint
from zeh_spark.client.polling.position_reporter import PositionReporter
from zeh_spark.errors import CursorGoneError, PublisherError, ReplayError
from zeh_spark.spark.source import offsets
from zeh_spark.spark.source.batch_source import (
    Batch,
    BatchSource,
    Limits,
    check_position,
    reads_directly,
)
from zeh_spark.spark.source.offsets import Offset, Position
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.paged_source import PagedSource
from zeh_spark.spark.source.planned_source import PlannedSource
from zeh_spark.spark.source.tasks import FeedTask
from zeh_spark.wire import wire
from zeh_spark.wire.direct_reads import INLINE_BYTES
from zeh_spark.wire.feed_identity import FeedIdentity, untold

log = logging.getLogger(__name__)

TellsBehind = Callable[[bool, lag.Lag | None], dict[str, Any] | None]
"""Returns what an offset tells of the feed's end: given whether there is more, and the lag."""


@dataclass(frozen=True, slots=True)
class _Delivered:
    """The batch (start, end] that Spark is working on."""

    start: Mapping[str, Any]
    end: dict[str, Any]
    tasks: Sequence[FeedTask]


class _KnownFeed:
    """What a run knows of its feed: which one it is, its partitions, and what it offers.

    Attributes:
        offered: whether the publisher offers direct reads; None while it was not asked.
        partition_count: the feed's number of partitions; None while it is not known.

    Rule for editors: a publisher is asked only for what is not known yet, and for the identity of
    the events of a batch, once they were fetched, unless the answers with them told that no epoch
    has begun while the query runs.
    """

    def __init__(self, transport: Transport, options: SourceOptions) -> None:
        self.offered: bool | None = None
        self._transport = transport
        self._options = options
        self._identity: FeedIdentity | None = None
        self.partition_count = options.partition_count

    @property
    def id(self) -> str | None:
        """The feed's identity in the checkpoint: its own id, or its name if it tells no id."""
        return self._identity.id if self._identity else None

    def offset(self, document: Mapping[str, Any]) -> Offset:
        """Return an offset of the checkpoint, with its partitions.

        Raises CheckpointError if it is not one of this feed.
        """
        offset = offsets.parse(document, self._options)
        if offset != offsets.initial(self._options):
            self._transport.has_answered()  # when the query made its first batch
            self.partition_count = self.partition_count or offset.partition_count
        if self._identity is None or self.partition_count is None:
            self._identify(offset)
        elif offset.id:
            offsets.check_identity(offset.id, self._identity, self._options.url)
        return offset.resolved(self.partition_count or 0, self._options)

    @property
    def tells(self) -> bool:
        """Whether the publisher is one of ours, whose pages tell where the feed stands."""
        return bool(self.offered) or (self._identity is not None and self._identity.told)

    def stamp(self, batch: Batch, offset: Offset) -> list[FeedTask]:
        """Return the tasks of a batch at an offset, with the identity for their events.

        It is asked for unless the answers with the events told the newest of the known epochs.
        """
        known = self._identity
        if batch.tasks and (known is None or not batch.epochs <= {known.epochs[-1]}):
            known = self._identify(offset)
        feed = self._options.stamping(known) if batch.tasks and known else None
        return [replace(task, feed=feed) for task in batch.tasks]

    def offers_direct_reads(self) -> bool:
        if self.offered is None:
            known = self._identity is not None and self._identity.told
            found = discover(self._transport, self.partition_count, has_identity=known)
            self.offered = found.direct
        return self.offered

    def _identify(self, offset: Offset) -> FeedIdentity:
        """Ask the publisher which feed it serves, and for the partition count of a new query.

        A checkpoint that began without an id continues with the feed's name, even if the publisher
        tells an id since: state and tables know its events by that name.

        Raises CheckpointError if it is not the feed of the offset, or of this run.
        """
        count, name = self.partition_count, self._options.feed
        known = offset.id or self.id
        if known == name and count is not None:
            self._identity = untold(name)
            return self._identity
        found = discover(self._transport, count, has_identity=bool(known))
        identity = found.named(name)
        offsets.check_identity(known, identity, self._options.url)
        if count is None:
            self._options.check_partitions(found.partition_count)
        self._identity, self.partition_count = identity, found.partition_count
        self.offered = found.direct
        return identity


class StreamDriver:
    """The driver's side of one running query.

    `latest_offset` makes batches; `partitions` delivers them, the first time and again.

    Attributes:
        is_first: whether the run has made no batch yet.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.is_first = True
        self._client = FeedClient(options, max_interval=4 * options.driver_bytes)
        self._feed = _KnownFeed(self._client.transport, options)
        self._paged = PagedSource(self._client, options, lambda: self._feed.tells)
        self._planned = PlannedSource(self._client.transport, options)
        self._source: BatchSource | None = None
        self._reporter = PositionReporter(options)
        self._made_at: float | None = None
        self._delivered: _Delivered | None = None

    def initial(self) -> dict[str, Any]:
        """Return where a new query starts."""
        return offsets.initial(self.options).to_json()

    def latest_offset(
        self,
        start: dict[str, Any],
        limits: Limits,
        tells_behind: TellsBehind = lambda more, known: None,
    ) -> dict[str, Any]:
        """Return the end of the next batch; `start` itself if there is nothing new."""
        self._delivered = None  # Spark is done with it
        after = self._feed.offset(start)
        # Spark asks after it has committed these.
        self._reporter.keep(after.cursors, after.partition_count or 0, after.reader)
        began = self._began(after)
        if began and after.since is None:
            return began.to_json()  # nothing is after `_last` yet
        after = began or after
        batch = self._next(after, self._limited(limits))
        if batch:
            self._delivered = self._deliver(start, after, batch, tells_behind)
        self.is_first = False
        if self._delivered:
            self._made_at = time.monotonic()
            return self._delivered.end
        if began:
            return began.to_json()
        if limits.finite:  # the run ends here, and perhaps the process
            self._reporter.wait()
        return start

    def _limited(self, limits: Limits) -> Limits:
        """Return the limits with what this module knows: which batch it is, and its delay."""
        limits = replace(limits, first=self.is_first)
        if limits.finite or self._made_at is None:
            return limits
        until = self._made_at + self.options.max_trigger_delay
        return replace(limits, least=self.options.min_events_per_trigger or 0, until=until)

    def _next(self, after: Offset, limits: Limits) -> Batch | None:
        """Return the next batch. If a plan is refused for the first one, the driver may fetch."""
        source = self._chosen()
        try:
            return source.next(after, limits)
        except PublisherError as exc:
            may_fall_back = self.is_first and self.options.fetch == "auto"
            refused = source is self._planned and exc.status in direct_client.NOT_OFFERED
            if not (may_fall_back and refused):
                raise
            check_position(self.options)
            log.warning("the driver fetches, because a plan was refused: %s", exc)
            self._feed.offered = False
            self._source = self._paged
        return self._paged.next(after, limits)

    def _chosen(self) -> BatchSource:
        """Return the source of the run's batches.

        Raises OptionError if executors have to fetch, by `fetch` or the schema, and cannot.
        """
        if self._source is None:
            direct = reads_directly(self.options, self._feed.offers_direct_reads)
            self._source = self._planned if direct else self._paged
        return self._source

    def _deliver(
        self, start: dict[str, Any], after: Offset, batch: Batch, tells_behind: TellsBehind
    ) -> _Delivered:
        self._warn_of_losses(after, batch.positions)
        tasks = self._feed.stamp(batch, after)
        known = self._chosen().report().lag
        behind = (
            {"more": True, **lag.metrics(known)}
            if batch.is_undecided
            else tells_behind(batch.more, known)
        )
        end = Offset(
            after.feed,
            batch.positions,
            after.partition_count,
            staged=batch.staged,
            started=after.cursors if start == self.initial() else {},
            id=self._feed.id,
            direct=batch.direct,
            only=self.options.selected or None,
            reader=self._reporter.reader(after.reader),
            behind=behind,
        )
        return _Delivered(start, end.to_json(), tasks)

    def _began(self, offset: Offset) -> Offset | None:
        """Return batch 0 of a query that starts at `_last`, or at a time; None for any other one.

        It has positions and no events, so that it can be replayed. What `_last` or the time means
        is asked for once: this offset keeps it, so that a restart does not choose again. `_first`
        stays, because a feed may be empty.
        """
        cursors, count = offset.cursors, offset.partition_count or 0
        if offset.since is None and wire.LAST not in cursors.values():
            return None
        self._chosen()  # raises what it has to before there is a checkpoint
        if offset.since is None:
            with ThreadPoolExecutor(self.options.max_concurrent_requests) as pool:
                resolved = pool.map(partial(self._resolve, count), cursors, cursors.values())
                started = dict(zip(cursors, resolved, strict=True))
        else:
            at = direct_client.cursors_at(self._client.transport, count, offset.since)
            started = {each: at[each] for each in cursors}
        return replace(
            offset,
            positions={each: Position(cursor) for each, cursor in started.items()},
            started=started,
            id=self._feed.id,
            reader=self._reporter.reader(offset.reader),
            since=None,
        )

    def _resolve(self, count: int, partition: int, cursor: str) -> str:
        options = self.options
        if cursor != wire.LAST:
            return cursor
        hint, headers = options.page_size_hint, options.requested_headers
        request = PageRequest(partition, wire.LAST, count, hint, headers)
        return first_checkpoint(self._client, request)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[FeedTask]:
        """Return the batch from memory, or once more from its source, proven equal."""
        known = self._delivered
        if known is None or (known.start, known.end) != (start, end):
            self._delivered = known = _Delivered(start, end, self._again(start, end))
        return known.tasks

    def is_inline(self, tasks: Sequence[FeedTask], end: dict[str, Any]) -> bool:
        """Return whether the driver reads the tasks of the batch that ends there (`inline`)."""
        if not self.options.inline or len(tasks) != 1 or not tasks[0].is_here:
            return False
        positions = offsets.parse(end, self.options).positions
        return sum(each.bytes for each in positions.values()) <= INLINE_BYTES

    def _again(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[FeedTask]:
        """Return a batch that Spark repeats after a restart.

        A query's first batch began where its end offset says. Its start offset comes from the
        options, which may have changed. A batch after a loss began after that.
        """
        target, before = self._feed.offset(end), self._feed.offset(start)
        if not any(position.events for position in target.positions.values()):
            return []
        begun = target.started or before.cursors
        origin = {
            each: Position(begun[each] if position.begun is None else position.begun)
            for each, position in target.positions.items()
        }
        source: BatchSource = self._paged
        is_direct = target.direct is not None
        then = target.only or "", target.direct
        now = self.options.selected, self.options.fingerprint if is_direct else None
        staged = target.staged is None or target.staged.has(self.options.requested_headers)
        if (then != now or not staged) and self.options.replay != "accept":  # other rows
            changed = "'headers' or 'stamps'"
            if then[0] != now[0]:
                had, has = (each or "not set" for each in (then[0], now[0]))
                changed = f"'only' (it was {had}, and is {has})"
            raise ReplayError(
                f"Spark has to repeat a batch that was planned with another option {changed}, so "
                f"its rows would differ. Set it as it was, until the batch is done; or, if the "
                f"sink has not committed that batch, restart once with replay=accept",
                expected=then,
                got=now,
            )
        if is_direct:
            source = self._chosen()
        batch = source.again(origin, target)
        return self._feed.stamp(batch, target)

    def commit(self, end: dict[str, Any]) -> None:
        """Have what is kept of the batch that ends at `end` deleted: Spark has processed it."""
        self._paged.forget(offsets.parse(end, self.options))

    def report(self) -> dict[str, Any] | None:
        """Return the feed's head, the lag, and what reading took so far, for Spark's progress."""
        if self._source is None or self.is_first:
            return None
        told = self._source.report()
        count = self._feed.partition_count
        return lag.report(self.options.feed, count, told.head, told.lag, told.numbers)

    def stop(self) -> None:
        """End the threads and the connections of the run."""
        self._reporter.stop()
        self._paged.close()
        self._planned.close()
        self._client.transport.stop()

    def _warn_of_losses(self, offset: Offset, positions: Mapping[int, Position]) -> None:
        """Tell what a new batch passes. Alerts look for this text, and for the error's code."""
        for partition, now in positions.items():
            if now.begun is not None:
                log.warning(
                    "[%s] EVENTS ARE LOST: partition %d, cursor %r: the publisher of %s removed "
                    "what follows it; the query continues with the oldest events left, after "
                    "%r, because failOnDataLoss=false",
                    CursorGoneError("").code,
                    partition,
                    offset.positions[partition].cursor,
                    self.options.url,
                    now.begun,
                )
