"""Write each version of an app once: how `merge` takes a batch that has a number, and no cursors.

Delta leaves out a transaction whose number is not above the app's last one, without an error and
whatever its rows are. So each batch's commit holds a record with the batch's content, and a batch
that is repeated is compared with it.

Runs on the driver.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from zeh_spark.errors import LakehouseError, OptionError
from zeh_spark.spark.delta.checkpoint import CheckpointFiles, running_query
from zeh_spark.spark.delta.commits import CommitRecord
from zeh_spark.spark.delta.delta_table import LakeTable
from zeh_spark.spark.delta.following import check_content
from zeh_spark.spark.frames.compat import is_connect


def calling_query(
    spark: SparkSession, table: str, location: str | None, version: int
) -> str | None:
    """Return the id of the query in whose foreachBatch this is; None outside of one."""
    if not is_connect(spark):
        return spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    if location is None:
        raise OptionError(
            "on Spark Connect app_id= needs checkpointLocation=: the checkpoint of the query "
            "contains its id",
            option="checkpointLocation",
        )
    return running_query(CheckpointFiles(spark, location.rstrip("/")), version, table)[0]


def is_next(table: LakeTable, record: CommitRecord, accept: str | None) -> bool:
    """Return whether a batch is to be written; False if the table has it already.

    Raises LakehouseError if the table has other rows under the batch's number, or later batches and
    not this one.
    """
    known, undone = table.versions(record.app)
    if undone:
        raise LakehouseError(
            f"table {table.text} was restored, which took back the versions "
            f"{', '.join(map(str, sorted(undone)))} of {record.app}, and now version "
            f"{record.number} comes: the rows between would be missing. Start a new "
            f"checkpointLocation from the place that the table has now, or give another app_id",
            table=table.text,
            expected=max(known, default=-1) + 1,
            got=record.number,
            anchor="a-version-of-an-app-is-missing-or-was-taken-back",
        )
    if before := known.get(record.number):
        check_content(table.text, before, record.content, accept)
        return False
    if known and record.number < (last := max(known)):
        raise LakehouseError(
            f"table {table.text}: {record.app} gives version {record.number}, and the table has "
            f"its versions up to {last}, but not that one: Delta would leave the batch out. The "
            f"checkpoint was taken back to an older state, or another query uses the same app_id: "
            f"stop the other one, or start a new checkpointLocation",
            table=table.text,
            expected=last + 1,
            got=record.number,
            anchor="a-version-of-an-app-is-missing-or-was-taken-back",
        )
    if not known and record.query and record.number:
        _check_first(table, record, accept)
    return True


def _check_first(table: LakeTable, record: CommitRecord, accept: str | None) -> None:
    """Refuse a query that has given batches before, if the table has none of them."""
    wanted = f"{record.app} begins at {record.number}"
    accepted = accept in (wanted, _without(record))
    if not accepted and record.app not in (table.transactions() or {}):
        raise LakehouseError(
            f"table {table.text} has no version of {record.app}, and this is version "
            f"{record.number}: the table is another one, or was emptied or made anew. Give the "
            f"table that the checkpoint belongs to, or start a new checkpointLocation; or, if "
            f"the query's batches before had no rows, say accept={wanted!r}",
            table=table.text,
            expected=0,
            got=record.number,
            anchor="a-version-of-an-app-is-missing-or-was-taken-back",
        )


def _without(record: CommitRecord) -> str:
    """Return what accepts that Delta has left a batch out."""
    return f"{record.app} without {record.number}"


def check_written(table: LakeTable, record: CommitRecord, accept: str | None) -> None:
    """Check that Delta has written the batch.

    Raises LakehouseError if a RESTORE took it away, or if another driver wrote other rows under its
    number since `is_next`: Delta leaves the second ones out. It does the same if the log has lost
    the record of this version or of a higher one.
    """
    known, undone = table.versions(record.app)
    if record.number in known:
        check_content(table.text, known[record.number], record.content, accept)
        return
    if undone:
        raise LakehouseError(
            f"table {table.text}: Delta has left out version {record.number} of {record.app}, "
            f"which it had before a RESTORE took the rows back: a RESTORE does not take the "
            f"transaction back. Start a new checkpointLocation from the place that the table has "
            f"now, or give another app_id",
            table=table.text,
            got=record.number,
            anchor="a-version-of-an-app-is-missing-or-was-taken-back",
        )
    if accept != (wanted := _without(record)):
        raise LakehouseError(
            f"table {table.text}: Delta has left out version {record.number} of {record.app}, "
            f"because the table had it already, or a higher one, whose record its history no "
            f"longer has: whether the rows are there is not known. If they are, say "
            f"accept={wanted!r}; otherwise give them with another app_id, or a version above all "
            f"that the table has had",
            table=table.text,
            got=record.number,
            anchor="a-version-of-an-app-is-missing-or-was-taken-back",
        )
