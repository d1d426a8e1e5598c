# Databricks notebook source
# MAGIC %md
# MAGIC # A feed into a table
# MAGIC Import this file as a notebook, and change the four values below. Each run adds the
# MAGIC new events of the feed to the table, each once. It has no helpers: all of it is below.

# COMMAND ----------

# MAGIC %pip install /Volumes/main/default/wheels/zeh_spark-0.1.0-py3-none-any.whl

# COMMAND ----------

dbutils.library.restartPython()

# COMMAND ----------

FEED = "https://feeds.example/flights"
COLUMNS = "carrier STRING, dep_delay DOUBLE, origin STRING"
TABLE = "main.default.flights_of_notebook"
CHECKPOINT = "/Volumes/main/default/feeds/flights-notebook"

# COMMAND ----------

import zeh_spark
from zeh_spark import lakehouse

zeh_spark.register(spark)
token = dbutils.secrets.get("feeds", "token")

# COMMAND ----------

events = spark.read.format("zeroeventhub").option("token", token).load(FEED)
events.show(5)

# COMMAND ----------

# What does not fit COLUMNS is kept as text in the column `bad`.


def fill():
    feed = spark.readStream.format("zeroeventhub").option("token", token).load(FEED)
    return lakehouse.to_delta(
        zeh_spark.parsed(feed, COLUMNS, corrupt="bad"),
        TABLE,
        name="flights-notebook",
        checkpointLocation=CHECKPOINT,
        trigger={"availableNow": True},
    )


zeh_spark.drain(fill)

# COMMAND ----------

spark.table(TABLE).select("carrier", "dep_delay", "origin", "bad").show()
