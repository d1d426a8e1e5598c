"""Events into a table with one row for each key: which event of a key wins.

Beside the events' own columns such a table keeps, for each key, which event it shows:

    _zeh_producer, _zeh_partition, _zeh_sequence    the stamps of that event; NULL if it has none
    _zeh_deleted                                    whether it deleted the key
    _zeh_changed                                    when it was merged

An event wins over the one that the table shows if its sequence number is higher, where both are of
one producer and stored partition; else if it arrives later. A deleted key stays as a row, so that
an older event that arrives late does not bring it back, until `purge`.

Within a batch the newest event of each producer and stored partition is left, by number, and of
these the two that arrived last: the table's own event can outrank one of them only, as it is of one
producer, so the MERGE needs no more to decide.

Runs on the driver; builds expressions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from zeh_spark.errors import LakehouseError, OptionError
from zeh_spark.lakehouse.delta_table import Table, delta_errors

STAMPS = ("_zeh_producer", "_zeh_partition", "_zeh_sequence")
DELETED = "_zeh_deleted"
CHANGED = "_zeh_changed"
_ARRIVAL = "_zeh_arrival"
_CONFIGURATION = "spark.databricks.delta."


def stamped(df: DataFrame) -> DataFrame:
    """The frame with the columns `_zeh_producer STRING, _zeh_partition INT, _zeh_sequence BIGINT`,
    out of its `headers`; NULL where an event has no stamps. A frame that has them stays as it is.

    Raises LakehouseError for a frame with neither.
    """
    if set(STAMPS) <= set(df.columns):
        return df
    if "headers" not in df.columns or not isinstance(df.schema["headers"].dataType, MapType):
        raise LakehouseError(
            "to merge, the frame needs the column 'headers', which holds the events' stamps, or "
            "zeh_spark.lakehouse.stamped(df) has to be called before headers are dropped. For "
            "events without stamps, of which the one that arrives last wins, add "
            "headers as NULL: .withColumn('headers', F.lit(None).cast('map<string,string>'))",
            got=df.columns,
        )
    header = F.col("headers")
    values = (
        header["zeh-producer"],
        header["zeh-partition"].cast("int"),
        header["zeh-sequence"].cast("long"),
    )
    return df.withColumns(dict(zip(STAMPS, values, strict=True)))


def merge(
    df: DataFrame,
    table: str,
    keys: Sequence[str],
    *,
    deleted: str | None = None,
    app_id: str | None = None,
    version: int | None = None,
    **options: object,
) -> None:
    """Merge a batch of events into a table, which is made if there is none: one row for each key.

    For `foreachBatch` of a stream whose source is not a feed, a Delta table's for instance, with
    `app_id` and `version=batchId`: Delta then takes each batch of a query once. (A new checkpoint
    is another query: what it brings again is merged again.) `deleted` is a SQL condition on the
    frame's columns. Feeds have `DeltaFeedWriter`, which checks more.

    Raises LakehouseError for missing columns.
    """
    transaction = {}
    if (app_id is None) != (version is None):
        raise LakehouseError("app_id and version need each other", table=table)
    if app_id is not None:
        query = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        app = f"{app_id}:{query}" if query else app_id
        transaction = {"txnAppId": app, "txnVersion": str(version)}
    target = Table(df.sparkSession, table)
    Merge(target, keys, deleted, options).run(df, transaction)


def purge(spark: SparkSession, table: str, older_than: str) -> None:
    """Remove the rows of keys that were deleted longer than `older_than` ago, like "30 days".

    An event of such a key that arrives after that is taken for new: choose an age beyond which none
    is late. One commit of its own; run it where the table is optimised.
    """
    if not re.fullmatch(r"\d+ (second|minute|hour|day|week|month|year)s?", older_than):
        raise OptionError(
            f"older_than={older_than!r} must be a number and a unit, like '30 days'",
            option="older_than",
        )
    target = Table(spark, table)
    if DELETED not in target.columns():
        raise LakehouseError(
            f"table {table} has no column {DELETED}: no merge made it", table=table
        )
    before = F.current_timestamp() - F.expr(f"INTERVAL {older_than}")
    with delta_errors(table):
        target.delta().delete(F.col(DELETED) & (F.col(CHANGED) < before))


class Merge:
    """One MERGE for each batch."""

    def __init__(
        self, table: Table, keys: Sequence[str], deleted: str | None, options: Mapping[str, object]
    ) -> None:
        self._table = table
        self._keys = [keys] if isinstance(keys, str) else list(keys)
        self._deleted = deleted
        self._options = {name: option_text(value) for name, value in options.items()}

    def run(
        self,
        df: DataFrame,
        commit: Mapping[str, str],
        constants: Mapping[str, Column] | None = None,
    ) -> None:
        """`commit` holds what is Delta's to keep with the commit: txnAppId, txnVersion and
        userMetadata. `constants` are columns to add to the rows that are changed.
        """
        constants = constants or {}
        check_free(self._table.text, df, [DELETED, CHANGED, _ARRIVAL, *constants])
        events = self._events(df).withColumns(dict(constants))
        self._prepare(events.drop(_ARRIVAL))
        columns = [name for name in events.columns if name != _ARRIVAL]
        matched = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in self._keys)
        first: dict[str, str | Column] = {quoted(n): f"s._zeh_first.{quoted(n)}" for n in columns}
        second: dict[str, str | Column] = {quoted(n): f"s._zeh_second.{quoted(n)}" for n in columns}
        builder = (
            self._table.delta()
            .alias("t")
            .merge(newest(events, self._keys).alias("s"), matched)
            .whenMatchedUpdate(_wins("s._zeh_first"), first)
            .whenMatchedUpdate("s._zeh_second IS NOT NULL", second)
            .whenNotMatchedInsert(values=first)
        )
        with committing(self._table.spark, commit), delta_errors(self._table.text):
            builder.execute()

    def _events(self, df: DataFrame) -> DataFrame:
        """Each with its stamps and its place in the batch; checked for keys."""
        missing = [key for key in self._keys if key not in df.columns]
        if missing or not self._keys:
            raise LakehouseError(
                f"table {self._table.text}: merge_keys {self._keys} have to be columns of the "
                f"frame, which has {df.columns}; zeh_spark.parsed(df, schema) makes columns of "
                f"the events' fields",
                table=self._table.text,
                expected=self._keys,
                got=df.columns,
            )
        deleted = self._deletion(df)
        return stamped(df).withColumns(
            {
                **{key: self._not_null(key) for key in self._keys},
                DELETED: deleted,
                CHANGED: F.current_timestamp(),
                _ARRIVAL: F.monotonically_increasing_id(),
            }
        )

    def _deletion(self, df: DataFrame) -> Column:
        if self._deleted is None:
            return F.lit(False)
        condition = F.coalesce(F.expr(self._deleted), F.lit(False))
        try:
            df.select(condition)
        except (AnalysisException, ParseException) as exc:
            raise LakehouseError(
                f"table {self._table.text}: deleted={self._deleted!r} is no condition on the "
                f"frame's columns, {', '.join(df.columns)}: {str(exc).partition(';')[0]}",
                table=self._table.text,
                got=self._deleted,
            ) from exc
        return condition

    def _not_null(self, key: str) -> Column:
        """NULL equals nothing: such a row would be added again and again."""
        column = F.col(quoted(key))
        complaint = (
            f"table {self._table.text}: an event has NULL in the merge key {key!r}: leave such "
            f"events out, or send them elsewhere"
        )
        return F.when(column.isNull(), F.raise_error(F.lit(complaint))).otherwise(column)

    def _prepare(self, events: DataFrame) -> None:
        """Make the table, or give it the columns that are new: commits without rows, before the
        batch's own.
        """
        if self._table.exists():
            known = self._table.frame().schema
            self._check_keys(known, events.schema)
            if not self._evolves or not _new_fields(known, events.schema):
                self._check_columns(known)
                return
        self._table.save(events.limit(0).write.options(**self._options))

    @property
    def _evolves(self) -> bool:
        given = {name.lower(): value for name, value in self._options.items()}
        return given.get("mergeschema", "false").lower() == "true"

    def _check_keys(self, known: StructType, given: StructType) -> None:
        """Of the table's types: after a cast another key could be equal, or the same one not."""
        types = {field.name.lower(): field.dataType for field in known}
        for key in self._keys:
            mine, theirs = given[key].dataType, types.get(key.lower())
            if theirs is not None and mine != theirs:
                raise LakehouseError(
                    f"table {self._table.text}: the merge key {key!r} is {theirs.simpleString()} "
                    f"there and {mine.simpleString()} in the frame: CAST({key} AS "
                    f"{theirs.simpleString()})",
                    table=self._table.text,
                    expected=theirs.simpleString(),
                    got=mine.simpleString(),
                )

    def _check_columns(self, known: StructType) -> None:
        missing = [name for name in (*STAMPS, DELETED, CHANGED) if name not in known.fieldNames()]
        if missing:
            raise LakehouseError(
                f"table {self._table.text} lacks the columns {', '.join(missing)}, which a merge "
                f"keeps for each key: it was not made by a merge. Take a new table, or set "
                f"mergeSchema=true to add them; events then win over the rows that are there",
                table=self._table.text,
                expected=missing,
                got=known.fieldNames(),
            )


