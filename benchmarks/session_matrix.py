"""The throughput of `route` and `process`: replicas x sessions x rate x failures.

A replica is a task that runs at the same time as others. The rate is that of a trigger: events of a
batch. An event that fails becomes a dead letter: `route` has one without a number, and the handler
of `process` raises. Run as a program it measures all cells with so many tasks in a session of its
own: `python -m benchmarks.session_matrix TASKS FOLDER`.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

import zeh_spark
from benchmarks import publishing
from benchmarks.rows import Row
from benchmarks.stateful import BATCHES, read, run
from zeh_spark import sessions
from zeh_spark.spark.sessions.routing import Writer


class Cell(NamedTuple):
    """Open sessions, events of a batch, per cent of them that fail, and what takes the batches."""

    sessions: int
    events: int
    failing: int
    target: str


TASKS = (1, 2)
CELLS = [
    Cell(*each)
    for each in itertools.product((100, 10_000), (1_000, 20_000), (0, 10), ("route", "process"))
]

FILES = 2
"""Files of a batch: as many tasks read it."""


def ends(cell: Cell) -> list[int]:
    """Return the number of events up to the end of each batch; the first begins all sessions."""
    return [max(cell.sessions, cell.events) + each * cell.events for each in range(BATCHES)]


def fill(spark: SparkSession, cell: Cell, folder: Path) -> str:
    """Write batches of events, each session's in order, so that nothing waits.

    All events of a session fail, or none.
    """
    fails = f"id % 100 < {cell.failing}"
    step = f"cast(id DIV {cell.sessions} AS STRING)"
    if cell.target == "route":
        step = f"IF({fails}, 'none', {step})"
    headers = f"""map('order', concat('order-', id % {cell.sessions}), 'step', {step},
        'fails', cast({fails} AS STRING), 'zeh-time', cast(1700000000000 + id AS STRING))"""
    for begin, end in itertools.pairwise([0, *ends(cell)]):
        rows = spark.range(begin, end, numPartitions=FILES)
        data = "to_json(struct(id, md5(cast(id AS STRING)) AS note)) AS data"
        rows.selectExpr("0 AS partition", f"{headers} AS headers", data).write.mode(
            "append"
        ).parquet(str(folder / "frame"))
    return str(folder / "frame")


def handle(event: sessions.Event) -> str:
    if event.headers["fails"] == "true":
        raise ValueError("it fails")
    return "done"


def measure(spark: SparkSession, cell: Cell, folder: Path) -> float:
    """Return the median seconds of a batch. Raises AssertionError for lost or doubled events."""
    frame = sessions.in_order(
        read(spark, fill(spark, cell, folder), files=FILES),
        "headers['order']",
        "headers['step']",
        processing=cell.target == "process",
    )
    dead: list[int] = []

    def write(checkpoint: str) -> Writer:
        if cell.target == "route":
            return sessions.route(ordered=pass_on, dead=lambda rows, _: dead.append(rows.count()))
        return sessions.process(
            handle,
            table=str(folder / "table"),
            name="bench",
            checkpointLocation=checkpoint,
            retries=0,
            max_failures=cell.sessions + cell.events,
        )

    batches, _ = run(frame, write)
    total = ends(cell)[-1]
    if cell.target == "process":
        table = spark.read.format("delta").load(str(folder / "table"))
        assert table.count() == total
        dead = [table.where("status = 'failed'").count()]
    assert (len(batches), sum(dead)) == (BATCHES, total * cell.failing // 100)
    return statistics.median(each["seconds"] for each in batches[1:])


def pass_on(batch: DataFrame, _: int) -> None:
    batch.write.format("noop").mode("overwrite").save()


def measured(work: Path, _: int) -> Iterator[Row]:
    """Yield a row for each cell, with the rate and the seconds of a batch by number of tasks."""
    found = []
    for tasks in TASKS:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.session_matrix", f"{tasks}", work],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=publishing.environment(checked=True),
        )
        found.append([float(line) for line in done.stdout.splitlines()[-len(CELLS) :]])
    for cell, *seconds in zip(CELLS, *found, strict=True):
        what = (
            f"{cell.target}: {cell.sessions:,} sessions, {cell.events:,} events a batch, "
            f"{cell.failing} % fail; {' and '.join(map(str, TASKS))} tasks"
        )
        rates = " and ".join(f"{cell.events / each / 1000:.1f}k" for each in seconds)
        times = " and ".join(f"{each:.2f}" for each in seconds)
        yield what, f"{rates} events/s, {times} s a batch", ""


def main() -> None:
    tasks, folder = int(sys.argv[1]), Path(sys.argv[2])
    builder = SparkSession.builder.master(f"local[{tasks}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.log.level", "OFF")
    spark = zeh_spark.configure(builder, parallelism=tasks, delta=True).getOrCreate()
    for number, cell in enumerate([CELLS[0], CELLS[1], *CELLS]):  # the first two warm up
        with tempfile.TemporaryDirectory(dir=folder) as work:
            seconds = measure(spark, cell, Path(work))
        if number > 1:
            print(seconds, flush=True)


if __name__ == "__main__":
    main()
