"""Spark's daemon of Python workers, which has loaded what each worker needs before it forks one.

A task that fails ends its worker, and a new one takes half a second of CPU to import the libraries.
Only the shared session uses this daemon; programs and clusters in tests start Spark's own.
"""

import runpy

import pandas  # noqa: F401
import pyarrow.compute
import pyarrow.dataset  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.sql.pandas.types
import pyspark.worker  # noqa: F401

import zeh_spark.datasource
import zeh_spark.sink.writer
import zeh_spark.source.batch
import zeh_spark.source.stream  # noqa: F401

if __name__ == "__main__":
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
