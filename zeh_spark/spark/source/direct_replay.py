"""Plan a batch of direct reads again that Spark repeats, and compare it with what it had.

Each partition has to have the events and the digest of the first time, or the query fails with what
to do; the option `replay=accept` takes what the feed has now.

Runs on the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from zeh_spark.client.http import direct_client
from zeh_spark.client.http.transport import Transport
from zeh_spark.errors import CursorGoneError, PublisherError, ReplayError
from zeh_spark.spark.source.direct_planner import PlannedBatch, about_a_cursor, lost_partitions
from zeh_spark.spark.source.offsets import Position
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.replay import mismatch
from zeh_spark.wire import wire
from zeh_spark.wire.direct_reads import PlanRequest, checked_ranges

log = logging.getLogger(__name__)

_OTHER_HISTORY = 409


def planned_again(
    transport: Transport,
    options: SourceOptions,
    start: Sequence[Position],
    end: Sequence[Position],
) -> PlannedBatch:
    """Plan a batch again that Spark repeats.

    `end` has the events and digest that each partition has to have. Each partition of the result
    has these, unless `replay` is `accept`. Raises CursorGoneError if events of the batch were
    removed, and ReplayError if a partition has other events now.
    """
    ends = [each.cursor for each in end]
    cursors = [each.cursor for each in start]
    left: dict[int, str] = {}
    batch = PlannedBatch.after(cursors, left)
    accepts = options.replay == "accept"
    while True:
        begun, until = wire.by_partition(batch.ends), wire.by_partition(ends)
        request = PlanRequest(len(ends), begun, ends=until)
        try:
            plan = direct_client.plan(transport, request)
        except CursorGoneError as exc:
            lost = lost_partitions(exc)
            if not accepts or not lost:
                partition = min(lost, default=0)
                found = f"the publisher no longer has them ({exc})"
                raise _other(partition, start[partition], end[partition], found) from exc
            if lost.items() <= left.items():
                raise  # it says the same again
            left |= lost
            for partition, oldest in lost.items():
                if direct_client.position(ends[partition]) <= direct_client.position(oldest):
                    ends[partition] = oldest
            batch = PlannedBatch.after(cursors, left)  # so that it has no hole
            continue
        except PublisherError as exc:
            refused = about_a_cursor(exc)
            if accepts or exc.status != _OTHER_HISTORY or refused.partition is None:
                raise refused from exc
            partition = refused.partition
            found = f"the feed has another history now ({exc})"
            raise _other(partition, start[partition], end[partition], found) from exc
        batch.add(plan, checked_ranges(plan, request))
        if not plan.more:
            break
    for partition, (now, then) in enumerate(zip(batch.positions(), end, strict=True)):
        if (now.events, now.digest) != (then.events, then.digest):
            if not accepts:
                found = f"the feed gives {now.events} now"
                found = found if now.events != then.events else "it gives others"
                raise _other(partition, start[partition], then, found, now.events)
            log.warning(
                "partition %d: replay=accept: the batch from %r to %r had %d events, now it has %d",
                partition,
                start[partition].cursor,
                then.cursor,
                then.events,
                now.events,
            )
    return batch


def _other(
    partition: int, start: Position, then: Position, found: str, got: int | None = None
) -> ReplayError:
    return mismatch(
        partition,
        start.cursor,
        then,
        found,
        got=got,
        prevention=(
            "keep events for longer, name this reader with 'cursorSet' and have retention wait for "
            "it, or "
        ),
    )


def check_columns(options: SourceOptions, then: str) -> None:
    """Refuse to repeat a batch with options with which its rows would hold other values."""
    if then != options.fingerprint and options.replay != "accept":
        raise ReplayError(
            "Spark has to repeat a batch that was planned with another option 'headers' or "
            "'stamps', so its rows would differ. Set both as they were, until the batch is "
            "done; or, if the sink has not committed that batch, restart once with "
            "replay=accept",
            expected=then,
            got=options.fingerprint,
        )
