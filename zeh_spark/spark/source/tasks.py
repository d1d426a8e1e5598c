"""What Spark pickles into a task of a query: a reader without its options, and what it reads.

Rule for editors: each of Spark's Python processes imports what its pickles name, and a start of a
query makes several. So this module imports nothing that only the driver needs, and no client: a
task that fetches says so in the module of its class.

Runs in tasks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from zeh_spark.client.decoding.lines import Decoder
from zeh_spark.errors import OptionError, at_spark_border
from zeh_spark.spark.source.segments import unpack
from zeh_spark.wire.feed_identity import FeedIdentity


@dataclass(frozen=True, kw_only=True)
class FeedTask(InputPartition, ABC):
    """What one task of a batch reads. It is pickled, and reads the same each time.

    Args:
        feed: the identity whose ids the events get as the header `zeh-feed`; None adds none.
    """

    feed: FeedIdentity | None = None

    @property
    def is_here(self) -> bool:
        """Whether it has what it reads, so that the driver can read it, too."""
        return False

    @abstractmethod
    def read(self, decoder: Decoder) -> Iterator[pa.RecordBatch]:
        """Yield the task's rows."""


@dataclass(frozen=True)
class SegmentTask(FeedTask, ABC):
    """Decodes a packed segment."""

    @abstractmethod
    def content(self) -> bytes:
        """Return the packed segment."""

    def read(self, decoder: Decoder) -> Iterator[pa.RecordBatch]:
        for partition, lines in unpack(self.content()):
            yield from decoder.batches(lines, partition, self.feed)


@dataclass(frozen=True)
class CarriedSegment(SegmentTask):
    """A segment that Spark carries to its task."""

    payload: bytes = field(repr=False)

    def content(self) -> bytes:
        return self.payload

    @property
    def is_here(self) -> bool:
        return True


class TaskReader:
    """Reads what a task is given. The driver's readers are pickled as this.

    Args:
        decoder: decodes lines; or the error that the driver raises before there are tasks.
    """

    def __init__(self, decoder: Decoder | OptionError) -> None:
        self._decoder = decoder

    def __reduce__(self) -> tuple[Any, ...]:
        return TaskReader, (self._decoder,)

    @at_spark_border
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(self._decoder, Decoder)
        if isinstance(partition, FeedTask):
            yield from partition.read(self._decoder)
        else:  # Spark's own, because there is nothing to read: None until Spark 4.1
            assert partition is None or type(partition) is InputPartition
