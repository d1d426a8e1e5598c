"""Spark for tests: one session for all that share it, and programs in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest

import zeh_spark
from tests import class_archive, warm_python
from tests.patience import PATIENCE
from zeh_spark.spark.frames.compat import HAS_ADMISSION_CONTROL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

_PROGRAMS = Path(__file__).parent / "programs"
ENVIRONMENT = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "PYSPARK_SUBMIT_ARGS": class_archive.submit_arguments(),
}


def without_code(said: str) -> str:
    """What an error says, without its code, of which there is exactly one."""
    bare, codes = re.subn(r"\[ZEH_[A-Z0-9_]+\] ", "", said)
    assert codes == 1, said
    return bare


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of drivers and servers whose Python processes are forked: `warm_python`."""
    with warm_python.started(tmp_path_factory.mktemp("python")) as python:
        yield {**ENVIRONMENT, "PYSPARK_PYTHON": str(python)}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, warm: dict[str, str]) -> Iterator[SparkSession]:
    """A session with two cores, and Delta if installed. Spark finds the format by itself."""
    os.environ.update(ENVIRONMENT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own, while it starts
        from pyspark.sql import SparkSession

        builder = (
            SparkSession.builder.master("local[2]")
            .appName("zeh-spark tests")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .config("spark.log.level", "OFF")
            # A quarter of the time of small batches of Delta is the making of Java for each task's
            # projections. Whole stages are compiled all the same; in programs and notebooks, all.
            .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYSPARK_PYTHON", warm["PYSPARK_PYTHON"])
            with _standard_error(tmp_path_factory.mktemp("spark") / "stderr") as log:
                session = zeh_spark.configure(builder, parallelism=2).getOrCreate()
        _logs[session] = log
        yield session
        session.stop()


_logs: dict[SparkSession, Path] = {}
"""What the JVM of a session, and its Python workers, write to standard error."""


@contextmanager
def _standard_error(file: Path) -> Iterator[Path]:
    """Have processes that are started write their standard error into a file."""
    before = os.dup(2)
    with file.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield file
    finally:
        os.dup2(before, 2)
        os.close(before)


@pytest.fixture
def spark_log(spark: SparkSession) -> Iterator[Callable[[], str]]:
    """All that Spark and its workers have logged in this test so far, at level INFO."""
    log = _logs[spark]
    begin = log.stat().st_size
    spark.sparkContext.setLogLevel("INFO")
    yield lambda: log.read_bytes()[begin:].decode(errors="replace")
    spark.sparkContext.setLogLevel("OFF")


@pytest.fixture
def stream(spark: SparkSession) -> Callable[..., DataStreamReader]:
    """`stream(url=…, …)`: a reader of the format with these options."""
    return lambda **options: spark.readStream.format("zeroeventhub").options(**options)


@pytest.fixture
def collected(tmp_path: Path) -> Iterator[Collected]:
    """`collected(frame)` starts a query that keeps its rows; stopped at the test's end."""
    queries = Collected(tmp_path)
    yield queries
    queries.stop()


@dataclass
class Collected:
    """Runs a streaming frame into a list of its rows as dicts, batch by batch."""

    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    queries: list[StreamingQuery] = field(default_factory=list)

    def __call__(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        def keep(batch: DataFrame, number: int) -> None:
            self.rows += [row.asDict() for row in batch.collect()]
            self.batches.append(number)

        writer = frame.writeStream.foreachBatch(keep)
        if trigger:
            writer = writer.trigger(**trigger)
        query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()
        self.queries.append(query)
        return query

    def run(self, frame: DataFrame) -> list[int]:
        """Run to the end of what is there; gives each batch's rows."""
        to_the_end(lambda: self(frame, availableNow=True))
        return [each.numInputRows for query in self.queries for each in query.recentProgress]

    def numbers(self) -> Counter[int]:
        return Counter(json.loads(row["data"])["i"] for row in self.rows)

    def stop(self) -> None:
        for query in self.queries:
            query.stop()


def to_the_end(start: Callable[[], StreamingQuery]) -> None:
    """Run a query to its feeds' ends: again and again on Spark 4.0 and 4.1, as the README says."""
    if HAS_ADMISSION_CONTROL:
        assert start().awaitTermination(PATIENCE)
    else:
        zeh_spark.drain(start, timeout=PATIENCE)


def in_batches(frame: DataFrame, write: Callable[..., Any], checkpoint: object) -> StreamingQuery:
    """Start a query that gives a function all that is there, batch by batch."""
    writer = frame.writeStream.foreachBatch(write).trigger(availableNow=True)
    return writer.option("checkpointLocation", str(checkpoint)).start()


@dataclass
class Table:
    """What a streaming job has written: rows as (feed partition, data)."""

    folder: Path

    def rows(self) -> list[tuple[int, str]]:
        if not self.folder.exists():
            return []
        table = pyarrow.dataset.dataset(self.folder, format="parquet").to_table(
            columns=["partition", "data"]
        )
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def numbers(self) -> Counter[int]:
        """How often each event {"i": number} is there."""
        return Counter(json.loads(data)["i"] for _, data in self.rows())


def run_program(
    name: str, job: Mapping[str, Any], *, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of `tests/programs` as a driver of its own to its end."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(_PROGRAMS / name), json.dumps(job)],
        env={**os.environ, **ENVIRONMENT, **(environment or {})},
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done


def start_program(
    name: str, job: object, log: Path, python: str = sys.executable
) -> subprocess.Popen[bytes]:
    """Start one of `tests/programs`, by any Python. What it says is added to a file."""
    pythons = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    with log.open("a") as out:  # not a pipe, which Spark's workers hold open after a kill
        return subprocess.Popen(
            [python, "-W", "ignore", str(_PROGRAMS / name), json.dumps(job)],
            env={**os.environ, **ENVIRONMENT, **pythons},
            start_new_session=True,
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def kill_program(process: subprocess.Popen[bytes]) -> None:
    """With SIGKILL, the JVM too."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
