"""`zeh-spark doctor`: what it finds on this machine and at a feed, and what it says to do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import zeh_spark
from tests.cases import each_case
from tests.fix_cli import Run, call, published
from tests.fix_raw_server import Answer, RawServer, Request, refused
from zeh_spark.spark.worker_python import find_faults
from zeh_spark.tools.doctor import installed_spark, machine
from zeh_spark.tools.doctor.checks import Check, State, fits

HERE = {
    **os.environ,
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": str(Path(__file__).parents[2]),
}


def of_feed(url: str, **environment: str) -> dict[str, dict[str, str]]:
    """The checks of a feed, by name; after the exit code was compared."""
    done = call("doctor", url, "--json", **environment)
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["ok"] else 3)
    return {each["name"]: each for each in found["checks"]}


def program(folder: Path, name: str, text: str) -> str:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def found_by(name: str, **environment: str) -> Check:
    given = {**HERE, **environment}
    (check,) = [
        each
        for each in (*machine.checks(given), *installed_spark.checks(given))
        if each.name == name
    ]
    return check


def worker_python(folder: Path, **told: object) -> str:
    """A program that says this of itself, where Spark would start workers."""
    asked = {"python": [*sys.version_info[:3]], "packages": {}, **told}
    return program(folder, "python", f"echo '{json.dumps(asked)}'")


def test_this_machine_can_run_the_tests() -> None:
    """Where everything is installed, nothing fails."""
    checks = [*machine.checks(HERE), *installed_spark.checks(HERE)]
    found = {each.name: each.state for each in checks}

    assert {"python", "java", "worker-python", "worker-package", "sessions", "pyspark", "delta",
            "rocksdb"} == found.keys()  # fmt: skip
    assert {State.FAILURE, State.WARNING} & {*found.values()} == set()


@pytest.mark.parametrize(
    ("pyspark", "environment", "state"),
    [
        ("4.0.5", {}, State.OK),
        ("4.1.4", {}, State.NOTE),
        ("4.1.0", {"DATABRICKS_RUNTIME_VERSION": "18.0"}, State.OK),
    ],
)
def test_protobuf_5_is_for_spark_4_0_and_for_databricks(
    tmp_path: Path, pyspark: str, environment: dict[str, str], state: State
) -> None:
    """I am not told to replace what a runtime of Databricks brings."""
    packages = {"pandas": "2.2.3", "protobuf": "5.29.4", "pyspark": pyspark}
    python = worker_python(tmp_path, prefix="", packages=packages, error="")

    assert state == found_by("sessions", PYSPARK_PYTHON=python, **environment).state


def test_a_python_that_the_readme_names_is_in_order() -> None:
    """It is the first sentence of the quickstart, too."""
    oldest, newest = (".".join(map(str, each)) for each in machine.PYTHONS)
    for page in ("README.md", "docs/start/quickstart.md"):
        text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
        assert f"You need Python {oldest} to {newest}" in text


def test_java_that_is_missing_or_too_old_is_named(tmp_path: Path) -> None:
    """I am told which Java to install."""
    missing = found_by("java", JAVA_HOME=str(tmp_path / "none"))
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin", "java", "echo 'openjdk version \"11.0.2\" 2019' >&2")
    old = found_by("java", JAVA_HOME=str(tmp_path))

    assert (State.FAILURE, State.FAILURE) == (missing.state, old.state)
    assert "Java 11" in old.found and "Install Java 17" in old.remedy


def test_another_python_for_workers_is_refused(tmp_path: Path) -> None:
    """Spark would fail after half a minute, with DATA_SOURCE_NOT_FOUND. A cluster that was upgraded
    in part is found out, too.
    """
    other = worker_python(tmp_path, python=[3, 9, 1], error="ModuleNotFoundError: x")
    python = found_by("worker-python", PYSPARK_PYTHON=other)
    package = found_by("worker-package", PYSPARK_PYTHON=other)
    upgraded = worker_python(tmp_path, zeh_spark="0.0.1", file="x")
    older = found_by("worker-package", PYSPARK_PYTHON=upgraded)

    assert "3.9.1, and the driver has" in python.found
    assert f"export PYSPARK_PYTHON={sys.executable}" in python.remedy
    assert (State.FAILURE, State.FAILURE) == (package.state, older.state)
    assert "ModuleNotFoundError: x" in package.found
    assert "version 0.0.1 there" in older.found


@each_case(
    ("words", "token", "source"),
    [
        ([], "", "no token"),
        ([], "s3cr3t-token", "token"),
        (["--header", "Authorization=Basic abc"], "", "http.secret.header.authorization"),
    ],
)
def test_what_was_sent_is_named(
    raw_server: RawServer, words: list[str], token: str, source: str
) -> None:
    """A refusal is not put down to a token that I did not give, or gave in another way."""
    raw_server.respond = lambda request: refused(401)
    done = call("doctor", raw_server.url, "--json", *words, ZEH_TOKEN=token)
    (check,) = [each for each in json.loads(done.stdout)["checks"] if each["name"] == "token"]
    assert check["found"].endswith(f", with {source}")


@pytest.mark.parametrize("text", ["exit 1", "echo nonsense", "kill -9 $$", None])
def test_a_worker_python_that_does_not_run_is_refused(tmp_path: Path, text: str | None) -> None:
    """A path that is wrong is no riddle."""
    python = program(tmp_path, "python", text) if text else "/no/python"
    assert State.FAILURE is found_by("worker-python", PYSPARK_PYTHON=python).state


def test_a_spark_home_of_another_version_is_refused(tmp_path: Path) -> None:
    """PySpark would start the other Spark, and fail somewhere."""
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()

    found = found_by("pyspark", SPARK_HOME=str(tmp_path))

    assert (State.FAILURE, True) == (found.state, "and Spark 3.5.1 in" in found.found)


def test_a_spark_that_sets_rocksdb_is_in_order(tmp_path: Path) -> None:
    """What the configuration has needs no word."""
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.sql.streaming.stateStore.providerClass  "
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider\n"
    )

    assert State.OK is found_by("rocksdb", SPARK_CONF_DIR=str(tmp_path)).state


def test_a_feed_is_looked_at(run: Run, store_url: str) -> None:
    """Address, token, partitions and clock are in order."""
    run("create", "orders", "--partitions", "3")
    with published(store_url) as base:
        found = of_feed(f"{base}/orders", **HERE)

    names = ("reachable", "token", "partitions", "clock")
    assert ["ok"] * 4 == [found[name]["state"] for name in names]
    assert "3" == found["partitions"]["found"]


def test_what_is_wrong_with_a_feed_is_told(raw_server: RawServer) -> None:
    """No token, no partitions, and a clock that is a minute off."""
    raw_server.respond = lambda request: refused(401, "who?")
    denied = of_feed(raw_server.url, **HERE, ZEH_TOKEN="secret-of-mine")

    def minute_ago(request: Request) -> Answer:
        date = datetime.now(timezone.utc) - timedelta(minutes=1)
        return refused(400, "n is missing", date=format_datetime(date, usegmt=True))

    raw_server.respond = minute_ago
    untold = of_feed(raw_server.url, **HERE)

    assert ("failure", "ok") == (denied["token"]["state"], denied["reachable"]["state"])
    assert "secret-of-mine" not in json.dumps(denied)
    assert ("warning", "warning") == (untold["partitions"]["state"], untold["clock"]["state"])
    assert "partitionCount" in untold["partitions"]["remedy"]
    (apart,) = re.findall(r"clock is \+(\d+) s", untold["clock"]["found"])
    assert 55 < int(apart) < 75


def test_a_feed_that_is_down_is_told() -> None:
    """A check in order is a line; one that failed says what was found and what to do."""
    done = call("doctor", "http://127.0.0.1:1/x", **HERE)

    assert 3 == done.returncode
    assert f"ok         python: {sys.version.split()[0]}" in done.stdout
    reachable = done.stdout.partition("FAILURE    reachable\n           found:")[2]
    assert "Connection refused" in reachable


@each_case(
    ("version", "requirement", "expected"),
    [
        ("4.2.0", "pyspark<=4.2.0,>=4.0.1", True),
        ("4.3.0", "pyspark<=4.2.0,>=4.0.1", False),
        ("4.0.0", "pyspark<=4.2.0,>=4.0.1", False),
        ("4.2.0.dev1", "pyspark<4.3,>=4.2", True),
        ("2.3", "pandas>=2.2,<3", True),
        ("3.0.1", "pandas>=2.2,<3", False),
        ("4.2", "pyspark==4.2.0", True),
        ("1", "pyspark", True),
    ],
)
def test_versions_are_compared_by_their_numbers(
    version: str, requirement: str, expected: bool
) -> None:
    """The pair of Spark and Delta is judged by what Delta asks for."""
    assert expected is fits(version, requirement)


@pytest.mark.slow
def test_with_spark_a_worker_reads_an_event(run: Run, store_url: str, warm: dict[str, str]) -> None:
    """I know that the whole way works, before I write a job."""
    run("create", "orders")
    run("load", "orders", "-", stdin="1\n")
    with published(store_url) as base:
        # In a process of its own, because it starts and stops Spark.
        command = [sys.executable, "-m", "zeh_spark", "doctor", f"{base}/orders"]
        done = subprocess.run(
            [*command, "--spark", "--json"], env={**HERE, **warm}, capture_output=True, check=True
        )
    found = json.loads(done.stdout)

    names = {each["name"]: each["found"] for each in found["checks"]}
    assert found["ok"], names
    assert "a worker read an event" == names["read"]


def test_register_warns_of_workers_without_the_package(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Before a query fails in a worker I know which program it runs, and what to do."""
    venv.create(tmp_path / "other")
    other = str(tmp_path / "other" / "bin" / "python")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    # A session keeps the program of its formats: none but this one gets it.
    session = spark.newSession()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(spark.sparkContext, "pythonExec", other)
            zeh_spark.register(session)
    finally:
        zeh_spark.register(spark)  # the active one again

    assert "workers will not find this format: zeh_spark cannot be imported there" in caplog.text
    assert f"{other} -m pip install zeh-spark==" in caplog.text
    assert 1 == len(caplog.records)


def test_workers_that_fit_are_not_warned_of() -> None:
    """The same Python, and a program that only workers have."""
    assert [] == find_faults(sys.executable)
    assert [] == find_faults("./archive/bin/python")
