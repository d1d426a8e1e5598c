"""The stream source as Spark calls it on the driver, which `stream_dispatcher` does.

Rule for editors: `StreamReader` is pickled as its `TaskReader`. Its options are not pickled, so no
token reaches an executor. Of the URL, an executor gets at most what names a feed that has no id: no
user, and the query as a digest (`FeedUrl.identity`). `partitions` and `read` may run more than once
for the same batch, and give the same each time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

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


_TESTED = re.compile(r"4\.[0-3]\.\d+")
"""The versions of Spark in which `inline` was tested. Spark documents nothing of what it uses."""


def check_inline(schema: StructType) -> None:
    """Raise OptionError if Spark does not take rows of this schema from the driver (`inline`)."""
    databricks = os.environ.get("DATABRICKS_RUNTIME_VERSION")
    why = None
    if databricks or not _TESTED.fullmatch(pyspark.__version__):
        here = f"Databricks {databricks}" if databricks else f"Spark {pyspark.__version__}"
        why = f"it was tested in Apache Spark 4.0 to 4.3 only, and this is {here}"
    elif described := [field.name for field in schema if field.metadata]:
        why = (
            f"the column {described[0]!r} has metadata, as those of tables and columns with a "
            f"comment have, so Spark would refuse the rows"
        )
    if why:
        raise OptionError(f"option 'inline' is true, but {why}. Set inline=false", option="inline")


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
        self._rows: Sequence[pa.RecordBatch] | None = None

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
        self._rows = None
        if start == end:
            self._older.restore(end)
            return []
        warn_of_repetition(self._begun)
        tasks = self._begun.partitions(start, end)
        if self._begun.is_inline(tasks, end):
            self._rows = [*self.read(tasks[0])]
        return tasks

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """Return the rows of the batch whose partition Spark got just now."""
        assert self._rows is not None
        rows, self._rows = self._rows, None
        return iter(rows)

    def _kind(self) -> type:
        """Return what Spark takes this reader for: its simple kind while it has rows to give.

        Spark asks only that kind for rows, by `getCache`, right after `partitions`. Of that kind it
        asks neither for a limit nor for the lag, so at all other times this is none.
        """
        if self._rows is None:
            return type(self)
        from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper

        return _SimpleStreamReaderWrapper

    __class__ = property(_kind)  # isinstance() asks for it

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
