"""The stream source as Spark calls it on the driver, which `stream_dispatcher` does.

Rule for editors: `StreamReader` is pickled as its `TaskReader`. Its options are not pickled, so no
token reaches an executor. Of the URL, an executor gets at most what names a feed that has no id: no
user, and the query as a digest (`FeedUrl.identity`). `partitions` and `read` may run more than once
for the same batch, and give the same each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from zeh_spark.client.decoding.lines import Decoder
from zeh_spark.errors import OptionError, at_spark_border
from zeh_spark.spark.frames.compat import (
    ReadAllAvailable,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from zeh_spark.spark.source.batch_source import Limits
from zeh_spark.spark.source.older_spark import OlderSpark, warn_of_repetition
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.tasks import TaskReader

if TYPE_CHECKING:
    from zeh_spark.spark.source.stream_dispatcher import StreamDriver


class StreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream source as Spark calls it. See `DataSourceStreamReader` for the contract.

    Args:
        options: the query's options; None if they are not valid.
        decoder: decodes lines in tasks; or the error that the first call raises.

    Guarantee: delivers each event of the feed once per checkpoint, or fails with an explanation.
    """

    def __init__(self, options: SourceOptions | None, decoder: Decoder | OptionError) -> None:
        super().__init__(decoder)
        self._options = options
        self._finite = False
        self._driver: StreamDriver | None = None
        self._older = OlderSpark()

    @at_spark_border
    def initialOffset(self) -> dict[str, Any]:
        return self._begun.initial()

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
        finite = self._finite or isinstance(limit, ReadAllAvailable)
        if start is None:
            return self._older.latest_offset(self._begun, finite=finite)
        return self._begun.latest_offset(start, Limits(finite=finite))

    @at_spark_border
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            self._older.restore(end)
            return []
        warn_of_repetition(self._begun)
        return self._begun.partitions(start, end)

    @at_spark_border
    def commit(self, end: dict[str, Any]) -> None:
        self._begun.commit(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the feed's head, the lag and other numbers, for the progress of Spark 4.2."""
        return self._driver.report() if self._driver else None

    def stop(self) -> None:
        if self._driver:
            self._driver.stop()

    @property
    def _begun(self) -> StreamDriver:
        if isinstance(self._decoder, OptionError):
            raise self._decoder
        if self._driver is None:
            # The process that plans the query makes a reader, and pickles it: it needs no driver.
            from zeh_spark.spark.source.stream_dispatcher import StreamDriver

            assert self._options is not None
            self._driver = StreamDriver(self._options)
        return self._driver
