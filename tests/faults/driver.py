"""The driver of one query of the pipeline, on executors that are processes. Not a test.

Usage: driver.py JOB, as JSON: `kind` (a name in KINDS), `base` (the publisher), `folder` (of
checkpoint, table and dead letters) and `master`. It starts the query again after each failure,
which it prints as a line: `failed: ` and JSON. It ends when it is killed, or if Spark is gone.
"""

import json
import sys

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

import zeh_spark
from zeh_spark import sessions
from zeh_spark.lakehouse import DeltaFeedWriter

STEPS = 50
"""Each session has so many numbers, one after the other."""


def read(spark, job, feed):
    options = {"maxEventsPerTrigger": 400, "retryTimeout": "1m"}
    return spark.readStream.format("zeroeventhub").options(**options).load(f"{job['base']}/{feed}")


def relay(spark, job):
    """From the feed `in` to the feed `mid`."""
    rows = read(spark, job, "in").selectExpr("data AS key", "data")
    writer = rows.writeStream.format("zeroeventhub").option("url", f"{job['base']}/mid")
    return writer.options(producerId="relay", retryTimeout="1m")


def keep(spark, job):
    """From the feed `mid` through sessions into a Delta table."""
    ordered = DeltaFeedWriter(
        f"{job['folder']}/table",
        name="numbers",
        checkpointLocation=f"{job['folder']}/checkpoint",
        order="arrival",
    )

    def dead(frame, batch):
        frame.write.mode("overwrite").json(f"{job['folder']}/dead/batch={batch}")

    numbers = read(spark, job, "mid").withColumn("number", functions.expr("CAST(data AS BIGINT)"))
    frame = sessions.in_order(
        numbers,
        session=f"number div {STEPS}",
        sequence=f"number % {STEPS}",
        gap_timeout=None,
        buckets=2,
    )
    return frame.writeStream.foreachBatch(sessions.route(ordered=ordered, dead=dead))


KINDS = {each.__name__: each for each in (relay, keep)}


def main(job):
    builder = SparkSession.builder.master(job["master"]).config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.log.level", "ERROR")
    for name, value in job.get("conf", {}).items():
        builder = builder.config(name, value)
    spark = zeh_spark.configure(builder, parallelism=2).getOrCreate()
    zeh_spark.register(spark)
    while True:
        try:
            writer = KINDS[job["kind"]](spark, job)
            writer = writer.option("checkpointLocation", f"{job['folder']}/checkpoint")
            writer.start().awaitTermination()
        except (PySparkException, Py4JError) as exc:
            print("failed:", json.dumps(str(exc)), flush=True)
            spark.sparkContext.parallelize([1]).count()  # fails if Spark is gone


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
