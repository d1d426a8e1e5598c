"""A Lakeflow pipeline that keeps a feed in a streaming table. `databricks.yml` deploys it.

docs/guides/pipelines.md has what to know, and a pipeline that publishes, too.
"""

from __future__ import annotations

from databricks.sdk.runtime import dbutils
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

import zeh_spark

spark = SparkSession.active()
zeh_spark.register(spark)
told = spark.conf.get
token = dbutils.secrets.get(told("feeds.scope"), told("feeds.key"))
feed = spark.readStream.format("zeroeventhub").option("token", token).load(told("feeds.url"))

# Outside of the query function, in which Spark reads no DDL text.
events = zeh_spark.parsed(feed, "carrier STRING, dep_delay DOUBLE, origin STRING", corrupt="bad")


@dp.table
def flights_of_pipeline() -> DataFrame:
    return events.drop("headers")
