"""Feeds and Delta tables: `to_delta` keeps a feed in a table, `from_delta` makes a table a feed.

This module holds the names that users import, from `spark.delta`. They are imported on first use,
so that a program without Spark can tell what is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeh_spark._lazy import lazily

if TYPE_CHECKING:
    from zeh_spark.spark.delta.delta_reader import from_delta as from_delta
    from zeh_spark.spark.delta.delta_writer import DeltaFeedWriter as DeltaFeedWriter
    from zeh_spark.spark.delta.feed_table import cursors as cursors
    from zeh_spark.spark.delta.feed_table import to_delta as to_delta
    from zeh_spark.spark.delta.merging import merge as merge
    from zeh_spark.spark.delta.merging import purge as purge
    from zeh_spark.spark.delta.merging import stamped as stamped

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "spark.delta.delta_reader": "from_delta",
        "spark.delta.delta_writer": "DeltaFeedWriter",
        "spark.delta.feed_table": "cursors to_delta",
        "spark.delta.merging": "merge purge stamped",
    },
)
