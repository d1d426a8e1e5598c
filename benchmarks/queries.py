"""The queries that are measured, in one Spark session."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

Sink = Callable[[DataFrame, int], None]
SCHEMA = "partition INT, headers MAP<STRING, STRING>, data STRING"
_RUNNER = "python_streaming_source_runner"
"""The program of the process that plans, and perhaps reads, for a query."""


@dataclass(frozen=True)
class Run:
    """Events per second over the whole query, and counted inside its triggers; the events of its
    largest batch.
    """

    events: int
    seconds: float
    trigger_seconds: float
    largest: int = field(default=0, kw_only=True)

    @property
    def rate(self) -> float:
        return self.events / self.seconds

    @property
    def trigger_rate(self) -> float:
        return self.events / self.trigger_seconds


def session(jars: str = "", master: str = "local[2]") -> SparkSession:
    return (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.jars", jars)
        .getOrCreate()
    )


def feed(spark: SparkSession, url: str, **options: object) -> DataFrame:
    return spark.readStream.format("zeroeventhub").options(url=url, **options).load()


def stream(frame: DataFrame, **trigger: object) -> Run:
    """Into `noop`, with AvailableNow unless told otherwise."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )
        query.awaitTermination()
    seconds = time.monotonic() - began
    batches = [each for each in query.recentProgress if each.numInputRows]
    return Run(
        sum(each.numInputRows for each in batches),
        seconds,
        sum(each.durationMs["triggerExecution"] for each in batches) / 1000,
        largest=max(each.numInputRows for each in batches),
    )


def batch(frame: DataFrame, events: int) -> Run:
    """Into `noop`, a frame of so many events."""
    began = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    seconds = time.monotonic() - began
    return Run(events, seconds, seconds)


def reference_client(python: Path, url: str, events: int) -> Run:
    """The PyPI client, no Spark: one process reads one partition after the other."""
    program = Path(__file__).with_name("reference_client.py")
    done = subprocess.run(
        [str(python), str(program), url, str(events)], check=True, capture_output=True, text=True
    )
    read = json.loads(done.stdout)
    return Run(read["events"], read["seconds"], read["seconds"])


class ConstantSource(DataSource):
    """Record batches that cost nothing to make: what Spark itself takes."""

    @classmethod
    def name(cls) -> str:
        return "constant"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: object) -> ConstantReader:
        return ConstantReader(*(int(self.options[each]) for each in ("rows", "tasks", "batches")))


class ConstantReader(DataSourceStreamReader):
    """`batches` micro-batches of `tasks` tasks of `rows` rows each."""

    def __init__(self, rows: int, tasks: int, batches: int) -> None:
        self.rows, self.tasks, self.batches, self.at = rows, tasks, batches, 0

    def initialOffset(self) -> dict:
        return {"at": 0}

    def latestOffset(self) -> dict:
        self.at = min(self.at + 1, self.batches)
        return {"at": self.at}

    def partitions(self, start: dict, end: dict) -> list[InputPartition]:
        return [] if start == end else [InputPartition(each) for each in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from benchmarks.feeds import event

        size = min(2600, self.rows)  # as many lines as make 1 MiB
        headers, data = event(1)
        one = pa.array([list(headers.items())], pa.map_(pa.string(), pa.string()))
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array([0] * size, pa.int32()),
                pa.concat_arrays([one] * size),
                pa.array([data.decode()] * size),
            ],
            names=["partition", "headers", "data"],
        )
        for _ in range(self.rows // size):
            yield batch


def constant(spark: SparkSession, sink: Sink | None, **shape: int) -> Iterator[Run]:
    """The micro-batches of such a source but the first, which warms up; into `noop` by default."""
    spark.dataSource.register(ConstantSource)
    frame = spark.readStream.format("constant").options(**shape).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.option("checkpointLocation", checkpoint)
        query = (writer.foreachBatch(sink) if sink else writer.format("noop")).start()
        wait(lambda: sum(x.numInputRows > 0 for x in query.recentProgress) >= shape["batches"])
        query.stop()
    for each in [each for each in query.recentProgress if each.numInputRows][1:]:
        seconds = each.durationMs["triggerExecution"] / 1000
        yield Run(each.numInputRows, seconds, seconds)


def wait(condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def source_runner() -> psutil.Process | None:
    """The process that plans, and perhaps reads, for a running query of this program."""
    for process in psutil.Process().children(recursive=True):
        try:
            if _RUNNER in " ".join(process.cmdline()):
                return process
        except psutil.Error:
            continue  # it has ended meanwhile
    return None


def peak_memory(pid: int) -> int:
    """VmHWM in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(each for each in status.splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def peaks_of(run: Callable[[], object], jvms: Mapping[str, str] = {}) -> dict[str, int]:
    """Return the highest VmHWM while `run` runs, of the driver's reader and of a Python worker; and
    of `jvms`, which names what is in their commands.
    """
    programs = {_RUNNER: "driver's reader", "pyspark.daemon": "Python worker", **jvms}
    peaks = dict.fromkeys(programs.values(), 0)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error, OSError, StopIteration):  # it has ended meanwhile
                    command = " ".join(process.cmdline())
                    for program, name in programs.items():
                        if program in command:
                            peaks[name] = max(peaks[name], peak_memory(process.pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        run()
    finally:
        done.set()
        thread.join()
    return peaks
