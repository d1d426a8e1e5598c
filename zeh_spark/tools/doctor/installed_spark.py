"""Look at PySpark, and at Delta Lake and RocksDB, which belong to it. Imports none of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from zeh_spark.tools.doctor.checks import Check, failure, fits, note, ok, version_of, warning

_OLDEST, _NEWEST = (4, 0), (4, 3)
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_INSTALL = 'pip install "pyspark[sql]==4.2.0" "pandas<3"'


def checks(environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    version = _version("pyspark")
    spec = find_spec("pyspark")
    if spec is None or not spec.origin:
        yield failure(
            "pyspark",
            "not installed",
            f"Install it: {_INSTALL}. Only Spark jobs need it. A cluster has its own.",
        )
        return
    home = Path(environment.get("SPARK_HOME") or Path(spec.origin).parent)
    core = _jar_version(home, "spark-core")
    yield _pyspark(version or core or "", core, home)
    yield _delta(version or core or "", home)
    yield _rocksdb(home, environment)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _jar_version(home: Path, name: str) -> str | None:
    for jar in home.glob(f"jars/{name}_*.jar"):
        if found := re.search(r"_\d+\.\d+-(\d[\w.]*?)(?:-SNAPSHOT)?\.jar$", jar.name):
            return found[1]
    return None


def _pyspark(version: str, core: str | None, home: Path) -> Check:
    if core is None:
        return failure(
            "pyspark",
            f"PySpark {version}, and no jars of Spark in {home}",
            f"Unset SPARK_HOME, or set it to the folder of a Spark {version}; or install PySpark "
            f"with its jars: {_INSTALL}.",
        )
    if version_of(version)[:2] != version_of(core)[:2]:
        return failure(
            "pyspark",
            f"PySpark {version}, and Spark {core} in {home}",
            f"Unset SPARK_HOME, or install the PySpark of that Spark: pip install pyspark=={core}",
        )
    if not _OLDEST <= version_of(version)[:2] <= _NEWEST:
        judge = failure if version_of(version)[:2] < _OLDEST else warning
        return judge("pyspark", version, f"zeh-spark runs on Spark 4.0 to 4.3: {_INSTALL}")
    return ok("pyspark", f"{version}, {home}")


def _delta(spark: str, home: Path) -> Check:
    name, version = "delta", _version("delta-spark")
    jar = _jar_version(home, "delta-spark")
    if version is None and jar is None:
        return note(
            name,
            "delta-spark is not installed",
            "Only Delta tables (zeh_spark.lakehouse) need it: pip install --no-deps "
            "delta-spark==4.4.0, which runs with Spark 4.0 to 4.2. There is none for 4.3.",
        )
    if version and jar and version_of(version) != version_of(jar):
        return failure(
            name,
            f"delta-spark {version}, and the jar of {jar} in {home}",
            f"Install the delta-spark of the jar: pip install delta-spark=={jar}",
        )
    needs = [each for each in metadata.requires("delta-spark") or [] if each.startswith("pyspark")]
    if needs and not fits(spark, needs[0]):
        return failure(
            name,
            f"delta-spark {version} needs {needs[0]}, and PySpark is {spark}",
            "Install a pair that fits: delta-spark 4.4.0 runs with Spark 4.0 to 4.2.",
        )
    if jar or _fetched(version or ""):
        return ok(name, f"delta-spark {version or jar}, with its jars")
    return note(
        name,
        f"delta-spark {version}; its jars are not on this machine yet",
        "The first session with zeh_spark.configure fetches 90 MB from Maven Central. Without "
        "access to it, set spark.jars to the jars.",
    )


def _fetched(version: str) -> bool:
    """Return whether an earlier session has fetched the jars of this version."""
    return any(Path.home().glob(f".ivy2*/jars/io.delta_delta-spark_*-{version}.jar"))


def _rocksdb(home: Path, environment: Mapping[str, str]) -> Check:
    name = "rocksdb"
    if not any(home.glob("jars/rocksdbjni-*.jar")):
        return note(
            name,
            f"no RocksDB among the jars of {home}",
            f"Only sessions and deduplication by ids need it: {_INSTALL} has it.",
        )
    folder = Path(environment.get("SPARK_CONF_DIR") or home / "conf")
    file = folder / "spark-defaults.conf"
    lines = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    if re.search(rf"^\s*{re.escape(_PROVIDER)}[\s=].*RocksDB", lines, re.MULTILINE):
        return ok(name, f"set in {file}")
    return note(
        name,
        f"there; {_PROVIDER} is not set in {file}",
        "Only sessions and deduplication by ids need it: build sessions with "
        "zeh_spark.configure(SparkSession.builder), which sets it.",
    )
