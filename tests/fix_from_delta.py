"""A Delta table that is published as a feed, and what is written to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fix_lake import vacuum
from zeh_spark import lakehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANGES = {"key": "k", "change_feed": True}


class Source:
    """A Delta table in a folder, of rows (i BIGINT) unless it is made otherwise."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.path = str(folder)

    def add(self, *commits: range) -> None:
        """A commit, and a file, for each range of numbers."""
        for each in commits:
            frame = self.spark.range(each.start, each.stop, each.step, 1).selectExpr("id AS i")
            frame.write.format("delta").mode("append").save(self.path)

    def sql(self, *statements: str) -> None:
        """`{}` stands for the table."""
        for each in statements:
            self.spark.sql(each.format(f"delta.`{self.path}`"))

    def keyed(self, *statements: str) -> None:
        """As a table (k, n) whose changes are recorded."""
        recorded = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
        self.sql(f"CREATE TABLE {{}} (k STRING, n INT) USING delta {recorded}", *statements)

    def save(self, query: str) -> None:
        """As a table of a query's rows, whose columns may have any name."""
        mapped = {"delta.columnMapping.mode": "name"}
        self.spark.sql(query).write.format("delta").options(**mapped).save(self.path)

    def lose_newest_commit(self) -> None:
        """As after a restore of the table's files from a backup without the newest commit."""
        log = Path(self.path, "_delta_log")
        newest = max(log.glob("*.json"))
        newest.unlink()
        (log / f".{newest.name}.crc").unlink(missing_ok=True)
        newest.with_suffix(".crc").unlink(missing_ok=True)
        jvm: Any = self.spark._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def compact(self) -> None:
        self.sql("OPTIMIZE {}")

    def vacuum(self) -> None:
        vacuum(self.spark, self.path)

    def feed(self, **how: Any) -> DataFrame:
        return lakehouse.from_delta(self.spark, self.path, **how)

    def feed_by_file(self) -> DataFrame:
        return self.feed(maxFilesPerTrigger=1)


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path / "source")
