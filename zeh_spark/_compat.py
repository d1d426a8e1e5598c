"""The differences between Spark 4.0 and 4.3, and between classic sessions and Spark Connect.

Rule for editors: test whether a feature exists, never which version runs, because platforms
backport features. Runs wherever the source and the sink run: on the driver and on executors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )

    HAS_ADMISSION_CONTROL = True
except ImportError:  # Spark 4.0 and 4.1: latestOffset() without arguments, no limits
    HAS_ADMISSION_CONTROL = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]  # stands in for the missing base
        pass

    class ReadAllAvailable:  # type: ignore[no-redef]  # these versions never give one
        pass

    class ReadMaxBytes:  # type: ignore[no-redef]  # never asked for by these versions
        def __init__(self, max_bytes: int) -> None:
            self.max_bytes = max_bytes


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # the worker of Spark 4.0 looks for the batch class in streams, too
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

    class DataSourceStreamArrowWriter(  # type: ignore[no-redef, misc]  # for the missing base
        DataSourceStreamWriter, DataSourceArrowWriter
    ):
        pass


try:
    from py4j.protocol import Py4JError, Py4JJavaError
except ImportError:  # a client of Spark Connect has no Java

    class Py4JError(Exception):  # type: ignore[no-redef, unused-ignore]
        pass

    class Py4JJavaError(Py4JError):  # type: ignore[no-redef, misc]
        pass


def is_connect(spark: SparkSession) -> bool:
    """Return whether this is a session of Spark Connect, which shows no JVM."""
    return not hasattr(spark, "_jsparkSession")


__all__ = [
    "HAS_ADMISSION_CONTROL",
    "DataSourceStreamArrowWriter",
    "Py4JError",
    "Py4JJavaError",
    "ReadAllAvailable",
    "ReadMaxBytes",
    "SupportsTriggerAvailableNow",
    "is_connect",
]
