"""Delta's settings for the commit of one statement that takes no options: a MERGE.

Rule for editors: no other statement may see them. Delta leaves the rows of a second statement under
the same transaction out, without an error.

Runs on the driver.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from zeh_spark.errors import LakehouseError
from zeh_spark.spark.frames.compat import is_connect

_SETTINGS = {
    "txnAppId": "spark.databricks.delta.write.txnAppId",
    "txnVersion": "spark.databricks.delta.write.txnVersion",
    "userMetadata": "spark.databricks.delta.commitInfo.userMetadata",
}


@contextlib.contextmanager
def committing(frame: DataFrame, commit: Mapping[str, str]) -> Iterator[DataFrame]:
    """Set Delta's settings for the commit of one statement that takes no options.

    It yields the frame in the session in which the statement has to run: a clone, because settings
    are a session's, and other threads and queries have statements in this one.
    """
    if not commit:
        yield frame
        return
    spark = frame.sparkSession
    name = f"_zeh_{uuid.uuid4().hex}"
    frame.createTempView(name)
    try:
        with _cloned(spark) as own:
            # Rejected: leaving them to the clone, which begins in the default catalog.
            own.catalog.setCurrentCatalog(spark.catalog.currentCatalog())
            own.catalog.setCurrentDatabase(spark.catalog.currentDatabase())
            for key, value in commit.items():
                own.conf.set(_SETTINGS[key], value)
            yield own.table(name)
    finally:
        spark.catalog.dropTempView(name)


def check_merges(spark: SparkSession, table: str) -> None:
    """Raise LakehouseError if a MERGE cannot have settings of its own in this session."""
    if is_connect(spark) and not hasattr(spark, "cloneSession"):
        raise LakehouseError(
            f"table {table}: a merge on Spark Connect needs Spark 4.1 or later, where its settings "
            f"cannot reach other statements of the session. Use a classic session, or append",
            table=table,
        )


@contextlib.contextmanager
def _cloned(spark: Any) -> Iterator[SparkSession]:
    if not is_connect(spark):
        yield type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())
        return
    own = spark.cloneSession()
    try:
        yield own
    finally:  # Rejected: own.stop(), which fails in Spark 4.2
        own.client.release_session()
        own.client.close()
