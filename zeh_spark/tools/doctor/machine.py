"""Look at Java, at Python, and at the Python of Spark's workers.

It asks programs for their versions, and starts no Spark.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from zeh_spark.spark.worker_python import (
    SECONDS,
    Fault,
    ask_python,
    find_package_fault,
    find_version_fault,
)
from zeh_spark.tools.doctor.checks import Check, failure, fits, note, ok, warning

_OLDEST_JAVA = 17
PYTHONS = ((3, 10), (3, 14))


def checks(environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    yield _python()
    yield _java(environment)
    worker = environment.get("PYSPARK_PYTHON") or "python3"
    how = "PYSPARK_PYTHON" if environment.get("PYSPARK_PYTHON") else "python3 of PATH"
    named, told = f"{worker} ({how})", ask_python(worker, environment)
    version = ".".join(map(str, told.get("python", ())))
    yield _judge_fault("worker-python", find_version_fault(named, told), f"{named}: {version}")
    if "python" in told:
        there = f"zeh_spark {told.get('zeh_spark')}, {told.get('file')}"
        yield _judge_fault("worker-package", find_package_fault(worker, told), there)
        yield _sessions(told["packages"], environment)


def _judge_fault(name: str, fault: Fault | None, found: str) -> Check:
    return failure(name, fault.found, fault.remedy) if fault else ok(name, found)


def _python() -> Check:
    found = f"{sys.version.split()[0]}, {sys.executable}"
    oldest, newest = PYTHONS
    if oldest <= sys.version_info[:2] <= newest:
        return ok("python", found)
    return warning(
        "python",
        found,
        f"Use Python {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}, with which zeh-spark is "
        f"tested.",
    )


def _java(environment: Mapping[str, str]) -> Check:
    home = environment.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else "java"
    where = f"JAVA_HOME={home}" if home else "java of PATH"
    remedy = (
        "Install Java 17, which Spark 4 needs, and set JAVA_HOME to it. Debian, Ubuntu: apt-get "
        "install openjdk-17-jre-headless. Only Spark needs it: reading and publishing without "
        "Spark does not."
    )
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=SECONDS,
            env=dict(environment), check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as exc:
        reason = "it does not answer" if isinstance(exc, subprocess.TimeoutExpired) else "not found"
        return failure("java", f"{where}: {reason}", remedy)
    version = re.search(r'version "(?:1\.)?(\d+)[^"]*"', done.stderr + done.stdout)
    if not version:
        return failure("java", f"{where}: prints no version", remedy)
    if int(version[1]) < _OLDEST_JAVA:
        return failure("java", f"{where}: Java {version[1]}", remedy)
    return ok("java", f"{where}: Java {version[1]}")


def _sessions(packages: dict[str, str], environment: Mapping[str, str]) -> Check:
    # Spark 4.0, and Databricks' Spark, are made for protobuf 5, and take 6 as well.
    takes_5 = packages.get("pyspark", "").startswith("4.0.")
    takes_5 |= "DATABRICKS_RUNTIME_VERSION" in environment
    protobuf = ">=5.28.3,<7" if takes_5 else ">=6.33.5,<7"
    wanted = {"pandas": ">=2.2,<3", "protobuf": protobuf}
    wrong = [
        f"{name} {packages.get(name, 'missing')}"
        for name, needed in wanted.items()
        if name not in packages or not fits(packages[name], needed)
    ]
    if not wrong:
        return ok("sessions", ", ".join(f"{name} {packages[name]}" for name in wanted))
    return note(
        "sessions",
        ", ".join(wrong),
        "Only sessions and deduplication by ids need them, on driver and workers: pip install "
        f"'zeh-spark[sessions]' 'protobuf{protobuf}'.",
    )
