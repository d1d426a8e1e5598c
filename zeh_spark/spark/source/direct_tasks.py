"""The tasks of direct reads: how ranges become Spark partitions, and how a task reads them.

Rule for editors: a Python task costs 50-70 ms by itself, so many small ranges share one. Ranges of
a feed partition stay in order, in one task or in consecutive ones, so that a query which publishes
them again keeps their order.

`partitions_of` runs on the driver, `read` in tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from zeh_spark.client.http import direct_client
from zeh_spark.client.http.transport import Transport
from zeh_spark.spark.decoding.chunks import ChunkDecoder
from zeh_spark.spark.decoding.lines import Decoder
from zeh_spark.spark.source.direct_planner import PlannedBatch
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.wire.direct_reads import PlannedRange
from zeh_spark.wire.feed_identity import FeedIdentity

TASK_BYTES = 128 << 20
"""Most bytes of lines of a task, about, as in Spark's file sources."""

_SMALL_TASK_BYTES = 1 << 20


@dataclass(frozen=True)
class DirectPartition(InputPartition):
    """Ranges that one task fetches and decodes.

    Args:
        feed: the identity whose ids the events get as the header `zeh-feed`; None adds none.
    """

    ranges: Sequence[PlannedRange]
    n: int
    options: SourceOptions = field(repr=False)
    feed: FeedIdentity | None = None


def partitions_of(
    batch: PlannedBatch, transport: Transport, options: SourceOptions, feed: FeedIdentity | None
) -> list[DirectPartition]:
    """Return the Spark partitions of a batch. `transport` knows the token that is valid now."""
    size = batch.size
    wanted = min(options.parallelism, size // _SMALL_TASK_BYTES)
    goal = -(-size // max(1, wanted, -(-size // TASK_BYTES)))
    for_tasks = replace(options, token=transport.token, first_contact=None)
    tasks: list[list[PlannedRange]] = []
    filled = goal
    for each in (each for ranges in batch.ranges for each in ranges):
        if filled + each.bytes // 2 >= goal:
            tasks.append([])
            filled = 0
        tasks[-1].append(each)
        filled += each.bytes
    return [DirectPartition(tuple(ranges), len(batch.ends), for_tasks, feed) for ranges in tasks]


def read(partition: DirectPartition, decoder: Decoder) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task's ranges.

    Raises PublisherError if the publisher does not send what was planned, and MalformedLineError
    for a line that is no event if the mode is FAILFAST.
    """
    transport = Transport(partition.options)
    decode = ChunkDecoder(decoder, partition.options.requested_headers, partition.feed)
    ranges = partition.ranges
    for group in direct_client.fetch(transport, partition.n, ranges):
        yield from decode.batches(group)
