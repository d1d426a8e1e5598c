"""Start a query that keeps a feed in a Delta table, and ask where the table stands.

Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from zeh_spark.errors import LakehouseError
from zeh_spark.spark.delta import commits
from zeh_spark.spark.delta.delta_table import LakeTable
from zeh_spark.spark.delta.delta_writer import DeltaFeedWriter, checked_name
from zeh_spark.spark.delta.merging import columns_of_keys, listed_keys

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def to_delta(
    df: DataFrame,
    table: str,
    *,
    name: str,
    checkpointLocation: str,
    merge_keys: Sequence[str] | None = None,
    trigger: dict[str, Any] | None = None,
    **options: Any,
) -> StreamingQuery:
    """Start a query that keeps a feed in a Delta table.

    Args:
        df: a stream that reads the feed, with `startingCursors` from `cursors(spark, table,
            name=name)`, so that a new checkpoint continues at the table's position.
        table: a path or a name. The first batch makes the table if there is none.
        name: the name that keeps the feed in the table, as long as the table lives.
        checkpointLocation: the query's checkpoint.
        merge_keys: the columns that a row is found by; None means that rows are appended.
        trigger: the arguments of Spark's `trigger`, like {"availableNow": True}.
        options: those of `DeltaFeedWriter`.

    Returns:
        The query, which has been started.

    Raises:
        LakehouseError: the frame is not a stream, or the table cannot be used.
        OptionError: an option is wrong.
    """
    if not df.isStreaming:
        raise LakehouseError(
            f"table {table}: the frame is not a stream. Read the feed with spark.readStream, and "
            f"trigger={{'availableNow': True}} for a run that ends",
            table=table,
        )
    writer = DeltaFeedWriter(
        table, name=name, checkpointLocation=checkpointLocation, merge_keys=merge_keys, **options
    )
    LakeTable(df.sparkSession, table).exists()  # raises here rather than in the stream
    if merge_keys is not None and options.get("transform") is None:  # likewise
        columns_of_keys(table, df, listed_keys(merge_keys))
    stream = df.writeStream.foreachBatch(writer).queryName(f"{name} to {table}")
    if trigger:
        stream = stream.trigger(**trigger)
    return stream.option("checkpointLocation", checkpointLocation).start()


def cursors(
    spark: SparkSession,
    table: str | Sequence[str],
    *,
    name: str,
    feed: str | None = None,
    cursorColumn: str | None = None,
) -> str:
    """Return a table's position in its feed, as a value for the option `startingCursors`.

    Args:
        spark: the Spark session.
        table: a path or a name; or several, if one query writes them all. They all have to be
            at the same position.
        name: the name that keeps the feed in the table.
        feed: the feed's URL or feedId, needed if the name's query reads several feeds.
        cursorColumn: the column that keeps the cursors in the rows, as for `DeltaFeedWriter`.

    Returns:
        The cursors of each partition as JSON; "first" if there is no table, or it has nothing of
        this name.

    Raises:
        LakehouseError: a table may hold more than its log tells, or tables are at different places.
        OptionError: `name` is not a possible name.
    """
    tables = [table] if isinstance(table, str) else list(table)
    places = {
        each: _cursors(spark, each, checked_name(name), feed, cursorColumn) for each in tables
    }
    if len(set(places.values())) != 1:
        shown = "; ".join(f"{each}: {place}" for each, place in places.items())
        raise LakehouseError(
            f"the tables are at different places ({shown}). Bring each of them to the feed's end "
            f"by a query of its own, with a checkpoint of its own and the same name, before one "
            f"query writes them all again",
            got=places,
            anchor="the-tables-are-at-different-places",
        )
    return places.popitem()[1]


def _cursors(
    spark: SparkSession, table: str, name: str, feed: str | None, column: str | None
) -> str:
    stands = LakeTable(spark, table).standing(name, column)
    if stands.record:
        return commits.starting_cursors(stands.record, feed, table)
    if stands.unknown is not None:
        raise LakehouseError(
            f"table {table} may hold events of name={name!r} up to cursors that are not known "
            f"({stands.unknown}). Give startingCursors that you know to be right; the writer then "
            f"says what to accept",
            table=table,
            got=stands.unknown,
            anchor="cursors-that-are-not-known",
        )
    return "first"
