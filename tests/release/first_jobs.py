"""A user's first jobs, run in an environment that has the installed package and no tests.

Usage: first_jobs.py FEED TARGET FOLDER EXPECTED

A stream reads FEED into Parquet files in FOLDER; a batch publishes these to TARGET, twice under one
name; and a stream publishes them there once more. Each time the rows are compared with EXPECTED, a
file with a JSON list of the events. Nothing is registered: Spark finds the format by itself.
"""

import json
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import zeh_spark

feed, target, folder, expected_file = sys.argv[1:]
assert Path(zeh_spark.__file__).is_relative_to(sys.prefix), zeh_spark.__file__

SCHEMA = "id BIGINT, carrier STRING, delay DOUBLE"
EXPECTED = [tuple(row.values()) for row in json.loads(Path(expected_file).read_text())]

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.log.level", "ERROR")
    .getOrCreate()
)


def compare(frame, expected):
    found = sorted(tuple(row) for row in frame.collect())
    assert found == sorted(expected), f"{len(found)} rows, expected {len(expected)}: {found[:3]}"


def typed(events):
    return zeh_spark.parsed(events, SCHEMA).drop("partition", "headers")


reading = (
    typed(spark.readStream.format("zeroeventhub").load(feed))
    .writeStream.format("parquet").option("path", f"{folder}/rows")
    .option("checkpointLocation", f"{folder}/reading").trigger(availableNow=True)
)  # fmt: skip
zeh_spark.drain(lambda: reading.start())
files = spark.read.parquet(f"{folder}/rows")
compare(files, EXPECTED)

as_events = ["carrier AS key", "struct(id, carrier, delay) AS data"]
for _ in range(2):
    (
        files.selectExpr(*as_events).write.format("zeroeventhub").mode("append")
        .option("url", target).option("producerId", "a-batch").option("batchId", "1").save()
    )  # fmt: skip
compare(typed(spark.read.format("zeroeventhub").load(target)), EXPECTED)

writing = (
    spark.readStream.schema(files.schema).parquet(f"{folder}/rows").selectExpr(*as_events)
    .writeStream.format("zeroeventhub").option("url", target).option("producerId", "a-stream")
    .option("checkpointLocation", f"{folder}/writing").trigger(availableNow=True)
)  # fmt: skip
writing.start().awaitTermination()
compare(typed(spark.read.format("zeroeventhub").load(target)), EXPECTED * 2)

print(json.dumps({"spark": pyspark.__version__, "python": sys.version.split()[0]}))
