"""Start Spark, and have a worker do its part: import the package, and read an event of a feed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import zeh_spark
from zeh_spark.tools.doctor.checks import Check, failure, ok

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def checks(url: str | None, options: Mapping[str, str]) -> Iterator[Check]:
    """Yield the checks that need a Spark session. It is local, and ends with them.

    `url` is the feed to read an event of; None for none.
    """
    logging.getLogger("py4j").setLevel(logging.ERROR)
    try:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[1]").appName("zeh-spark doctor")
        spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    except Exception as exc:  # noqa: BLE001  # whatever keeps Spark from starting is the finding
        yield _failed("spark", exc, "Look at the checks of java and pyspark.")
        return
    try:
        spark.sparkContext.setLogLevel("OFF")
        yield ok("spark", f"{spark.version} started")
        yield _worker(spark)
        if url:
            yield _read(spark, url, options)
    finally:
        spark.stop()


def _worker(spark: SparkSession) -> Check:
    def tell(_: Any) -> list[tuple[str, str]]:
        import sys

        import zeh_spark as there

        return [(there.__version__, sys.version.split()[0])]

    try:
        ((version, python),) = spark.sparkContext.parallelize([0], 1).mapPartitions(tell).collect()
    except Exception as exc:  # noqa: BLE001  # as above
        return _failed("worker", exc, "Look at the checks of worker-python and worker-package.")
    if version != zeh_spark.__version__:
        found = f"a worker has zeh_spark {version}, and the driver {zeh_spark.__version__}"
        return failure("worker", found, "Install the same version for both.")
    return ok("worker", f"a worker imported zeh_spark {version} with Python {python}")


def _read(spark: SparkSession, url: str, options: Mapping[str, str]) -> Check:
    try:
        zeh_spark.register(spark)
        feed = spark.read.format("zeroeventhub").options(**options).load(url)
        rows = feed.limit(1).collect()
    except Exception as exc:  # noqa: BLE001  # as above
        return _failed("read", exc, "zeh-spark explain CODE prints what to do.")
    return ok("read", "a worker read an event" if rows else "the feed is read, and is empty")


def _failed(name: str, exc: Exception, remedy: str) -> Check:
    lines = [line for line in str(exc).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("zeh_spark.")]
    said = (ours or [line for line in lines if "Error" in line][-1:] or lines or [repr(exc)])[0]
    return failure(name, said.strip()[:500], remedy)
