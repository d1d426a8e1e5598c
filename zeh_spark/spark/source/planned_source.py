"""Batches of direct reads: our publisher plans them, and tasks fetch.

The publisher says where a batch ends. So a batch is planned when Spark asks for it, and nothing is
fetched on the driver. While there is nothing to read, one request at most waits at the publisher,
in a thread.

Rule for editors: a plan that ended its wait before Spark asked may lack what came since. So, unless
that was just now, a new plan is asked for, and the older one is used only if the new one is late. A
batch that Spark repeats has the events and the digest of the first time in each partition, or the
query fails with what to do; only `replay=accept` takes what the feed has now.

Runs on the driver.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from msgspec import UNSET

from zeh_spark.client.http import direct_client
from zeh_spark.client.http.transport import Transport
from zeh_spark.errors import CursorGoneError
from zeh_spark.spark.source.batch_source import Batch, Limits, Report, in_thread, mismatch
from zeh_spark.spark.source.offsets import Offset, Position
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.planned_batch import (
    LEAST_RANGE,
    PlannedBatch,
    lost_partitions,
    plan_batch,
    tasks_of,
)
from zeh_spark.wire import wire
from zeh_spark.wire.direct_reads import MAX_LIMIT, Plan, PlanRequest

log = logging.getLogger(__name__)

_PATIENCE = 0.05
"""Seconds for which Spark waits for a plan with which the publisher may wait for events."""

_ANSWER_SECONDS = 10.0
"""Seconds for which Spark waits for a plan that the publisher makes at once.

