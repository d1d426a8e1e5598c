"""Settings that a Spark session needs before it starts.

Runs on the driver. Nothing here is needed on Databricks, whose sessions exist already and know
Delta.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from zeh_spark.stateful.requirements import PROVIDER, ROCKSDB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_EXTENSIONS = "spark.sql.extensions"
_PACKAGES = "spark.jars.packages"


def configure(
    builder: SparkSession.Builder, *, parallelism: int | None = None, delta: bool | None = None
) -> SparkSession.Builder:
    """The builder with what small machines need, with Spark's state in RocksDB, as `sessions` and
    `dedup` need it, and with Delta Lake. Settings that it has stay.

    `parallelism` is the number of tasks in which a shuffle, and the state of a Delta table, is
    computed: this machine's cores if not given. Spark's own 200 and Delta's 50 are for clusters,
    and make each small batch wait for hundreds of empty tasks.

    `delta` says whether Delta is set up: if not given, where delta-spark is installed. Its jars (90
    MB) are fetched from Maven Central when the first session starts, and kept in ~/.ivy2.5.2;
    nothing is fetched where `spark.jars` names them or they are among PySpark's own.
    """
    tasks = str(parallelism or os.cpu_count() or 1)
    _default(builder, "spark.sql.shuffle.partitions", tasks)
    _default(builder, PROVIDER, ROCKSDB)
    if find_spec("delta") is not None if delta is None else delta:
        _default(builder, "spark.databricks.delta.snapshotPartitions", tasks)
        _with_delta(builder)
    return builder


def _with_delta(builder: SparkSession.Builder) -> None:
    from delta import configure_spark_with_delta_pip

    extensions = _given(builder, _EXTENSIONS)
    if _EXTENSION not in extensions:
        builder.config(_EXTENSIONS, ",".join([*extensions, _EXTENSION]))
    _default(builder, "spark.sql.catalog.spark_catalog", _CATALOG)
    packages = _given(builder, _PACKAGES)
    if not _has_jars(_given(builder, "spark.jars")) and not any(map(_is_delta, packages)):
        configure_spark_with_delta_pip(builder, packages)


def _has_jars(jars: list[str]) -> bool:
    """Whether the session finds Delta without fetching it."""
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    return any(map(_is_delta, [*jars, *(str(each) for each in home.glob("jars/delta-*.jar"))]))


def _is_delta(name: str) -> bool:
    """A path of a jar, or Maven coordinates."""
    return re.search(r"(^|/|:)delta-spark_", name) is not None


def _given(builder: SparkSession.Builder, key: str) -> list[str]:
    return [each for each in str(_options(builder).get(key, "")).split(",") if each]


def _default(builder: SparkSession.Builder, key: str, value: str) -> None:
    if key not in _options(builder):
        builder.config(key, value)


def _options(builder: SparkSession.Builder) -> dict[str, object]:
    """What was set so far [the builder has no public way to ask]."""
    return getattr(builder, "_options", {})
