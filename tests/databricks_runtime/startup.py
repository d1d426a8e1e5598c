"""Run by IPython before a notebook's first cell: the session `spark` that Databricks has ready.

Delta and RocksDB are set up, as in Databricks Runtime 17.3 and later; tables are Delta tables if
nothing else is said, with deletion vectors, and small files are compacted after a commit.
"""

from pyspark.sql import SparkSession

import zeh_spark

builder = (
    SparkSession.builder.master("local[2]")
    .config("spark.log.level", "OFF")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.session.timeZone", "Etc/UTC")
    .config("spark.sql.sources.default", "delta")
    .config("spark.databricks.delta.properties.defaults.enableDeletionVectors", "true")
    .config("spark.databricks.delta.autoCompact.enabled", "true")
)
spark = zeh_spark.configure(builder, parallelism=2).getOrCreate()
del builder, zeh_spark
