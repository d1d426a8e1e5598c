"""The stream source: what Spark calls on the driver, and what its tasks do.

The driver reads every page once, because only reading tells where a batch may end. It passes the
bytes to the tasks, which decode them (see docs/explanation/how-it-works.md).

Rule for editors: `StreamReader` is pickled, by the planner and into tasks. Its options are not
pickled, so no token reaches an executor. Of the URL, an executor gets at most what names a feed
that has no id: no user, and the query as a digest (`FeedUrl.identity`). `partitions` and `read` may
run more than once for the same batch, and give the same each time.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from zeh_spark._compat import ReadAllAvailable, ReadMaxBytes, SupportsTriggerAvailableNow
from zeh_spark.client.feed_client import FeedClient, PageRequest
from zeh_spark.errors import (
    CheckpointError,
    OptionError,
    PublisherError,
    ReplayError,
    at_spark_border,
)
from zeh_spark.protocol import hashes, wire
from zeh_spark.protocol.feed_identity import FeedIdentity, untold
from zeh_spark.source import direct_tasks, offsets
from zeh_spark.source.decode import Decoder
from zeh_spark.source.direct_planner import (
    DirectPlanner,
    PlannedBatch,
    check_position,
    planned_again,
    reads_directly,
)
from zeh_spark.source.direct_tasks import DirectPartition, partitions_of
from zeh_spark.source.end_probes import first_checkpoint
from zeh_spark.source.offsets import Offset, Position, StagedBatch
from zeh_spark.source.options import SourceOptions
from zeh_spark.source.packed_batches import PackedBatch, PackedBatches, checked, packed
from zeh_spark.source.position_reporter import CursorSet
from zeh_spark.source.prefetch import Fetcher
from zeh_spark.source.replay import Digest, read_again
from zeh_spark.source.segments import unpack
from zeh_spark.source.staging import Staging, new_stage

log = logging.getLogger(__name__)

_NOT_OFFERED = {404, 405, 501}
"""How a publisher refuses plans that does not know them."""

_KEEP_SECONDS = 5.0
"""Seconds that the end of a run waits for its position to be reported."""


@dataclass(frozen=True)
class SegmentPartition(InputPartition):
    """A segment on its way to a task: its bytes, or the place where they are staged.

    Args:
        payload: the packed segment; None if it is staged.
        staging: where it is staged.
        batch: the name of the staged batch.
        segment: its number in that batch.
        feed: the identity whose ids the events get as the header `zeh-feed`; None adds none.
    """

    payload: bytes | None = field(default=None, repr=False)
    staging: Staging | None = field(default=None, repr=False)
    batch: str = ""
    segment: int = 0
    feed: FeedIdentity | None = None


@dataclass(frozen=True, slots=True)
class _Batch:
    """The batch (start, end] that Spark is working on."""

    start: Mapping[str, Any]
    end: dict[str, Any]
    partitions: Sequence[InputPartition]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream source as Spark calls it. See `DataSourceStreamReader` for the contract.

    Args:
        options: the query's options; None if they are not valid.
        decoder: decodes lines in tasks; or the error that the first call raises.

    Guarantee: delivers each event of the feed once per checkpoint, or fails with an explanation.
    """

    def __init__(self, options: SourceOptions | None, decoder: Decoder | OptionError) -> None:
        self._options = options
        self._decoder = decoder
        self._finite = False
        self._driver: StreamDriver | None = None
        self._last: Mapping[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_decoder": self._decoder}

    @at_spark_border
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts (see `DataSourceStreamReader`)."""
        return offsets.initial(self._begun.options).to_json()

    @at_spark_border
    def getDefaultReadLimit(self) -> ReadMaxBytes:
        """Return `maxBytesPerTrigger` as a read limit, for Spark 4.2 and later."""
        return ReadMaxBytes(self._begun.options.driver_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read to the feed's end only (see `SupportsTriggerAvailableNow`)."""
        self._finite = True

    @at_spark_border
    def latestOffset(  # Spark 4.0 and 4.1 pass no arguments
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        """Return the end of the next batch (see `DataSourceStreamReader`)."""
        driver = self._begun
        if start is None:
            start = dict(self._last or offsets.initial(driver.options).to_json())
        finite = self._finite or isinstance(limit, ReadAllAvailable)
        self._last = end = driver.latest_offset(start, finite=finite)
        return end

    @at_spark_border
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the segments of the batch (start, end] (see `DataSourceStreamReader`)."""
        if start == end:
            self._restart_at(end)
            return []
        return self._begun.partitions(start, end)

    def _restart_at(self, end: dict[str, Any]) -> None:
        """Continue at an offset. Spark 4.0 and 4.1 call `partitions(x, x)` to restore one."""
        if self._last is not None and self._last != end:
            raise CheckpointError(
                "Spark requested offsets before it restored the checkpoint. Set "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled=false; otherwise events "
                "are duplicated",
                expected=self._last,
                got=end,
                anchor="triggeravailablenowwrapper",
            )
        self._last = end

    @at_spark_border
    def commit(self, end: dict[str, Any]) -> None:
        """Forget a batch that Spark has processed (see `DataSourceStreamReader`)."""
        self._begun.commit(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return numbers for the query's progress, from Spark 4.2 on."""
        return self._driver.report() if self._driver else None

    def stop(self) -> None:
        """End the run (see `DataSourceStreamReader`)."""
        if self._driver:
            self._driver.stop()

    @at_spark_border
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one segment, in a task (see `DataSourceStreamReader`)."""
        assert isinstance(self._decoder, Decoder)
        if isinstance(partition, DirectPartition):
            yield from direct_tasks.read(partition, self._decoder)
            return
        assert isinstance(partition, SegmentPartition)
        payload = partition.payload
        if payload is None:
            assert partition.staging is not None
            payload = partition.staging.read(partition.batch, partition.segment)
        for feed_partition, lines in unpack(payload):
            yield from self._decoder.batches(lines, feed_partition, partition.feed)

    @property
    def _begun(self) -> StreamDriver:
        if isinstance(self._decoder, OptionError):
            raise self._decoder
        if self._driver is None:
            assert self._options is not None
            self._driver = StreamDriver(self._options)
        return self._driver


class StreamDriver:
    """The driver's side of one running query: what is read ahead, and the batch in work.

    `latest_offset` makes batches; `partitions` delivers them, the first time and again.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._client = FeedClient(options, max_interval=4 * options.driver_bytes)
        self._cursor_set = CursorSet(options)
        self._batches: PackedBatches | None = None
        self._planner: DirectPlanner | None = None
        self._direct: bool | None = None
        self._offered: bool | None = None
        self._cursors: list[str] = []
        self._first = True
        self._batch: _Batch | None = None
        self._staging: Staging | None = None
        self._partition_count = options.partition_count
        self._identity: FeedIdentity | None = None
        self._new_reader = secrets.token_hex(8)

    def latest_offset(self, start: dict[str, Any], *, finite: bool) -> dict[str, Any]:
        """Return the end of the next batch; `start` itself if there is nothing new.

        Args:
            start: where the batch begins.
            finite: whether the run ends when it has read the feed to its end.
        """
        self._batch = None  # Spark is done with it
        offset = self._parsed(start)
        if self.options.cursor_set:  # Spark asks for more after it committed what was before
            self._cursor_set.keep(_cursors(offset), offset.reader)
        if any(position.cursor == wire.LAST for position in offset.positions):
            return self._resolve_last(offset).to_json()
        self._batch = self._planned(start, offset, finite=finite) or self._fetched(
            start, offset, finite=finite
        )
        self._first = False
        if self._batch:
            return self._batch.end
        if finite:  # the run ends here, and perhaps the process
            self._cursor_set.wait(_KEEP_SECONDS)
        return start

    def _fetched(self, start: dict[str, Any], offset: Offset, *, finite: bool) -> _Batch | None:
        """Return the next batch of the driver's way, in which the driver fetches."""
        if self._reads_directly:
            return None
        try:
            packed = self._batches_at(offset, finite=finite).next(first=self._first)
        except BaseException:
            self._close_batches()  # it may have taken events that are in no batch
            self._batches = None
            raise
        return self._make_batch(start, offset, packed) if packed else None

    def _planned(self, start: dict[str, Any], offset: Offset, *, finite: bool) -> _Batch | None:
        """Return the next batch of direct reads, in which the tasks fetch."""
        if not self._reads_directly:
            return None
        planner = self._planner_at(offset, finite=finite)
        try:
            batch = planner.next(first=self._first)
        except PublisherError as exc:
            if not (self._first and self.options.fetch == "auto" and exc.status in _NOT_OFFERED):
                raise
            check_position(self.options)
            log.warning("the driver fetches, because a plan was refused: %s", exc)
            self._direct = False
            return None
        if not batch:
            return None
        self._cursors = list(batch.ends)
        end = Offset(
            offset.feed,
            batch.positions(),
            started=self._started(start, offset),
            id=self._id,
            direct=self.options.fingerprint,
            reader=self._reader_of(offset),
        )
        return _Batch(start, end.to_json(), self._for_tasks(batch, offset))

    def _for_tasks(self, batch: PlannedBatch, offset: Offset) -> list[DirectPartition]:
        feed = self._stamping(offset)
        return partitions_of(batch, self._client.transport, self.options, feed)

    @property
    def _reads_directly(self) -> bool:
        """Whether executors fetch. It is decided once in a run.

        Raises OptionError if `fetch` is `executors`, and the publisher does not offer it.
        """
        if self._direct is None:
            self._direct = reads_directly(self.options, self._is_offered)
        return self._direct

    def _is_offered(self) -> bool:
        if self._offered is None:
            told = True if self._identity and self._identity.told else None
            self._offered = self._client.discover(self._partition_count, told=told).direct
        return self._offered

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the batch from memory, or as it was staged, or read again and compared."""
        if self._batch is None or (self._batch.start, self._batch.end) != (start, end):
            self._batch = _Batch(start, end, self._again(start, end))
        return self._batch.partitions

    def commit(self, end: dict[str, Any]) -> None:
        """Delete the staged batch that ends at `end`: Spark has processed it."""
        staged = offsets.parse(end, self.options).staged
        if staged and (staging := self._staging_of(staged.stage)):
            staging.forget(staged.batch)

    def report(self) -> dict[str, Any] | None:
        """Return numbers for the query's progress: what reading took so far, and what is ready."""
        if self._planner:
            return self._planner.report()
        if self._batches is None:
            return None
        events, size = self._batches.fetcher.held()
        statistics = self._batches.fetcher.statistics
        return {
            "pages": statistics.pages,
            "retries": statistics.retries,
            "ignoredLines": statistics.ignored_lines,
            "fetchSeconds": round(statistics.seconds, 3),
            "readyEvents": events,
            "readyBytes": size,
        }

    def stop(self) -> None:
        """End the threads and the connections of the run."""
        self._close_batches()
        self._client.stop()

    def _close_batches(self) -> None:
        if self._batches:
            self._batches.close()

    def _parsed(self, document: Mapping[str, Any]) -> Offset:
        offset = offsets.parse(document, self.options)
        if self._partition_count is None and offset != offsets.initial(self.options):
            self._partition_count = offset.partition_count
        if self._identity is None or self._partition_count is None:
            self._identify(offset)
        elif offset.id:
            offsets.check_identity(offset.id, self._identity, self.options.url)
        return offset.resolved(self._partition_count or 0)

    def _identify(self, offset: Offset) -> FeedIdentity:
        """Ask the publisher which feed it serves, and for the partition count of a new query.

        A checkpoint that began without an id continues with the feed's name, even if the publisher
        was upgraded since and tells an id: state and tables know its events by that name.

        Raises CheckpointError if it is not the feed of the offset, or of this run.
        """
        before, count, name = self._identity, self._partition_count, self.options.feed
        known = offset.id or (before.id if before else None)
        if known == name and count is not None:
            self._identity = untold(name)
            return self._identity
        found = self._client.discover(count, told=True if known else None)
        identity = found.named(name)
        offsets.check_identity(known, identity, self.options.url)
        if count is None:
            self.options.check_partitions(found.partition_count)
        self._identity, self._partition_count = identity, found.partition_count
        self._offered = found.direct
        return identity

    def _planner_at(self, offset: Offset, *, finite: bool) -> DirectPlanner:
        cursors = list(_cursors(offset))
        if self._planner is None or self._cursors != cursors:
            self._cursors = cursors
            transport = self._client.transport
            self._planner = DirectPlanner(transport, self.options, cursors, finite=finite)
        return self._planner

    def _batches_at(self, offset: Offset, *, finite: bool) -> PackedBatches:
        cursors = list(_cursors(offset))
        if self._batches and self._cursors == cursors:
            return self._batches
        self._close_batches()
        self._cursors = cursors
        self._prepare_staging(offset.staged)
        fetcher = Fetcher(self._client, self.options, cursors, finite=finite)
        fetcher.start()
        self._batches = PackedBatches(fetcher, self.options.parallelism)
        return self._batches

    def _resolve_last(self, offset: Offset) -> Offset:
        """Return batch 0 of a query that starts at `_last`.

        It has positions and no events, so that it can be replayed.
        """

        def resolve(partition: int, position: Position) -> Position:
            if position.cursor != wire.LAST:
                return position
            request = self._request(partition, position.cursor, len(offset.positions))
            return Position(first_checkpoint(self._client, request))

        with ThreadPoolExecutor(self.options.max_concurrent_requests) as pool:
            positions = tuple(pool.map(resolve, range(len(offset.positions)), offset.positions))
        started = tuple(each.cursor for each in positions)
        return replace(
            offset,
            positions=positions,
            started=started,
            id=self._id,
            reader=self._reader_of(offset),
        )

    def _request(self, partition: int, cursor: str, partition_count: int) -> PageRequest:
        options = self.options
        return PageRequest(
            partition, cursor, partition_count, options.page_size_hint, options.requested_headers
        )

    def _make_batch(self, start: dict[str, Any], offset: Offset, packed: PackedBatch) -> _Batch:
        positions = [
            packed.moved.get(partition, position.unmoved())
            for partition, position in enumerate(offset.positions)
        ]
        self._cursors = [position.cursor for position in positions]
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
        )
        partitions = (
            _staged_partitions(self._staging, staged, feed)
            if self._staging and staged
            else [SegmentPartition(checked(payload), feed=feed) for payload in packed.payloads]
        )
        return _Batch(start, end.to_json(), partitions)

    def _started(self, start: dict[str, Any], offset: Offset) -> tuple[str, ...]:
        """Return where the query began, for the end of its first batch; () for any other."""
        return _cursors(offset) if start == offsets.initial(self.options).to_json() else ()

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
        options, which may have changed.
        """
        target = self._parsed(end)
        origin = self._parsed(start)
        if target.started:
            origin = replace(origin, positions=tuple(map(Position, target.started)))
        if target.direct is not None:
            self._check_columns(target.direct)
            if self._reads_directly:
                batch = planned_again(
                    self._client.transport, self.options, origin.positions, target.positions
                )
                return self._for_tasks(batch, target) if batch else []
        check_position(self.options)
        staging = self._staging_of(target.staged.stage) if target.staged else None
        if staging and target.staged and staging.has(target.staged):
            return _staged_partitions(staging, target.staged, self._stamping(target))
        lines = read_again(
            self._client,
            self.options,
            origin.positions,
            target.positions,
            _digest_of(target),
        )
        payloads = list(packed(lines, self.options.parallelism))
        feed = self._stamping(target) if payloads else None
        return [SegmentPartition(checked(payload), feed=feed) for payload in payloads]

    def _check_columns(self, then: str) -> None:
        """Refuse to repeat a batch with options with which its rows would hold other values."""
        if then != self.options.fingerprint and self.options.replay != "accept":
            raise ReplayError(
                "Spark has to repeat a batch that was planned with another option 'headers' or "
                "'stamps', so its rows would differ. Set both as they were, until the batch is "
                "done; or, if the sink has not committed that batch, restart once with "
                "replay=accept",
                expected=then,
                got=self.options.fingerprint,
            )

    def _staging_of(self, stage: str) -> Staging | None:
        location = self.options.staging_location
        return Staging(location, stage) if location else None

    def _prepare_staging(self, staged: StagedBatch | None) -> None:
        """Continue with the checkpoint's stage, and clear what a crash left there.

        Called at the beginning of a run.
        """
        self._staging = self._staging_of(staged.stage if staged else new_stage())
        if self._staging:
            self._staging.probe()
            self._staging.forget_all_but(staged.batch if staged else None)


def _cursors(offset: Offset) -> tuple[str, ...]:
    return tuple(position.cursor for position in offset.positions)


def _digest_of(offset: Offset) -> Digest | None:
    """Return how an offset's digests were made of lines; None if they were not."""
    if offset.direct is not None:
        return None
    return hashes.digest_in_order if offset.ordered else hashes.sum_of_lines


def _staged_partitions(
    staging: Staging, staged: StagedBatch, feed: FeedIdentity | None
) -> list[SegmentPartition]:
    return [
        SegmentPartition(staging=staging, batch=staged.batch, segment=number, feed=feed)
        for number in range(staged.segments)
    ]
