"""A feed kept in a Delta table, each event once, even if the checkpoint is lost.

Spark repeats a batch after a crash, and only the table knows whether it has the batch. So each
batch is one Delta commit that holds the cursors after it. Before each batch the table's newest
record is compared with the place where the batch begins. If they are equal, the batch is written.
If the record is the batch itself, nothing is done. Anything else is an error that shows both.

Rule for editors: there is one Delta write for each batch. A second one under the same transaction
writes nothing, without an error.

Runs on the driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from inspect import signature
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from zeh_spark.errors import CheckpointError, LakehouseError, OptionError, at_spark_border
from zeh_spark.spark.delta import claims, commits
from zeh_spark.spark.delta.batch_calls import only_call
from zeh_spark.spark.delta.checkpoint import CheckpointFiles, running_query
from zeh_spark.spark.delta.commit_settings import check_merges
from zeh_spark.spark.delta.commits import CommitRecord, TableStanding
from zeh_spark.spark.delta.content import content_of, evaluated
from zeh_spark.spark.delta.delta_errors import check_delta, is_conflict
from zeh_spark.spark.delta.delta_table import LakeTable, LakeTableState, check_free
from zeh_spark.spark.delta.following import QueryBatch, next_record
from zeh_spark.spark.delta.merging import Merge, is_merged
from zeh_spark.spark.delta.write_options import check_reserved, check_spelling

Transform = Callable[[DataFrame, int], DataFrame]

_TRIES = 10
"""How often a batch is tried that conflicts with other writers of the table."""


class DeltaFeedWriter:
    """A function for `foreachBatch` that writes each batch to a Delta table once, with its cursors.

    Args:
        table: a path or a name. The first batch makes the table if there is none.
        name: the name that keeps the feed in the table, as long as the table lives. The checkpoint
            may change.
        checkpointLocation: the query's own checkpoint.
        merge_keys: keep one row for each key, found by these columns (see `delta.merging`).
            None means that rows are appended.
        deleted: a SQL condition, true for events that delete their key; needs `merge_keys`.
        order: which of two events of a key is the newer one: "sequence" by the producer's numbers,
            "arrival" by the order of the rows, or a SQL expression of whole numbers, of which the
            highest wins. A query with state that merges has to set it: after `in_order` events have
            the order of their sessions, which need not be that of their numbers.
        transform: `transform(batch, number)` returns the frame to write instead of the batch. It
            writes nothing to this table itself.
        cursorColumn: a column that keeps the cursors in the rows as well, for tables whose log is
            cleaned while the query is stopped.
        accept: the value that an error has printed.
        options: Delta's, like mergeSchema.

    Raises:
        OptionError: an option is wrong.

    Guarantee: each batch is written once, or fails with an error that names the cause, through
    crashes, lost checkpoints and restored tables.
    """

    def __init__(
        self,
        table: str,
        *,
        name: str,
        checkpointLocation: str,
        merge_keys: Sequence[str] | None = None,
        deleted: str | None = None,
        order: str | None = None,
        transform: Transform | None = None,
        cursorColumn: str | None = None,
        accept: str | None = None,
        **options: Any,
    ) -> None:
        check_reserved(options)
        check_spelling(options, _ARGUMENTS)
        if deleted is not None and merge_keys is None:
            raise OptionError("deleted= needs merge_keys: appended rows stay", option="deleted")
        self._table = table
        self._name = checked_name(name)
        self._checkpoint = checkpointLocation.rstrip("/")
        self._merge_keys = merge_keys
        self._deleted = deleted
        self._order = order
        self._transform = transform
        self._cursor_column = cursorColumn
        self._accept = accept
        self._options = options
        self._query: str | None = None
        self._run = ""
        self._known: tuple[str, TableStanding] | None = None  # after the last batch, by table's id
        self._has_state: bool | None = None
        self._last: tuple[int, commits.Cursors] | None = None

    @at_spark_border
    def __call__(self, batch: DataFrame, number: int) -> None:
        """Write a batch, as Spark calls it for `foreachBatch`.

        Raises LakehouseError if the table is not where the batch begins, and CheckpointError if
        `checkpointLocation` is not the query's.
        """
        spark = batch.sparkSession
        check_delta(spark, self._table)
        self._write(batch, self._place(spark, number))

    def _write(self, batch: DataFrame, place: QueryBatch) -> None:
        """Write a batch that lies at a place of its query, which may conflict with other writers.

        Tests call it to write without a query.
        """
        with (
            only_call(self._table, self._name, self._run, place.number) as take,
            evaluated(batch) if self._has_state else nullcontext(),
        ):
            if self._has_state:
                place = replace(place, content=content_of(batch))
            for attempt in range(_TRIES):
                try:
                    self._write_once(batch, place, take)
                    break
                except PySparkException as exc:
                    if attempt + 1 == _TRIES or not is_conflict(exc):
                        raise
        self._last = place.number, place.end

    def _write_once(self, batch: DataFrame, place: QueryBatch, take: Callable[[str], None]) -> None:
        table = LakeTable(batch.sparkSession, self._table)
        state = table.state()
        if state:
            take(state.id)
        stands = self._standing(table, state)
        record = next_record(self._table, self._name, stands, place, self._accept)
        if record is None:
            # The table has the batch. Without its rows the query's state would lack them.
            batch.write.format("noop").mode("overwrite").save()
            return
        frame = self._transform(batch, place.number) if self._transform else batch
        added = self._added(record)
        merge = self._merge(table, frame, place, added)
        if merge is None:
            self._check_appended(table, stands)
            check_free(self._table, frame, list(added))
            frame = frame.withColumns(added) if added else frame  # Spark Connect refuses none
            if stands.version < 0:
                table.save(frame.limit(0).write.options(**self._options))
        ready = self._claimed(table, place, state)
        take(ready.id)
        if merge:
            merge.run(frame, record.transaction, added)
        else:
            table.save(frame.write.options(**self._options, **record.transaction))
        self._check_written(table, record, place, ready)

    def _merge(
        self, table: LakeTable, frame: DataFrame, place: QueryBatch, added: dict[str, Column]
    ) -> Merge | None:
        """Return the batch's MERGE, whose table exists with its columns.

        None if rows are appended.
        """
        if self._merge_keys is None:
            return None
        if self._has_state and self._order is None:
            raise LakehouseError(
                f"table {self._table}: the query keeps state, as sessions.in_order does, and may "
                f"give events in another order than that of their numbers. Say which one decides "
                f"what is newer: order='arrival' after in_order, order='sequence' after drop_seen, "
                f"or an SQL expression of whole numbers",
                table=self._table,
                expected=("sequence", "arrival"),
            )
        check_merges(table.spark, self._table)
        merge = Merge(
            table,
            self._merge_keys,
            self._deleted,
            self._options,
            feeds=place.ids,
            order=self._order,
            ordered=not self._has_state,
        )
        merge.prepare(frame, added)
        return merge

    def _standing(self, table: LakeTable, state: LakeTableState | None) -> TableStanding:
        """Return where the table stands, from memory if it has not changed since the last batch."""
        if self._known and state and self._known[0] == state.id:
            if self._known[1].version == state.version:
                return self._known[1]
        return table.standing(self._name, self._cursor_column)

    def _claimed(
        self, table: LakeTable, place: QueryBatch, before: LakeTableState | None
    ) -> LakeTableState:
        """Return the table's state, with the feeds of the batch claimed for this name."""
        state = self._state(table, before)
        if wanted := self._missing_claims(table, place, state):
            table.set_properties(wanted)
            state = self._state(table, state)
            self._missing_claims(table, place, state)
        return state

    def _missing_claims(
        self, table: LakeTable, place: QueryBatch, state: LakeTableState
    ) -> dict[str, str]:
        return claims.missing(table.text, table.identifier, self._name, place.ids, state.properties)

    def _state(self, table: LakeTable, before: LakeTableState | None) -> LakeTableState:
        """Return the table's state now.

        Raises LakehouseError if it is another table than before.
        """
        state = table.state()
        if state is None or (before and before.id != state.id):
            raise LakehouseError(
                f"table {table.text} was dropped while a batch was written to it, and perhaps made "
                f"anew: what was in it is not in the new one. Start a new checkpointLocation, with "
                f"startingCursors from zeh_spark.lakehouse.cursors",
                table=table.text,
                expected=before and before.id,
                got=state and state.id,
                anchor="the-table-has-no-batch-of-this-name",
            )
        return state

    def _check_written(
        self, table: LakeTable, record: CommitRecord, place: QueryBatch, before: LakeTableState
    ) -> None:
        """Check that the batch is in the table that was read before, and the claim holds.

        Delta writes nothing, without an error, if another writer committed the same number first;
        and the table may have been restored or replaced meanwhile.
        """
        state = self._state(table, before)
        self._missing_claims(table, place, state)
        stands = table.standing(self._name)
        if stands.record != record:
            raise LakehouseError(
                f"table {self._table}, name={self._name!r}: {record} was to be written, but the "
                f"table holds all up to {stands.record}: another query writes under this name, or "
                f"the table was restored meanwhile. Stop the other query, and start this one again",
                table=self._table,
                expected=record.cursors,
                got=stands.record and stands.record.cursors,
                anchor="the-query-begins-at-another-place",
            )
        self._known = (state.id, stands) if state.version == stands.version else None

    def _check_appended(self, table: LakeTable, stands: TableStanding) -> None:
        if self._last is not None or stands.version < 0:
            return
        if is_merged(table):
            raise LakehouseError(
                f"table {self._table} was made by a merge, and has one row for each key. Give "
                f"merge_keys, or another table",
                table=self._table,
            )

    def _added(self, record: CommitRecord) -> dict[str, Column]:
        if self._cursor_column is None:
            return {}
        number, text = F.lit(record.number).cast("long"), F.lit(record.to_json())
        return {self._cursor_column: F.struct(number.alias("number"), text.alias("record"))}

    # Where the batch begins and ends

    def _place(self, spark: SparkSession, number: int) -> QueryBatch:
        """Return the batch's query and cursors, from the checkpoint's files."""
        checkpoint = CheckpointFiles(spark, self._checkpoint)
        query = self._checked_query(checkpoint, number)
        ends = checkpoint.feeds(number, self._table)
        end = {each.feed: each.cursors for each in ends}
        if self._last and self._last[0] == number - 1:
            start = self._last[1]
        elif number:
            before = checkpoint.feeds(number - 1, self._table)
            start = {each.feed: each.cursors for each in before}
        else:  # the first offset tells where the query began
            start = {
                each.feed: each.cursors if each.started is None else each.started for each in ends
            }
        self._has_state = checkpoint.has_state() if self._has_state is None else self._has_state
        ids = tuple(sorted(each.id for each in ends if each.id))
        return QueryBatch(
            query, number, start, end, stateful=number == 0 and self._has_state, ids=ids
        )

    def _checked_query(self, checkpoint: CheckpointFiles, number: int) -> str:
        """Return the running query's id, which has to be that of the checkpoint."""
        query, self._run = running_query(checkpoint, number, self._table)
        if query != self._query:
            stored = checkpoint.query_id()
            if stored != query:
                raise CheckpointError(
                    f"checkpointLocation={self._checkpoint!r} is not that of the calling query "
                    f"(its id is {stored}, the query's {query}). Give both the same one",
                    expected=query,
                    got=stored,
                )
            self._query, self._last, self._known, self._has_state = query, None, None, None
        return query


_ARGUMENTS = ("trigger", *list(signature(DeltaFeedWriter).parameters)[1:-1])
"""The arguments of `to_delta` and `DeltaFeedWriter`, for options that are almost one of them."""


def checked_name(name: str) -> str:
    """Return a valid name. Raises OptionError for another."""
    if not re.fullmatch(r"[A-Za-z0-9._@=-]{1,100}", name):
        raise OptionError(
            f"name={name!r} must be 1 to 100 letters, digits and ._@=-", option="name"
        )
    return name
