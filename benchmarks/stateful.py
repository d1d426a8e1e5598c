"""Sessions and deduplication against Spark's own stateful operators, on the same frame.

Run as a program it measures in a session of its own, whose state is in RocksDB:
`python -m benchmarks.stateful sessions|process|dedup|large|open <rows> <folder>`.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import zeh_spark
from benchmarks import cpu, publishing
from benchmarks.feeds import serving
from benchmarks.rows import Row, rate, ratio
from zeh_spark import dedup, sessions
from zeh_spark.spark.sessions.routing import Writer

BATCHES = 5
"""The first one warms up and is not measured."""

FEW = 1000
"""Events of a small batch beside many open sessions."""

_SCHEMA = "partition INT, headers MAP<STRING, STRING>, data STRING"
_STEPS = 10
_DATA = """to_json(struct(id, 'UA' AS carrier, concat('N', id % 99999) AS tail, 'EWR' AS origin,
    'IAH' AS dest, id % 60 - 5.5D AS delay, id % 500 AS fare, md5(cast(id AS STRING)) AS note))"""


def measured(what: str, rows: int, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.stateful", what, str(rows)]
    done = subprocess.run(
        [*command, str(folder)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=publishing.environment(checked=True),
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


# The frame


def fill(spark: SparkSession, rows: int, folder: Path) -> str:
    """A feed's rows in files, one for each batch: sessions of ten steps, 10,000 events between
    steps, every tenth event before the one that it follows.
    """
    early = "IF(hash(id) % 10 = 0 AND step > 0, 15000, 0)"
    events = (
        spark.range(rows)
        .selectExpr("id", f"id DIV {_STEPS} AS session", f"id % {_STEPS} AS step")
        .selectExpr("*", f"session * {_STEPS} + step * 10000 - {early} AS place")
        # A producer's numbers are given in the order of its commits.
        .selectExpr("*", "row_number() OVER (PARTITION BY id % 4 ORDER BY place) - 1 AS number")
    )
    last = rows + 10_000 * _STEPS
    for batch in range(BATCHES):
        begin, end = (last * each // BATCHES for each in (batch, batch + 1))
        begin = begin if batch else -20_000
        part = events.where(f"place >= {begin} AND place < {end}").orderBy("place").coalesce(2)
        headers = f"""map('order', cast(session AS STRING), 'step', cast(step AS STRING),
            'last', '{_STEPS - 1}', 'zeh-producer', concat('p', id % 4), 'zeh-partition',
            '0', 'zeh-sequence', cast(number AS STRING),
            'zeh-time', cast(1700000000000 + place AS STRING))"""
        part.selectExpr("0 AS partition", f"{headers} AS headers", f"{_DATA} AS data").write.mode(
            "append"
        ).parquet(str(folder / "frame"))
    return str(folder / "frame")


def read(spark: SparkSession, path: str, files: int = 2) -> DataFrame:
    reader = spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", files)
    return reader.parquet(path)


def state_bytes(checkpoint: Path) -> int:
    return sum(each.stat().st_size for each in (checkpoint / "state").rglob("*") if each.is_file())


def run(
    frame: DataFrame, write: Callable[[str], Writer] | None = None
) -> tuple[list[dict[str, float]], int]:
    """Each batch's rows and seconds, and the bytes of state at the end. `write` gives what takes
    the batches of a query with this checkpoint; without it nobody does.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        writer = frame.writeStream
        writer = writer.foreachBatch(write(checkpoint)) if write else writer.format("noop")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        batches = [each for each in query.recentProgress if each.numInputRows]
        operators = batches[-1].stateOperators
        memory = operators[0].memoryUsedBytes if operators else 0
        size = state_bytes(Path(checkpoint))
    rows = [
        {"rows": each.numInputRows, "seconds": each.durationMs["triggerExecution"] / 1000}
        for each in batches
    ]
    return rows, size or memory


def rate_of(frame: DataFrame, write: Callable[[str], Writer] | None = None) -> tuple[float, int]:
    batches, size = run(frame, write)
    some = batches[1:]
    return sum(each["rows"] for each in some) / sum(each["seconds"] for each in some), size


