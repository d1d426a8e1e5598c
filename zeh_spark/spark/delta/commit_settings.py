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
    settings = {_SETTINGS[key]: value for key, value in commit.items()}
    name = f"_zeh_{uuid.uuid4().hex}"
    frame.createTempView(name)
    try:
        if is_connect(spark):
            with _cloned(spark) as own:
                _match(own.catalog, spark.catalog.currentCatalog(), spark.catalog.currentDatabase())
                for key, value in settings.items():
                    own.conf.set(key, value)
                yield own.table(name)
        else:
            yield type(frame)(_table_of_clone(spark, settings, name), spark)
    finally:
        spark.catalog.dropTempView(name)


@contextlib.contextmanager
def _cloned(spark: Any) -> Iterator[SparkSession]:
    own = spark.cloneSession()
    try:
        yield own
    finally:  # Rejected: own.stop(), which fails in Spark 4.2
        own.client.release_session()
        own.client.close()


def _table_of_clone(spark: Any, settings: Mapping[str, str], name: str) -> Any:
    """Return a table as the JVM's clone of a session has it.

    Rejected: a SparkSession of Python's for the clone, which would become that of `RDD.toDF`.
    """
    own = spark._jsparkSession.cloneSession()
    _match(own.catalog(), spark.catalog.currentCatalog(), spark.catalog.currentDatabase())
    for key, value in settings.items():
        own.conf().set(key, value)
    return own.table(name)


def _match(catalog: Any, current: str, database: str) -> None:
    """Have a clone find tables where its session does: it begins in the default catalog.

    What is the same is not set: a catalog's default database may have no name.
    """
    if catalog.currentCatalog() != current:
        catalog.setCurrentCatalog(current)
    if catalog.currentDatabase() != database:
        catalog.setCurrentDatabase(database)


def check_merges(spark: SparkSession, table: str) -> None:
    """Raise LakehouseError if a MERGE cannot have settings of its own in this session."""
    if is_connect(spark) and not hasattr(spark, "cloneSession"):
        raise LakehouseError(
            f"table {table}: a merge on Spark Connect needs Spark 4.1 or later, where its settings "
            f"cannot reach other statements of the session. Use a classic session, or append",
            table=table,
        )
