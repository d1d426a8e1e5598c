"""Following a feed in a terminal: one thread for each partition, one queue, one printer."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
from msgspec import UNSET, Raw

from zeh_spark.client.feed_client import FeedClient, PageEnd, PageRequest
from zeh_spark.errors import PublisherError, ZeroEventHubError
from zeh_spark.options import ClientOptions, parse
from zeh_spark.protocol import wire
from zeh_spark.protocol.feed_identity import FeedIdentity
from zeh_spark.protocol.stamps import parse_stamped

WAIT = 20
PAUSE = 1.0
_HINT = 1000

_members = msgspec.json.Decoder(dict[str, Raw]).decode


def follow(url: str, start: str, *, whole: bool, endless: bool) -> Iterator[list[bytes]]:
    """Events of all partitions as they come, without newlines: their data, or the `whole` line,
    with the id of its feed's epoch among its headers, as `zeh-feed`.

    Order holds within a partition. Ends, unless `endless`, once every partition has been read to
    its end. Raises ZeroEventHubError.
    """
    at_once = FeedClient(parse(ClientOptions, {"url": url, "retryTimeout": "0"}))
    asked = at_once.discover()  # who has mistyped the address need not wait
    count = asked.partition_count
    feed = asked.named(at_once.transport.url.identity) if whole else None
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
            target=_read, args=(client, request, feed, arrived.put), daemon=True
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
    feed: FeedIdentity | None,
    put: Callable[[list[bytes] | ZeroEventHubError | None], object],
) -> None:
    told = feed is not None and feed.told
    try:
        for lines in _lines(client, request, joined=told):
            if feed and told:  # after the page: an epoch that began meanwhile is known
                feed = _again(client, request, feed)
            put(shown(lines, request.partition, feed))
        put(None)
    except ZeroEventHubError as exc:
        put(exc)


def _again(client: FeedClient, request: PageRequest, feed: FeedIdentity) -> FeedIdentity:
    """Return the identity that the publisher tells now. Raises PublisherError for another feed."""
    url = client.transport.url
    now = client.discover(request.partition_count, told=True).named(url.identity)
    if feed.id not in now.feeds:
        raise PublisherError(
            f"the publisher of {url} served the feed {feed.id!r}, and now it serves {now.id!r}: "
            f"run the command again if that is the one you mean"
        )
    return now


def _lines(client: FeedClient, request: PageRequest, *, joined: bool) -> Iterator[bytes]:
    """Lines behind a cursor, page after page; without `wait`, until a page brings none. Those of a
    page as they come, or `joined`.
    """
    cursor = request.cursor
    while True:
        begun, events = time.monotonic(), 0
        held: list[bytes] = []
        for item in client.page(replace(request, cursor=cursor)):
            cursor = item.cursor
            if isinstance(item, PageEnd):
                break
            events += item.events
            held.append(item.lines)
            if not joined:
                yield held.pop()
        if events and held:
            yield b"".join(held)
        if not events and not request.wait:
            return
        if not events and time.monotonic() - begun < PAUSE:
            time.sleep(PAUSE)  # a publisher that does not know `wait`


def shown(lines: bytes, partition: int, feed: FeedIdentity | None) -> list[bytes]:
    """Return lines of a feed as they are printed: whole, with the header `zeh-feed`; without a
    `feed` the data alone.

    Raises MalformedLineError.
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
    return msgspec.json.encode({**_members(line), "headers": headers})
