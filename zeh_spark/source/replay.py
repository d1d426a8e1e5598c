"""Reading a batch again that Spark asks for a second time, when it was not staged.

The protocol promises neither the same checkpoints nor the same order, so what came is compared with
what the offset says: the same number of events with the same digest, or an error. Never something
else.

Runs on the driver; executors never fetch here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from zeh_spark import wire
from zeh_spark.client import FeedClient, PageRequest
from zeh_spark.errors import CursorGoneError, ReplayError
from zeh_spark.source.offsets import Position
from zeh_spark.source.options import SourceOptions

log = logging.getLogger(__name__)

_MAX_WITHOUT_EVENTS = 1000
"""Answers in a row that only move the cursor: some publishers filter, some do it for ever."""


def read_again(
    client: FeedClient,
    options: SourceOptions,
    start: Sequence[Position],
    end: Sequence[Position],
) -> dict[int, list[bytes]]:
    """The event lines of the batch (start, end], by partition; partitions without events left out.

    Raises ReplayError for the first partition that differs, unless `replay` is `accept`.
    """
    moved = [partition for partition, position in enumerate(end) if position.events]

    def read(partition: int) -> list[bytes]:
        request = PageRequest(
            partition, start[partition].cursor, len(end), options.page_size_hint, options.headers
        )
        if options.replay == "accept":
            return _accepted(client, request, end[partition])
        return _verified(client, request, end[partition])

    with ThreadPoolExecutor(options.max_concurrent_requests) as pool:
        return dict(zip(moved, pool.map(read, moved), strict=True))


def _verified(client: FeedClient, request: PageRequest, end: Position) -> list[bytes]:
    try:
        lines, _ = _first_events(client, request, end.events)
    except CursorGoneError as exc:
        raise _mismatch(request, end, f"the publisher no longer has them ({exc})") from exc
    count = lines.count(b"\n")
    if count != end.events:
        raise _mismatch(request, end, f"the feed gives {count} now", got=count)
    digest = wire.digest([lines])
    if digest != end.digest:
        raise _mismatch(request, end, "the feed gives others now, or in another order", got=digest)
    return [lines]


def _mismatch(request: PageRequest, end: Position, found: str, got: object = None) -> ReplayError:
    return ReplayError(
        f"partition {request.partition}: Spark has to repeat a batch of {end.events} events from "
        f"cursor {request.cursor!r} to {end.cursor!r}, but {found}. For the future: set "
        f"'stagingLocation', which keeps batches until they are done. For now: look whether the "
        f"sink has committed that batch. If it has not, restart once with replay=accept, which "
        f"takes what the feed gives now; if it has, start with a new checkpointLocation from the "
        f"end cursors",
        partition=request.partition,
        cursor=request.cursor,
        expected=end.events if isinstance(got, int) else end.digest,
        got=got,
    )


def _accepted(client: FeedClient, request: PageRequest, end: Position) -> list[bytes]:
    """What the feed has now, up to the end cursor, or else as many events as there were."""
    try:
        lines, _ = _first_events(client, request, end.events, stop_at=end.cursor)
    except CursorGoneError:
        first = replace(request, cursor=wire.FIRST)
        lines, met = _first_events(client, first, end.events, stop_at=end.cursor)
        lines = lines if met else b""  # all that is left lies behind the batch
    log.warning(
        "partition %d: replay=accept: the batch from %r to %r had %d events, now it has %d%s",
        request.partition,
        request.cursor,
        end.cursor,
        end.events,
        lines.count(b"\n"),
        "" if wire.digest([lines]) != end.digest else " (the same)",
    )
    return [lines]


def _first_events(
    client: FeedClient, request: PageRequest, count: int, stop_at: str | None = None
) -> tuple[bytes, bool]:
    """The first `count` event lines behind a cursor, fewer where the feed has no more.

    With `stop_at` also fewer where that checkpoint comes; the second value tells whether it did.
    """
    blocks: list[bytes] = []
    have = without_events = 0
    while have < count and without_events < _MAX_WITHOUT_EVENTS:
        before = have
        page = client.page(request, any_end=True)
        for interval in page:
            blocks.append(interval.lines)
            have += interval.events
            if interval.cursor == stop_at:
                return _head(blocks, count), True
            if have >= count:
                break
        else:
            if have + page.tail.count(b"\n") >= count:
                blocks.append(page.tail)
                break
            without_events = 0 if have > before else without_events + 1
            if page.cursor == request.cursor and without_events >= 2:
                break  # the feed has no more
            hint = max(request.page_size_hint, count - have)
            request = replace(request, cursor=page.cursor, page_size_hint=hint)
    return _head(blocks, count), False


def _head(blocks: list[bytes], count: int) -> bytes:
    """The first `count` lines."""
    lines = b"".join(blocks)
    end = len(lines)
    for _ in range(lines.count(b"\n") - count):
        end = lines.rfind(b"\n", 0, end - 1) + 1
    return lines[:end]
