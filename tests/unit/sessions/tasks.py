"""Arrow batches into a task of handlers, and its verdicts as dicts."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import StringType

from zeh_spark.sessions.handling import INPUT, PASSED, RESULT, Plan, task

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


def batch(rows, result):
    """Rows as (status, session, number), of sessions that began at 0."""
    count = len(rows)
    columns = {
        "status": [each[0] for each in rows],
        "session": [each[1] for each in rows],
        "begun": pa.array([0] * count, pa.int64()),
        "number": pa.array([each[2] for each in rows], pa.int64()),
        "control": [""] * count,
        "attempt": pa.nulls(count, pa.int64()),
        "kind": pa.nulls(count, pa.string()),
        "event_key": ["k"] * count,
        "attempts": pa.array([0] * count, pa.int64()),
        RESULT: pa.nulls(count, result),
        "dead": pa.nulls(count, pa.struct([("reason", pa.string())])),
        "event": pa.array(
            [{"data": f"{each[1]}{each[2]}", "headers": [("h", "1")]} for each in rows], EVENT
        ),
    }
    assert {*columns} == {*INPUT, RESULT, *PASSED}
    return pa.RecordBatch.from_pydict(columns)


def verdicts(handler, kind, arrow, *batches, **plan):
    run = task(replace(PLAN, handlers=cloudpickle.dumps({None: handler}), result=kind, **plan))
    return [row for out in run(batch(each, arrow) for each in batches) for row in out.to_pylist()]
