"""Process the events of sessions, and keep what became of each in one Delta commit per batch.

Runs on the driver. `handling` runs in tasks, and calls the user's handler.

A verdict on an event is committed once, in the table, before anything acts on it. So the ordering
does not depend on it, and a repeated batch either finds its commit and calls nothing, or calls the
handler again for all of its events. Rejected: a handler inside the stateful operator, where the
state would follow one attempt and tables another.

A table of verdicts only grows: an event that is processed again gets another row with a higher
attempt. `verdicts` reads the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from pyspark import SparkContext, cloudpickle
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from zeh_spark.errors import OptionError, at_spark_border
from zeh_spark.spark.delta.delta_table import LakeTable
from zeh_spark.spark.delta.delta_writer import DeltaFeedWriter
from zeh_spark.spark.frames.compat import column_of, quoted
from zeh_spark.spark.frames.stamping import has_stamps, stamp
from zeh_spark.spark.sessions import verdicts
from zeh_spark.spark.sessions.calling import Handler
from zeh_spark.spark.sessions.handling import (
    INPUT,
    OUTPUT,
    PASSED,
    RESULT,
    HeldBy,
    OnFailure,
    Past,
    Plan,
    task,
    too_many,
)
from zeh_spark.spark.sessions.verdicts import VERDICT
from zeh_spark.spark.stateful import requirements
from zeh_spark.wire.feed_identity import HEADER

_VERDICT = (
    *("session", "number", "begun", "status", "attempt", "result", "detail", "event_key", "held"),
)
_OURS = (*_VERDICT, "processor")
"""The columns of the table beside the event's own, and beside `dead`."""

_ORDERING = ("status", "dead", "delivery")
"""The columns that `in_order` adds."""

_SPECULATION = "spark.speculation"


def process(
    handler: Handler | Mapping[str, Handler],
    *,
    table: str,
    name: str,
    checkpointLocation: str,
    result: str = "STRING",
    on_failure: OnFailure = "dead-letter",
    retries: int = 2,
    retry_time: str = "1 minute",
    timeout: str | None = None,
    max_failures: int = 100,
    activity: str | Column | None = None,
    **options: Any,
) -> SessionWriter:
    """Return a function for `foreachBatch` that processes the events of `in_order`.

    It calls `handler(event)` on executors, for the events of each session in their order, and
    appends one row for each event to a Delta table: the event's columns, and `session`, `number`,
    `status`, `attempt`, `result`, `detail`, `event_key`, `begun`, `held`, `processor` and `dead`. A
    batch is one commit.

    If Spark repeats a batch that is committed, no handler is called. If it is not committed, all of
    its events are processed again. `event.key` is the same then, so that a service that is called
    can recognize it.

    Durations are texts like "10 minutes".

    Args:
        handler: a function of an `Event`, which returns the result; or a mapping of such functions
            by kind of event (see `activity`). An object with the methods `open()` and `close()` is
            opened and closed once in a task. It is pickled here.
        table: a path or a name. The first batch creates the table if it does not exist.
        name: the name that keeps the query in the table, as long as the table exists; the column
            `processor` has it. Queries with other names may write to the same table.
        checkpointLocation: the query's own checkpoint.
        result: the type of results, as DDL. A result of another type is a failure.
        on_failure: what happens after an event that failed. "dead-letter": its row has the status
            "failed", and the session continues. "hold": the later events of its session get the
            status "waiting", until a control event says "retry" or "skip". "fail": the query fails.
        retries: how often a call that raised an Exception is repeated at once.
        retry_time: how long a task may wait for retries in total. The query fails after that.
        timeout: how long a call may take. The query fails after that. None means no limit.
        max_failures: how many events of a batch may fail. The query fails after that, so that an
            outage does not turn all events into dead letters.
        activity: a column or SQL expression, the kind of an event; needed if `handler` is a
            mapping. An event of another kind fails.
        **options: `accept` and `cursorColumn` as for `DeltaFeedWriter`, and Delta's options, like
            mergeSchema.

    Raises:
        OptionError: An argument is wrong; when called, if the frame is not that of
            `in_order(…, processing=True)`, or tasks may run twice (spark.speculation).
        ProcessingError: When called: the query has to fail; nothing of the batch is committed.
        LakehouseError: When called: the table does not fit.
    """
    handlers = _handlers(handler, activity)
    plan = Plan(
        handlers=handlers,
        result=_result_type(result),
        on_failure=requirements.one_of("on_failure", on_failure, get_args(OnFailure)),
        retries=requirements.at_least("retries", retries, 0),
        retry_seconds=requirements.milliseconds("retry_time", retry_time) / 1_000,
        timeout=None if timeout is None else requirements.milliseconds("timeout", timeout) / 1_000,
        max_failures=requirements.at_least("max_failures", max_failures, 0),
        held={},
        past={},
    )
    return SessionWriter(
        plan, activity, table, name, checkpointLocation=checkpointLocation, **options
    )


