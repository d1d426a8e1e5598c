"""Forwards a feed to a topic, twice after a crash, and reads the topic: as it is, without doubles,
and with the stamps by which other consumers know them. The argument is a JSON object: url, broker,
jars, folder, tasks. Prints one as well.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import zeh_spark
from zeh_spark import dedup

job = json.loads(sys.argv[1])
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = zeh_spark.configure(builder.config("spark.jars", job["jars"])).getOrCreate()
broker = {"kafka.bootstrap.servers": job["broker"]}
checkpoint = Path(job["folder"]) / "to-kafka"


def forward() -> None:
    feed = spark.readStream.format("zeroeventhub").option("headers", "_all").load(job["url"])
    as_kafka = feed.selectExpr(
        "headers['order'] AS key",
        "data AS value",
        "transform(map_entries(headers), e -> struct(e.key AS key, binary(e.value) AS value))"
        " AS headers",
    )
    options = {**broker, "topic": "flights", "includeHeaders": "true"}
    options["kafka.enable.idempotence"] = "true"

    def in_tasks(batch, number):
        placed = batch.withColumn("place", F.monotonically_increasing_id())
        in_order = placed.repartition(job["tasks"], "key").sortWithinPartitions("place")
        in_order.drop("place").write.format("kafka").options(**options).save()

    if job["tasks"] == 1:
        writer = as_kafka.coalesce(1).writeStream.format("kafka").options(**options)
    else:
        writer = as_kafka.writeStream.foreachBatch(in_tasks)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


forward()
newest = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
for name in (str(newest), f".{newest}.crc"):  # as if the driver had died before it noted the batch
    (checkpoint / "commits" / name).unlink(missing_ok=True)
forward()

topic = spark.readStream.format("kafka").options(**broker, subscribe="flights")
topic = topic.option("startingOffsets", "earliest").option("includeHeaders", "true").load()
events = topic.selectExpr(
    "map_from_entries(transform(headers, h -> struct(h.key, CAST(h.value AS STRING)))) AS headers",
    "CAST(key AS STRING) AS key",
    "CAST(value AS STRING) AS data",
)
found: dict[str, list[list[object]]] = {"all": [], "once": []}
for name, frame in (("all", events), ("once", dedup.drop_seen(events, origin=True))):

    def keep(batch, number, name=name):
        found[name] += [[row.key, json.loads(row.data)["n"]] for row in batch.collect()]

    query = frame.writeStream.foreachBatch(keep).trigger(availableNow=True)
    query = query.option("checkpointLocation", f"{job['folder']}/{name}").start()
    query.awaitTermination()

stamps = [f"headers['zeh-{name}']" for name in ("feed", "producer", "partition", "sequence")]
topic = spark.read.format("kafka").options(**broker, subscribe="flights", includeHeaders="true")
records = (
    topic.load()
    .orderBy("partition", "offset")
    .selectExpr(
        "partition",
        "map_from_entries(transform(headers, h -> struct(h.key, CAST(h.value AS STRING))))"
        " AS headers",
        "CAST(get_json_object(CAST(value AS STRING), '$.n') AS INT) AS n",
    )
)
found["records"] = [list(row) for row in records.selectExpr("partition", *stamps, "n").collect()]
print(json.dumps(found))
