"""Batches that the publisher plans: what one has, how it is planned, and what its tasks read.

A new batch of a stream, one that Spark repeats and a batch read are planned by one function.

Rule for editors: a Python task costs 50-70 ms by itself, so many small ranges share one. Ranges of
a feed partition stay in order, in one task or in consecutive ones, so that a query which publishes
them again keeps their order.

Tasks run `DirectPartition.read`; everything else runs on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import pyarrow as pa
from msgspec import UNSET

from zeh_spark.client.decoding.chunks import ChunkDecoder
from zeh_spark.client.decoding.lines import Decoder
from zeh_spark.client.http import direct_client
from zeh_spark.client.http.direct_client import FetchedGroup
from zeh_spark.client.http.feed_client import located
from zeh_spark.client.http.lag import Lag, lag_of
from zeh_spark.client.http.responses import problem_document
from zeh_spark.client.http.transport import Transport
from zeh_spark.errors import CursorGoneError, PublisherError
from zeh_spark.spark.source.offsets import Position
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.tasks import FeedTask
from zeh_spark.wire import wire
from zeh_spark.wire.direct_reads import (
    PLAN_CHUNKS,
    Plan,
    PlannedRange,
    PlanRequest,
    Totals,
    checked_ranges,
    totals_of,
)
from zeh_spark.wire.feed_identity import Epoch

LEAST_RANGE = 1 << 20
"""Bytes up to which ranges that follow each other become one."""

TASK_BYTES = 128 << 20
"""Most bytes of lines of a task, about, as in Spark's file sources."""

_SMALL_TASK_BYTES = 1 << 20


@dataclass(slots=True)
class PlannedBatch:
    """What a batch reads.

    Args:
        n: the feed's number of partitions.
        ends: where the partitions that are read end, by partition; `ranges` has what they have.
        begun: where partitions begin that lost events before that.
        more: whether the feed held more than the batch when it was planned.
        head: the cursor of the feed's newest event, as of the last plan.
        lag: how far the batch's end is behind it; None if that is unknown.
        chunks_behind: most chunks between the last one of the batch and the head.
        upto: the cursor after which nothing was planned; None for no such cursor.
        epoch: the feed's newest epoch, as of the last plan; None if it was not told.
        whole: the plan that has all of it; None if there are several.
    """

    n: int
    ends: dict[int, str]
    ranges: Mapping[int, list[PlannedRange]]
    begun: Mapping[int, str] = field(default_factory=dict)
    more: bool = False
    head: str | None = None
    lag: Lag | None = None
    chunks_behind: int = 0
    upto: str | None = None
    epoch: Epoch | None = None
    whole: Plan | None = None

    def __bool__(self) -> bool:
        """Whether it has events, or passes a loss."""
        return any(self.ranges.values()) or bool(self.begun)

    def totals(self, *partitions: int) -> Totals:
        """Return the sums of what some partitions have; of all, if none is given."""
        some = (self.ranges[each] for each in partitions or self.ranges)
        return sum((totals_of(each) for ranges in some for each in ranges), Totals())

    def positions(self) -> dict[int, Position]:
        """Return where the batch ends, and the sum of what lies before that, for the offset."""
        found = {}
        for partition, end in self.ends.items():
            own = self.totals(partition)
            digest = own.hex if own.events else None
            begun = self.begun.get(partition)
            found[partition] = Position(end, own.events, own.bytes, digest, begun)
        return found

    def add(self, plan: Plan, ranges: Mapping[int, Sequence[PlannedRange]]) -> None:
        """Add what a further plan has. Small ranges that follow each other become one."""
        self.whole = None if any(self.ranges.values()) else plan
        for partition, more in ranges.items():
            for each in more:
                before = self.ranges[partition][-1:]
                if before and before[0].bytes + each.bytes <= LEAST_RANGE:
                    each = _in_one(self.ranges[partition].pop(), each)
                self.ranges[partition].append(each)
            self.ends[partition] = plan.ends[str(partition)]
        self.more, self.head, self.chunks_behind = plan.more, plan.head, plan.behind
        self.lag, self.epoch = lag_of(plan.lag, self.ends), plan.epoch


def _in_one(first: PlannedRange, second: PlannedRange) -> PlannedRange:
    """Return a range and the one after it as one. The totals of ranges add up."""
    both = totals_of(first) + totals_of(second)
    return PlannedRange(
        first.partition, first.from_, second.to, both.chunks, both.events, both.bytes, both.hex
    )


def plan_batch(
    ask: Callable[[PlanRequest], Plan],
    request: PlanRequest,
    *,
    finite: bool = False,
    passes_losses: bool = False,
) -> PlannedBatch:
    """Plan a batch, plan after plan, until it has all that there is, or reaches a limit.

    So a batch has no hole, even if retention removes events between two of its plans: then it
    begins anew after what was lost, or fails.

    Args:
        ask: asks the publisher for a plan.
        request: the request for the first plan. Its limits are those of the batch.
        finite: whether to plan only what the feed has at the first plan.
        passes_losses: whether the batch may begin after events that were removed.

    Raises:
        CursorGoneError: events were removed, and may not be passed.
        PublisherError: the publisher refuses. It has the partition and the cursor, if it told them.
    """
    lost: dict[int, str] = {}
    while True:
        try:
            return _plan_on(ask, request, lost, finite=finite)
        except CursorGoneError as exc:
            found = lost_partitions(exc)
            if not passes_losses or found.items() <= lost.items():
                raise  # or it says the same again
            lost |= found
            request = _after_losses(request, found)


