"""A user's jobs whose tasks have several attempts. Not a test.

Usage: read_by_attempts.py JOB, as JSON: `reads`, done one after the other (by name `options` of the
source, whether it is a `stream`, and its `trouble`), `folder` (gets for each read a folder with
`table` and `signs`), `half` (of the rows of a task), `master`, and `conf` of Spark. Troubles:
`fails` (the second attempt of each task fails after half of its rows) and `hangs` (the first
attempt of the first task stops after its first rows until its second attempt has passed all, and
the second one begins after these rows).

A file `signs/TASK.ATTEMPT` has the number of rows that an attempt has passed on so far.
"""

import json
import sys
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

from zeh_spark import drain
from zeh_spark.spark.frames.compat import HAS_ADMISSION_CONTROL

job = json.loads(sys.argv[1])
PATIENCE = 120


def watched(signs, trouble):
    """What each attempt does with its rows. In here: a task cannot import this module."""

    def wait_for(sign, why):
        deadline = time.monotonic() + PATIENCE
        while not Path(signs, sign).exists():
            if time.monotonic() > deadline:
                raise RuntimeError(why)
            time.sleep(0.01)

    def passed(batches):
        context = TaskContext.get()
        task, attempt, rows = context.partitionId(), context.attemptNumber(), 0
        if trouble == "hangs" and (task, attempt) == (0, 1):
            wait_for("0.0", "the first attempt has passed no rows")
        for each in batches:
            if trouble == "fails" and attempt == 1 and rows >= job["half"]:
                raise RuntimeError("the second attempt fails half way")
            yield each
            rows += each.num_rows
            Path(signs, f"{task}.{attempt}").write_text(str(rows))
            if trouble == "hangs" and task == attempt == 0:
                wait_for("0.1.all", "no second attempt has come to its end")
        Path(signs, f"{task}.{attempt}.all").touch()

    return passed


def write(frame, name, trouble):
    folder = Path(job["folder"], name)
    (folder / "signs").mkdir(parents=True)
    rows = frame.mapInArrow(watched(str(folder / "signs"), trouble), frame.schema)
    rows.write.mode("overwrite").parquet(str(folder / "table"))


def read(name, options, stream, trouble):
    def start():
        frame = spark.readStream.format("zeroeventhub").options(**options).load()
        writer = frame.writeStream.foreachBatch(lambda rows, batch: write(rows, name, trouble))
        writer = writer.option("checkpointLocation", f"{job['folder']}/{name}/checkpoint")
        return writer.trigger(availableNow=True).start()

    if not stream:
        write(spark.read.format("zeroeventhub").options(**options).load(), name, trouble)
    elif HAS_ADMISSION_CONTROL:
        start().awaitTermination()
    else:
        drain(start)


builder = (
    SparkSession.builder.master(job["master"])
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF")
    .config("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
)
for name, value in job.get("conf", {}).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()

for name, given in job["reads"].items():
    read(name, **given)
