"""Where Spark 4.0 to 4.3 differ, and nothing else. Features are looked for, not versions [platforms
backport].
"""

from __future__ import annotations

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

    class ReadAllAvailable:  # type: ignore[no-redef]  # never handed out by these versions
        pass

    class ReadMaxBytes:  # type: ignore[no-redef]  # never asked for by these versions
        def __init__(self, max_bytes: int) -> None:
            self.max_bytes = max_bytes


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0, whose worker looks for the batch class in streams, too
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

    class DataSourceStreamArrowWriter(  # type: ignore[no-redef, misc]  # for the missing base
        DataSourceStreamWriter, DataSourceArrowWriter
    ):
        pass


__all__ = [
    "HAS_ADMISSION_CONTROL",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadMaxBytes",
    "SupportsTriggerAvailableNow",
]
