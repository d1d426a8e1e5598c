"""Arrow batches into a task of handlers, and its verdicts as dicts."""

from dataclasses import replace

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import StringType

from zeh_spark.spark.sessions.handling import INPUT, PASSED, RESULT, Plan, task

EVENT = pa.struct([("data", pa.string()), ("headers", pa.map_(pa.string(), pa.string()))])
PLAN = Plan(
    handlers=b"",
    result=StringType(),
    on_failure="dead-letter",
    retries=0,
    retry_seconds=60.0,
    timeout=None,
    max_failures=100,
    held={},
    past={},
)


def batch(rows, result=None, **columns):
    """Rows as (status, session, number), of sessions that began at 0; `columns` has other values.

    `result` is the Arrow type of a handler's results, a text if it is None.
    """
    count = len(rows)
    given = {
        "status": ([each[0] for each in rows], pa.string()),
        "session": ([each[1] for each in rows], pa.string()),
        "begun": ([0] * count, pa.int64()),
        "number": ([each[2] for each in rows], pa.int64()),
        "control": ([""] * count, pa.string()),
        "attempt": ([None] * count, pa.int64()),
        "kind": ([None] * count, pa.string()),
        "event_key": (["k"] * count, pa.string()),
        "attempts": ([0] * count, pa.int64()),
        RESULT: ([None] * count, result or pa.string()),
        "dead": ([None] * count, pa.struct([("reason", pa.string())])),
        "event": ([{"data": f"{s}{n}", "headers": [("h", "1")]} for _, s, n in rows], EVENT),
    }
    assert {*given} == {*INPUT, RESULT, *PASSED}
    values = {name: each for name, (each, _) in given.items()} | columns
    schema = pa.schema([(name, kind) for name, (_, kind) in given.items()])
    return pa.RecordBatch.from_pydict(values, schema)


def ran(handlers, *batches, **plan):
    """The verdicts of a handler, or of several by kinds, on batches."""
    handlers = handlers if isinstance(handlers, dict) else {None: handlers}
    run = task(replace(PLAN, handlers=cloudpickle.dumps(handlers), **plan))
    return [row for out in run(iter(batches)) for row in out.to_pylist()]