class SessionWriter:
    """The function for `foreachBatch` that `process` returns."""

    def __init__(
        self, plan: Plan, activity: str | Column | None, table: str, name: str, **options: Any
    ) -> None:
        for taken in ("merge_keys", "deleted", "order", "transform"):
            if taken in options:
                raise OptionError(
                    f"option {taken!r} is not for you to set here: rows are appended as they are "
                    f"processed",
                    option=taken,
                )
        self._plan = plan
        self._activity = activity
        self._table = table
        self._name = name
        self._writer = DeltaFeedWriter(table, name=name, transform=self._transform, **options)
        self._none_held, self._number = False, -1
        self._verdicts: DataFrame | None = None

    @at_spark_border
    def __call__(self, batch: DataFrame, number: int) -> None:
        """Process a batch, as Spark calls it for `foreachBatch`.

        After ProcessingError nothing of the batch is committed. Raises OptionError or
        LakehouseError if the frame, the session or the table does not fit.
        """
        batch = _checked(batch)
        self._none_held &= number == self._number + 1  # otherwise another run was between
        self._number = number
        try:
            self._writer(batch, number)
        finally:
            if self._verdicts is not None:
                self._verdicts.unpersist()
            self._verdicts = None

    def _transform(self, batch: DataFrame, number: int) -> DataFrame:
        """Return the batch's rows with their verdicts, which were evaluated once.

        `DeltaFeedWriter` calls it again if another writer of the table was first.
        """
        if self._verdicts is None:
            self._verdicts = self._process(batch)
        return self._verdicts

    def _process(self, batch: DataFrame) -> DataFrame:
        before = self._before(batch)
        held = self._held(before)
        rows = _rows(batch, self._activity)
        asked = rows.where("status = 'control' OR (status = 'ordered' AND control = 'replay')")
        wanted = asked.select("session", "number", "status").distinct().collect()
        replayed = [(each.session, each.number) for each in wanted if each.status == "ordered"]
        past: Mapping[tuple[str, int], Mapping[int | None, Past]] = {each: {} for each in replayed}
        if before is not None and replayed:
            past = verdicts.past_verdicts(before, replayed)
        resumed = sorted({each.session for each in wanted} & held.keys())
        plan = replace(self._plan, held=held, past=past)
        frame = _called(rows, plan)
        if before is not None and resumed:
            among = F.col("session").isin(resumed)
            stored = _stored(before.where(among), batch, self._activity)
            frame = _called(rows.where(~among | (F.col("status") == "dead")), plan).unionByName(
                _called(_resumed(rows.where(among & (F.col("status") != "dead")), stored), plan)
            )
        frame = _finished(frame, _event_names(batch), self._name).persist()
        failed, example = frame.agg(
            F.count_if(F.col("status") == "failed"),
            F.max_by(
                F.struct("session", "number", "detail"), F.when(F.col("status") == "failed", 1)
            ),
        ).collect()[0]
        if failed > plan.max_failures:
            shown = f"session {example.session!r}, number {example.number}: {example.detail}"
            frame.unpersist()
            raise too_many(plan.max_failures, shown)
        return frame

    def _held(self, before: DataFrame | None) -> Mapping[str, HeldBy]:
        """Return the sessions that are held, as the table says, not the verdicts of this driver.

        Those that were committed may be others: handlers are called again if an executor is lost
        before the commit, and another driver may have committed the batch. Measured: batches of
        1,000 events take a seventh longer with it, those of 20,000 no longer, because the commit
        needs the table's newest state as well. So it is not read if failures hold no session.
        """
        if self._none_held or before is None:
            return {}
        held = verdicts.held_sessions(before)
        self._none_held = self._plan.on_failure != "hold" and not held
        return held

    def _before(self, batch: DataFrame) -> DataFrame | None:
        """Return the query's rows in the table; None if there is no table yet.

        Raises LakehouseError if its results have another type.
        """
        table = LakeTable(batch.sparkSession, self._table)
        if not table.exists():
            return None
        frame = table.frame()
        if column_of(frame, RESULT):
            verdicts.check_result(frame.select(RESULT), self._plan.result)
        return frame.where(F.col("processor") == self._name)


