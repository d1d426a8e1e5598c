"""Read the table of `process`: what became of events, and which sessions are held.

Runs on the driver.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from zeh_spark.errors import LakehouseError
from zeh_spark.spark.delta.delta_table import LakeTable
from zeh_spark.spark.frames.compat import quoted
from zeh_spark.spark.sessions.handling import OPEN, RESULT, VERDICTS, HeldBy, Past

_PLACE = ("processor", "session", "begun", "number")
"""What an event is known by in the table."""

VERDICT = "_zeh_verdict"
"""The column that `kept_events` adds."""


def unresolved(spark: SparkSession, table: str) -> DataFrame:
    """Return the events of a table of `process` that are not processed: failed, or waiting.

    Args:
        spark: The session.
        table: The table's path or name.

    Returns:
        A batch frame with the table's columns, and the newest row of each such event.
    """
    return newest(LakeTable(spark, table).frame()).where(F.col("status").isin(*OPEN))


def newest(table: DataFrame) -> DataFrame:
    """Return the newest verdict on each event."""
    ranks = F.array(*map(F.lit, VERDICTS))
    rank = F.nullif(F.array_position(ranks, F.col("status")), F.lit(0))
    names = [quoted(name) for name in table.columns]
    verdicts = table.where(rank.isNotNull())
    found = verdicts.groupBy(*_PLACE).agg(
        F.max_by(F.struct(*names), F.struct("attempt", rank.alias("rank"))).alias("newest")
    )
    return found.select("newest.*")


def held_sessions(table: DataFrame) -> dict[str, HeldBy]:
    """Return the failed event by which each session is held."""
    columns = table.where("held IS NOT NULL").select(*_PLACE, "attempt", "status", "held")
    rows = newest(columns).where("held AND status = 'failed'")
    found = rows.select("session", F.unix_millis("begun"), "number", "attempt").collect()
    return {session: (begun, number, attempt) for session, begun, number, attempt in found}


def past_verdicts(
    table: DataFrame, wanted: list[tuple[str, int]]
) -> dict[tuple[str, int], dict[int | None, Past]]:
    """Return the newest verdicts on events by (session, number), and by when the session began."""
    events = table.sparkSession.createDataFrame(wanted, "session STRING, number BIGINT")
    columns = table.select(*_PLACE, "attempt", "status", "event_key")
    rows = newest(columns.join(F.broadcast(events), ["session", "number"], "left_semi"))
    begun = F.unix_millis("begun")
    told = rows.select("session", "number", begun, "status", "attempt", "event_key").collect()
    found: dict[tuple[str, int], dict[int | None, Past]] = {event: {} for event in wanted}
    for session, number, at, *verdict in told:
        found[session, number][at] = Past(*verdict)
    return found


def kept_events(table: DataFrame, columns: StructType) -> DataFrame:
    """Return the newest verdict on each event that is held, with some of its columns.

    The columns are found by name, at every depth. What the table does not have is NULL. It returns
    a frame with the columns of events, and in front of them VERDICT, a STRUCT<status, session,
    begun, number, attempt, event_key>. Raises LakehouseError if a column has a type that cannot
    become that of the event.
    """
    kept = newest(table.where("held IS NOT NULL")).where(F.col("held"))
    names = ("status", "session", "begun", "number", "attempt", "event_key")
    told = kept.withColumn(VERDICT, F.struct(*names))
    try:
        return told.to(StructType([told.schema[VERDICT], *columns.toNullable()]))
    except AnalysisException as exc:
        raise LakehouseError(
            f"the table keeps events of held sessions, and the frame's events have another type: "
            f"{str(exc).partition(' SQLSTATE')[0]} Give the column that type again, or another "
            f"name"
        ) from exc


def check_result(table: DataFrame, kind: DataType) -> None:
    """Raise LakehouseError if the table's results are not of this type."""
    stored = table.schema.toNullable()[RESULT].dataType
    if stored != StructType().add(RESULT, kind).toNullable()[RESULT].dataType:
        raise LakehouseError(
            f"result={kind.simpleString()!r}, and the table's column {RESULT!r} is "
            f"{stored.simpleString()}. Give that type, or another table",
            expected=stored.simpleString(),
            got=kind.simpleString(),
        )
