"""A user's job that publishes a Delta table, run in a process of its own so that it can be killed.
Not a test.

Usage: delta_to_feed.py JOB, as JSON: `table`, `how` (the other arguments of from_delta),
`checkpoint`, and `options` of the sink.
"""

import json
import sys

from pyspark.sql import SparkSession

import zeh_spark
from zeh_spark.lakehouse import from_delta

job = json.loads(sys.argv[1])
builder = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR")
)
spark = zeh_spark.configure(builder, parallelism=2).getOrCreate()

(
    from_delta(spark, job["table"], **job["how"])
    .writeStream.format("zeroeventhub")
    .options(**job["options"], checkpointLocation=job["checkpoint"])
    .trigger(availableNow=True)
    .start()
    .awaitTermination()
)
