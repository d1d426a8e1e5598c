"""Lets Spark find the format `zeroeventhub` by itself.

Spark imports every top-level module whose name begins with `pyspark_` and registers its
`DefaultSource`. Nothing else may be here. Runs on the driver.
"""

from zeh_spark.spark.datasource import ZeroEventHubDataSource

DefaultSource = ZeroEventHubDataSource

__all__ = ["DefaultSource"]
