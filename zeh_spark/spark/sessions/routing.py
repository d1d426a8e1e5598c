"""Give ordered events to one writer, and dead letters to another. Runs on the driver."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from zeh_spark.errors import OptionError
from zeh_spark.spark.frames.compat import column_of

Writer = Callable[[DataFrame, int], object]


def route(*, ordered: Writer, dead: Writer) -> Callable[[DataFrame, int], None]:
    """Return a function for `foreachBatch` that calls both writers with (frame, batchId).

    The frame of the query is that of `in_order`. The batch is evaluated once, whatever the writers
    do with it, because a stateful operator must not run twice.

    The writers make two commits. After a crash between them Spark repeats the batch, and both are
    called again with the same rows and batchId. So each has to write a batchId once, as the sink
    and `DeltaFeedWriter` do.

    Args:
        ordered: The writer of the ordered events; its frame has the events' own columns.
        dead: The writer of the dead letters; its frame has these columns and the column `dead`.

    Raises:
        OptionError: A writer is no function; when called, if the batch is not of `in_order`.
    """
    for name, writer in (("ordered", ordered), ("dead", dead)):
        if not callable(writer):
            raise OptionError(
                f"{name}={writer!r} must be a function of (frame, batchId)", option=name
            )

    def write(batch: DataFrame, number: int) -> None:
        _check(batch)
        batch.persist()
        try:
            batch.count()
            ordered(batch.where("status = 'ordered'").drop("status", "dead"), number)
            dead(batch.where("status = 'dead'").drop("status"), number)
        finally:
            batch.unpersist()

    return write


def _check(batch: DataFrame) -> None:
    if not (column_of(batch, "status") and column_of(batch, "dead")):
        raise OptionError(
            f"route is for the frame of sessions.in_order, with its columns status and dead; this "
            f"one has {batch.columns}"
        )
    delivery = column_of(batch, "delivery")
    told = batch.schema[delivery].dataType if delivery else None
    if isinstance(told, StructType) and "control" in told.names:
        raise OptionError(
            "route is for the frame of sessions.in_order without processing=True, which has rows "
            "that are neither ordered events nor dead letters. Use sessions.process",
            option="processing",
        )
