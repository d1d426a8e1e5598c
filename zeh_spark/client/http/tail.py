"""Follow a feed in a terminal: one thread for each partition, one queue, one printer.

Runs in the commands `tail` and `dead-letters`. Rule for editors: a line of the feed is printed byte
for byte, apart from the header `zeh-feed`, so that `replay-dead` can read it again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec
from msgspec import UNSET, Raw

from zeh_spark.client.http.discovery import discover, rediscover
from zeh_spark.client.http.feed_client import FeedClient, PageRequest
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import MalformedLineError, OptionError, PublisherError
from zeh_spark.wire import wire
from zeh_spark.wire.feed_identity import Epoch, FeedIdentity, parse_stamped

WAIT = 20
PAUSE = 1.0
_HINT = 1000
_HELD_BYTES = 16 << 20
"""About how many bytes of lines wait for the end of their page."""
_MOST_WITHOUT_EVENTS = 1000
"""Pages in a row that may move the cursor without an event, before it is no end that comes."""

_members = msgspec.json.Decoder(dict[str, Raw]).decode


def follow(
    url: str,
    start: str,
    connect: Mapping[str, str],
    *,
    whole: bool,
    endless: bool,
    partition: int | None = None,
    partition_count: int | None = None,
) -> Iterator[list[bytes]]:
    """Yield the events of all partitions as they arrive, in order within a partition.

    It begins with `start`: `_first` or `_last`; of one partition, any other cursor, too. With
    `whole` it yields whole events, with the id of their feed's epoch in the header `zeh-feed`,
    instead of their data alone. With `endless` it waits for more events at the end. Each event is
    JSON without a newline. Raises OptionError if there is no such partition, or a cursor is given
    for several.
    """
    # Without retries, so that a wrong address is refused at once.
    at_once = Transport(parse(ClientOptions, {**connect, "url": url, "retryTimeout": "0"}))
    asked = discover(at_once, partition_count)
    count = asked.partition_count
    partitions = _read_partitions(count, partition, start)
    feed = asked.named(at_once.url.identity) if whole else None
    client = FeedClient(parse(ClientOptions, {**connect, "url": url}))
    arrived: queue.Queue[list[bytes] | BaseException | None] = queue.Queue(64)
    for each in partitions:
        request = PageRequest(
            each,
            start,
            count,
            _HINT,
            (wire.ALL_HEADERS,) if whole else (),
            WAIT if endless else 0,
            tell=feed is not None and feed.told,
        )
        worker = threading.Thread(
            target=_read, args=(client, request, feed, arrived.put), daemon=True
        )
        worker.start()
    left = len(partitions)
    while left:
        found = arrived.get()
        if isinstance(found, BaseException):
            raise found
        if found is None:
            left -= 1
        else:
            yield found


def _read_partitions(count: int, partition: int | None, start: str) -> Sequence[int]:
    """Return the partitions to read. Raises OptionError if they do not fit the feed or a cursor."""
    if partition is not None and partition >= count:
        raise OptionError(
            f"there is no partition {partition}: the feed has {count}, from 0. Give a number up to "
            f"{count - 1}"
        )
    if partition is None and count > 1 and start not in (wire.FIRST, wire.LAST):
        raise OptionError(
            f"the cursor {start!r} is of one partition, and the feed has {count}. Give --partition "
            f"with its number, or --from first or last"
        )
    return range(count) if partition is None else [partition]


def _read(
    client: FeedClient,
    request: PageRequest,
    feed: FeedIdentity | None,
    put: Callable[[list[bytes] | BaseException | None], object],
) -> None:
    """Put the events of a partition into the queue; then None, or the error that ended it."""
    try:
        for lines, epoch in _lines(client, request):
            if feed and feed.told and epoch != feed.epochs[-1]:
                transport, name = client.transport, client.transport.url.identity
                feed = rediscover(transport, request.partition_count, feed, name)
            put(shown(lines, request.partition, feed))
        put(None)
    except BaseException as exc:  # noqa: BLE001 - raised again by whoever prints
        put(exc)


def _lines(client: FeedClient, request: PageRequest) -> Iterator[tuple[bytes, Epoch | None]]:
    """Yield the lines after a cursor, page after page, with the feed's newest epoch if it is told.

    The first page after `_last` is asked for without `wait`: where the feed ended is known at once,
    and an answer that is lost later skips nothing.

    Without `wait` in the request, it ends at a page without events that does not move the cursor.
    The lines of a page are yielded as they come or, for a feed that tells epochs, together at its
    end, or once they are many. Raises PublisherError if, without `wait`, too many pages in a row
    moved the cursor without an event.
    """
    cursor, skipping = request.cursor, 0
    asked = replace(request, wait=0) if cursor == wire.LAST else request
    while True:
        begun, events = time.monotonic(), 0
        held: list[bytes] = []
        size = 0
        page = client.page(replace(asked, cursor=cursor))
        for interval in page:
            events += interval.events
            held.append(interval.lines)
            size += len(interval.lines)
            if not request.tell or size > _HELD_BYTES:
                yield b"".join(held), page.standing.epoch
                held, size = [], 0
        if size:
            yield b"".join(held), page.standing.epoch
        cursor = page.cursor
        skipping = 0 if events else skipping + 1
        if not events and not request.wait:
            if not page.end.moved:
                return
            if skipping == _MOST_WITHOUT_EVENTS:
                raise PublisherError(
                    f"partition {request.partition}: {skipping} pages in a row moved the cursor "
                    f"without an event, up to {cursor!r}, so it is not known whether this is the "
                    f"end. Continue with --partition {request.partition} --from {cursor}",
                    partition=request.partition,
                    cursor=cursor,
                    anchor="it-is-not-known-where-a-batch-read-ends",
                )
            continue
        if not events and asked.wait and time.monotonic() - begun < PAUSE:
            time.sleep(PAUSE)  # the publisher does not know `wait`
        asked = request


def shown(lines: bytes, partition: int, feed: FeedIdentity | None) -> list[bytes]:
    """Return lines of a feed as they are printed.

    With `feed`, whole events are printed with the header `zeh-feed`; without, their data alone.
    """
    found = []
    for line in lines.split(b"\n"):
        event = parse_stamped(line, partition, feed) if line.strip() else None
        if event and feed:
            found.append(_with_headers(line, event.headers))
        elif event:
            found.append(b"null" if event.data is UNSET else bytes(event.data))
    return found


def _with_headers(line: bytes, headers: object) -> bytes:
    """Return the line with other headers; everything else in it stays byte for byte."""
    try:
        return msgspec.json.encode({**_members(line), "headers": headers})
    except ValueError as exc:
        raise MalformedLineError(
            f"a line has a member whose name is not UTF-8 ({exc}), so it cannot be printed with "
            f"its headers: {wire.excerpt(line)}. Tell the owner of the feed, or leave out --headers"
        ) from exc
