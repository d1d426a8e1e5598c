"""Plan the batches of a stream that reads directly.

The publisher says where a batch ends. So a batch is planned when Spark asks for it, and nothing is
fetched on the driver. While there is nothing to read, one request at most waits at the publisher,
in a thread.

Rule for editors: a plan that ended its wait before Spark asked may lack what came since. So a new
plan is asked for, and the older one is used only if the new one is late.

Runs on the driver.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from msgspec import UNSET

from zeh_spark.client.http import direct_client
from zeh_spark.client.http.feed_client import located
from zeh_spark.client.http.lag import Lag, lag_of
from zeh_spark.client.http.responses import problem_document
from zeh_spark.client.http.transport import Transport
from zeh_spark.errors import CursorGoneError, OptionError, PublisherError
from zeh_spark.spark.source.offsets import Position
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.planning import TriggerDelay
from zeh_spark.wire import wire
from zeh_spark.wire.direct_reads import (
    MAX_LIMIT,
    PLAN_CHUNKS,
    Plan,
    PlannedRange,
    PlanRequest,
    Totals,
    checked_ranges,
    totals_of,
)
from zeh_spark.wire.stamp_columns import POSITION

_PATIENCE = 0.05
"""Seconds for which Spark waits for a plan with which the publisher may wait for events."""

_ANSWER_SECONDS = 10.0
"""Seconds for which Spark waits for a plan that the publisher makes at once.

