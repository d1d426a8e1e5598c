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

_CONFIGURATION = "spark.databricks.delta."


@contextlib.contextmanager
def committing(frame: DataFrame, commit: Mapping[str, str]) -> Iterator[DataFrame]:
    """Set Delta's settings for the commit of one statement that takes no options.

    The settings are the session's. A classic query has a session of its own. On Spark Connect it
    runs in the user's, where a statement of another thread or query would take these settings for
    its own, and Delta would leave its rows out. So there the statement has a clone of the session.
    It yields the frame in the session in which the statement has to run.
    """
    if not commit or not is_connect(frame.sparkSession):
        with _set(frame.sparkSession, commit):
            yield frame
        return
    spark: Any = frame.sparkSession
    name = f"_zeh_{uuid.uuid4().hex}"
    frame.createTempView(name)
    try:
        own = spark.cloneSession()
        try:
            with _set(own, commit):
                yield own.table(name)
        finally:  # Rejected: own.stop(), which fails in Spark 4.2
            own.client.release_session()
            own.client.close()
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
def _set(spark: SparkSession, commit: Mapping[str, str]) -> Iterator[None]:
    names = {
        "txnAppId": f"{_CONFIGURATION}write.txnAppId",
        "txnVersion": f"{_CONFIGURATION}write.txnVersion",
        "userMetadata": f"{_CONFIGURATION}commitInfo.userMetadata",
    }
    before = {name: spark.conf.get(names[name], None) for name in commit}
    for name, value in commit.items():
        spark.conf.set(names[name], value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(names[name])
            else:
                spark.conf.set(names[name], old)
