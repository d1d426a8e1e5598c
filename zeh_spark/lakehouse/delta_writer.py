"""A feed kept in a Delta table, each event once: also after the checkpoint is lost.

Spark gives a batch again after a crash, and only the table knows whether it has it. So each batch
is one Delta commit that holds the cursors behind it, and before each batch the table's newest
record is compared with the place where the batch begins: the same place, and it is written; the
batch itself, and nothing is done; anything else is an error that shows both.

Rule for editors: one Delta write for each batch. A second one under the same transaction writes
nothing and says nothing.

Runs on the driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from zeh_spark.errors import CheckpointError, LakehouseError, OptionError, at_spark_border
from zeh_spark.lakehouse import commits
from zeh_spark.lakehouse.commits import Record, Standing
from zeh_spark.lakehouse.delta_table import Table, delta_class
from zeh_spark.lakehouse.following import Batch, next_record
from zeh_spark.lakehouse.merging import DELETED, Merge, check_free, option_text
from zeh_spark.source import offset_log
from zeh_spark.source.offsets import Reached, is_of_a_feed, reached

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Transform = Callable[[DataFrame, int], DataFrame]

_OURS = {
    "path": "the table is the second argument",
    "mode": "batches are appended, or merged by merge_keys",
    "userMetadata": "it holds the feed's cursors",
    "txnAppId": "it is what makes a batch come once",
    "txnVersion": "it is what makes a batch come once",
    "checkpointLocation": "it is an argument of its own",
    "dataChange": "streams of the table would leave the rows out",
}
_TRIES = 10
"""Of a batch that other writers of the table get in the way of."""

_written: dict[tuple[str, str], tuple[str, int]] = {}
"""In this process: the run and batch that wrote each table and name last."""


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
    """Start a query that keeps a feed in a Delta table. `options` are those of `DeltaFeedWriter`.

    `df` reads the feed, with `startingCursors` from `cursors(spark, table, name=name)`, so that a
    new checkpoint goes on where the table is. `trigger` holds the arguments of Spark's own, like
    {"availableNow": True}.
    """
    if not df.isStreaming:
        raise LakehouseError(
            f"table {table}: the frame is not a stream; read the feed with spark.readStream, and "
            f"trigger={{'availableNow': True}} for a run that ends",
            table=table,
        )
    writer = DeltaFeedWriter(
        table, name=name, checkpointLocation=checkpointLocation, merge_keys=merge_keys, **options
    )
    Table(df.sparkSession, table).exists()  # what is wrong with it shows here, and not in a stream
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
    """Where a table stands in its feed, for the option `startingCursors`; "first" if there is no
    table, or it has nothing of this name. Of several tables that one query writes, all have to be
    at one place.

    `feed` (URL or feedId) is needed where the name's query reads several. `cursorColumn` as for the
    writer. Raises LakehouseError where a table may hold more than its log tells, and where tables
    are at different places.
    """
    tables = [table] if isinstance(table, str) else list(table)
    places = {
        each: _cursors(spark, each, checked_name(name), feed, cursorColumn) for each in tables
    }
    if len(set(places.values())) != 1:
        shown = "; ".join(f"{each}: {place}" for each, place in places.items())
        raise LakehouseError(
            f"the tables are at different places ({shown}): bring each of them to the feed's end "
            f"by a query of its own, with a checkpoint of its own and the same name, before one "
            f"query writes them all again",
            got=places,
        )
    return places.popitem()[1]


def _cursors(
    spark: SparkSession, table: str, name: str, feed: str | None, column: str | None
) -> str:
    stands = Table(spark, table).standing(name, column)
    if stands.record:
        return commits.starting_cursors(stands.record, feed, table)
    if stands.unknown is not None:
        raise LakehouseError(
            f"table {table} may hold events of name={name!r} up to cursors that are not known "
            f"({stands.unknown}): give startingCursors that you know to be right; the writer then "
            f"says what to accept",
            table=table,
            got=stands.unknown,
        )
    return "first"


class DeltaFeedWriter:
    """For `foreachBatch`: writes each batch of a query to a Delta table once, with its cursors.

    `table` is a path or a name, and made by the first batch. `name` is who keeps the feed in it, as
    long as the table lives; the checkpoint may change. `checkpointLocation` is the query's own.

    Rows are appended; with `merge_keys` there is one row for each key (see `lakehouse.merging`),
    and `deleted` is a SQL condition for the events that delete. `transform(batch, number)` gives
    the frame to write in the place of the batch; it writes nothing to this table itself.
    `cursorColumn` names a column that keeps the cursors in the rows as well, for tables whose log
    is cleaned while the query rests. `accept` is what an error has printed. Other `options` are
    Delta's, like mergeSchema.

    Writes each batch once, or fails by name: through crashes, lost checkpoints and restored tables.
    """

    def __init__(
        self,
        table: str,
        *,
        name: str,
        checkpointLocation: str,
        merge_keys: Sequence[str] | None = None,
        deleted: str | None = None,
        transform: Transform | None = None,
        cursorColumn: str | None = None,
        accept: str | None = None,
        **options: Any,
    ) -> None:
        _check_options(options)
        if deleted is not None and merge_keys is None:
            raise OptionError("deleted= needs merge_keys: appended rows stay", option="deleted")
        self._table = table
        self._name = checked_name(name)
        self._checkpoint = checkpointLocation.rstrip("/")
        self._merge_keys = merge_keys
        self._deleted = deleted
        self._transform = transform
        self._cursor_column = cursorColumn
        self._accept = accept
        self._options = {key: option_text(value) for key, value in options.items()}
        self._query: str | None = None
        self._stands: Standing | None = None
        self._location = ""
        self._last: tuple[int, commits.Cursors] | None = None

    @at_spark_border
    def __call__(self, batch: DataFrame, number: int) -> None:
        spark = batch.sparkSession
        delta_class(spark, self._table)
        from delta import exceptions

        place = self._place(spark, number)
        call = self._once(spark, number)
        for attempt in range(_TRIES):
            try:
                self._write_once(batch, place)
                break
            except (
                exceptions.ConcurrentAppendException,
                exceptions.ConcurrentDeleteReadException,
                exceptions.ConcurrentDeleteDeleteException,
                exceptions.ConcurrentTransactionException,
                exceptions.ConcurrentWriteException,
                exceptions.MetadataChangedException,
                exceptions.ProtocolChangedException,
            ):
                if attempt + 1 == _TRIES:
                    raise
        _written[self._table, self._name] = call
        self._last = number, place.end

    def _once(self, spark: SparkSession, number: int) -> tuple[str, int]:
        """This run and batch, which have not written the table yet: the rows of a second call
        would be taken for those of the first.
        """
        run = spark.sparkContext.getLocalProperty("spark.jobGroup.id") or ""
        if _written.get((self._table, self._name)) == (run, number):
            raise LakehouseError(
                f"table {self._table}, name={self._name!r}, was written in this batch ({number}) "
                f"already: one call for each table and batch; unite the frames before",
                table=self._table,
                got=number,
            )
        return run, number

    def _write_once(self, batch: DataFrame, place: Batch) -> None:
        table = Table(batch.sparkSession, self._table)
        stands = self._standing(table)
        record = next_record(self._table, self._name, stands, place, self._accept)
        frame = self._transform(batch, place.number) if self._transform else batch
        if record is None:  # a stateful query has to see its rows evaluated all the same
            frame.write.format("noop").mode("overwrite").save()
            return
        commit = {
            "txnAppId": record.app,
            "txnVersion": str(record.number),
            "userMetadata": record.to_json(),
        }
        added = self._added(record)
        if self._merge_keys is not None:
            merge = Merge(table, self._merge_keys, self._deleted, self._options)
            merge.run(frame, commit, added)
        else:
            self._check_appended(table, stands)
            check_free(self._table, frame, list(added))
            frame = frame.withColumns(added)
            if stands.version < 0:  # a commit that makes a table with a name keeps no metadata
                table.save(frame.limit(0).write.options(**self._options))
            table.save(frame.write.options(**self._options, **commit))
        self._check_written(table, record)

    def _standing(self, table: Table) -> Standing:
        """As it was behind the last batch, if the table's version is still the same."""
        if self._stands and table.version(self._location) == self._stands.version:
            return self._stands
        return table.standing(self._name, self._cursor_column)

    def _check_written(self, table: Table, record: Record) -> None:
        """Delta writes nothing, and says nothing, where another writer came before with the same
        number; and a restore may have come between.
        """
        self._location = self._location or table.location()
        self._stands = stands = table.standing(self._name)
        if stands.record != record:
            raise LakehouseError(
                f"table {self._table}, name={self._name!r}: {record} was to be written, and the "
                f"table holds all up to {stands.record}: another query writes under this name, or "
                f"the table was restored meanwhile. Stop the other one, and start this one again",
                table=self._table,
                expected=record.cursors,
                got=stands.record and stands.record.cursors,
            )

    def _check_appended(self, table: Table, stands: Standing) -> None:
        if self._last is None and stands.version >= 0 and DELETED in table.columns():
            raise LakehouseError(
                f"table {self._table} was made by a merge, which has one row for each key: give "
                f"merge_keys, or another table",
                table=self._table,
            )

    def _added(self, record: Record) -> dict[str, Column]:
        if self._cursor_column is None:
            return {}
        number, text = F.lit(record.number).cast("long"), F.lit(record.to_json())
        return {self._cursor_column: F.struct(number.alias("number"), text.alias("record"))}

    # Where the batch lies

    def _place(self, spark: SparkSession, number: int) -> Batch:
        """The batch's query and cursors, by the checkpoint's files."""
        query = self._checked_query(spark)
        ends = self._feeds(spark, number)
        end = {each.feed: each.cursors for each in ends}
        if self._last and self._last[0] == number - 1:
            start = self._last[1]
        elif number:
            start = {each.feed: each.cursors for each in self._feeds(spark, number - 1)}
        else:  # without a beginning of its own the first offset is the beginning
            start = {each.feed: _beginning(each) for each in ends}
        return Batch(query, number, start, end, stateful=number == 0 and self._has_state(spark))

    def _checked_query(self, spark: SparkSession) -> str:
        """The running query's id, which has to be that of the checkpoint."""
        running = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        if running is None:
            raise LakehouseError(
                f"table {self._table}: a DeltaFeedWriter is called by a query's foreachBatch, in "
                f"its thread; this is none",
                table=self._table,
            )
        if running != self._query:
            stored = self._id(spark)
            if stored != running:
                raise CheckpointError(
                    f"checkpointLocation={self._checkpoint!r} is not that of the query which calls "
                    f"(its id is {stored}, the query's {running}): give both the same",
                    expected=running,
                    got=stored,
                )
            self._query, self._last, self._stands = running, None, None
        return running

    def _id(self, spark: SparkSession) -> str:
        try:
            return offset_log.query_id(self._read(spark, "metadata"))
        except (Py4JJavaError, ValueError) as exc:
            raise CheckpointError(
                f"checkpointLocation={self._checkpoint!r} is no checkpoint of a query: give the "
                f"one that the query has ({_reason(exc)})"
            ) from exc

    def _feeds(self, spark: SparkSession, number: int) -> list[Reached]:
        """Where the query's feeds are behind a batch."""
        try:
            found = offset_log.source_offsets(self._read(spark, f"offsets/{number}"))
        except (Py4JJavaError, ValueError) as exc:
            raise CheckpointError(
                f"{self._checkpoint}/offsets/{number} cannot be read: {_reason(exc)}"
            ) from exc
        others = [each for each in found if not is_of_a_feed(each)]
        if others:
            raise LakehouseError(
                f"table {self._table}: the query reads from a stream that is no ZeroEventHub feed "
                f"(its offset is {others[0]!r}), whose place could not be found again in the "
                f"table: join it as a table instead, or write with zeh_spark.lakehouse.merge",
                table=self._table,
                got=others[0],
            )
        feeds = [reached(each) for each in found if is_of_a_feed(each)]
        names = [each.feed for each in feeds]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise LakehouseError(
                f"table {self._table}: the query reads the feed {twice} twice, from two places: "
                f"read it once and use the frame twice, or give each its own feedId",
                table=self._table,
                got=names,
            )
        return feeds

    def _has_state(self, spark: SparkSession) -> bool:
        """Spark makes the folder when it plans the first batch of such a query."""
        files, path = self._file(spark, "state")
        return bool(files.exists(path))

    def _file(self, spark: SparkSession, name: str) -> tuple[Any, Any]:
        jvm: Any = spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(f"{self._checkpoint}/{name}")
        return path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), path

    def _read(self, spark: SparkSession, name: str) -> str:
        """A file of the checkpoint, whatever characters its path has. Raises Py4JJavaError."""
        jvm: Any = spark._jvm
        files, path = self._file(spark, name)
        stream = files.open(path)
        try:
            return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()


def _reason(exc: Exception) -> str:
    return str(exc.java_exception) if isinstance(exc, Py4JJavaError) else str(exc)


def _beginning(first: Reached) -> dict[str, str]:
    return first.cursors if first.started is None else first.started


def checked_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._@=-]{1,100}", name):
        raise OptionError(
            f"name={name!r} must be 1 to 100 letters, digits and ._@=-", option="name"
        )
    return name


def _check_options(options: dict[str, Any]) -> None:
    reserved = {name.lower(): why for name, why in _OURS.items()}
    for name in options:
        if why := reserved.get(name.lower()):
            raise OptionError(f"option {name!r} is not for you to set here: {why}", option=name)
