"""Feeds and Delta tables: `to_delta` keeps a feed in a table, `from_delta` makes a table a feed.

Spark's side is imported on first use, as in the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeh_spark._lazy import names_of

if TYPE_CHECKING:
    from zeh_spark.lakehouse.delta_reader import from_delta
    from zeh_spark.lakehouse.delta_writer import DeltaFeedWriter
    from zeh_spark.lakehouse.feed_table import cursors, to_delta
    from zeh_spark.lakehouse.merging import merge, purge, stamped

__all__ = ["DeltaFeedWriter", "cursors", "from_delta", "merge", "purge", "stamped", "to_delta"]

__getattr__ = names_of(
    __name__,
    {
        "DeltaFeedWriter": "zeh_spark.lakehouse.delta_writer",
        "cursors": "zeh_spark.lakehouse.feed_table",
        "from_delta": "zeh_spark.lakehouse.delta_reader",
        "merge": "zeh_spark.lakehouse.merging",
        "purge": "zeh_spark.lakehouse.merging",
        "stamped": "zeh_spark.lakehouse.merging",
        "to_delta": "zeh_spark.lakehouse.feed_table",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
