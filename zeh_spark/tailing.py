"""Following a feed in a terminal: one thread for each partition, one queue, one printer."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from msgspec import UNSET

from zeh_spark import wire
from zeh_spark.client import FeedClient, PageRequest
from zeh_spark.errors import ZeroEventHubError
from zeh_spark.options import ClientOptions, parse

WAIT = 20
PAUSE = 1.0
_HINT = 1000


def follow(url: str, start: str, *, whole: bool, endless: bool) -> Iterator[list[bytes]]:
    """Events of all partitions as they come, without newlines: their data, or the `whole` line.

    Order holds within a partition. Ends, unless `endless`, once every partition has been read to
    its end. Raises ZeroEventHubError.
    """
    at_once = FeedClient(parse(ClientOptions, {"url": url, "retryTimeout": "0"}))
    count = at_once.discover().partition_count  # who has mistyped the address need not wait
    client = FeedClient(parse(ClientOptions, {"url": url}))
    arrived: queue.Queue[list[bytes] | ZeroEventHubError | None] = queue.Queue(64)
    for partition in range(count):
        request = PageRequest(
            partition,
            start,
            count,
            _HINT,
            (wire.ALL_HEADERS,) if whole else (),
            WAIT if endless else 0,
        )
        worker = threading.Thread(
            target=_read, args=(client, request, whole, arrived.put), daemon=True
        )
        worker.start()
    while count:
        found = arrived.get()
        if isinstance(found, ZeroEventHubError):
            raise found
        if found is None:
            count -= 1
        else:
            yield found


def _read(
    client: FeedClient,
    request: PageRequest,
    whole: bool,
    put: Callable[[list[bytes] | ZeroEventHubError | None], object],
) -> None:
    try:
        for lines in _pages(client, request):
            put(shown(lines, request.partition, whole))
        put(None)
    except ZeroEventHubError as exc:
        put(exc)


def _pages(client: FeedClient, request: PageRequest) -> Iterator[bytes]:
    """Lines behind a cursor, page after page; without `wait`, until a page brings none."""
    cursor = request.cursor
    while True:
        begun, events = time.monotonic(), 0
        page = client.page(replace(request, cursor=cursor))
        for interval in page:
            events += interval.events
            yield interval.lines
        cursor = page.cursor
        if not events and not request.wait:
            return
        if not events and time.monotonic() - begun < PAUSE:
            time.sleep(PAUSE)  # a publisher that does not know `wait`


def shown(lines: bytes, partition: int, whole: bool) -> list[bytes]:
    """Lines of a feed as they are printed."""
    found = []
    for line in lines.split(b"\n"):
        event = wire.parse_event(line, partition) if line.strip() else None
        if event:
            data = b"null" if event.data is UNSET else bytes(event.data)
            found.append(line.strip() if whole else data)
    return found
