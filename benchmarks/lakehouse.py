"""Delta tables and feeds: from a table onto a feed, against the same rows from Parquet files; and
from a feed into a table, against Delta's own sink.

Run as a program it measures in a session of its own, for a JVM takes no jars later:
`python -m benchmarks.lakehouse published|kept <url> <rows> <folder>`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import zeh_spark
from benchmarks import publishing
from benchmarks.feeds import build, serving
from benchmarks.queries import Run
from benchmarks.rows import Row, rate, ratio
from zeh_spark.lakehouse import from_delta, to_delta

BATCHES = 4
"""Measured, behind one that warms up."""

_COLUMNS = """id, 'UA' AS carrier, concat('N', id % 99999) AS tailnum, 'EWR' AS origin,
    'IAH' AS dest, 1400 AS distance, 227.0D AS air_time, 5 AS hour, 15 AS minute,
    timestamp_micros(1357034400000000 + 1000003 * id) AS scheduled, id % 60 - 5.5D AS dep_delay,
    id % 90 - 9.5D AS arr_delay, CAST(id % 500 AS DECIMAL(10, 2)) AS fare,
    date_add(DATE'2013-01-01', INT(id % 365)) AS day, id % 7 = 0 AS cancelled"""
"""About 300 bytes of JSON, different in each row."""


def published(folder: Path, rows: int) -> dict[str, float]:
    """Rows per second onto a feed, by where they are from: the best of three, turn by turn."""
    return _measured("published", publishing.new_file(folder, "lakehouse"), rows, folder)


def kept(folder: Path, rows: int) -> dict[str, float]:
    """Events per second into a Delta table, by sink: the best of five, turn by turn."""
    return _measured("kept", build(folder, rows), rows, folder)


def _measured(what: str, store: str, rows: int, folder: Path) -> dict[str, float]:
    with serving(store) as (url, _):
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.lakehouse", what, url]
        done = subprocess.run(
            [*command, str(rows), str(folder)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=publishing.environment(checked=True),
        )
    rates: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rates


def fill(spark: SparkSession, rows: int, table: str, files: str) -> None:
    """The same rows in both, two files for each batch."""
    size = rows // BATCHES
    for begin in range(0, size * (BATCHES + 1), size):
        batch = spark.sql(f"SELECT {_COLUMNS} FROM range({begin}, {begin + size}, 1, 2)")
        batch.write.format("delta").mode("append").save(table)
        batch.write.mode("append").parquet(files)


def stream(frame: DataFrame, url: str, producer: str) -> Run:
    """All of it; measured are the batches but the first."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        query = (
            frame.writeStream.format("zeroeventhub")
            .options(url=url, producerId=producer, checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    batches = [each for each in query.recentProgress if each.numInputRows][1:]
    assert len(batches) == BATCHES, len(batches)
    seconds = sum(each.durationMs["triggerExecution"] for each in batches) / 1000
    return Run(sum(each.numInputRows for each in batches), seconds, seconds)


def keep(spark: SparkSession, url: str, rows: int, table: str, *, ours: bool) -> Run:
    """All of a feed into a new table; measured are the batches but the first."""
    options = {"maxEventsPerTrigger": rows // (BATCHES + 1)}
    frame = spark.readStream.format("zeroeventhub").options(**options).load(url)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        finite = {"availableNow": True}
        if ours:
            names = {"name": "bench", "checkpointLocation": checkpoint}
            query = to_delta(frame, table, trigger=finite, **names)
        else:
            stream = frame.writeStream.format("delta").option("checkpointLocation", checkpoint)
            query = stream.trigger(**finite).start(table)
        query.awaitTermination()
    batches = [each for each in query.recentProgress if each.numInputRows][1:]
    seconds = sum(each.durationMs["triggerExecution"] for each in batches) / 1000
    return Run(sum(each.numInputRows for each in batches), seconds, seconds)


def measure_kept(spark: SparkSession, url: str, rows: int, folder: str) -> dict[str, float]:
    rates = {"to_delta": 0.0, "Delta's own sink": 0.0}
    for turn in range(6):
        for name in rates:
            table = f"{folder}/kept"
            run = keep(spark, url, rows, table, ours=name == "to_delta")
            shutil.rmtree(table)
            if turn:  # the first one warms up
                rates[name] = max(rates[name], run.rate)
    return rates


def measure_published(spark: SparkSession, url: str, rows: int, folder: str) -> dict[str, float]:
    table, files = f"{folder}/table", f"{folder}/files"
    fill(spark, rows, table, files)
    schema = spark.read.parquet(files).schema
    by_two = {"maxFilesPerTrigger": 2}
    parquet = spark.readStream.schema(schema).options(**by_two).parquet(files)
    frames: dict[str, Callable[[], DataFrame]] = {
        "Parquet files": lambda: parquet.selectExpr("id AS key", "struct(*) AS data"),
        "Delta table": lambda: from_delta(spark, table, key="id", **by_two),
        "Parquet files, to_json": lambda: parquet.selectExpr(
            "id AS key", "to_json(struct(*)) AS data"
        ),
    }
    rates = dict.fromkeys(frames, 0.0)
    for turn in range(3):
        for name, frame in frames.items():
            producer = f"{turn}-{list(frames).index(name)}"
            rates[name] = max(rates[name], stream(frame(), url, producer).rate)
    return rates


def delta_tables(work: Path, events: int) -> Iterator[Row]:
    """A feed into a Delta table, and Delta tables onto a feed, of half as many rows as `events`."""
    rates = kept(work, events // 2)
    for name, measured in rates.items():
        yield rate(f"a feed into Delta, {name}", measured)
    own, ours = rates["Delta's own sink"], rates["to_delta"]
    yield ratio("time of to_delta / of Delta's own sink", own / ours, "<= 1.15")
    rates = published(work, events // 2)
    for name, measured in rates.items():
        yield rate(f"onto a feed: {name}", measured)
    yield ratio(
        "Delta table / Parquet files", rates["Delta table"] / rates["Parquet files"], ">= 0.8"
    )


def main() -> None:
    what, url, rows, folder = sys.argv[1:]
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    spark = zeh_spark.configure(builder, parallelism=2).getOrCreate()
    measure = {"published": measure_published, "kept": measure_kept}[what]
    print(json.dumps(measure(spark, url, int(rows), folder)))


if __name__ == "__main__":
    main()
