"""Read a batch again that Spark asks for a second time, if it was not staged.

Rule for editors: the protocol promises neither the same checkpoints nor, between two of them, the
same order. So the events are compared with what the offset says: the same number with the same
digest, which their order does not change, or an error.
Never return anything else, unless the user set `replay=accept`.

Runs on the driver; executors never fetch here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

from zeh_spark.client.http.feed_client import FeedClient, PageRequest
from zeh_spark.client.polling.feed_end import MOST_WITHOUT_EVENTS, Ending
from zeh_spark.client.polling.finite_read import EndUnknownError, FiniteRead
from zeh_spark.errors import CursorGoneError, ReplayError
from zeh_spark.spark.source.batch_source import mismatch
from zeh_spark.spark.source.offsets import Offset, Position
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.wire import hashes, wire

log = logging.getLogger(__name__)

_MAX_HINT_FACTOR = 64
_MOST_GROWTH, _MORE_BYTES = 4, 64 << 20
"""How much larger an accepted batch may have become: the factor, and the bytes added to that."""

_OTHERS = "the feed gives others now (or the option 'headers' was changed)"


def read_again(
    client: FeedClient,
    options: SourceOptions,
    start: Mapping[int, Position],
    end: Offset,
    *,
    compare: bool = True,
) -> dict[int, list[bytes]]:
    """Return the event lines of the batch (start, end].

    `end` has the events and digest that each partition has to have. The digests are compared unless
    executors fetched the batch (`compare`): then its number of events is, and that it ends there.
    Partitions without events are left out. Raises ReplayError if a partition differs, and `replay`
    is not `accept`; or if it is not known which events belong to the batch.
    """
    ends = end.positions
    moved = [partition for partition, position in ends.items() if position.events]

    def read(partition: int) -> list[bytes]:
        request = PageRequest(
            partition,
            start[partition].cursor,
            end.partition_count or 0,
            options.page_size_hint,
            options.requested_headers,
            only=options.selected,
        )
        if options.replay == "accept":
            return _accepted(client, request, ends[partition])
        return _verified(client, request, ends[partition], compare=compare)

    try:
        with ThreadPoolExecutor(options.max_concurrent_requests) as pool:
            return dict(zip(moved, pool.map(read, moved), strict=True))
    except ReplayError as exc:
        begin, last = (  # as the option `startingCursors` takes them
            json.dumps(wire.by_partition({each: at.cursor for each, at in some.items()}))
            for some in (start, ends)
        )
        raise exc.reworded(f"{exc}. Start cursors: {begin}; end cursors: {last}") from exc


def _verified(
    client: FeedClient, request: PageRequest, end: Position, *, compare: bool
) -> list[bytes]:
    """Return the lines; only their number is compared if there is no digest of them."""
    try:
        if compare:
            lines = _first_events(client, request, end.events)
        else:
            _check_known(client, request, end)
            lines = _up_to(client, request, end)
    except CursorGoneError as exc:
        found = f"the publisher no longer has them ({exc.__cause__ or exc})"
        raise mismatch(request.partition, request.cursor, end, found) from exc
    count = lines.count(b"\n")
    if count != end.events:
        found = f"the feed gives {count} now"
        raise mismatch(request.partition, request.cursor, end, found, got=count)
    if compare and (got := hashes.sum_of_lines(lines)) != end.digest:
        raise mismatch(request.partition, request.cursor, end, _OTHERS, got=got)
    return [lines]


def _accepted(client: FeedClient, request: PageRequest, end: Position) -> list[bytes]:
    """Return what the feed has now, up to the end cursor.

    If that cursor is gone, so are all events before it, and nothing is returned.
    """
    try:
        _check_known(client, request, end)
    except CursorGoneError:
        lines = b""
    else:
        try:
            lines = _up_to(client, request, end)
        except CursorGoneError as exc:
            lines = _up_to(client, replace(request, cursor=exc.oldest or wire.FIRST), end)
    log.warning(
        "partition %d: replay=accept: the batch from %r to %r had %d events, now it has %d%s",
        request.partition,
        request.cursor,
        end.cursor,
        end.events,
        lines.count(b"\n"),
        " (the same)" if hashes.sum_of_lines(lines) == end.digest else "",
    )
    return [lines]


def _check_known(client: FeedClient, request: PageRequest, end: Position) -> None:
    """Raise CursorGoneError if the feed no longer continues from the end cursor."""
    for _ in client.page(replace(request, cursor=end.cursor, page_size_hint=1), any_end=True):
        pass


def _up_to(client: FeedClient, request: PageRequest, end: Position) -> bytes:
    """Return the event lines before the end cursor, even if that cursor is not sent again.

    Raises ReplayError if it is not known which they are.
    """
    ending = Ending(end.cursor, most_without_events=MOST_WITHOUT_EVENTS)
    size = 0
    found: list[bytes] = []
    try:
        with closing(iter(FiniteRead(client, request, ending, exact=True))) as intervals:
            for interval in intervals:
                found.append(interval.lines)
                size += len(interval.lines)
                if size > _MOST_GROWTH * end.bytes + _MORE_BYTES and not ending.ended:
                    raise _unclear(request, end)
    except EndUnknownError:
        raise _unclear(request, end) from None
    return b"".join(found)


def _unclear(request: PageRequest, end: Position) -> ReplayError:
    return ReplayError(
        f"partition {request.partition}: the feed does not give the checkpoint {end.cursor!r} any "
        f"more, so it is not known which events belong to the batch that ended there. Start with "
        f"a new checkpointLocation: from the start cursors if the sink has not committed the batch "
        f"(what follows it comes too), else from the end cursors",
        partition=request.partition,
        cursor=end.cursor,
    )


def _first_events(client: FeedClient, request: PageRequest, count: int) -> bytes:
    """Return the first `count` event lines after a cursor; fewer if the feed has no more."""
    blocks: list[bytes] = []
    have = without_events = 0
    hint = request.page_size_hint
    while have < count and without_events < MOST_WITHOUT_EVENTS:
        before = have
        with client.page(replace(request, page_size_hint=hint), any_end=True) as page:
            for interval in page:
                blocks.append(interval.lines)
                have += interval.events
                if have >= count:
                    return _head(blocks, count)
        end = page.end
        if have + end.tail.count(b"\n") >= count:
            blocks.append(end.tail)
            break
        without_events = 0 if have > before else without_events + 1
        if end.cursor != request.cursor:
            hint = request.page_size_hint
        elif end.tail and hint < _MAX_HINT_FACTOR * max(request.page_size_hint, count):
            hint = 2 * max(hint, count - have)  # the rest, or a checkpoint, may lie beyond
        elif without_events >= 2:
            break  # the feed has no more
        request = replace(request, cursor=end.cursor)
    return _head(blocks, count)


def _head(blocks: list[bytes], count: int) -> bytes:
    lines = b"".join(blocks)
    end = len(lines)
    for _ in range(lines.count(b"\n") - count):
        end = lines.rfind(b"\n", 0, end - 1) + 1
    return lines[:end]
