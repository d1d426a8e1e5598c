"""The driver's side of a stream: what is read ahead, and the batch that Spark is working on.

The driver reads every page once, because only reading tells where a batch may end. It passes the
bytes to the tasks, which decode them (see docs/explanation/how-it-works.md). With direct reads it
asks for plans instead, and the tasks fetch. Never pickled.

Rule for editors: `partitions` may run again for the same batch, and gives the same each time.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from zeh_spark.client.http import direct_client, lag
from zeh_spark.client.http.discovery import discover
from zeh_spark.client.http.feed_client import FeedClient, PageRequest
from zeh_spark.client.polling import starts
from zeh_spark.errors import CursorGoneError, PublisherError
from zeh_spark.spark.frames.compat import HAS_ADMISSION_CONTROL
from zeh_spark.spark.source import offsets
from zeh_spark.spark.source.direct_planner import (
    DirectPlanner,
    PlannedBatch,
    check_position,
    reads_directly,
)
from zeh_spark.spark.source.direct_replay import check_columns, planned_again
from zeh_spark.spark.source.direct_tasks import DirectPartition, partitions_of
from zeh_spark.spark.source.offsets import Offset, Position
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.packed_batches import PackedBatch, PackedBatches, checked, packed
from zeh_spark.spark.source.planning import TriggerDelay
from zeh_spark.spark.source.position_reporter import CursorSet
from zeh_spark.spark.source.prefetch import Fetcher
from zeh_spark.spark.source.replay import read_again
from zeh_spark.spark.source.staging import SegmentPartition, Staging, new_stage, staged_partitions
from zeh_spark.wire import wire
from zeh_spark.wire.feed_identity import FeedIdentity, untold

log = logging.getLogger(__name__)

FIRST_FACTOR = 4
"""How many times as large as `maxBytesPerTrigger` the first batch of a run may be on Spark 4.0 and
4.1, where a run with availableNow or once has no second one."""

_KEEP_SECONDS = 5.0
"""Seconds that the end of a run waits for its position to be reported."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """The batch (start, end] that Spark is working on."""

    start: Mapping[str, Any]
    end: dict[str, Any]
    partitions: Sequence[InputPartition]


class StreamDriver:
    """The driver's side of one running query: what is read ahead, and the batch in work.

    `latest_offset` makes batches; `partitions` delivers them, the first time and again.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._client = FeedClient(options, max_interval=4 * options.driver_bytes)
        self._cursor_set = CursorSet(options)
        self._probe = lag.LagProbe(options)
        self._lag: tuple[str | None, lag.Lag | None] = (None, None)
        self._lone = False
        self._batches: PackedBatches | None = None
        self._planner: DirectPlanner | None = None
        self._direct: bool | None = None
        self._offered: bool | None = None
        self._cursors: list[str] = []
        self._first = True
        self._delay = TriggerDelay(options.min_events_per_trigger, options.max_trigger_delay)
        self._batch: _Batch | None = None
        self._staging: Staging | None = None
        self._partition_count = options.partition_count
        self._identity: FeedIdentity | None = None
        self._new_reader = secrets.token_hex(8)

    def latest_offset(
        self, start: dict[str, Any], *, finite: bool, lone: bool = False
    ) -> dict[str, Any]:
        """Return the end of the next batch; `start` itself if there is nothing new.

        The run is `finite` if it ends when it has read the feed to its end. It is `lone` if it may
        end after its first batch, which Spark does not tell before 4.2. That batch then has all
        that the feed holds, as far as `FIRST_FACTOR` allows.
        """
        self._batch = None  # Spark is done with it
        self._lone = lone
        offset = self._parsed(start)
        if self.options.cursor_set:  # Spark asks for more after it committed what was before
            self._cursor_set.keep(offset.cursors, offset.reader)
        began = self._began(offset)
        if began and offset.since is None:
            return began.to_json()  # nothing is after `_last` yet
        offset = began or offset
        self._batch = self._planned(start, offset, finite=finite) or self._fetched(
            start, offset, finite=finite
        )
        self._first = False
        if self._batch:
            self._delay.last = time.monotonic()
            return self._batch.end
        if began:
            return began.to_json()
        if finite:  # the run ends here, and perhaps the process
            self._cursor_set.wait(_KEEP_SECONDS)
        return start

    def _fetched(self, start: dict[str, Any], offset: Offset, *, finite: bool) -> _Batch | None:
        """Return the next batch of the driver's way, in which the driver fetches."""
        if self._reads_directly():
            return None
        try:
            batches = self._batches_at(offset, finite=finite)
            packed = batches.next(
                first=self._first,
                whole=self._lone and self._first,
                delay=None if finite else self._delay,
            )
        except BaseException:
            self._close_batches()  # it may have taken events that are in no batch
            self._batches = None
            raise
        if self._lone and self._first:  # the next batch has the usual limits, and all partitions
            self._close_batches()
            self._batches = None
        if packed is None:
            return None
        return self._make_batch(start, offset, packed, batches)

    def _planned(self, start: dict[str, Any], offset: Offset, *, finite: bool) -> _Batch | None:
        """Return the next batch of direct reads, in which the tasks fetch."""
        if not self._reads_directly():
            return None
        planner = self._planner_at(offset, finite=finite)
        try:
            batch = planner.next(first=self._first, delay=None if finite else self._delay)
        except PublisherError as exc:
            may_fall_back = self._first and self.options.fetch == "auto"
            if not (may_fall_back and exc.status in direct_client.NOT_OFFERED):
                raise
            check_position(self.options)
            log.warning("the driver fetches, because a plan was refused: %s", exc)
            self._direct = self._offered = False
            return None
        if not batch:
            return None
        self._cursors = list(batch.ends)
        self._lag = planner.head, planner.lag
        positions = batch.positions()
        self._warn_of_losses(offset, positions)
        end = Offset(
            offset.feed,
            positions,
            started=self._started(start, offset),
            id=self._id,
            direct=self.options.fingerprint,
            reader=self._reader_of(offset),
            behind=self._behind(more=batch.more),
        )
        return _Batch(start, end.to_json(), self._for_tasks(batch, offset))

    def _for_tasks(self, batch: PlannedBatch, offset: Offset) -> list[DirectPartition]:
        feed = self._stamping(offset)
        return partitions_of(batch, self._client.transport, self.options, feed)

    def _reads_directly(self) -> bool:
        """Return whether executors fetch. It is decided once in a run.

        Raises OptionError if they have to, by `fetch` or the schema, and cannot.
        """
        if self._direct is None:
            self._direct = reads_directly(self.options, self._is_offered)
        return self._direct

    def _is_offered(self) -> bool:
        if self._offered is None:
            known = self._identity is not None and self._identity.told
            transport, count = self._client.transport, self._partition_count
            self._offered = discover(transport, count, has_identity=known).direct
        return self._offered

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the batch from memory, or as it was staged, or read again and compared."""
        if self._batch is None or (self._batch.start, self._batch.end) != (start, end):
            if self._first and not HAS_ADMISSION_CONTROL:
                lag.warn_of_repetition(self.options.url)
            self._batch = _Batch(start, end, self._again(start, end))
        return self._batch.partitions

    def commit(self, end: dict[str, Any]) -> None:
        """Delete the staged batch that ends at `end`: Spark has processed it."""
        staged = offsets.parse(end, self.options).staged
        if staged and (staging := self._staging_of(staged.stage)):
            staging.forget(staged.batch)

    def report(self) -> dict[str, Any] | None:
        """Return the feed's head, the lag, and what reading took so far, for Spark's progress."""
        reading = self._planner or self._batches
        if reading is None:
            return None
        if self._planner:
            self._lag = self._planner.head, self._planner.lag
        return lag.report(self.options.feed, *self._lag, reading.report())

    def _behind(self, *, more: bool, is_undecided: bool = False) -> dict[str, Any] | None:
        """Return what the progress tells of the feed's end, if only the offset can tell it.

        Warns if this is the only batch of the run, and the feed holds more. `more` says whether
        events are known that are in no batch yet; `is_undecided`, whether the run ends without a
        proof that it has come to the end.
        """
        known = self._lag[1]
        if is_undecided:
            return {"more": True, **lag.metrics(known)}
        if not self._lone:
            return None
        more &= known is None or known.total > 0
        if more and self._first:
            lag.warn_of_rest(self.options.url, known)
        return {"more": more, **lag.metrics(known)}

    def stop(self) -> None:
        """End the threads and the connections of the run."""
        self._close_batches()
        self._client.transport.stop()

    def _close_batches(self) -> None:
        if self._batches:
            self._batches.close()

    def _parsed(self, document: Mapping[str, Any]) -> Offset:
        offset = offsets.parse(document, self.options)
        if offset != offsets.initial(self.options):
            self._client.transport.has_answered()  # when the query made its first batch
            self._partition_count = self._partition_count or offset.partition_count
        if self._identity is None or self._partition_count is None:
            self._identify(offset)
        elif offset.id:
            offsets.check_identity(offset.id, self._identity, self.options.url)
        return offset.resolved(self._partition_count or 0)

    def _identify(self, offset: Offset) -> FeedIdentity:
        """Ask the publisher which feed it serves, and for the partition count of a new query.

        A checkpoint that began without an id continues with the feed's name, even if the publisher
        tells an id since: state and tables know its events by that name.

        Raises CheckpointError if it is not the feed of the offset, or of this run.
        """
        before, count, name = self._identity, self._partition_count, self.options.feed
        known = offset.id or (before.id if before else None)
        if known == name and count is not None:
            self._identity = untold(name)
            return self._identity
        found = discover(self._client.transport, count, has_identity=bool(known))
        identity = found.named(name)
        offsets.check_identity(known, identity, self.options.url)
        if count is None:
            self.options.check_partitions(found.partition_count)
        self._identity, self._partition_count = identity, found.partition_count
        self._offered = found.direct
        return identity

    def _planner_at(self, offset: Offset, *, finite: bool) -> DirectPlanner:
        cursors = list(offset.cursors)
        if self._planner is None or self._cursors != cursors:
            self._cursors = cursors
            transport = self._client.transport
            factor = FIRST_FACTOR if self._lone and self._first else 1
            self._planner = DirectPlanner(
                transport, self.options, cursors, finite=finite, first_factor=factor
            )
        return self._planner

    def _batches_at(self, offset: Offset, *, finite: bool) -> PackedBatches:
        cursors = list(offset.cursors)
        if self._batches and self._cursors == cursors:
            return self._batches
        self._close_batches()
        self._cursors = cursors
        self._staging = self._staging_of(offset.staged.stage if offset.staged else new_stage())
        if self._staging:
            self._staging.begin(offset.staged)
        options = self.options
        if lone := self._lone and self._first:
            options = replace(options, max_bytes_per_trigger=FIRST_FACTOR * options.driver_bytes)
        fetcher = Fetcher(self._client, options, cursors, finite=finite or lone)
        fetcher.start()
        self._batches = PackedBatches(fetcher, self.options.parallelism)
        return self._batches

    def _began(self, offset: Offset) -> Offset | None:
        """Return batch 0 of a query that starts at `_last`, or at a time; None for any other one.

        It has positions and no events, so that it can be replayed.
        """
        cursors = list(offset.cursors)
        if offset.since is None and wire.LAST not in cursors:
            return None
        self._reads_directly()  # raises what it has to before there is a checkpoint
        hint, headers = self.options.page_size_hint, self.options.requested_headers
        request = PageRequest(0, wire.LAST, len(cursors), hint, headers)
        threads = self.options.max_concurrent_requests
        started = tuple(starts.chosen(self._client, cursors, offset.since, request, threads))
        return replace(
            offset,
            positions=tuple(map(Position, started)),
            started=started,
            id=self._id,
            reader=self._reader_of(offset),
            since=None,
        )

    def _make_batch(
        self,
        start: dict[str, Any],
        offset: Offset,
        packed: PackedBatch,
        batches: PackedBatches,
    ) -> _Batch:
        positions = [
            packed.moved.get(partition, position.unmoved())
            for partition, position in enumerate(offset.positions)
        ]
        self._cursors = [position.cursor for position in positions]
        self._warn_of_losses(offset, positions)
        self._lag = (self._offered and self._probe.ask(self._cursors)) or (None, None)
        feed = self._stamping(offset) if packed.payloads else None
        staged = self._staging.keep(packed.payloads) if self._staging else None
        started = self._started(start, offset)
        end = Offset(
            offset.feed,
            tuple(positions),
            staged=staged,
            started=started,
            id=self._id,
            reader=self._reader_of(offset),
            behind=self._behind(more=batches.has_more, is_undecided=batches.fetcher.is_undecided),
        )
        partitions = (
            staged_partitions(self._staging, staged, feed)
            if self._staging and staged
            else [SegmentPartition(checked(payload), feed=feed) for payload in packed.payloads]
        )
        return _Batch(start, end.to_json(), partitions)

    def _warn_of_losses(self, offset: Offset, positions: Sequence[Position]) -> None:
        """Tell what a new batch passes. Alerts look for this text, and for the error's code."""
        for partition, (before, now) in enumerate(zip(offset.positions, positions, strict=True)):
            if now.begun is not None:
                log.warning(
                    "[%s] EVENTS ARE LOST: partition %d, cursor %r: the publisher of %s removed "
                    "what follows it; the query continues with the oldest events left, after "
                    "%r, because failOnDataLoss=false",
                    CursorGoneError("").code,
                    partition,
                    before.cursor,
                    self.options.url,
                    now.begun,
                )

    def _started(self, start: dict[str, Any], offset: Offset) -> tuple[str, ...]:
        """Return where the query began, for the end of its first batch; () for any other."""
        return offset.cursors if start == offsets.initial(self.options).to_json() else ()

    @property
    def _id(self) -> str | None:
        """The feed's identity in the checkpoint: its own id, or its name if it tells no id."""
        return self._identity.id if self._identity else None

    def _reader_of(self, offset: Offset) -> str | None:
        """Return the checkpoint's identity as a consumer, for the offset after this one.

        It is made when `cursorSet` is set for the first time. Until then there is none.
        """
        return offset.reader or (self._new_reader if self.options.cursor_set else None)

    def _stamping(self, offset: Offset) -> FeedIdentity | None:
        """Return the identity for a batch's events, after they were fetched.

        An epoch that began while the query runs is known then.
        """
        return self.options.stamping(self._identify(offset))

    def _again(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a batch that Spark repeats after a restart.

        A query's first batch began where its end offset says. Its start offset comes from the
        options, which may have changed. A batch after a loss began after that.
        """
        target, before = self._parsed(end), self._parsed(start)
        if not any(position.events for position in target.positions):
            return []
        origin = [
            Position(cursor if position.begun is None else position.begun)
            for position, cursor in zip(
                target.positions, target.started or before.cursors, strict=True
            )
        ]
        if target.direct is not None:
            check_columns(self.options, target.direct)
            if self._reads_directly():
                batch = planned_again(
                    self._client.transport, self.options, origin, target.positions
                )
                return self._for_tasks(batch, target)
        check_position(self.options)
        staging = self._staging_of(target.staged.stage) if target.staged else None
        if staging and target.staged and staging.has(target.staged):
            return staged_partitions(staging, target.staged, self._stamping(target))
        lines = read_again(
            self._client,
            self.options,
            origin,
            target.positions,
            compare=target.direct is None,
        )
        payloads = list(packed(lines, self.options.parallelism))
        feed = self._stamping(target) if payloads else None
        return [SegmentPartition(checked(payload), feed=feed) for payload in payloads]

    def _staging_of(self, stage: str) -> Staging | None:
        location = self.options.staging_location
        return Staging(location, stage) if location else None