# What tasks get


def _stored(table: DataFrame, batch: DataFrame, activity: str | Column | None) -> DataFrame:
    """Return the events that the table keeps of sessions that are held, as rows for tasks."""
    events = batch.select(*map(quoted, _event_names(batch))).schema
    kept = verdicts.kept_events(table, events)
    known = F.col(VERDICT)
    return kept.select(
        known["status"].alias("status"),
        known["session"].alias("session"),
        F.unix_millis(known["begun"]).alias("begun"),
        known["number"].alias("number"),
        F.lit("").alias("control"),
        F.lit(None).cast("bigint").alias("attempt"),
        _kind(kept, activity).alias("kind"),
        known["event_key"].alias("event_key"),
        known["attempt"].alias("attempts"),
        F.lit(None).cast(batch.schema["dead"].dataType).alias("dead"),
        _event(kept).alias("event"),
    )


def _rows(batch: DataFrame, activity: str | Column | None) -> DataFrame:
    """Return a batch as rows for tasks, in its order."""
    told, dead = F.col("delivery"), F.col("dead")
    begun = F.unix_millis(told["begun"])
    return batch.select(
        "status",
        F.coalesce(told["session"], dead["session"]).alias("session"),
        begun.alias("begun"),
        F.coalesce(told["number"], dead["received"]).alias("number"),
        F.coalesce(told["control"], F.lit("")).alias("control"),
        told["attempt"].alias("attempt"),
        _kind(batch, activity).alias("kind"),
        F.when(F.col("status") == "ordered", _key(batch, begun)).alias("event_key"),
        F.lit(0).cast("bigint").alias("attempts"),
        "dead",
        _event(batch).alias("event"),
    )


def _event(frame: DataFrame) -> Column:
    """Return an event's own columns as one."""
    return F.struct(*(F.col(quoted(name)) for name in _event_names(frame)))


def _resumed(rows: DataFrame, stored: DataFrame) -> DataFrame:
    """Return rows of the batch after those that the table keeps, by session, in their order."""
    placed = rows.withColumn("place", F.monotonically_increasing_id() + 1)
    kept = stored.withColumn("place", F.lit(0).cast("bigint"))
    together = kept.unionByName(placed).repartition("session")
    order = F.when(F.col("place") == 0, F.struct("begun", "number"))
    return together.sortWithinPartitions("session", "place", order).drop("place")


def _called(rows: DataFrame, plan: Plan) -> DataFrame:
    """Return the verdicts of tasks on rows."""
    result = StructField(RESULT, plan.result)
    passed = [rows.schema[name] for name in PASSED]
    schema = StructType([*from_arrow_schema(OUTPUT), result, *passed])
    typed = F.lit(None).cast(plan.result).alias(RESULT)
    return rows.select(*INPUT, typed, *PASSED).mapInArrow(task(plan), schema)