def newest(events: DataFrame, keys: Sequence[str]) -> DataFrame:
    """For each key `_zeh_first` and `_zeh_second`, the events that arrived last of those which are
    the newest of their producer and stored partition; the second is NULL if there is no other.
    """
    columns = [quoted(name) for name in events.columns if name != _ARRIVAL]
    keys = [quoted(key) for key in keys]
    order = F.struct(STAMPS[2], _ARRIVAL)
    event = F.struct(_ARRIVAL, F.struct(*columns).alias("event"))
    by_producer = (
        events.repartition(*keys)
        .groupBy(*keys, *(F.col(name).alias(f"_zeh_by{name}") for name in STAMPS[:2]))
        .agg(F.max_by(event, order).alias("_zeh_newest"))
    )
    listed = F.array_sort(
        F.collect_list("_zeh_newest"),
        lambda left, right: F.sign(right[_ARRIVAL] - left[_ARRIVAL]).cast("int"),
    )
    return (
        by_producer.groupBy(*keys)
        .agg(listed.alias("_zeh_listed"))
        .select(
            *keys,
            F.get("_zeh_listed", F.lit(0))["event"].alias("_zeh_first"),
            F.get("_zeh_listed", F.lit(1))["event"].alias("_zeh_second"),
        )
    )


def _wins(event: str) -> str:
    """Whether an event comes in the place of the table's. Without stamps: the later arrival."""
    producer, partition, sequence = STAMPS
    known = (
        f"t.{producer} = {event}.{producer} AND t.{partition} = {event}.{partition} "
        f"AND {event}.{sequence} <= t.{sequence}"
    )
    return f"NOT coalesce({known}, false)"


