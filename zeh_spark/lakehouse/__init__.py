"""Feeds and Delta tables: `to_delta` keeps a feed in a table, `from_delta` makes a table a feed.

A feed into a table:

    feed_table      starts the query, and tells where a table stands
    delta_writer    writes each batch once, with its cursors
    checkpoint      reads where a batch begins and ends
    commits         reads what the table's log says
    following       decides whether a batch is next, there already, or refused
    merging         builds the MERGE, and removes deleted keys
    precedence      decides which event of a key a merged table shows
    delta_table     reads and changes the table itself
    commit_settings gives a MERGE its settings, which no other statement sees
    claims          keeps each feed under one name
    content         compares a repeated batch with the one that was written
    app_versions    writes each version once for `merge` with a version
    old_rows        names the feed of rows that an older version wrote

A table as a feed:

    delta_reader    makes the frame of a table's rows or changes
    delta_options   decides which of Delta's options are accepted

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
