"""A user's query that puts sessions in order, in a process of its own so that it can be killed.

Usage: order_sessions.py JOB, as JSON: `url`, `checkpoint`, `tables` (a directory), and `crash`:
[batch, writer] to die at, with SIGKILL, after that writer; or null. Each table keeps a batch under
its number, written over when it comes again.
"""

import json
import os
import signal
import sys

from pyspark.sql import SparkSession

import zeh_spark
from zeh_spark import sessions
from zeh_spark._compat import HAS_ADMISSION_CONTROL

job = json.loads(sys.argv[1])
crash = tuple(job["crash"] or ())
driver = os.getpid()


def into(name):
    def write(frame, batch):
        frame.write.mode("overwrite").parquet(f"{job['tables']}/{name}/batch={batch}")
        if crash == (batch, name):
            os.killpg(driver, signal.SIGKILL)

    return write


builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.log.level", "ERROR")
spark = zeh_spark.configure(builder, parallelism=2, delta=False).getOrCreate()


def start():
    feed = spark.readStream.format("zeroeventhub").option("maxEventsPerTrigger", job["limit"])
    out = sessions.in_order(
        feed.load(job["url"]),
        "headers['order']",
        "headers['step']",
        time="timestamp_seconds(cast(headers['at'] AS BIGINT))",
    )
    write = sessions.route(ordered=into("ordered"), dead=into("dead"))
    writer = out.writeStream.foreachBatch(write).option("checkpointLocation", job["checkpoint"])
    return writer.trigger(availableNow=True).start()


if HAS_ADMISSION_CONTROL:
    start().awaitTermination()
else:
    zeh_spark.drain(start)
