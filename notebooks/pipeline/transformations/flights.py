"""A feed into a streaming table, and the late flights of that table into another feed."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import zeh_spark

spark = SparkSession.active()

# Outside of the query function, in which Spark reads no DDL text.
FLIGHT = StructType.fromDDL("carrier STRING, dep_delay DOUBLE, origin STRING")


# A full refresh must not fill this table again: the sink would publish its rows again.
@dp.table(table_properties={"pipelines.reset.allowed": "false"})
def flights() -> DataFrame:
    events = spark.readStream.format("zeroeventhub").load(spark.conf.get("flights.url"))
    return zeh_spark.parsed(zeh_spark.stamped(events), FLIGHT).drop("headers")


dp.create_sink(
    "delays",
    "zeroeventhub",
    {"url": spark.conf.get("delays.url"), "producerId": "flights-pipeline"},
)


@dp.append_flow(target="delays")
def late_flights() -> DataFrame:
    late = spark.readStream.table("flights").where("dep_delay > 0")
    return late.selectExpr("carrier AS key", "struct(carrier, dep_delay, origin) AS data")
