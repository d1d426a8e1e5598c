"""A user's job that keeps a feed in a Delta table, run in a process of its own so that it can be
killed. Not a test.

Usage: feed_to_delta.py JOB, as JSON: `url`, `table`, `checkpoint`, `options` of the source and
`settings` of the writer, and `crash`: [batch, stage] to die at, with SIGKILL, or null. Stages:
`planned` (Spark has logged the offsets, nothing is written), `tasks` (in the middle of the Delta
write), `written` (the Delta commit is there, Spark's is not).
"""

import json
import sys

from dying import Death
from pyspark.sql import SparkSession

import zeh_spark
from zeh_spark import lakehouse

job = json.loads(sys.argv[1])
death = Death(job["crash"])


def before(frame, batch):
    death.at(batch, "planned")
    return death.amid(batch, frame)


builder = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR")
)
spark = zeh_spark.configure(builder, parallelism=2).getOrCreate()
settings = {"name": "orders", "checkpointLocation": job["checkpoint"], **job["settings"]}
writer = lakehouse.DeltaFeedWriter(job["table"], transform=before, **settings)


def write(frame, batch):
    writer(frame, batch)
    death.at(batch, "written")


def start():
    reader = spark.readStream.format("zeroeventhub").options(**job["options"])
    start = lakehouse.cursors(spark, job["table"], name="orders")
    frame = zeh_spark.parsed(reader.option("startingCursors", start).load(job["url"]), job["data"])
    return (
        frame.writeStream.foreachBatch(write)
        .option("checkpointLocation", job["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )


zeh_spark.drain(start)
