"""Look at Java, at Python, and at the Python of Spark's workers.

It asks programs for their versions, and starts no Spark.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import zeh_spark
from zeh_spark.tools.doctor.checks import Check, State, fits, ok

_SECONDS = 30
"""How long a program may take to tell its version, on a machine that is busy."""

_OLDEST_JAVA = 17
_PYTHONS = ((3, 10), (3, 13))

_ASK = """
import importlib.metadata as metadata, json, sys
found = {"python": list(sys.version_info[:3]), "prefix": sys.prefix, "packages": {}}
for name in ("zeh-spark", "pandas", "protobuf", "pyarrow", "pyspark"):
    try:
        found["packages"][name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
try:
    import zeh_spark, zeh_spark.client.http.transport, zeh_spark.spark.decoding.lines
    found["zeh_spark"] = zeh_spark.__version__
    found["file"] = zeh_spark.__file__
except Exception as exc:
    found["error"] = f"{type(exc).__name__}: {exc}"
print(json.dumps(found))
"""


def checks(environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    yield _python()
    yield _java(environment)
    worker = environment.get("PYSPARK_PYTHON") or "python3"
    how = "PYSPARK_PYTHON" if environment.get("PYSPARK_PYTHON") else "python3 of PATH"
    told = _asked(worker, environment)
    yield _worker_python(worker, how, told)
    if "python" in told:
        yield _worker_package(worker, told)
        yield _sessions(told["packages"], environment)


def other_workers(worker: str) -> list[Check]:
    """Return what is wrong with the Python of a session's workers, if it is not this one.

    If this machine does not have the program, only workers can look at it, and nothing is returned:
    it may be in an archive that Spark unpacks for them.
    """
    program = shutil.which(worker)
    if program is None or os.path.abspath(program) == sys.executable:
        return []
    told = _asked(program, os.environ)
    found = [_worker_python(worker, "of this session", told)]
    if "python" in told:
        found.append(_worker_package(worker, told))
    return [each for each in found if each.state is State.FAILURE]


def _python() -> Check:
    found = f"{sys.version.split()[0]}, {sys.executable}"
    oldest, newest = _PYTHONS
    if oldest <= sys.version_info[:2] <= newest:
        return ok("python", found)
    return Check(
        "python",
        State.WARNING,
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
            [program, "-version"], capture_output=True, text=True, timeout=_SECONDS,
            env=dict(environment), check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as exc:
        reason = "it does not answer" if isinstance(exc, subprocess.TimeoutExpired) else "not found"
        return Check("java", State.FAILURE, f"{where}: {reason}", remedy)
    version = re.search(r'version "(?:1\.)?(\d+)[^"]*"', done.stderr + done.stdout)
    if not version:
        return Check("java", State.FAILURE, f"{where}: tells no version", remedy)
    if int(version[1]) < _OLDEST_JAVA:
        return Check("java", State.FAILURE, f"{where}: Java {version[1]}", remedy)
    return ok("java", f"{where}: Java {version[1]}")


def _asked(worker: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what the workers' Python tells of itself, from another directory than this one."""
    program = shutil.which(worker, path=environment.get("PATH"))
    if program is None:
        return {"error": "not found"}
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [program, "-c", _ASK], capture_output=True, text=True, timeout=_SECONDS,
                env=dict(environment), cwd=folder, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as exc:
            return {"error": f"it cannot be run ({type(exc).__name__})"}
    try:
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["it prints nothing"])[-1]
        return {"error": f"it is no Python that runs: {last[:200]}"}
    return told


def _worker_python(worker: str, how: str, told: dict[str, Any]) -> Check:
    remedy = f"Set the Python of Spark's workers: export PYSPARK_PYTHON={sys.executable}"
    if "python" not in told:
        return Check("worker-python", State.FAILURE, f"{worker} ({how}): {told['error']}", remedy)
    version = ".".join(map(str, told["python"]))
    found = f"{worker} ({how}): {version}"
    if told["python"][:2] != list(sys.version_info[:2]):
        mine = ".".join(map(str, sys.version_info[:2]))
        return Check(
            "worker-python",
            State.FAILURE,
            f"{found}, and the driver has {mine}. Spark refuses different minor versions",
            remedy,
        )
    return ok("worker-python", found)


def _worker_package(worker: str, told: dict[str, Any]) -> Check:
    name, mine = "worker-package", zeh_spark.__version__
    remedy = (
        f"Install zeh-spark {mine} for the workers, on each machine: {worker} -m pip install "
        f"zeh-spark=={mine}. Or let the workers use this Python: export "
        f"PYSPARK_PYTHON={sys.executable}"
    )
    if "zeh_spark" not in told:
        return Check(
            name, State.FAILURE, f"zeh_spark cannot be imported there: {told['error']}", remedy
        )
    if told["zeh_spark"] != mine:
        found = f"version {told['zeh_spark']} there, and {mine} here"
        return Check(name, State.FAILURE, found, remedy)
    return ok(name, f"zeh_spark {mine}, {told['file']}")


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
    return Check(
        "sessions",
        State.NOTE,
        ", ".join(wrong),
        "Only sessions and deduplication by ids need them, on driver and workers: pip install "
        f"'zeh-spark[sessions]' 'protobuf{protobuf}'.",
    )
