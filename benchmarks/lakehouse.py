"""Delta tables and feeds: rows per second from a table onto a feed, against the same rows from
Parquet files.

Run as a program it measures in a session of its own, for a JVM takes no jars later:
`python -m benchmarks.lakehouse <url> <rows> <folder>`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import zeh_spark
from benchmarks import publishing
from benchmarks.feeds import serving
from benchmarks.queries import Run
from zeh_spark.lakehouse import from_delta

BATCHES = 4
"""Measured, behind one that warms up."""

_COLUMNS = """id, 'UA' AS carrier, concat('N', id % 99999) AS tailnum, 'EWR' AS origin,
    'IAH' AS dest, 1400 AS distance, 227.0D AS air_time, 5 AS hour, 15 AS minute,
    timestamp_micros(1357034400000000 + 1000003 * id) AS scheduled, id % 60 - 5.5D AS dep_delay,
    id % 90 - 9.5D AS arr_delay, CAST(id % 500 AS DECIMAL(10, 2)) AS fare,
    date_add(DATE'2013-01-01', INT(id % 365)) AS day, id % 7 = 0 AS cancelled"""
"""About 300 bytes of JSON, different in each row."""


def published(folder: Path, rows: int) -> dict[str, float]:
    """Rows per second, by what was published: the best of three, turn by turn."""
    with serving(publishing.new_file(folder, "lakehouse")) as (url, _):
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.lakehouse", url]
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
        writer = batch.write.format("delta").option("delta.enableChangeDataFeed", "true")
        writer.mode("append").save(table)
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


def main() -> None:
    url, rows, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    spark = zeh_spark.configure(builder, parallelism=2).getOrCreate()
    table, files = f"{folder}/table", f"{folder}/files"
    fill(spark, rows, table, files)
    schema = spark.read.parquet(files).schema
    by_two = {"maxFilesPerTrigger": 2}
    parquet = spark.readStream.schema(schema).options(**by_two).parquet(files)
    changes = {"key": "id", "change_feed": True, "startingVersion": 0}
    frames: dict[str, Callable[[], DataFrame]] = {
        "Parquet files": lambda: parquet.selectExpr("id AS key", "struct(*) AS data"),
        "Delta table": lambda: from_delta(spark, table, key="id", **by_two),
        "its change feed": lambda: from_delta(spark, table, **changes, **by_two),
        "Parquet files, to_json": lambda: parquet.selectExpr(
            "id AS key", "to_json(struct(*)) AS data"
        ),
    }
    rates = dict.fromkeys(frames, 0.0)
    for turn in range(3):
        for name, frame in frames.items():
            producer = f"{turn}-{list(frames).index(name)}"
            rates[name] = max(rates[name], stream(frame(), url, producer).rate)
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
