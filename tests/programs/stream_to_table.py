"""A user's streaming queries, in a process of their own so that it can be killed. Not a test.

Usage: stream_to_table.py JOB, as JSON: `master`, `folder`, `options` of the source by the name of a
query, and `deaths`: by the names of all of them [batch, stage] to die at, with SIGKILL when each is
there, or nothing. Checkpoint and table of a query are in a folder of its name. Prints a failure as
a line of JSON: name and message.

The table keeps each batch under its number, written over when the batch comes again, as an
idempotent sink does: a double or a hole between batches stays visible.
"""

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

from dying import Deaths
from pyspark.sql import SparkSession

from zeh_spark import drain, register
from zeh_spark._compat import HAS_ADMISSION_CONTROL

job = json.loads(sys.argv[1])
deaths = Deaths(f"{job['folder']}/deaths", job["deaths"])
spark = (
    SparkSession.builder.master(job["master"])
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", 2)
    .config("spark.log.level", "ERROR")
    .getOrCreate()
)
turn = threading.Lock()
"""Queries begin one by one, for Spark gives a Python process only ten seconds to start."""
TOO_SLOW = "Python worker failed to connect back"


def run(name):
    folder, begun = f"{job['folder']}/{name}", threading.Event()
    register(spark)  # in this thread

    def write(frame, batch):
        begun.set()
        deaths.at(name, batch, "planned")
        rows = deaths.amid(name, batch, frame)
        rows.write.mode("overwrite").parquet(f"{folder}/table/batch={batch}")
        deaths.at(name, batch, "written")

    def begin():
        return (
            spark.readStream.format("zeroeventhub")
            .options(**job["options"][name])
            .load()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )

    def start():
        with turn:
            query = begin()
            while not begun.is_set() and (query.isActive or TOO_SLOW in str(query.exception())):
                query = query if query.isActive else begin()
                time.sleep(0.01)
        return query

    if HAS_ADMISSION_CONTROL:
        start().awaitTermination()
    else:
        drain(start)


with ThreadPoolExecutor(len(job["options"])) as threads:
    names = {threads.submit(run, name): name for name in job["options"]}
    for done in as_completed(names):
        if failure := done.exception():
            print(json.dumps([names[done], str(failure)]), flush=True)
        if deaths.places:
            os._exit(1)  # it ended before its death, and the others wait
