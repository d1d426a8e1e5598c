"""ZeroEventHub feeds for Apache Spark: read feeds into DataFrames, and publish DataFrames.

This module exports what users call on Spark's driver. `zeh_spark.publish` publishes without Spark;
`zeh_spark.lakehouse`, `zeh_spark.sessions` and `zeh_spark.dedup` process what was read.

Rule for editors: each name is imported on first use, so that the publisher and the command line run
without PySpark. A new name goes into all three lists below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeh_spark._lazy import names_of

if TYPE_CHECKING:
    from zeh_spark.datasource import register
    from zeh_spark.parsing import parsed
    from zeh_spark.progress import ProgressListener, drain
    from zeh_spark.session_config import configure
    from zeh_spark.sink.receipts import receipts
    from zeh_spark.source.batch import last_cursors
    from zeh_spark.source.shared_cursors import shared_cursors
    from zeh_spark.stamping import stamped

__version__ = "0.1.0"

__all__ = [
    "ProgressListener",
    "__version__",
    "configure",
    "drain",
    "last_cursors",
    "parsed",
    "receipts",
    "register",
    "shared_cursors",
    "stamped",
]

__getattr__ = names_of(
    __name__,
    {
        "ProgressListener": "zeh_spark.progress",
        "configure": "zeh_spark.session_config",
        "drain": "zeh_spark.progress",
        "last_cursors": "zeh_spark.source.batch",
        "parsed": "zeh_spark.parsing",
        "receipts": "zeh_spark.sink.receipts",
        "register": "zeh_spark.datasource",
        "shared_cursors": "zeh_spark.source.shared_cursors",
        "stamped": "zeh_spark.stamping",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