def best(frames: dict[str, Callable[[], DataFrame]], times: int) -> dict[str, float]:
    """Turn by turn."""
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in frames}
    for _ in range(times):
        for name, frame in frames.items():
            found[name].append(rate_of(frame()))
    rates = {name: max(each for each, _ in some) for name, some in found.items()}
    return rates | {f"{name} state": float(some[-1][1]) for name, some in found.items()}


# What is measured


def in_order(frame: DataFrame, **options: object) -> DataFrame:
    return sessions.in_order(
        frame, "headers['order']", "headers['step']", last="headers['last']", **options
    )


def compare_sessions(spark: SparkSession, rows: int, folder: Path) -> dict[str, float]:
    files = fill(spark, rows, folder)
    keyed = F.struct(F.col("headers")["order"], F.col("headers")["step"])
    return best(
        {
            "sessions": lambda: in_order(read(spark, files)),
            "dropDuplicates": lambda: (
                read(spark, files).withColumn("key", keyed).dropDuplicates(["key"])
            ),
        },
        3,
    )


def process(spark: SparkSession, rows: int, folder: Path) -> dict[str, float]:
    """Rows per second of a feed in order, and with a handler that does nothing, into a table."""
    files = Path(fill(spark, rows, folder)).glob("*.parquet")
    event = ("data", "headers['order'] AS key", "map_filter(headers, (k, v) -> k NOT LIKE 'zeh-%')")

    def write(checkpoint: str) -> Writer:
        table = f"{folder}/processed-{Path(checkpoint).name}"
        return sessions.process(
            lambda event: None, table=table, name="bench", checkpointLocation=checkpoint
        )

    with serving(publishing.new_file(folder, "process")) as (url, _):
        for number, file in enumerate(sorted(files, key=lambda each: each.stat().st_mtime)):
            events = spark.read.parquet(str(file)).selectExpr(*event).toDF("data", "key", "headers")
            options = {"url": url, "producerId": "bench", "batchId": number}
            events.write.format("zeroeventhub").options(**options).mode("append").save()
        options = {"headers": "_all", "maxEventsPerTrigger": rows // BATCHES}
        feed = spark.readStream.format("zeroeventhub").options(**options).load(url)
        runs = [
            (rate_of(in_order(feed))[0], rate_of(in_order(feed, processing=True), write)[0])
            for _ in range(2)
        ]
    ordered, processed = map(max, zip(*runs, strict=True))
    return {"ordered": ordered, "processed": processed}


def compare_dedup(spark: SparkSession, rows: int, folder: Path) -> dict[str, float]:
    files = fill(spark, rows, folder)

    def within_watermark() -> DataFrame:
        headers = F.col("headers")
        key = F.struct(headers["zeh-producer"], headers["zeh-sequence"])
        time = F.timestamp_millis(headers["zeh-time"].cast("bigint"))
        frame = read(spark, files).withColumns({"key": key, "time": time})
        return frame.withWatermark("time", "1 day").dropDuplicatesWithinWatermark(["key"])

    return best(
        {
            "drop_seen": lambda: dedup.drop_seen(read(spark, files)),
            "dropDuplicatesWithinWatermark": within_watermark,
        },
        3,
    )


def large(spark: SparkSession, rows: int, folder: Path) -> dict[str, float]:
    """Seconds of a batch of others, with and without a session that holds a million events."""
    files = fill(spark, rows, folder)
    others, _ = run(in_order(read(spark, files)))
    headers = """map('order', 'large', 'step', cast(id + 1 AS STRING), 'zeh-time',
        '1700000000000')"""
    held = spark.range(1_000_000).selectExpr(
        "0 AS partition", f"{headers} AS headers", f"{_DATA} AS data"
    )
    first = str(folder / "large" / "0")
    held.coalesce(2).write.parquet(first)
    for number, each in enumerate(sorted(Path(files).glob("*.parquet"))):
        target = folder / "large" / str(number + 1)
        target.mkdir()
        shutil.copy(each, target)
    frame = read(spark, str(folder / "large" / "*"))
    caps = {"max_events": 2_000_000, "max_bytes": 1 << 40, "gap_timeout": None}
    beside, _ = run(in_order(frame, **caps))
    alone = statistics.median(each["seconds"] for each in others[1:])
    return {
        "alone": alone,
        "holding": beside[0]["seconds"],
        "beside": statistics.median(each["seconds"] for each in beside[2:]),
    }


def beside_open(spark: SparkSession, rows: int, folder: Path) -> dict[str, float]:
    """Bytes of state that are read and written, and CPU seconds, of batches beside `rows` open
    sessions: of FEW events of different sessions each, and of an event of each session. Medians.
    """
    small, large, groups = 12, 3, rows // FEW
    chosen = ["true", *(f"id % {groups} = {each}" for each in range(small)), *["true"] * large]
    for number, condition in enumerate(chosen):
        step = str(min(number, 1))
        if number > small:
            step = f"{number - small} + int(id % {groups} < {small})"
        headers = f"""map('order', concat('order-', id), 'step', cast({step} AS STRING),
            'zeh-time', '1700000000000')"""
        events = spark.range(rows).where(condition).selectExpr("0", headers, "'{}'").coalesce(1)
        made = events.toDF("partition", "headers", "data").write.mode("append")
        made.parquet(str(folder / "open"))
    seconds = []

    def write(batch: DataFrame, _: int) -> None:
        batch.write.format("noop").mode("overwrite").save()
        seconds.append(sum(cpu.by_part(cpu.look(), {"query": [os.getpid()]}).values()))

    writer = in_order(read(spark, str(folder / "open"), files=1)).writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(folder / "state")).trigger(availableNow=True)
    query = query.start()
    query.awaitTermination()
    told = [each.stateOperators[0].customMetrics for each in query.recentProgress]
    found = {}
    for name, batches in {"few": range(small // 2, small + 1), "all": range(-large, 0)}.items():
        numbers = [each % len(chosen) for each in batches]
        for what in ("Read", "Written"):
            moved = [told[each][f"rocksdbTotalBytes{what}"] for each in numbers]
            found[f"{name} {what.lower()}"] = statistics.median(moved)
        spent = [seconds[each] - seconds[each - 1] for each in numbers]
        found[f"{name} seconds"] = statistics.median(spent)
    return found


def operators(work: Path, events: int) -> Iterator[Row]:
    """Sessions and deduplication beside Spark's own operators, a million rows at least."""
    ordered = measured("sessions", max(events, 1_000_000), work)
    yield rate("sessions in order", ordered["sessions"])
    yield rate("dropDuplicates", ordered["dropDuplicates"])
    yield ratio(
        "sessions / dropDuplicates", ordered["sessions"] / ordered["dropDuplicates"], ">= 0.3"
    )
    found = measured("process", max(events // 4, 250_000), work)
    yield rate("a feed's sessions in order", found["ordered"])
    yield rate("and processed, with a handler that does nothing", found["processed"])
    found = measured("dedup", max(4 * events, 4_000_000), work)
    peer = "dropDuplicatesWithinWatermark"
    yield rate("drop_seen", found["drop_seen"])
    yield rate(peer, found[peer])
    yield ratio(f"drop_seen / {peer}", found["drop_seen"] / found[peer], ">= 0.5")
    smaller = found[f"{peer} state"] / found["drop_seen state"]
    yield "state of that / of drop_seen", f"{smaller:.0f}", ">= 100"
    seconds = measured("large", max(events, 1_000_000), work)
    beside = seconds["beside"] / seconds["alone"]
    yield ratio("batches beside a session that holds a million / without it", beside, "<= 1.5")


def main() -> None:
    what, rows, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config(
        "spark.log.level", "OFF"
    )
    delta = what == "process"
    spark = zeh_spark.configure(builder, parallelism=2, delta=delta).getOrCreate()
    parts = {"sessions": compare_sessions, "process": process, "dedup": compare_dedup}
    part = {**parts, "large": large, "open": beside_open}[what]
    with tempfile.TemporaryDirectory(dir=folder) as work:
        print(json.dumps(part(spark, rows, Path(work))))


if __name__ == "__main__":
    main()
