"""Settings that a Spark session needs before it starts.

Rule for editors: a setting that the user made before stays as it is. Runs on the driver. Nothing
here is needed on Databricks, where sessions exist already and know Delta.
"""

from __future__ import annotations

import os
import pwd
import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from zeh_spark.errors import LakehouseError
from zeh_spark.spark.stateful.requirements import PROVIDER, ROCKSDB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_EXTENSIONS = "spark.sql.extensions"
_PACKAGES = "spark.jars.packages"
_IVY_SETTINGS = "spark.jars.ivySettings"

_SPARKS_OF_DELTA = {
    "4.0": ("4.0",),
    "4.1": ("4.0", "4.1"),
    "4.2": ("4.0", "4.1"),
    "4.3": ("4.0", "4.1"),
    "4.4": ("4.0", "4.1", "4.2"),
}
"""For which versions of Spark each version of Delta has jars on Maven Central."""


def configure(
    builder: SparkSession.Builder, *, parallelism: int | None = None, delta: bool | None = None
) -> SparkSession.Builder:
    """Set what this package needs on a session's builder, and what suits a single machine.

    It keeps Spark's state in RocksDB, which `sessions` and `dedup` need; sets up Delta Lake; and
    uses fewer tasks than a cluster. Settings that the builder has already stay as they are.

    Args:
        builder: `SparkSession.builder`, with your own settings.
        parallelism: the number of tasks that compute a shuffle, or the state of a Delta table; by
            default the number of this machine's cores. Spark's default of 200 and Delta's of 50 are
            for clusters, and make each small batch wait for hundreds of empty tasks.
        delta: whether to set up Delta Lake; by default, if delta-spark is installed. Its jars
            (90 MB) are fetched from Maven Central when the first session starts, and kept in
            ~/.ivy2.5.2. Nothing is fetched if `spark.jars` names them or PySpark has them. With
            `spark.jars.ivySettings` they come from where that file says.

    Returns:
        The same builder. Call `getOrCreate()` on it.

    Raises:
        ImportError: `delta` is true, and delta-spark is not installed.
        LakehouseError: The installed delta-spark has no jars for the installed Spark.
    """
    tasks = str(parallelism or os.cpu_count() or 1)
    _default(builder, "spark.sql.shuffle.partitions", tasks)
    _default(builder, PROVIDER, ROCKSDB)
    if find_spec("delta") is not None if delta is None else delta:
        _default(builder, "spark.databricks.delta.snapshotPartitions", tasks)
        _with_delta(builder)
    return builder


def _with_delta(builder: SparkSession.Builder) -> None:
    if find_spec("delta") is None:
        raise ImportError(
            "configure(delta=True) needs delta-spark, which is not installed. Install it with "
            "pip install --no-deps delta-spark==VERSION; docs/operate/where-it-runs.md has the "
            "version for each Spark"
        )
    extensions = _given(builder, _EXTENSIONS)
    if _EXTENSION not in extensions:
        builder.config(_EXTENSIONS, ",".join([*extensions, _EXTENSION]))
    _default(builder, "spark.sql.catalog.spark_catalog", _CATALOG)
    packages = _given(builder, _PACKAGES)
    if not _has_jars(_given(builder, "spark.jars")) and not any(map(_is_delta, packages)):
        builder.config(_PACKAGES, ",".join([_coordinates(), *packages]))
        if _has_maven() and not _finds_jars_otherwise():
            _default(builder, _IVY_SETTINGS, Path(__file__).with_name("ivysettings.xml").as_uri())


def _coordinates() -> str:
    """Return the Maven coordinates of the jars that belong to delta-spark and PySpark.

    Rejected: delta-spark's own `configure_spark_with_delta_pip`. It names jars that do not exist if
    the versions do not fit each other, and needs a package that `pip install --no-deps` leaves out.

    Raises LakehouseError if there are no such jars.
    """
    from pyspark import __version__ as of_spark

    try:
        of_delta = metadata.version("delta-spark")
    except metadata.PackageNotFoundError:
        raise LakehouseError(
            "the version of the module 'delta' is not known, because it was not installed by pip. "
            "Name Delta's jars in spark.jars, or leave Delta out with configure(…, delta=False)",
            anchor="this-session-has-no-delta",
        ) from None
    delta, spark = (".".join(each.split(".")[:2]) for each in (of_delta, of_spark))
    if delta in ("4.1", "4.2") and re.match(r"4\.1\.([2-9]|\d\d)", of_spark):
        raise LakehouseError(
            f"delta-spark {of_delta} needs a class that Spark {of_spark} does not have: on Spark "
            f"4.1 it runs up to 4.1.1. Install one for it with pip install --no-deps "
            f"delta-spark==4.4.0, or leave Delta out with configure(…, delta=False)",
            anchor="this-session-has-no-delta",
            expected="4.1.1",
            got=of_spark,
        )
    if spark not in _SPARKS_OF_DELTA.get(delta, (spark,)):
        fitting = [each for each, sparks in _SPARKS_OF_DELTA.items() if spark in sparks]
        remedy = (
            f"Install one for it with pip install --no-deps 'delta-spark=={fitting[-1]}.*', or"
            if fitting
            else f"There is no Delta for Spark {spark} yet:"
        )
        raise LakehouseError(
            f"delta-spark {of_delta} has no jars for Spark {of_spark}, only for "
            f"{', '.join(_SPARKS_OF_DELTA[delta])}. {remedy} leave Delta out with "
            f"configure(…, delta=False)",
            anchor="this-session-has-no-delta",
            expected=_SPARKS_OF_DELTA[delta],
            got=spark,
        )
    scala = "2.13" if delta == "4.0" else f"{spark}_2.13"
    return f"io.delta:delta-spark_{scala}:{of_delta}"


def _has_jars(jars: list[str]) -> bool:
    """Return whether the session finds Delta's jars without fetching them."""
    of_spark = map(str, _spark_home().glob("jars/delta-*.jar"))
    return any(map(_is_delta, [*jars, *of_spark]))


def _has_maven() -> bool:
    """Return whether this machine has a folder of Maven's, where POMs may lie without jars.

    Java takes the home folder from the system's list of users, and may not follow $HOME.
    """
    of_java = [Path(each.pw_dir) for each in pwd.getpwall() if each.pw_uid == os.getuid()]
    return any((home / ".m2" / "repository").is_dir() for home in [Path.home(), *of_java])


def _finds_jars_otherwise() -> bool:
    """Return whether Spark's defaults or environment say where to look for jars."""
    folder = Path(os.environ.get("SPARK_CONF_DIR") or _spark_home() / "conf")
    defaults = folder / "spark-defaults.conf"
    text = defaults.read_text(encoding="utf-8", errors="replace") if defaults.is_file() else ""
    return "DEFAULT_ARTIFACT_REPOSITORY" in os.environ or bool(
        re.search(rf"^\s*{re.escape(_IVY_SETTINGS)}\b", text, re.MULTILINE)
    )


def _spark_home() -> Path:
    import pyspark

    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def _is_delta(name: str) -> bool:
    """Return whether this path of a jar, or these Maven coordinates, are Delta's."""
    return re.search(r"(^|/|:)delta-spark[_.-]", name) is not None


def _given(builder: SparkSession.Builder, key: str) -> list[str]:
    return [each for each in str(_options(builder).get(key, "")).split(",") if each]


def _default(builder: SparkSession.Builder, key: str, value: str) -> None:
    if key not in _options(builder):
        builder.config(key, value)


def _options(builder: SparkSession.Builder) -> dict[str, object]:
    """Return what was set so far. The builder has no public way to ask for it."""
    return getattr(builder, "_options", {})
