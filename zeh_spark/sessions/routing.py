"""`route`: what is in order to one writer, dead letters to another. Runs on the driver."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from zeh_spark.errors import OptionError

Writer = Callable[[DataFrame, int], object]


def route(*, ordered: Writer, dead: Writer) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch` of a frame of `in_order`: calls both writers with (frame, batchId).

    `ordered` gets the events' own columns, `dead` these and the column `dead`. The batch is
    evaluated once, whatever the writers do with it: a stateful operator must not run twice.

    Two commits: after a crash between them Spark repeats the batch, and both are called again with
    the same rows and batchId. So each has to take a batchId once, as the sink and `DeltaFeedWriter`
    do.
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
    if not {"status", "dead"} <= set(batch.columns):
        raise OptionError(
            f"route is for the frame of sessions.in_order, with its columns status and dead; this "
            f"one has {batch.columns}"
        )
