"""Spark's classes, as the JVM keeps them between runs: `python -m tests.class_archive`.

Tests start Spark more than a hundred times, and half of that time is spent on loading the same
classes. The JVM can keep them in a file (class data sharing) that fits one Java, one Spark and one
set of jars: where it does not fit, or is absent, Java loads them as usual.

Making it also fetches Delta's jars: sessions that fetch them at the same time would get in each
other's way.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
# Sessions of tests live for minutes: compile little, but keep it, and collect simply.
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -XX:NewSize=256m"
)
SHARED = f"{SHORT_LIVED} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable -Xlog:all=error:stderr"


def submit_arguments(java_options: str = SHARED) -> str:
    """Return PYSPARK_SUBMIT_ARGS that start drivers and executors with these options."""
    return (
        f"--driver-java-options '{java_options}' "
        f"--conf 'spark.executor.extraJavaOptions={java_options}' pyspark-shell"
    )


def make() -> None:
    """Start Spark, use what tests use, and keep the classes that were loaded."""
    ARCHIVE.unlink(missing_ok=True)
    os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(
        f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={ARCHIVE} -Xlog:disable"
    )
    from pyspark.sql import SparkSession

    import zeh_spark
    from tests.scratch_store import ScratchStore
    from zeh_spark.testing import publish, running_publisher

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = zeh_spark.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    store = ScratchStore(orders=2)
    publish(store, "orders", [{"i": i} for i in range(10)])
    table = "delta" if find_spec("delta") else "parquet"
    with tempfile.TemporaryDirectory() as folder, running_publisher(store) as url:
        rows = spark.readStream.format("zeroeventhub").load(f"{url}/orders")
        spark.conf.set("spark.sql.shuffle.partitions", 2)
        counted = rows.dropDuplicates(["data"]).writeStream.format(table)
        counted.option("checkpointLocation", f"{folder}/checkpoint")
        counted.trigger(availableNow=True).start(f"{folder}/table").awaitTermination()
        spark.read.format(table).load(f"{folder}/table").groupBy("partition").count().collect()
    jvm = spark.sparkContext._gateway
    spark.stop()
    jvm.shutdown()
    jvm.proc.stdin.close()
    jvm.proc.wait()  # it writes the file when it ends


if __name__ == "__main__":
    make()