A trigger may come once an hour, so an answer that is a little late must not wait for the next one.
After that time the other sources of the query continue.
"""

_RANGES_EACH = 8
"""About how many ranges of a full batch each task gets, so that tasks get equally much."""

_MOST_RANGE = 16 << 20
"""Bytes of a range."""


class _Asked(NamedTuple):
    """A request under way. `waits` tells whether the publisher may wait with its answer."""

    plan: Future[PlannedBatch]
    waits: bool


@dataclass(eq=False)
class PlannedSource:
    """Plans one batch after the other.

    Guarantee: a batch has what was planned, and the same when it is repeated.
    """

    transport: Transport
    options: SourceOptions

    def __post_init__(self) -> None:
        self._at: Mapping[int, str] = {}
        self._cursors: dict[int, str] = {}
        self._n = 0
        self._upto: str | None = None
        self._asked: _Asked | None = None
        self._pause_until = 0.0
        self._newest = PlannedBatch(0, {}, {})
        self._plans = 0
        self._seconds = 0.0
        self._answered = 0.0

    def next(self, after: Offset, limits: Limits) -> Batch | None:
        if after.cursors != self._at:
            self._at, self._cursors = after.cursors, after.cursors
            self._n = after.partition_count or 0
            self._upto, self._asked, self._pause_until = None, None, 0.0
        batch = self._next(limits)
        if batch is None:
            return None
        self._at = batch.ends
        return self._for_tasks(batch)

    def _for_tasks(self, batch: PlannedBatch) -> Batch:
        tasks = tasks_of(batch, self.transport, self.options)
        fingerprint = self.options.fingerprint
        epochs = frozenset({batch.epoch})
        return Batch(batch.positions(), tasks, epochs, direct=fingerprint, more=batch.more)

    def _next(self, limits: Limits) -> PlannedBatch | None:
        """Return the next batch; None if there is nothing to read, or too little yet.

        While Spark asks again and again, one plan waits at the publisher. A plan for which the
        publisher does not wait is waited for here, because its answer tells what there is now. The
        first batch of a run waits for an answer.
        """
        asked, known = self._asked, None
        if asked is None:
            left = self._pause_until - time.monotonic()
            time.sleep(min(max(left, 0.0), _PATIENCE))
            if left > _PATIENCE:
                return None
            asked = self._ask(limits)
        elif asked.plan.done():
            known = asked.plan.result() or None
            if known is None and limits.finite:
                return None
            if asked.waits and time.monotonic() - self._answered > _PATIENCE:
                asked = self._ask(limits)  # since then more may have come
        limit = _PATIENCE if asked.waits else _ANSWER_SECONDS
        wait([asked.plan], None if limits.first or limits.finite else limit)
        batch = asked.plan.result() if asked.plan.done() else known
        if batch is None:
            return None
        self._newest, self._upto = batch, batch.upto
        if self._is_delayed(batch, limits):
            return None
        self._cursors = batch.ends
        if batch:
            self._asked = None
            return batch
        if not limits.finite and self.options.wait:
            self._ask(limits, waits=True)
        elif not limits.finite:
            self._pause(self.options.poll_interval)
        return None

    def _pause(self, seconds: float) -> None:
        self._asked = None
        self._pause_until = time.monotonic() + seconds

    def _is_delayed(self, batch: PlannedBatch, limits: Limits) -> bool:
        """Return whether a batch waits for more events. It is planned again then, with these."""
        totals = batch.totals()
        if not batch or batch.more or totals.bytes >= self.options.direct_bytes:
            return False
        if left := limits.left(totals.events):
            self._pause(min(left, self.options.poll_interval))
        return left > 0

    def _ask(self, limits: Limits, *, waits: bool = False) -> _Asked:
        """Ask for a batch after `_cursors`, in a thread."""
        options = self.options
        events, size = options.max_events_per_trigger, options.direct_bytes
        range_bytes = size // (_RANGES_EACH * options.parallelism)
        request = PlanRequest(
            self._n,
            wire.by_partition(self._cursors),
            upto=self._upto or UNSET,
            max_events=UNSET if events is None else min(events, MAX_LIMIT),
            max_bytes=min(limits.factor * size, MAX_LIMIT),
            range_bytes=min(max(range_bytes, LEAST_RANGE), _MOST_RANGE),
            wait=int(options.wait) if waits else 0,
        )
        plan = partial(
            plan_batch,
            self._timed,
            request,
            finite=limits.finite,
            passes_losses=not options.fail_on_data_loss,
        )
        self._asked = _Asked(in_thread("zeh-plan", plan), request.wait > 0)
        return self._asked

    def _timed(self, request: PlanRequest) -> Plan:
        began = time.monotonic()
        try:
            return direct_client.plan(self.transport, request, with_chunks=self.options.inline)
        finally:
            self._plans += 1
            self._answered = time.monotonic()
            self._seconds += self._answered - began

    def again(self, start: Mapping[int, Position], end: Offset) -> Batch:
        """Plan a batch again, and compare what each partition has with what it had.

        Raises CursorGoneError if events of it were removed although `replay` is `accept`, and the
        publisher tells again and again that they were; PublisherError if a restore has undone the
        batch, whose end cursors then lead nowhere.
        """
        accepts = self.options.replay == "accept"
        begins = wire.by_partition({each: position.cursor for each, position in start.items()})
        ends = wire.by_partition(end.cursors)
        request = PlanRequest(end.partition_count or 0, begins, ends=ends)
        ask = partial(direct_client.plan, self.transport)
        try:
            batch = plan_batch(ask, request, passes_losses=accepts)
        except CursorGoneError as exc:
            lost = lost_partitions(exc)
            if accepts and lost:
                raise
            found = f"the publisher no longer has them ({exc.__cause__ or exc})"
            raise _differs(min(lost, default=min(start)), start, end, found) from exc
        for partition, now in batch.positions().items():
            then = end.positions[partition]
            if (now.events, now.digest) == (then.events, then.digest):
                continue
            if not accepts:
                same = now.events == then.events
                found = "it gives others" if same else f"the feed gives {now.events} now"
                raise _differs(partition, start, end, found, now.events)
            log.warning(
                "partition %d: replay=accept: the batch from %r to %r had %d events, now it has %d",
                partition,
                start[partition].cursor,
                then.cursor,
                then.events,
                now.events,
            )
        return self._for_tasks(batch)

    def report(self) -> Report:
        newest = self._newest
        numbers = {
            "plans": self._plans,
            "planSeconds": round(self._seconds, 3),
            "chunksBehind": newest.chunks_behind,
        }
        return Report(newest.head, newest.lag, numbers)

    def close(self) -> None:
        """A plan under way ends with its transport."""


def _differs(
    partition: int,
    start: Mapping[int, Position],
    end: Offset,
    found: str,
    got: int | None = None,
) -> Exception:
    return mismatch(
        partition,
        start[partition].cursor,
        end.positions[partition],
        found,
        got=got,
        prevention=(
            "keep events for longer, name this reader with 'cursorSet' and have retention wait for "
            "it, or "
        ),
    )
