"""A user's streaming job, run in a process of its own so that it can be killed. Not a test.

Usage: stream_to_table.py JOB, as JSON: `options` of the source, `checkpoint`, `table` (a
directory), and `crash`: [batch, stage] to die at, with SIGKILL, or null. Stages: `planned` (the
offset log is written, no task has run), `tasks` (in the middle of a task), `written` (the sink is
done, the commit log is not).

The table keeps each batch under its number, written over when the batch comes again, as an
idempotent sink does: a double or a hole between batches stays visible.
"""

import json
import sys

from dying import Death
from pyspark.sql import SparkSession

from zeh_spark import drain
from zeh_spark._compat import HAS_ADMISSION_CONTROL

job = json.loads(sys.argv[1])
death = Death(job["crash"])


def write(frame, batch):
    death.at(batch, "planned")
    rows = death.amid(batch, frame)
    rows.write.mode("overwrite").parquet(f"{job['table']}/batch={batch}")
    death.at(batch, "written")


spark = (
    SparkSession.builder.master(job.get("master", "local[2]"))
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", 2)
    .config("spark.log.level", "ERROR")
    .getOrCreate()
)


def start():
    return (
        spark.readStream.format("zeroeventhub")
        .options(**job["options"])
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", job["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )


if HAS_ADMISSION_CONTROL:
    start().awaitTermination()
else:
    drain(start)
