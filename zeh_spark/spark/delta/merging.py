"""Events into a table with one row for each key: which event of a key wins.

Beside the events' own columns such a table has a struct, `_zeh`, about the event that a row shows:

    feed                             the feed and epoch of that event
    producer, partition, sequence    its stamps, NULL if it has none; with an expression as
                                     `order`, that, 0 and its value
    time                             when it was committed to the feed, ms
    deleted                          whether it deleted the key
    changed                          when it was merged

Which event wins is decided in `precedence`. A deleted key stays as a row, so that an older event
that arrives late does not bring it back, until `purge`.

Runs on the driver; builds expressions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import reduce
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, IntegralType, StructType

from zeh_spark.errors import LakehouseError, OptionError
from zeh_spark.spark.delta import app_versions
from zeh_spark.spark.delta.commit_settings import check_merges, committing
from zeh_spark.spark.delta.commits import CommitRecord
from zeh_spark.spark.delta.content import content_of, evaluated
from zeh_spark.spark.delta.delta_errors import delta_errors
from zeh_spark.spark.delta.delta_table import LakeTable, check_free
from zeh_spark.spark.delta.precedence import (
    ARRIVAL,
    BY_EXPRESSION,
    IDENTITY,
    OWN,
    is_shown,
    newest,
    wins,
)
from zeh_spark.spark.delta.write_options import check_spelling
from zeh_spark.spark.frames.compat import column_of, found_column, quoted
from zeh_spark.spark.frames.stamping import has_stamps, stamp
from zeh_spark.spark.frames.widening import fields, holds, widest
from zeh_spark.wire import feed_identity

_DELETED, _CHANGED = "deleted", "changed"
_STAMPED = f"struct<{','.join(f'{name}:{kind}' for name, (_, kind) in IDENTITY.items())}>"


def stamped(df: DataFrame) -> DataFrame:
    """Return the frame with a column that identifies each event, taken from its stamps.

    It is `_zeh STRUCT<feed STRING, producer STRING, partition INT, sequence BIGINT, time BIGINT>`
    (`time` in ms since 1970); a field is NULL where an event has no such stamp. A column of this
    name and type stays as it is. The stamps may be headers or typed columns.

    Raises:
        LakehouseError: the frame has neither stamps nor the column, or one of another type.
    """
    if (column := column_of(df, OWN)) is not None:
        _check_own(column, df.schema[column].dataType.simpleString())
        return df
    if has_stamps(df):
        found = {name: stamp(df, header).cast(kind) for name, (header, kind) in IDENTITY.items()}
        return df.withColumn(OWN, _struct(found))
    raise LakehouseError(
        "to merge, the frame needs the column 'headers', which holds the events' stamps, or "
        "zeh_spark.lakehouse.stamped(df) has to be called before headers are dropped. For "
        "events without stamps, of which the one that arrives last wins, add "
        "headers as NULL: .withColumn('headers', F.lit(None).cast('map<string,string>'))",
        got=df.columns,
        anchor="the-merge-lacks-columns-or-the-frame-lacks-headers",
    )


def merge(
    df: DataFrame,
    table: str,
    keys: Sequence[str],
    *,
    deleted: str | None = None,
    order: str | None = None,
    app_id: str | None = None,
    version: int | None = None,
    checkpointLocation: str | None = None,
    accept: str | None = None,
    **options: Any,
) -> None:
    """Merge a batch of events into a table, which is made if there is none: one row for each key.

    It is for `foreachBatch` of a stream whose source is not a feed, a Delta table's for instance.
    With `app_id` and `version=batchId` each batch of a query is merged once, and a batch that is
    repeated with other rows is refused. A query with a new checkpoint merges its batches again. For
    feeds, use `DeltaFeedWriter`, which checks more.

    Args:
        df: the batch. Its rows are in no order, as those of a Delta table are.
        table: a path or a name.
        keys: the columns that a row of the table is found by.
        deleted: a SQL condition on the frame's columns, true for events that delete their key.
        order: which of two events of a key is the newer one, as in `DeltaFeedWriter`.
        app_id: the name of the job, as long as the table lives.
        version: the number of the batch; needs `app_id`.
        checkpointLocation: the query's own checkpoint. On Spark Connect `app_id` needs it.
        accept: what an error has printed.
        options: Delta's, like mergeSchema.

    Raises:
        LakehouseError: columns are missing, or the batch does not fit the table.
    """
    check_spelling(
        options, ("keys", "deleted", "order", "app_id", "version", "checkpointLocation", "accept")
    )
    if (app_id is None) != (version is None):
        raise LakehouseError("app_id and version need each other", table=table)
    if app_id is not None:
        check_merges(df.sparkSession, table)
    target = LakeTable(df.sparkSession, table)
    made = Merge(target, keys, deleted, options, order=order)
    made.prepare(df)
    if app_id is None or version is None:
        made.run(df, {})
        return
    query = app_versions.calling_query(df.sparkSession, table, checkpointLocation, version)
    app = f"{app_id}:{query}" if query else app_id
    with evaluated(df):
        record = CommitRecord(
            f"merge:{app_id}", app, version, query or "", version, {}, content_of(df)
        )
        if app_versions.is_next(target, record, accept):
            made.run(df, record.transaction)
            app_versions.check_written(target, record, accept)


def purge(spark: SparkSession, table: str, older_than: str) -> None:
    """Remove the rows of keys that were deleted longer ago than `older_than`.

    An event of such a key that arrives later counts as new, so choose an age after which no event
    arrives late. It makes one commit; run it when you optimize the table.

    Args:
        spark: the Spark session.
        table: a path or a name.
        older_than: a number and a unit from second to year, like "30 days".

    Raises:
        OptionError: `older_than` is not such a text.
        LakehouseError: no merge made the table.
    """
    if not re.fullmatch(r"\d+ (second|minute|hour|day|week|month|year)s?", older_than):
        raise OptionError(
            f"older_than={older_than!r} must be a number and a unit, like '30 days'",
            option="older_than",
        )
    target = LakeTable(spark, table)
    if not is_merged(target):
        raise LakehouseError(f"table {table} has no column {OWN}: no merge made it", table=table)
    target.delete(
        f"{OWN}.{_DELETED} AND {OWN}.{_CHANGED} < current_timestamp() - INTERVAL {older_than}"
    )


def is_merged(table: LakeTable) -> bool:
    return found_column(table.frame().columns, OWN, case_sensitive=False) is not None


def listed_keys(keys: str | Sequence[str]) -> list[str]:
    return [keys] if isinstance(keys, str) else list(keys)


def columns_of_keys(table: str, df: DataFrame, keys: Sequence[str]) -> list[str]:
    """Return the columns that merge keys name. Raises LakehouseError if the frame lacks one."""
    found = [column for key in keys if (column := column_of(df, key)) is not None]
    if not keys or len(found) < len(keys):
        raise LakehouseError(
            f"table {table}: merge_keys {list(keys)} have to be columns of the frame, which has "
            f"{df.columns}; zeh_spark.parsed(df, schema) makes columns of the events' fields",
            table=table,
            expected=list(keys),
            got=df.columns,
            anchor="the-merge-lacks-columns-or-the-frame-lacks-headers",
        )
    return found


@dataclass(eq=False)
class Merge:
    """One MERGE for each batch.

    Args:
        deleted: A SQL condition, true for events that delete their key.
        feeds: The ids of the feeds that the query reads, if they are known. An event without
            `zeh-feed` is of the only feed, if that has no epochs; otherwise it is refused.
        order: Which of two events is the newer one: "sequence" or None by their numbers, "arrival"
            by the order of the rows, or a SQL expression of whole numbers.
        ordered: Whether the rows are in the order of the feeds.
    """

    table: LakeTable
    keys: Sequence[str]
    deleted: str | None
    options: Mapping[str, Any]
    _: KW_ONLY
    feeds: Sequence[str] = ()
    order: str | None = None
    ordered: bool = False

    def __post_init__(self) -> None:
        self.keys = listed_keys(self.keys)
        self.ordered = self.ordered or self.order == "arrival"
        self._by_expression = self.order not in (None, "sequence", "arrival")

    def run(
        self,
        df: DataFrame,
        commit: Mapping[str, str],
        constants: Mapping[str, Column] | None = None,
    ) -> None:
        """Merge a batch, in one commit, into a table that `prepare` has made.

        Args:
            commit: what Delta keeps with the commit: txnAppId, txnVersion and userMetadata.
            constants: columns to add to the rows that are changed.
        """
        events = self._make_rows(df, constants or {})
        columns = [name for name in events.columns if name != ARRIVAL]
        # The table's columns have no qualifier: the source's columns have other names.
        keys = [F.col(quoted(key)) == F.col(f"_zeh_first.{quoted(key)}") for key in self.keys]
        first = {quoted(name): F.col(f"_zeh_first.{quoted(name)}") for name in columns}
        second = {quoted(name): F.col(f"_zeh_second.{quoted(name)}") for name in columns}
        found = newest(events, self.keys, self.table.text, ordered=self.ordered)
        with committing(found, commit) as source, delta_errors(self.table.text):
            (
                source.mergeInto(self.table.identifier, reduce(Column.__and__, keys))
                .whenMatched(wins("_zeh_first", self.table.text))
                .update(first)
                .whenMatched(
                    F.col("_zeh_second").isNotNull()
                    & ~is_shown("_zeh_first")
                    & wins("_zeh_second", self.table.text)
                )
                .update(second)
                .whenNotMatched()
                .insert(first)
                .merge()
            )

    def prepare(self, df: DataFrame, constants: Mapping[str, Column] | None = None) -> None:
        """Create the table, or add new columns, in commits without rows before the batch's own."""
        events = self._make_rows(df, constants or {}).drop(ARRIVAL)
        if self.table.exists():
            known = self.table.frame().schema
            self._check_types(known, events)
            given = {name.lower(): str(value).lower() for name, value in self.options.items()}
            evolves = given.get("mergeschema") == "true"
            new = any(theirs is None for _, _, theirs in fields("", events.schema, known))
            if not evolves or not new:
                self._check_columns(known)
                return
            merged = widest(events.schema, known)
            events = self.table.spark.createDataFrame([], merged)  # an append casts no types
        self.table.save(events.limit(0).write.options(**self.options))

    def _make_rows(self, df: DataFrame, constants: Mapping[str, Column]) -> DataFrame:
        """Return events with the columns that the table keeps of them, and ARRIVAL."""
        check_free(self.table.text, df, [ARRIVAL, *constants])
        found = columns_of_keys(self.table.text, df, self.keys)
        identity = self._identity(df)
        own = {**identity, _DELETED: self._deletion(df), _CHANGED: F.current_timestamp()}
        time, row = identity["time"], F.monotonically_increasing_id()
        numbered = identity["sequence"].isNotNull()
        if self.ordered:
            time = F.when(numbered, time)
        tied = {
            name: F.when(numbered & time.isNotNull(), identity[name])
            for name in ("producer", "partition")
        }
        if self._by_expression:
            row = -row  # of equal numbers the first one wins
        if self.order in (None, "sequence") or column_of(df, OWN) is not None:
            df = stamped(df)
        return df.withColumns(
            {
                **{name: self._not_null(name) for name in found},
                OWN: _struct(own),
                ARRIVAL: _struct({"time": time, **tied, "row": row}),
                **constants,
            }
        )

    def _deletion(self, df: DataFrame) -> Column:
        if self.deleted is None:
            return F.lit(False)
        wrong = f"deleted={self.deleted!r} is no condition"
        return F.coalesce(self._expression(df, self.deleted, BooleanType, wrong), F.lit(False))

    def _expression(self, df: DataFrame, text: str, kind: type[DataType], wrong: str) -> Column:
        """Return a user's SQL expression. Raises LakehouseError if it is none of that kind."""
        cause: Exception | None = None
        try:
            column = F.expr(text)
            found = df.select(column).schema[0].dataType
            if isinstance(found, kind):
                return column
            why = f"it is {found.simpleString()}"
        except (AnalysisException, ParseException) as exc:
            why, cause = str(exc).partition(";")[0], exc
        raise LakehouseError(
            f"table {self.table.text}: {wrong} on the frame's columns, {', '.join(df.columns)}: "
            f"{why}",
            table=self.table.text,
            got=text,
        ) from cause

    def _not_null(self, key: str) -> Column:
        """Return the key's column, which raises an error for NULL.

        NULL equals nothing, so such a row would be added each time.
        """
        column = F.col(quoted(key))
        complaint = (
            f"table {self.table.text}: an event has NULL in the merge key {key!r}: leave such "
            f"events out, or send them elsewhere"
        )
        return F.when(column.isNull(), F.raise_error(F.lit(complaint))).otherwise(column)

    def _identity(self, df: DataFrame) -> dict[str, Column]:
        """Return what events are compared by: nothing if the order of arrival decides."""
        if self.order == "arrival":
            return {name: F.lit(None).cast(kind) for name, (_, kind) in IDENTITY.items()}
        if self._by_expression:
            return self._evaluated(df, str(self.order))
        identity = {name: F.col(OWN)[name] for name in IDENTITY}
        if not self.feeds:
            return identity
        complaint = (
            f"table {self.table.text}: an event has a producer and no {feed_identity.HEADER}, "
            f"which tells whose numbers it has: read with headers=_all, and keep that header"
        )
        # If the feed has an id, only the header tells to which of its epochs an event belongs.
        named = len(self.feeds) == 1 and not feed_identity.ID.fullmatch(self.feeds[0])
        only = F.lit(self.feeds[0]) if named else F.raise_error(F.lit(complaint))
        lacking = identity["feed"].isNull() & identity["producer"].isNotNull()
        return {**identity, "feed": F.when(lacking, only).otherwise(identity["feed"])}

    def _evaluated(self, df: DataFrame, order: str) -> dict[str, Column]:
        """Return an identity that all events share, with numbers of the user's."""
        wrong = f"order={order!r} is neither 'sequence' nor 'arrival', nor a whole number"
        number = self._expression(df, order, IntegralType, wrong)
        complaint = (
            f"table {self.table.text}: order={order!r} is NULL for an event: leave such events "
            f"out, or give them a number with coalesce(…, 0)"
        )
        values = {
            "producer": F.lit(f"{BY_EXPRESSION}{order}"),
            "partition": F.lit(0),
            "sequence": F.coalesce(number.cast("bigint"), F.raise_error(F.lit(complaint))),
        }
        nothing = {name: F.lit(None).cast(kind) for name, (_, kind) in IDENTITY.items()}
        return {**nothing, **values}

    def _check_types(self, known: StructType, given: DataFrame) -> None:
        """Check that a MERGE, which casts to the table's types, changes no value.

        After the cast of a key another one could be equal, or the same one not.
        """
        keys = {key.lower() for key in self.keys}
        for name, mine, theirs in fields("", given.schema, known):
            is_key = any(f"{name.lower()}.".startswith(f"{key}.") for key in keys)
            if theirs is None or mine == theirs or (not is_key and holds(theirs, mine)):
                continue
            raise LakehouseError(
                f"table {self.table.text}: the {'merge key' if is_key else 'column'} {name!r} is "
                f"{theirs.simpleString()} there and {mine.simpleString()} in the frame, and a "
                f"merge could change values: CAST({name} AS {theirs.simpleString()})",
                table=self.table.text,
                expected=theirs.simpleString(),
                got=mine.simpleString(),
                anchor="the-merge-lacks-columns-or-the-frame-lacks-headers",
            )

    def _check_columns(self, known: StructType) -> None:
        column = found_column(known.names, OWN, case_sensitive=False)
        own = known[column].dataType if column else None
        fields = own.names if isinstance(own, StructType) else []
        missing = [name for name in (*IDENTITY, _DELETED, _CHANGED) if name not in fields]
        if missing:
            told = ", ".join(f"{OWN}.{name}" for name in missing)
            raise LakehouseError(
                f"table {self.table.text} lacks {told}, which a merge "
                f"keeps for each key: it was not made by a merge. Take a new table, or set "
                f"mergeSchema=true to add them; events then win over the rows that are there",
                table=self.table.text,
                expected=missing,
                got=known.names,
                anchor="the-merge-lacks-columns-or-the-frame-lacks-headers",
            )


def _struct(fields: Mapping[str, Column]) -> Column:
    return F.struct(*(value.alias(name) for name, value in fields.items()))


def _check_own(column: str, kind: str) -> None:
    """Refuse a frame whose column of our name is a user's, or that of a merged table."""
    if kind != _STAMPED:
        raise LakehouseError(
            f"the frame has a column {column} of the type {kind}, where a merge keeps {_STAMPED}. "
            f"Rename it. If the frame comes from a merged table, its stamps can stay: "
            f".withColumn('gone', F.expr('{OWN}.{_DELETED}')).withColumn('{OWN}', "
            f"F.col('{OWN}').dropFields('{_DELETED}', '{_CHANGED}')), with deleted='gone'",
            expected=_STAMPED,
            got=kind,
        )