A trigger may come once an hour, so an answer that is a little late must not wait for the next one.
After that time the other sources of the query continue.
"""

_RANGES_EACH = 8
"""About how many ranges of a full batch each task gets, so that tasks get equally much."""

_LEAST_RANGE, _MOST_RANGE = 1 << 20, 16 << 20
"""Bytes of a range."""


@dataclass(slots=True)
class PlannedBatch:
    """What a batch reads.

    Args:
        begun: where partitions begin that lost events before that.
        more: whether the feed held more than the batch when it was planned.
    """

    ends: list[str]
    ranges: list[list[PlannedRange]]
    begun: Mapping[int, str] = field(default_factory=dict)
    more: bool = False

    @classmethod
    def after(cls, cursors: Sequence[str], lost: Mapping[int, str]) -> PlannedBatch:
        """Return a batch without events after some cursors, or after what was lost."""
        ends = [lost.get(partition, cursor) for partition, cursor in enumerate(cursors)]
        return cls(ends, [[] for _ in ends], dict(lost))

    def __bool__(self) -> bool:
        """Whether it has events, or passes a loss."""
        return any(self.ranges) or bool(self.begun)

    def totals(self, partition: int) -> Totals:
        return sum((totals_of(each) for each in self.ranges[partition]), Totals())

    @property
    def size(self) -> int:
        """The bytes of all lines, as they are stored."""
        return sum(each.bytes for ranges in self.ranges for each in ranges)

    @property
    def events(self) -> int:
        return sum(each.events for ranges in self.ranges for each in ranges)

    def positions(self) -> tuple[Position, ...]:
        """Return where the batch ends, and the sum of what lies before that, for the offset."""
        found = []
        for partition, end in enumerate(self.ends):
            own = self.totals(partition)
            digest = own.hex if own.events else None
            begun = self.begun.get(partition)
            found.append(Position(end, own.events, own.bytes, digest, begun))
        return tuple(found)

    def add(self, plan: Plan, ranges: Mapping[int, Sequence[PlannedRange]]) -> None:
        """Add what a further plan has. Small ranges that follow each other become one."""
        for partition, more in ranges.items():
            for each in more:
                before = self.ranges[partition][-1:]
                if before and before[0].bytes + each.bytes <= _LEAST_RANGE:
                    each = _in_one(self.ranges[partition].pop(), each)
                self.ranges[partition].append(each)
            self.ends[partition] = plan.ends[str(partition)]
        self.more = plan.more


def _in_one(first: PlannedRange, second: PlannedRange) -> PlannedRange:
    """Return a range and the one after it as one. The totals of ranges add up."""
    both = totals_of(first) + totals_of(second)
    return PlannedRange(
        first.partition, first.from_, second.to, both.chunks, both.events, both.bytes, both.hex
    )


@dataclass(slots=True)
class _Asked:
    """A request under way.

    Args:
        waits: whether the publisher may wait with its answer.
        at: when it was asked, in seconds of the monotonic clock.
    """

    plan: Future[PlannedBatch]
    waits: bool
    at: float = field(default_factory=time.monotonic)


class DirectPlanner:
    """Plans one batch after the other, from some cursors on.

    Args:
        finite: whether to plan only what the feed has at the first plan.
        first_factor: how many times as large as `maxBytesPerTrigger` the first batch may be.

    Attributes:
        head: the cursor of the feed's newest event, as of the last plan; None before the first one.
        lag: how far the end of the last plan is behind it; None if that is unknown.
    """

    def __init__(
        self,
        transport: Transport,
        options: SourceOptions,
        cursors: Sequence[str],
        *,
        finite: bool,
        first_factor: int = 1,
    ) -> None:
        self.head: str | None = None
        self.lag: Lag | None = None
        self._transport = transport
        self._options = options
        self._cursors = list(cursors)
        self._finite = finite
        self._factor = first_factor
        self._upto: str | None = None
        self._asked: _Asked | None = None
        self._plans = 0
        self._seconds = 0.0
        self._behind = 0
        self._pause_until = 0.0

    def next(self, *, first: bool, delay: TriggerDelay | None = None) -> PlannedBatch | None:
        """Return the next batch; None if there is nothing to read, or too little yet.

        While Spark asks again and again, one plan waits at the publisher. A plan for which the
        publisher does not wait is waited for here, because its answer tells what there is now. The
        first batch of a run waits for an answer. `delay` decides whether a batch that is not full
        waits for more events.
        """
        at_once = first or self._finite
        asked, known = self._asked, None
        if asked is None and (left := self._pause_until - time.monotonic()) > 0:
            time.sleep(min(left, _PATIENCE))
            return None
        if asked is None:
            asked = self._ask(waits=False)
        elif asked.plan.done() and (known := asked.plan.result()):
            if asked.waits:  # since then more may have come
                asked = self._ask(waits=False)
        elif asked.plan.done():
            if not self._due(asked):
                return None
            asked = self._ask(waits=False)
        limit = _PATIENCE if asked.waits else _ANSWER_SECONDS
        wait([asked.plan], None if at_once else limit)
        batch = asked.plan.result() if asked.plan.done() else known
        if batch is None:
            return None
        now = time.monotonic()
        full = batch.more or batch.size >= self._options.direct_bytes
        if batch and delay and not full and (left := delay.left(batch.events, now)):
            self._asked = None  # it is planned again, with what has come by then
            self._pause_until = now + min(left, self._options.poll_interval)
            return None
        self._cursors, self._factor = list(batch.ends), 1
        if not batch:
            if self._options.wait and not self._finite:
                self._ask(waits=True)
            return None
        self._asked = None
        return batch

    def report(self) -> dict[str, float]:
        return {
            "plans": self._plans,
            "planSeconds": round(self._seconds, 3),
            "chunksBehind": self._behind,
        }

    def _due(self, asked: _Asked) -> bool:
        """Return whether to ask again after an answer without events; pauses if it is too early."""
        if self._finite:
            return False
        pause = 0.0 if self._options.wait else self._options.poll_interval
        left = asked.at + pause - time.monotonic()
        time.sleep(min(max(left, 0.0), _PATIENCE))
        return left <= _PATIENCE

    def _ask(self, *, waits: bool) -> _Asked:
        seconds = int(self._options.wait) if waits else 0
        cursors = list(self._cursors)
        future: Future[PlannedBatch] = Future()

        def answer() -> None:
            try:
                future.set_result(self._planned(cursors, seconds))
            except BaseException as exc:  # noqa: BLE001 - raised again in Spark's thread
                future.set_exception(exc)

        threading.Thread(target=answer, name="zeh-plan", daemon=True).start()
        self._asked = _Asked(future, bool(seconds))
        return self._asked

    def _planned(self, cursors: list[str], seconds: int) -> PlannedBatch:
        """Plan a batch. After a loss, which `failOnDataLoss` has to allow, it begins anew.

        So a batch has no hole, even if retention removes events between two plans of it.
        """
        lost: dict[int, str] = {}
        while True:
            try:
                return self._filled(PlannedBatch.after(cursors, lost), seconds)
            except CursorGoneError as exc:
                found = lost_partitions(exc)
                if self._options.fail_on_data_loss or found.items() <= lost.items():
                    raise
                lost |= found
                seconds = 0

    def _filled(self, batch: PlannedBatch, seconds: int) -> PlannedBatch:
        """Fill a batch; ask on while the limit of a plan's chunks is what ended it."""
        options = self._options
        events, size = options.max_events_per_trigger, self._factor * options.direct_bytes
        size = min(size, MAX_LIMIT)
        while True:
            request = PlanRequest(
                len(batch.ends),
                wire.by_partition(batch.ends),
                upto=self._upto or UNSET,
                max_events=UNSET if events is None else min(events, MAX_LIMIT),
                max_bytes=size,
                range_bytes=self._range_bytes(),
                wait=seconds,
            )
            plan = self._timed(request)
            batch.add(plan, checked_ranges(plan, request))
            if self._finite and self._upto is None:
                self._upto = plan.head
            size -= sum(each.bytes for each in plan.ranges)
            if events is not None:
                events -= sum(each.events for each in plan.ranges)
            chunks = sum(each.chunks for each in plan.ranges)
            if not plan.more or not has_room(chunks, size, events):
                self._behind, self.head = plan.behind, plan.head
                self.lag, batch.more = lag_of(plan, len(batch.ends)), plan.more
                return batch
            seconds = 0

    def _timed(self, request: PlanRequest) -> Plan:
        began = time.monotonic()
        try:
            return direct_client.plan(self._transport, request)
        except PublisherError as exc:
            raise about_a_cursor(exc) from exc
        finally:
            self._plans += 1
            self._seconds += time.monotonic() - began

    def _range_bytes(self) -> int:
        options = self._options
        goal = options.direct_bytes // (_RANGES_EACH * options.parallelism)
        return min(max(goal, _LEAST_RANGE), _MOST_RANGE)


