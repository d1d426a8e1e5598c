"""ZeroEventHub feeds for Apache Spark: read feeds into DataFrames, and publish DataFrames.

This module exports what users call on Spark's driver, and `wait_for`, which services call.
`zeh_spark.publish` publishes without Spark;
`zeh_spark.lakehouse`, `zeh_spark.sessions` and `zeh_spark.dedup` process what was read.

Rule for editors: each name is imported on first use, so that the publisher and the command line run
without PySpark. A new name goes into both lists below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeh_spark._lazy import lazily

if TYPE_CHECKING:
    from zeh_spark.client.options.auth import register_auth as register_auth
    from zeh_spark.client.visibility import wait_for as wait_for
    from zeh_spark.spark.datasource import register as register
    from zeh_spark.spark.frames.parsing import parsed as parsed
    from zeh_spark.spark.frames.stamping import stamped as stamped
    from zeh_spark.spark.progress import ProgressListener as ProgressListener
    from zeh_spark.spark.progress import drain as drain
    from zeh_spark.spark.session_config import configure as configure
    from zeh_spark.spark.sink.receipts import receipts as receipts
    from zeh_spark.spark.source.batch import last_cursors as last_cursors
    from zeh_spark.spark.source.feed_schema import feed_schema as feed_schema
    from zeh_spark.spark.source.shared_cursors import shared_cursors as shared_cursors

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "client.options.auth": "register_auth",
        "client.visibility": "wait_for",
        "spark.datasource": "register",
        "spark.source.feed_schema": "feed_schema",
        "spark.frames.parsing": "parsed",
        "spark.progress": "ProgressListener drain",
        "spark.session_config": "configure",
        "spark.sink.receipts": "receipts",
        "spark.source.batch": "last_cursors",
        "spark.source.shared_cursors": "shared_cursors",
        "spark.frames.stamping": "stamped",
    },
)
__all__.append("__version__")
__all__.sort()
