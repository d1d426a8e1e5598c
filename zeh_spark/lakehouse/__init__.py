"""Feeds and Delta tables: `to_delta` keeps a feed in a table, `from_delta` makes a table a feed.

A batch on its way into a table: `feed_table` starts the query, `delta_writer` writes its batches,
`checkpoint` reads where each begins and ends, `commits` reads what the table's log says,
`following` decides whether the batch is next, there already, or refused, `merging` and `precedence`
build the MERGE, `delta_table` is the table itself. `claims` keeps a feed under one name, `content`
compares batches of queries with state, `app_versions` serves `merge` with a version, `old_rows` are
rows of older versions. `delta_reader` and `delta_options` publish a table.

Rule for editors: what needs Spark is imported on first use, as in the package.
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