def has_room(chunks: int, size: int, events: int | None) -> bool:
    """Return whether a batch has room for another plan.

    A plan has fewer `chunks` than it may have if a limit ended it. The batch may still take `size`
    bytes, and `events` events; None for any number.
    """
    return chunks >= PLAN_CHUNKS and size > 0 and (events is None or events > 0)


def check_position(options: SourceOptions) -> None:
    """Raise OptionError if the schema names a column that only executors can fill.

    Call it where the driver fetches.
    """
    if POSITION in options.columns:
        raise OptionError(
            f"the schema names the column {POSITION!r}, which only executors can fill, and the "
            f"driver fetches these events of {options.url}: fetch=driver, 'stagingLocation' or a "
            f"TLS file is set or was set when the batch was planned, or the publisher does not "
            f"offer direct reads. Leave the column out",
            option="schema",
            anchor="direct-reads",
        )


def reads_directly(options: SourceOptions, offered: Callable[[], bool]) -> bool:
    """Return whether executors fetch, by the option `fetch`.

    `offered` asks whether the publisher offers it. Raises OptionError if `fetch` is `executors`,
    and the publisher does not offer it; or if the schema names a column for which executors have to
    fetch.
    """
    at_hand = options.fetch == "executors" or not (
        options.staging_location or options.has_tls_files
    )
    found = options.fetch != "driver" and at_hand and offered()
    if options.fetch == "executors" and not found:
        raise OptionError(
            f"option 'fetch' is executors, but the publisher of {options.url} does not offer "
            f"direct reads: it is another publisher, or serves a table. Set fetch=auto or "
            f"fetch=driver",
            option="fetch",
            anchor="direct-reads",
        )
    if not found:
        check_position(options)
    return found


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


def about_a_cursor(exc: PublisherError) -> PublisherError:
    """Return a refusal of a plan with its partition and cursor, and with what to do."""
    document = problem_document(exc.body or "")
    partition, cursor = document.get("partition"), document.get("cursor")
    if exc.status in {409, 410} and isinstance(partition, int) and isinstance(cursor, str):
        return located(exc, partition, cursor)
    return exc
