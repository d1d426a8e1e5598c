"""The stream source as Spark calls it: on the driver, which `stream_driver` does, and in tasks.

Rule for editors: `StreamReader` is pickled, by the planner and into tasks. Its options are not
pickled, so no token reaches an executor. Of the URL, an executor gets at most what names a feed
that has no id: no user, and the query as a digest (`FeedUrl.identity`). `partitions` and `read` may
run more than once for the same batch, and give the same each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from zeh_spark.errors import CheckpointError, OptionError, at_spark_border
from zeh_spark.spark.decoding.lines import Decoder
from zeh_spark.spark.frames.compat import (
    ReadAllAvailable,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from zeh_spark.spark.source import direct_tasks, offsets
from zeh_spark.spark.source.direct_tasks import DirectPartition
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.segments import unpack
from zeh_spark.spark.source.staging import SegmentPartition
from zeh_spark.spark.source.stream_driver import StreamDriver


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream source as Spark calls it. See `DataSourceStreamReader` for the contract.

    Args:
        options: the query's options; None if they are not valid.
        decoder: decodes lines in tasks; or the error that the first call raises.

    Guarantee: delivers each event of the feed once per checkpoint, or fails with an explanation.
    """

    def __init__(self, options: SourceOptions | None, decoder: Decoder | OptionError) -> None:
        self._options = options
        self._decoder = decoder
        self._finite = False
        self._driver: StreamDriver | None = None
        self._last: Mapping[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_decoder": self._decoder}

    @at_spark_border
    def initialOffset(self) -> dict[str, Any]:
        return offsets.initial(self._begun.options).to_json()

    @at_spark_border
    def getDefaultReadLimit(self) -> ReadMaxBytes:
        """Return `maxBytesPerTrigger` as a read limit, for Spark 4.2 and later."""
        return ReadMaxBytes(self._begun.options.driver_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        self._finite = True

    @at_spark_border
    def latestOffset(  # Spark 4.0 and 4.1 pass no arguments
        self, start: dict[str, Any] | None = None, limit: object = None
    ) -> dict[str, Any]:
        driver = self._begun
        lone = start is None
        if start is None:
            start = dict(self._last or offsets.initial(driver.options).to_json())
        finite = self._finite or isinstance(limit, ReadAllAvailable)
        self._last = end = driver.latest_offset(start, finite=finite, lone=lone)
        return end

    @at_spark_border
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            self._restart_at(end)
            return []
        return self._begun.partitions(start, end)

    def _restart_at(self, end: dict[str, Any]) -> None:
        """Continue at an offset. Spark 4.0 and 4.1 call `partitions(x, x)` to restore one."""
        if self._last is not None and self._last != end:
            raise CheckpointError(
                "Spark requested offsets before it restored the checkpoint. Set "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled=false; otherwise events "
                "are duplicated",
                expected=self._last,
                got=end,
                anchor="triggeravailablenowwrapper",
            )
        self._last = end

    @at_spark_border
    def commit(self, end: dict[str, Any]) -> None:
        self._begun.commit(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the feed's head, the lag and other numbers, for the progress of Spark 4.2."""
        return self._driver.report() if self._driver else None

    def stop(self) -> None:
        if self._driver:
            self._driver.stop()

    @at_spark_border
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(self._decoder, Decoder)
        if isinstance(partition, DirectPartition):
            yield from direct_tasks.read(partition, self._decoder)
            return
        assert isinstance(partition, SegmentPartition)
        payload = partition.payload
        if payload is None:
            assert partition.staging is not None
            payload = partition.staging.read(partition.batch, partition.segment)
        for feed_partition, lines in unpack(payload):
            yield from self._decoder.batches(lines, feed_partition, partition.feed)

    @property
    def _begun(self) -> StreamDriver:
        if isinstance(self._decoder, OptionError):
            raise self._decoder
        if self._driver is None:
            assert self._options is not None
            self._driver = StreamDriver(self._options)
        return self._driver