def _new_fields(known: DataType | None, given: DataType) -> bool:
    """Whether a type has fields, at any depth, that the table's lacks."""
    if isinstance(given, ArrayType) and isinstance(known, ArrayType):
        return _new_fields(known.elementType, given.elementType)
    if isinstance(given, StructType) and isinstance(known, StructType):
        types = {field.name.lower(): field.dataType for field in known}
        return any(_new_fields(types.get(each.name.lower()), each.dataType) for each in given)
    return known is None


def check_free(table: str, df: DataFrame, names: Sequence[str]) -> None:
    """Raises LakehouseError for a frame that has columns which are ours to fill."""
    mine = {name.lower() for name in names}
    if taken := [name for name in df.columns if name.lower() in mine]:
        raise LakehouseError(
            f"table {table}: the frame has the column {taken[0]!r} already, which would be lost: "
            f"rename it (or drop it; deleted= may name it then)",
            table=table,
            got=taken,
        )


@contextmanager
def committing(spark: SparkSession, commit: Mapping[str, str]) -> Iterator[None]:
    """For a statement that takes no options: Delta's settings for its commit, and no other's."""
    names = {
        "txnAppId": f"{_CONFIGURATION}write.txnAppId",
        "txnVersion": f"{_CONFIGURATION}write.txnVersion",
        "userMetadata": f"{_CONFIGURATION}commitInfo.userMetadata",
    }
    before = {name: spark.conf.get(names[name], None) for name in commit}
    for name, value in commit.items():
        spark.conf.set(names[name], value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(names[name])
            else:
                spark.conf.set(names[name], old)


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def option_text(value: object) -> str:
    """As Spark's own options are given."""
    return str(value).lower() if isinstance(value, bool) else str(value)
