"""The throughput of `route` and `process`: replicas x sessions x rate x failures.

A replica is a task that runs at the same time as others. The rate is that of a trigger: events of a
batch. An event that fails becomes a dead letter: for `route` it has no number, and the handler of
`process` raises. All events of a session fail, or none. Run as a program it measures all cells with
so many tasks in a session of its own: `python -m benchmarks.session_matrix TASKS FOLDER`.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import zeh_spark
from benchmarks import publishing
from benchmarks.feeds import serving
from benchmarks.rows import Row
from benchmarks.stateful import BATCHES, run
from zeh_spark import sessions
from zeh_spark.publish import Producer
from zeh_spark.spark.sessions.routing import Writer

TASKS = (1, 2)
FEEDS = [*itertools.product((100, 10_000), (1_000, 20_000))]
"""Sessions, and events of a batch."""
CELLS = [*itertools.product((0, 10), ("route", "process"))]
"""Per cent of the events that fail, and what takes the batches of a feed."""


def fill(url: str, count: int, events: int) -> None:
    """Publish batches of events, each session's in order, so that nothing waits."""
    producer = Producer(url, "bench")
    for number in range(BATCHES):
        with producer.batch() as batch:
            for place in range(number * events, (number + 1) * events):
                order, step = place % count, place // count
                headers = {"order": f"{order}", "step": f"{step}"}
                batch.add({"order": order, "paid": step}, key=order, headers=headers)


def measure(feed: DataFrame, failing: int, target: str, total: int, folder: Path) -> float:
    """Return the events a second inside triggers.

    Raises AssertionError if events or dead letters are not as many as they should be.
    """
    fails = f"headers['order'] % 100 < {failing}"
    step = "headers['step']"
    number = f"IF({fails}, 'none', {step})" if target == "route" else step
    frame = sessions.in_order(feed, "headers['order']", number, processing=target == "process")
    dead: list[int] = []

    def write(checkpoint: str) -> Writer:
        if target == "route":
            return sessions.route(ordered=pass_on, dead=lambda rows, _: dead.append(rows.count()))
        return sessions.process(
            handler(failing),
            table=str(folder / "table"),
            name="bench",
            checkpointLocation=checkpoint,
            retries=0,
            max_failures=total,
        )

    batches, _ = run(frame, write)
    if target == "process":
        table = feed.sparkSession.read.format("delta").load(str(folder / "table"))
        assert table.count() == total
        dead = [table.where("status = 'failed'").count()]
    read = sum(each["rows"] for each in batches)
    assert (read, sum(dead)) == (total, total * failing // 100)
    return sum(each["rows"] for each in batches[1:]) / sum(each["seconds"] for each in batches[1:])


def handler(failing: int) -> Callable[[sessions.Event], str]:
    def handle(event: sessions.Event) -> str:
        if int(event.session) % 100 < failing:
            raise ValueError("it fails")
        return "done"

    return handle


def pass_on(batch: DataFrame, _: int) -> None:
    batch.write.format("noop").mode("overwrite").save()


def measured(work: Path, _: int) -> Iterator[Row]:
    """Yield a row for each cell: events a second, by the number of tasks."""
    found = []
    for tasks in TASKS:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.session_matrix", f"{tasks}", work],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=publishing.environment(checked=True),
        )
        lines = done.stdout.splitlines()[-len(FEEDS) * len(CELLS) :]
        found.append([float(line) for line in lines])
    rates = zip(*found, strict=True)
    for (count, events), (failing, target) in itertools.product(FEEDS, CELLS):
        what = f"{target}: {count:,} sessions, {events:,} events a batch, {failing} % fail"
        shown = ", ".join(f"{each / 1000:.1f}k" for each in next(rates))
        yield f"{what}; {', '.join(map(str, TASKS))} tasks", f"{shown} events/s", ""


def main() -> None:
    tasks, folder = int(sys.argv[1]), Path(sys.argv[2])
    builder = SparkSession.builder.master(f"local[{tasks}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.log.level", "OFF")
    spark = zeh_spark.configure(builder, parallelism=tasks, delta=True).getOrCreate()
    warm = CELLS[:2]
    for count, events in FEEDS:
        name = f"{count}-{events}-{tasks}"
        with serving(publishing.new_file(folder, name)) as (url, _):
            fill(url, count, events)
            options = {"headers": "_all", "maxEventsPerTrigger": events}
            feed = spark.readStream.format("zeroeventhub").options(**options).load(url)
            for place, (failing, target) in enumerate([*warm, *CELLS]):
                with tempfile.TemporaryDirectory(dir=folder) as work:
                    rate = measure(feed, failing, target, events * BATCHES, Path(work))
                if place >= len(warm):
                    print(rate, flush=True)
        warm = []


if __name__ == "__main__":
    main()
