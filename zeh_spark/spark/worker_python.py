"""The Python of Spark's workers: which one it is, and whether this package is there.

It runs the program that workers are, as far as this machine has it, and starts no Spark. It imports
no PySpark: `zeh-spark doctor` looks for that itself. Runs on the driver's machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import zeh_spark

SECONDS = 30
"""How long a program may take to tell its version, on a machine that is busy."""

_ASK = """
import importlib.metadata as metadata, json, sys
found = {"python": list(sys.version_info[:3]), "prefix": sys.prefix, "packages": {}}
for name in ("zeh-spark", "pandas", "protobuf", "pyarrow", "pyspark"):
    try:
        found["packages"][name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
try:
    import zeh_spark, zeh_spark.client.http.transport, zeh_spark.client.decoding.lines
    found["zeh_spark"] = zeh_spark.__version__
    found["file"] = zeh_spark.__file__
except Exception as exc:
    found["error"] = f"{type(exc).__name__}: {exc}"
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the Python of Spark's workers, and what to do."""

    found: str
    remedy: str


def find_faults(worker: str) -> list[Fault]:
    """Return what is wrong with the Python of a session's workers, if it is not this one.

    If this machine does not have the program, only workers can look at it, and nothing is returned:
    it may be in an archive that Spark unpacks for them.
    """
    program = shutil.which(worker)
    if program is None or os.path.abspath(program) == sys.executable:
        return []
    told = ask_python(program, os.environ)
    found = (
        find_version_fault(f"{worker} (of this session)", told),
        find_package_fault(worker, told),
    )
    return [fault for fault in found if fault]


def ask_python(worker: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what the workers' Python tells of itself, from another directory than this one."""
    program = shutil.which(worker, path=environment.get("PATH"))
    if program is None:
        return {"error": "not found"}
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [program, "-c", _ASK], capture_output=True, text=True, timeout=SECONDS,
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


def find_version_fault(worker: str, told: dict[str, Any]) -> Fault | None:
    """Return why the driver cannot work with a Python: it does not run, or has another version."""
    remedy = f"Set the Python of Spark's workers: export PYSPARK_PYTHON={sys.executable}"
    if "python" not in told:
        return Fault(f"{worker}: {told['error']}", remedy)
    if told["python"][:2] == list(sys.version_info[:2]):
        return None
    version = ".".join(map(str, told["python"]))
    mine = ".".join(map(str, sys.version_info[:2]))
    found = (
        f"{worker}: {version}, and the driver has {mine}. Spark refuses different minor versions"
    )
    return Fault(found, remedy)


def find_package_fault(worker: str, told: dict[str, Any]) -> Fault | None:
    """Return why a Python that runs cannot work with the driver's zeh_spark."""
    mine = zeh_spark.__version__
    if "python" not in told or told.get("zeh_spark") == mine:
        return None
    found = f"zeh_spark cannot be imported there: {told.get('error')}"
    if "zeh_spark" in told:
        found = f"version {told['zeh_spark']} there, and {mine} here"
    return Fault(
        found,
        f"Install zeh-spark {mine} for the workers, on each machine: {worker} -m pip install "
        f"zeh-spark=={mine}. Or let the workers use this Python: export "
        f"PYSPARK_PYTHON={sys.executable}",
    )
