"""The batch source: one task for each feed partition, which follows it to its end and streams rows.

The scale-out way to read a feed's history: executors fetch, nothing passes through the driver. A
task that Spark runs again may see events that were not there before, unless `endingCursors` says
where to stop.

Rule for editors: a task hands out whole intervals only, so a request that breaks off can continue
without doubles. `BatchReader` and its partitions are pickled, with the token that the tasks need.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from zeh_spark.client.feed_client import FeedClient, PageEnd, PageRequest
from zeh_spark.errors import OptionError, PublisherError, at_spark_border
from zeh_spark.options import parse
from zeh_spark.protocol import wire
from zeh_spark.protocol.feed_identity import FeedIdentity
from zeh_spark.source.decode import Decoder
from zeh_spark.source.end_detection import Ending
from zeh_spark.source.end_probes import EndProbes, first_checkpoint
from zeh_spark.source.finite_read import EndUnknownError, read_to_end
from zeh_spark.source.options import SourceOptions

_BLOCK = 1 << 20
_MAX_INTERVAL = 4 * (128 << 20)
_MOST_WITHOUT_EVENTS = 1000
"""Answers in a row that only move the cursor: there may be events after them, and no next run."""


@dataclass(frozen=True)
class FeedPartition(InputPartition):
    """A feed partition from `request.cursor` to its end, as `end_detection` finds that. `exact`:
    the target has to come. `feed`: whose ids its events get as `zeh-feed`.
    """

    request: PageRequest
    target: str | None
    exact: bool
    feed: FeedIdentity | None = None


class BatchReader(DataSourceReader):
    """Reads what the feed holds when the query begins, in bounded memory, each event once."""

    def __init__(self, options: SourceOptions, decoder: Decoder | OptionError) -> None:
        self._options = options
        self._decoder = decoder

    @at_spark_border
    def partitions(self) -> Sequence[InputPartition]:
        """Where each partition starts and ends; asks the publisher."""
        if isinstance(self._decoder, OptionError):
            raise self._decoder
        options = self._options
        client = self._client()
        found = client.discover(options.partition_count)
        count = found.partition_count
        options.check_partitions(count)
        feed = options.stamping(found.named(options.feed))
        with ThreadPoolExecutor(options.max_concurrent_requests) as pool:
            plans = pool.map(lambda each: self._plan(client, each, count), range(count))
            return [replace(plan, feed=feed) for plan in plans]

    def _client(self) -> FeedClient:
        return FeedClient(self._options, max_interval=_MAX_INTERVAL)

    def _plan(self, client: FeedClient, partition: int, partition_count: int) -> FeedPartition:
        options = self._options
        request = PageRequest(
            partition, wire.LAST, partition_count, options.page_size_hint, options.headers
        )
        start = wire.FIRST
        if isinstance(options.starting_cursors, dict):
            start = options.starting_cursors[partition]
        if start == wire.LAST or options.starting_cursors == "last":
            start = first_checkpoint(client, request)
        first = replace(request, cursor=start)
        if isinstance(options.ending_cursors, dict):
            return FeedPartition(first, options.ending_cursors[partition], exact=True)
        if options.ending_cursors == "quiet":
            return FeedPartition(first, None, exact=False)
        return FeedPartition(first, EndProbes(client, request).target(), exact=False)

    @at_spark_border
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: follow one feed partition."""
        assert isinstance(partition, FeedPartition)
        assert isinstance(self._decoder, Decoder)
        client = self._client()
        for lines in gathered(follow(client, partition)):
            yield from self._decoder.batches(lines, partition.request.partition, partition.feed)
        if partition.feed and partition.feed.told:
            self._check_epochs(client, partition.request, partition.feed)

    def _check_epochs(self, client: FeedClient, request: PageRequest, feed: FeedIdentity) -> None:
        """Raises PublisherError if the feed began an epoch while it was read: events at the end may
        have got the id of the epoch before it.
        """
        now = client.discover(request.partition_count, told=True).named(self._options.feed)
        if now != feed:
            raise PublisherError(
                f"partition {request.partition}: when the query began, the publisher of "
                f"{self._options.url} told the feed's identity as {feed.document()}, now it tells "
                f"{now.document()}: an epoch has begun, or another feed is served, while this "
                f"query read it. Run the query again",
                partition=request.partition,
            )


def last_cursors(url: str, **options: str) -> str:
    """Where a feed is now: a cursor for every partition, as JSON.

    As `endingCursors` of a read and `startingCursors` of a stream it makes the stream continue
    exactly where the read ends. `options` are those of the format. Raises ZeroEventHubError.
    """
    parsed = parse(SourceOptions, {"url": url, **options})
    client = FeedClient(parsed)
    count = client.discover(parsed.partition_count).partition_count
    cursors = {}
    for partition in range(count):
        request = PageRequest(partition, wire.LAST, count, parsed.page_size_hint, parsed.headers)
        beginning = _beginning(client, replace(request, cursor=wire.FIRST, page_size_hint=1))
        last = first_checkpoint(client, request) if beginning != wire.FIRST else wire.FIRST
        # where there is nothing, no checkpoint after it will come again
        cursors[str(partition)] = wire.FIRST if last == beginning else last
    return json.dumps(cursors)


def _beginning(client: FeedClient, request: PageRequest) -> str | None:
    """Return the cursor before a partition's first event; None once there is one."""
    cursor = request.cursor
    for item in client.page(request, any_end=True):
        if item.events:
            return None
        cursor = item.cursor
    return cursor


def follow(client: FeedClient, partition: FeedPartition) -> Iterator[wire.Interval]:
    """Yield the intervals from the partition's start to its end.

    Raises:
        PublisherError: The feed ends before the cursor that was asked for as its end, or its end
            cannot be proven.
        UnavailableError: The feed gives less than it had when the query began.
    """
    ending = Ending(partition.target, most_without_events=_MOST_WITHOUT_EVENTS)
    try:
        for item in read_to_end(client, partition.request, ending, exact=partition.exact):
            if not isinstance(item, PageEnd):
                yield item
    except EndUnknownError as exc:
        raise exc.as_error() from exc.__cause__


def gathered(intervals: Iterable[wire.Interval]) -> Iterator[bytes]:
    """The lines of intervals, joined to blocks of at least 1 MiB where the intervals are small."""
    blocks: list[bytes] = []
    size = 0
    for interval in intervals:
        blocks.append(interval.lines)
        size += len(interval.lines)
        if size >= _BLOCK:
            yield b"".join(blocks)
            blocks, size = [], 0
    yield b"".join(blocks)