def _finished(verdicts: DataFrame, names: list[str], processor: str) -> DataFrame:
    """Return verdicts as rows of the table. A failed event is a dead letter of its own kind."""
    kind = verdicts.schema["dead"].dataType
    failed = F.struct(
        F.lit("failed").alias("reason"),
        F.lit(None).cast("bigint").alias("expected"),
        F.col("number").alias("received"),
        F.lit(None).alias("missing"),
        F.lit(None).alias("held_since"),
        "session",
        "detail",
    ).cast(kind)
    return verdicts.select(
        *(
            F.timestamp_millis("begun").alias("begun") if name == "begun" else F.col(name)
            for name in _VERDICT
        ),
        F.lit(processor).alias("processor"),
        F.when(F.col("status") == "failed", failed).otherwise(F.col("dead")).alias("dead"),
        *(F.col("event")[name].alias(name) for name in names),
    )


def _key(batch: DataFrame, begun: Column) -> Column:
    """Return an event's identity: that of the feed, or else its place in its session."""
    told = F.col("delivery")
    place = F.concat_ws("/", F.lit("session"), F.url_encode(told["session"]), begun, told["number"])
    if not has_stamps(batch):
        return place
    names = (HEADER, "zeh-producer", "zeh-partition", "zeh-sequence")
    feed, producer, partition, sequence = (stamp(batch, name) for name in names)
    parts = (F.coalesce(feed, F.lit("")), producer, F.coalesce(partition, F.lit("")), sequence)
    identity = F.concat_ws("/", F.lit("event"), *(F.url_encode(part) for part in parts))
    return F.when(producer.isNotNull() & sequence.isNotNull(), identity).otherwise(place)


def _kind(frame: DataFrame, activity: str | Column | None) -> Column:
    own = frame.select(*map(quoted, _event_names(frame)))  # not, for instance, `status`
    return requirements.text(own, "activity", activity)


def _event_names(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if name not in (*_ORDERING, VERDICT)]


# Arguments


def _handlers(handler: Handler | Mapping[str, Handler], activity: str | Column | None) -> bytes:
    several = isinstance(handler, Mapping)
    if several != (activity is not None):
        raise OptionError(
            "activity= and a mapping of handlers belong together: the expression says which of "
            "them gets an event",
            option="activity",
        )
    found: dict[Any, Any] = dict(handler) if isinstance(handler, Mapping) else {None: handler}
    for kind, each in found.items():
        if not callable(each):
            raise OptionError(
                f"the handler {each!r}{f' of {kind!r}' if kind else ''} must be a function of an "
                f"Event",
                option="handler",
            )
    try:
        return bytes(cloudpickle.dumps(found))  # type: ignore[no-untyped-call]
    except Exception as exc:
        raise OptionError(
            f"the handler cannot be sent to executors, because it cannot be pickled: {exc}. Open "
            f"connections in its method open(), which runs there",
            option="handler",
        ) from exc


def _result_type(result: str) -> DataType:
    if SparkContext._active_spark_context is None and SparkSession.getActiveSession() is None:
        raise OptionError("sessions.process: there is no Spark session yet. Create it first")
    try:
        return DataType.fromDDL(result)
    except Exception as exc:
        raise OptionError(
            f"result={result!r} must be a type like STRING, BIGINT or 'a INT, b STRING': "
            f"{str(exc).partition(';')[0]}",
            option="result",
        ) from exc


def _checked(batch: DataFrame) -> DataFrame:
    """Return the batch with the columns of `in_order` in their own case, if it fits."""
    found = {name: column_of(batch, name) for name in _ORDERING}
    if missing := sorted(name for name, theirs in found.items() if theirs is None):
        raise OptionError(
            f"process is for the frame of sessions.in_order(…, processing=True), with its columns "
            f"status, dead and delivery; this one lacks {', '.join(missing)}",
            option="processing",
        )
    for name, theirs in found.items():
        batch = batch if theirs == name else batch.withColumnRenamed(str(theirs), name)
    taken = [name for name in _event_names(batch) if name.lower() in _OURS]
    if taken:
        raise OptionError(
            f"the frame has the column {taken[0]!r} already, which process adds. Rename it before "
            f"in_order",
            option=taken[0],
        )
    if str(batch.sparkSession.conf.get(_SPECULATION, "false")).lower() == "true":
        raise OptionError(
            f"{_SPECULATION}=true runs tasks twice, and so calls handlers twice for one event. Set "
            f"it to false",
            option=_SPECULATION,
        )
    return batch
