"""A user's job that publishes files, run in a process of its own so that it can be killed. Not a
test.

Usage: stream_to_feed.py JOB, as JSON: `inbox` (a folder; each file is a batch), `queries` (options
of the sink by checkpoints; they run side by side); and, if wanted: `master`, `conf` of Spark,
`tasks` (how many write), `clumsy` (the first attempt at task 0 fails at its fifth batch of rows,
once this file exists), `restarts` (how often to start a query again after a failure). Prints each
failure as a line: `failed: ` and JSON.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

from zeh_spark import register

job = json.loads(sys.argv[1])


def stumble(batches):
    context = TaskContext.get()
    for number, batch in enumerate(batches):
        if number == 4 and context.attemptNumber() == 0 and context.partitionId() == 0:
            while not Path(job["clumsy"]).exists():
                time.sleep(0.01)
            raise RuntimeError("the first attempt fails half way")
        yield batch


def start(checkpoint, options):
    frame = (
        spark.readStream.option("maxFilesPerTrigger", 1)
        .text(job["inbox"])
        .selectExpr("value AS data")
    )
    if tasks := job.get("tasks"):
        frame = frame.repartition(tasks)
    if job.get("clumsy"):
        frame = frame.mapInArrow(stumble, frame.schema)
    return (
        frame.writeStream.format("zeroeventhub")
        .options(**options, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )


builder = (
    SparkSession.builder.master(job.get("master", f"local[{len(job['queries']) + 1}]"))
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", 2)
    .config("spark.log.level", "ERROR")
)
for name, value in job.get("conf", {}).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()


def run(query):
    register(spark)  # in this thread
    for left in range(job.get("restarts", 0), -1, -1):
        try:
            return start(*query).awaitTermination()
        except Exception as exc:
            print("failed:", json.dumps(str(exc)), flush=True)
            if not left:
                raise


with ThreadPoolExecutor(len(job["queries"])) as threads:
    list(threads.map(run, job["queries"].items()))
