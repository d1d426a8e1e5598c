"""A Delta table as a feed: its rows, or the changes to them, as events for the ordinary sink.

`from_delta` builds a frame and keeps nothing: the place in the table is Delta's offset in Spark's
checkpoint, and each batch is published once because the sink does that.

Rule for editors: the frame has `data` as a STRUCT, which the sink renders. Rejected: `to_json`,
which is a third faster. Without an error it writes NaN as a text, cuts timestamps to milliseconds
in the session's zone, and makes other text of bytes that are not UTF-8. Rejected: commit times
among the headers. They are those of files, which a copy of the table does not share, so a repeated
batch would differ.

Runs on the driver; `in_order` runs in tasks, on the executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from zeh_spark.errors import LakehouseError, OptionError
from zeh_spark.spark.delta.delta_errors import delta_errors
from zeh_spark.spark.delta.delta_options import SETTINGS, Options, limited, refusal
from zeh_spark.spark.delta.delta_table import LakeTable
from zeh_spark.spark.frames.compat import column_of, quoted
from zeh_spark.spark.sink.spark_types import INTEGERS, STRINGS, named

_CHANGE = ("_change_type", "_commit_version", "_commit_timestamp")
"""The columns that Delta's change feed adds."""

_LATE = ("insert", "update_postimage")
"""Changes of a key that come after what they replace in the same commit."""

_PLACE = "place"
_ROWS = 10_000
"""About as many rows in a record batch as Spark's have."""


def from_delta(
    spark: SparkSession,
    table: str,
    key: str | None = None,
    change_feed: bool = False,
    **options: str | int | bool,
) -> DataFrame:
    """Return a streaming frame of a Delta table, for `writeStream.format("zeroeventhub")`.

    The existing rows of the table come first, then the appended rows. Updates and deletions stop
    the query, unless `change_feed` is set.

    Args:
        spark: the Spark session.
        table: a path, or a name in the catalog.
        key: a column or SQL expression that chooses the feed's partition; `change_feed` needs it.
        change_feed: publish updates and deletions as events as well. The map `headers` has
            `_change_type` and `_commit_version`, and the events of a key come in the order of the
            commits. The table needs delta.enableChangeDataFeed.
        options: Delta's, except those that leave rows out.

    Returns:
        A frame with `data`, a STRUCT of all columns of the table, which becomes the event; and
        `key` and `headers`, if they apply.

    Raises:
        OptionError: an option is refused, or `key` is missing. Nothing has been read.
        LakehouseError: the table cannot be read in this way. Nothing has been read.
    """
    settings = {name: spark.conf.get(name, None) for name in SETTINGS}
    if refused := refusal(options, settings, change_feed=change_feed):
        raise refused
    rows = _stream(LakeTable(spark, table), options, change_feed=change_feed)
    names = [name for name in rows.columns if not change_feed or name not in _CHANGE]
    columns = [F.struct(*(F.col(quoted(name)) for name in names)).alias("data")]
    if change_feed and key is None:
        raise OptionError(
            "change_feed=True needs a key, the column or SQL expression that tells whose changes "
            "they are: without one an update could come before the row that it changes",
            option="key",
            anchor="publishing-a-delta-table",
        )
    if key is not None:
        column = _key(rows, key, table)
        if change_feed:
            complaint = (
                f"table {table}: key {key!r} is NULL for a row, and without a key its changes may "
                f"come in another order: give an expression that is never NULL"
            )
            column = F.coalesce(column, F.raise_error(F.lit(complaint)))
        columns.insert(0, column.alias("key"))
    if not change_feed:
        return rows.select(*columns)
    pairs = [(F.lit(name), F.col(name).cast("string")) for name in _CHANGE[:2]]
    headers = F.create_map(*(each for pair in pairs for each in pair))
    # By commit, and in it what is replaced before its replacement.
    place = F.col("_commit_version") * 2 + F.col("_change_type").isin(*_LATE).cast("long")
    placed = rows.select(*columns, headers.alias("headers"), place.alias(_PLACE))
    return placed.repartition("key").mapInArrow(in_order, placed.drop(_PLACE).schema)