def _plan_on(
    ask: Callable[[PlanRequest], Plan],
    request: PlanRequest,
    lost: Mapping[int, str],
    *,
    finite: bool,
) -> PlannedBatch:
    begins = {int(partition): cursor for partition, cursor in request.cursors.items()}
    ranges: dict[int, list[PlannedRange]] = {partition: [] for partition in begins}
    batch = PlannedBatch(request.n, begins, ranges, dict(lost), upto=request.upto or None)
    while True:
        try:
            plan = ask(request)
        except PublisherError as exc:
            raise _about_a_cursor(exc) from exc
        batch.add(plan, checked_ranges(plan, request))
        if finite and batch.upto is None:
            batch.upto = plan.head
        following = _following(request, plan, batch) if plan.more else None
        if following is None:
            return batch
        request = following


def _following(request: PlanRequest, plan: Plan, batch: PlannedBatch) -> PlanRequest | None:
    """Return the request for what follows a plan; None if a limit of the batch ended the plan.

    Such a plan has fewer chunks than it may have.
    """
    planned = sum((totals_of(each) for each in plan.ranges), Totals())
    size, events = request.max_bytes, request.max_events
    if size is not UNSET:
        size -= planned.bytes
        events = UNSET if events is UNSET else events - planned.events
        if planned.chunks < PLAN_CHUNKS or size <= 0 or (events is not UNSET and events <= 0):
            return None
    return msgspec.structs.replace(
        request,
        cursors=wire.by_partition(batch.ends),
        upto=batch.upto or UNSET,
        max_events=events,
        max_bytes=size,
        wait=0,
    )


def _after_losses(request: PlanRequest, lost: Mapping[int, str]) -> PlanRequest:
    """Return the request for a batch that begins after what some partitions lost."""
    oldest = {str(partition): cursor for partition, cursor in lost.items()}
    ends = request.ends
    if ends is not UNSET:
        ends = {partition: _later(end, oldest.get(partition)) for partition, end in ends.items()}
    cursors = {**request.cursors, **oldest}
    return msgspec.structs.replace(request, cursors=cursors, ends=ends, wait=0)


def _later(end: str, oldest: str | None) -> str:
    """Return where a partition ends: not before the place where what is left of it begins."""
    if oldest and direct_client.position(end) <= direct_client.position(oldest):
        return oldest
    return end


def lost_partitions(exc: CursorGoneError) -> dict[int, str]:
    """Return the partitions that lost events, each with the cursor before its oldest event."""
    document = problem_document(exc.body or "")
    lost = document.get("lost")
    if isinstance(lost, dict):
        return {
            int(partition): oldest
            for partition, oldest in lost.items()
            if partition.isascii() and partition.isdigit() and isinstance(oldest, str)
        }
    return {}


def _about_a_cursor(exc: PublisherError) -> PublisherError:
    """Return a refusal of a plan with its partition and cursor, and with what to do."""
    document = problem_document(exc.body or "")
    partition, cursor = document.get("partition"), document.get("cursor")
    if exc.status in {409, 410} and isinstance(partition, int) and isinstance(cursor, str):
        return located(exc, partition, cursor)
    return exc


@dataclass(frozen=True)
class DirectPartition(FeedTask):
    """Ranges that one task fetches and decodes.

    Args:
        groups: all their chunks, if they came with the plan. The driver may read these (`inline`);
            they are not pickled, so a task fetches.
    """

    ranges: Sequence[PlannedRange]
    n: int
    options: SourceOptions = field(repr=False)
    groups: Sequence[FetchedGroup] = field(default=(), repr=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "groups": ()}

    @property
    def is_here(self) -> bool:
        return bool(self.groups)

    def read(self, decoder: Decoder) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the ranges.

        Raises PublisherError if the publisher does not send what was planned, and
        MalformedLineError for a line that is no event if the mode is FAILFAST.
        """
        decode = ChunkDecoder(decoder, self.options.requested_headers, self.feed)
        fetch = partial(direct_client.fetch, Transport(self.options), self.n, self.ranges)
        for group in self.groups or fetch():
            yield from decode.batches(group)


def tasks_of(
    batch: PlannedBatch, transport: Transport, options: SourceOptions
) -> list[DirectPartition]:
    """Return the tasks of a batch. `transport` knows the token that is valid now."""
    size = batch.totals().bytes
    wanted = min(options.parallelism, size // _SMALL_TASK_BYTES)
    goal = -(-size // max(1, wanted, -(-size // TASK_BYTES)))
    for_tasks = replace(options, token=transport.token, first_contact=None)
    tasks: list[list[PlannedRange]] = []
    filled = goal
    for each in (each for ranges in batch.ranges.values() for each in ranges):
        if filled + each.bytes // 2 >= goal:
            tasks.append([])
            filled = 0
        tasks[-1].append(each)
        filled += each.bytes
    n, groups = batch.n, []
    if batch.whole and len(tasks) == 1:
        groups = direct_client.carried(transport, n, batch.whole)
    return [DirectPartition(tuple(ranges), n, for_tasks, tuple(groups)) for ranges in tasks]
