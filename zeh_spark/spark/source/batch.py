"""The batch source: what the feed holds when the query begins, fetched by tasks.

From our publisher, tasks fetch ranges of a plan (`planned_batch`), so a task that Spark runs again
sees the same events. From any other publisher there is one task for each feed partition, which
reads it to its end and streams rows. If Spark runs such a task again, it may see events that were
not there before, unless `endingCursors` says where to stop.

Rule for editors: a task yields whole intervals or chunks only, so a request that breaks off can
continue without duplicates. The partitions are pickled, with the token that tasks need.

Runs on the driver; `FeedPartition.read` runs in tasks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
from msgspec import UNSET
from pyspark.sql.datasource import DataSourceReader, InputPartition

from zeh_spark.client.decoding.lines import Decoder
from zeh_spark.client.http import direct_client
from zeh_spark.client.http.discovery import Discovered, discover, rediscover
from zeh_spark.client.http.feed_client import FeedClient, PageRequest
from zeh_spark.client.options.given import parse
from zeh_spark.client.polling.feed_end import MOST_WITHOUT_EVENTS, Ending
from zeh_spark.client.polling.feed_end_probes import beginning, first_checkpoint
from zeh_spark.client.polling.finite_read import EndUnknownError, FiniteRead, find_target, joined
from zeh_spark.errors import OptionError, at_spark_border
from zeh_spark.spark.source import offsets
from zeh_spark.spark.source.batch_source import reads_directly
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.planned_batch import plan_batch, tasks_of
from zeh_spark.spark.source.tasks import FeedTask, TaskReader
from zeh_spark.wire import wire
from zeh_spark.wire.direct_reads import PlanRequest
from zeh_spark.wire.feed_identity import Epoch


@dataclass(frozen=True)
class FeedPartition(FeedTask):
    """A feed partition from a cursor to its end, as `feed_end` finds the end.

    Args:
        request: the first page; its cursor is where the partition starts.
        target: the cursor at which the partition ends, as far as it is known.
        exact: whether the target has to come, because the user gave it.
    """

    request: PageRequest
    target: str | None
    exact: bool
    options: SourceOptions = field(repr=False)

    def read(self, decoder: Decoder) -> Iterator[pa.RecordBatch]:
        client = FeedClient(self.options)
        client.transport.has_answered()  # on the driver
        epochs: set[Epoch | None] = set()
        for interval in joined(follow(client, self, epochs.add)):
            yield from decoder.batches(interval.lines, self.request.partition, self.feed)
        if self.feed and self.feed.told and not epochs <= {self.feed.epochs[-1]}:
            count = self.request.partition_count
            rediscover(client.transport, count, self.feed, self.options.feed, told=False)


class BatchReader(TaskReader, DataSourceReader):
    """Reads what the feed holds when the query begins, in bounded memory, each event once."""

    def __init__(self, options: SourceOptions, decoder: Decoder | OptionError) -> None:
        super().__init__(decoder)
        self._options = options

    @at_spark_border
    def partitions(self) -> Sequence[InputPartition]:
        if isinstance(self._decoder, OptionError):
            raise self._decoder
        options = self._options
        client = FeedClient(options)
        found = discover(client.transport, options.partition_count)
        count = found.partition_count
        options.check_partitions(count)
        if reads_directly(options, lambda: found.direct):
            return self._planned(client, found, self._begun(client, count))
        feed = options.stamping(found.named(options.feed))
        tell = feed is not None and feed.told
        begun = self._begun(client, count)
        with ThreadPoolExecutor(options.max_concurrent_requests) as pool:
            chosen = options.chosen(count)
            plans = pool.map(lambda each: self._plan(client, begun, each, found), chosen)
            return [
                replace(plan, request=replace(plan.request, tell=tell), feed=feed) for plan in plans
            ]

    def _begun(self, client: FeedClient, count: int) -> SourceOptions:
        """Return the options with the cursors that `startingTimestamp` means, if it is set."""
        options = self._options
        if options.starting_timestamp is None:
            return options
        at = direct_client.cursors_at(client.transport, count, options.starting_timestamp)
        return replace(options, starting_cursors={each: at[each] for each in options.chosen(count)})

    def _planned(
        self, client: FeedClient, found: Discovered, options: SourceOptions
    ) -> Sequence[InputPartition]:
        """Return the tasks of a read in which they fetch what the publisher has planned."""
        count = found.partition_count
        starts, ends = options.starting_cursors, options.ending_cursors
        everywhere = wire.LAST if starts == "last" else wire.FIRST
        if not isinstance(starts, dict):
            starts = dict.fromkeys(options.chosen(count), everywhere)
        request = PlanRequest(
            count,
            wire.by_partition(starts),
            ends=wire.by_partition(ends) if isinstance(ends, dict) else UNSET,
        )
        ask = partial(direct_client.plan, client.transport)
        batch = plan_batch(ask, request, finite=request.ends is UNSET)
        now = found.named(options.feed)
        if batch.epoch != now.epochs[-1]:  # one that began since then has events of the plan
            has_identity = found.identity is not None
            now = discover(client.transport, count, has_identity=has_identity).named(options.feed)
            offsets.check_identity(found.named(options.feed).id, now, options.url)
        feed = options.stamping(now)
        tasks = tasks_of(batch, client.transport, options)
        return [replace(task, feed=feed) for task in tasks]

    def _plan(
        self, client: FeedClient, options: SourceOptions, partition: int, found: Discovered
    ) -> FeedPartition:
        hint, headers = options.page_size_hint, options.requested_headers
        request = PageRequest(partition, wire.LAST, found.partition_count, hint, headers)
        request = replace(request, only=options.selected)
        start = wire.FIRST
        if isinstance(options.starting_cursors, dict):
            start = options.starting_cursors[partition]
        if start == wire.LAST or options.starting_cursors == "last":
            start = first_checkpoint(client, request)
        target, exact = find_target(client, request, options.ending_cursors)
        if exact and start == wire.FIRST and found.identity:
            start = beginning(client, request, 0) or start
        first = replace(request, cursor=start)
        return FeedPartition(first, target, exact, self._options)


def last_cursors(url: str, **options: str) -> str:
    """Return the cursors of a feed's current end, one for every partition that is read, as JSON.

    Give the same text to `spark.read` as `endingCursors` and to `spark.readStream` as
    `startingCursors`. Then the stream continues exactly where the read ends.

    Args:
        url: the feed's address.
        **options: options of the format, like `token`. Give those that the queries have, also
            `partitions`.

    Returns:
        A text like `{"0": "17.0a1b2c3d", "1": "18.5e6f7a8b"}`. A partition without events has
        "_first" if the publisher does not tell the feed's id: what it removes there before the
        stream begins is not noticed.

    Raises:
        OptionError: an option is not valid.
        PublisherError: the publisher refuses, or breaks the protocol.
        UnavailableError: the publisher did not answer within `retryTimeout`.
    """
    parsed = parse(SourceOptions, {"url": url, **options})
    client = FeedClient(parsed)
    found = discover(client.transport, parsed.partition_count)
    count = found.partition_count
    parsed.check_partitions(count)
    cursors = {}
    for partition in parsed.chosen(count):
        request = PageRequest(
            partition, wire.LAST, count, parsed.page_size_hint, parsed.requested_headers
        )
        if found.identity:  # its checkpoints come again, also where there are no events
            cursors[str(partition)] = first_checkpoint(client, request)
            continue
        begins = beginning(client, request, 1)
        last = first_checkpoint(client, request) if begins != wire.FIRST else wire.FIRST
        # A partition without events has no checkpoint that a read could reach again.
        cursors[str(partition)] = wire.FIRST if last == begins else last
    return json.dumps(cursors)


def follow(
    client: FeedClient,
    partition: FeedPartition,
    tell: Callable[[Epoch | None], object] = lambda epoch: None,
) -> Iterator[wire.Interval]:
    """Yield the intervals from the partition's start to its end.

    `tell` is called with each interval: with the feed's newest epoch, if its answer told it.
    Raises PublisherError if the feed ends before the cursor that was asked for as its end, or its
    end cannot be proven; UnavailableError if the feed gives less than it had when the query began.
    """
    ending = Ending(partition.target, most_without_events=MOST_WITHOUT_EVENTS)
    try:
        reading = FiniteRead(client, partition.request, ending, exact=partition.exact)
        for interval in reading:
            tell(reading.page.standing.epoch)
            yield interval
    except EndUnknownError as exc:
        raise exc.as_error() from exc.__cause__