# The table


def _stream(place: LakeTable, options: Options, *, change_feed: bool) -> DataFrame:
    """Return the table's rows, or its changes. Raises LakehouseError if they cannot be read."""
    if not place.exists():
        raise _refused(place, "there is none: give the path or the name of a Delta table")
    if not place.frame().columns:
        raise _refused(place, "it has no columns yet: start when it has been written to")
    if change_feed and place.properties().get("delta.enableChangeDataFeed", "").lower() != "true":
        raise _refused(
            place,
            f"its changes are not recorded. From now on they are with ALTER TABLE "
            f"{place.identifier} SET TBLPROPERTIES (delta.enableChangeDataFeed = true). What "
            f"changed before cannot be published: then begin a new feed, with a new checkpoint",
        )
    reader = place.spark.readStream.format("delta").options(
        **limited(options, change_feed=change_feed)
    )
    if change_feed:
        reader = reader.option("readChangeFeed", "true")
    with delta_errors(place.text):
        return reader.table(place.text) if place.path is None else reader.load(place.path)


def _refused(place: LakeTable, problem: str) -> LakehouseError:
    return LakehouseError(
        f"table {place.text}: {problem}", table=place.text, anchor="publishing-a-delta-table"
    )


def _key(rows: DataFrame, key: str, table: str) -> Column:
    try:
        named = column_of(rows, key)
        column = F.col(quoted(named)) if named else F.expr(key)
        (field,) = rows.select(column.alias("key")).schema
    except (AnalysisException, ParseException) as exc:
        said = str(exc).partition(" SQLSTATE")[0].strip()
        raise OptionError(
            f"table {table}: key {key!r} is neither a column nor an expression of columns: {said} "
            f"The columns are {', '.join(rows.columns)}",
            option="key",
            anchor="publishing-a-delta-table",
        ) from exc
    if problem := key_problem(key, field.dataType):
        raise OptionError(
            f"table {table}: {problem}", option="key", anchor="publishing-a-delta-table"
        )
    return column


def key_problem(key: str, kind: T.DataType) -> str | None:
    """Return why a column cannot be the key, with the remedy; None if it can."""
    if isinstance(kind, (*STRINGS, *INTEGERS)):
        return None
    return (
        f"key {key!r} is {named(kind)}, and keys are STRING or integers: make a text of it that is "
        f"the same in each session, as key='CAST({key} AS STRING)' does of DATE and DECIMAL"
    )


# The order of changes


def in_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows, sorted by `place`, without that column.

    All of them are in memory. Spark itself does not sort a streaming frame.
    """
    runs = [_sorted(batch) for batch in batches if batch.num_rows]
    held: list[pa.RecordBatch] = []
    rows = 0
    for part in merged(runs):
        held.append(part)
        rows += part.num_rows
        if rows >= _ROWS:
            yield from _joined(held)
            held, rows = [], 0
    if held:
        yield from _joined(held)


def merged(runs: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield pieces of sorted runs in such an order that all is sorted; nothing is copied."""
    places = [np.asarray(run.column(_PLACE)) for run in runs]
    for place in np.unique(np.concatenate(places)) if places else ():
        for run, each in zip(runs, places, strict=True):
            begin, end = np.searchsorted(each, [place, place + 1])
            if begin < end:
                yield run.slice(begin, end - begin)


def _sorted(batch: pa.RecordBatch) -> pa.RecordBatch:
    places = batch.column(_PLACE)
    if np.all(np.diff(np.asarray(places)) >= 0):
        return batch
    return batch.take(pc.array_sort_indices(places))


def _joined(parts: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    whole = pa.Table.from_batches(parts).drop([_PLACE]).combine_chunks()
    yield from whole.to_batches()
