"""Read a feed with a session of Spark Connect that starts its own server; print what came."""

import json
import sys

from pyspark.sql import SparkSession

from zeh_spark import parsed

job = json.loads(sys.argv[1])
spark = SparkSession.builder.remote("local[2]").getOrCreate()
batch = spark.read.format("zeroeventhub").load(job["url"])
print(batch.count())

feed = parsed(spark.readStream.format("zeroeventhub").load(job["url"]), "i INT")
query = (
    feed.writeStream.format("parquet")
    .option("path", f"{job['folder']}/rows")
    .option("checkpointLocation", f"{job['folder']}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(spark.read.parquet(f"{job['folder']}/rows").count())
spark.stop()
