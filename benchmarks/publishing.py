"""The sink: rows per second onto a feed, against Spark's own sinks on the same frame.

Run as a program it is one measured query: `python -m benchmarks.publishing <sink> <json>`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks import costs, kafka, queries
from benchmarks.feeds import PARTITIONS, build, fill, filling, serving
from benchmarks.queries import Run
from benchmarks.rows import MIB, Row, rate, ratio
from zeh_spark.publish import Producer
from zeh_spark.publisher import Store, open_store
from zeh_spark.service.store.batches import Call, Declared, TaskAttempt, Upload
from zeh_spark.wire.upload_format import Chunker, Content, rest_of

UNCHECKED = Path(__file__).with_name("unchecked")
BATCHES = 4
"""Measured, behind one that warms up."""

_EVENT = """to_json(named_struct(
    'flight', named_struct('carrier', 'UA', 'number', value, 'tailnum', concat('N', value % 99999)),
    'scheduled', named_struct('year', 2013, 'month', 1 + value % 12, 'day', 1 + value % 28),
    'route', named_struct('origin', 'EWR', 'dest', 'IAH', 'distance', 1400, 'air_time', 227.0D),
    'departure', named_struct('time', 517 + value % 900, 'planned', 515, 'delay', value % 60 - 5.5),
    'arrival', named_struct('time', 830.0D, 'planned', 819, 'delay', value % 90 - 9.5),
    'at', named_struct('hour', 5, 'minute', 15)))"""
"""About 300 bytes of JSON, different in each row."""


def frame(spark: SparkSession, rows: int) -> DataFrame:
    source = spark.readStream.format("rate-micro-batch")
    given = {"rowsPerBatch": rows // BATCHES, "numPartitions": 2}
    return source.options(**given).load().selectExpr(f"{_EVENT} AS data")


def stream(spark: SparkSession, rows: int, sink: str, options: dict[str, str]) -> Run:
    """The batches but the first."""
    rows_written = frame(spark, rows)
    if sink == "kafka":
        rows_written = rows_written.selectExpr("data AS value")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        query = (
            rows_written.writeStream.format(sink)
            .options(**{"path": f"{checkpoint}/files"} if sink == "json" else options)
            .option("checkpointLocation", f"{checkpoint}/checkpoint")
            .start()
        )
        queries.wait(lambda: len(query.recentProgress) > BATCHES or query.exception())
        query.stop()
        if query.exception():
            raise query.exception()
    batches = query.recentProgress[1 : BATCHES + 1]
    seconds = sum(each.durationMs["triggerExecution"] for each in batches) / 1000
    return Run(rows, seconds, seconds)


def measured(
    sink: str, rows: int, options: dict[str, str], *, checked: bool = True, jars: str = ""
) -> Run:
    """Such a stream in a process of its own, the best of two."""
    given = json.dumps({"rows": rows, "options": options, "jars": jars})
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.publishing", sink, given]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment(checked=checked)
    )
    return Run(**json.loads(done.stdout.splitlines()[-1]))


def environment(*, checked: bool) -> dict[str, str]:
    root = str(Path(__file__).parents[1])
    path = [root] if checked else [str(UNCHECKED), root]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def new_feed(url: str) -> str:
    store = open_store(url)
    store.create("flights", PARTITIONS)
    store.close()
    return url


def new_file(folder: Path, name: str) -> str:
    return new_feed(f"sqlite:///{folder}/{name}.db")


def onto_a_feed(folder: Path, rows: int, *, checked: bool = True) -> Run:
    name = f"sink-{checked}-{time.monotonic_ns()}"
    return onto_store(new_file(folder, name), rows, checked=checked)


def onto_store(store: str, rows: int, *, checked: bool = True) -> Run:
    with serving(store, environment(checked=checked)) as (url, _):
        return measured("zeroeventhub", rows, {"url": url}, checked=checked)


def onto_kafka(folder: Path, rows: int) -> Run:
    with kafka.broker(folder) as address:
        given = {"kafka.bootstrap.servers": address, "topic": "flights"}
        return measured("kafka", rows, given, jars=kafka.connector_jars())


def replay(spark: SparkSession, folder: Path, rows: int) -> tuple[float, float]:
    """Seconds of publishing a named batch, and of publishing it again, behind one to warm up."""
    flights = spark.range(rows).selectExpr("id AS value").selectExpr(f"{_EVENT} AS data")
    seconds = []
    with serving(new_file(folder, "replay")) as (url, _):
        for name, frame in (("warm", flights.limit(1000)), ("b", flights), ("b", flights)):
            began = time.monotonic()
            options = {"url": url, "producerId": "bench", "batchId": name}
            frame.write.format("zeroeventhub").options(**options).mode("append").save()
            seconds.append(time.monotonic() - began)
    return seconds[1], seconds[2]


def commits(folder: Path) -> Iterator[tuple[int, float]]:
    """Bytes of a batch of 1,000 chunks, and the median seconds that its commit takes."""
    for events, size in ((2, 100), (1000, 10), (1000, 900)):
        store = open_store(new_file(folder, f"commits-{events}-{size}"))
        seconds = []
        for number in range(5):
            call = Call("bench", "bench", "run", number, PARTITIONS)
            declared, total = staged(store, call, tasks=100, chunks=10, events=events, size=size)
            began = time.perf_counter()
            store.commit("flights", call, declared)
            seconds.append(time.perf_counter() - began)
        store.close()
        yield total, sorted(seconds)[2]


def staged(
    store: Store, call: Call, *, tasks: int, chunks: int, events: int, size: int
) -> tuple[Declared, int]:
    """A batch of tasks that have `chunks` chunks each; what to commit, and its bytes."""
    content, total = Content(), 0
    for task in range(tasks):
        made = []
        for chunk in range(chunks):
            chunker = Chunker()
            rests = [rest_of({}, b'"%b"' % os.urandom(size // 2).hex().encode())] * events
            made += [*chunker.extend(chunk % PARTITIONS, rests), *chunker.close()]
        upload = Upload(task, 0, 0, b"%d" % task, tuple(made))
        store.stage("flights", call, upload)
        content += upload.content
        total += sum(each.size for each in made)
    attempts = tuple(TaskAttempt(task, 0, 1, chunks * events) for task in range(tasks))
    return Declared(content, attempts), total


def small_batches(folder: Path, batches: int, rows: int, tasks: int) -> str:
    """A feed as a stream writes it whose batches are spread over many tasks. The store's URL."""
    from benchmarks.feeds import event

    url = new_file(folder, "small")
    store = open_store(url)
    number = 0
    for batch in range(batches):
        call = Call("bench", "bench", "run", batch, PARTITIONS)
        content, attempts = Content(), []
        for task in range(tasks):
            chunker = Chunker()
            for _ in range(rows // tasks):
                chunker.add(number % PARTITIONS, *event(number))
                number += 1
            upload = Upload(task, 0, 0, b"%d" % task, tuple(chunker.close()))
            store.stage("flights", call, upload)
            content += upload.content
            attempts.append(TaskAttempt(task, 0, 1, rows // tasks))
        store.commit("flights", call, Declared(content, tuple(attempts)))
    store.close()
    return url


def named_batches(folder: Path, batches: int, events: int) -> tuple[float, float, float]:
    """Events per second of one producer in a named batch each, and in one batch; bytes in the store
    for each named batch.
    """

    def publish(sizes: Mapping[str, int]) -> tuple[float, int]:
        file = folder / f"{len(sizes)}.db"
        store, empty = new_file(folder, f"{len(sizes)}"), file.stat().st_size
        with serving(store) as (url, _):
            producer = Producer(url, "till")
            began = time.monotonic()
            for name, size in sizes.items():
                with producer.batch(name) as batch:
                    for number in range(size):
                        batch.add({"paid": number})
            seconds = time.monotonic() - began
        open_store(store).close()  # what is in the log beside it goes into the file
        return sum(sizes.values()) / seconds, file.stat().st_size - empty

    each, size = publish({f"pay-{number}": 1 for number in range(batches)})
    together, _ = publish({"all": events})
    return each, together, size / batches


def sink(work: Path, events: int) -> Iterator[Row]:
    """Onto a feed, against Spark's JSON files and against ourselves without any check."""
    ours, unchecked, files = [], [], []
    for _ in range(2):  # turn by turn, because the machine is shared
        ours.append(onto_a_feed(work, events))
        unchecked.append(onto_a_feed(work, events, checked=False))
        files.append(measured("json", events, {}))
    mine, bare, json = (max(each.rate for each in runs) for runs in (ours, unchecked, files))
    yield rate("sink, inside triggers", mine)
    yield rate("sink without any check", bare)
    yield rate("Spark's json file sink", json)
    yield ratio("sink / json file sink", mine / json, ">= 0.25")
    yield ratio("effectively once costs", 1 - mine / bare, "<= 0.20")


def kafka_sink(work: Path, events: int) -> Iterator[Row]:
    """Spark's Kafka sink beside ours, on the same frame, turn by turn."""
    runs = [(onto_a_feed(work, events), onto_kafka(work / str(each), events)) for each in range(2)]
    mine, peer = (max(each.rate for each in several) for several in zip(*runs, strict=True))
    yield rate("sink, beside Kafka", mine)
    yield rate("Spark's Kafka sink", peer)
    yield ratio("sink / Kafka sink", mine / peer, ">= 1")


def commit(work: Path, events: int) -> Iterator[Row]:
    """What a commit takes, and what a repeated batch and a batch for each event cost."""
    for size, seconds in commits(work):
        name = f"commit of 1,000 chunks, {size / MIB:.1f} MiB"
        yield name, f"{seconds * 1000:.0f} ms", "< 50 ms"
    first, again = replay(queries.session(), work, events)
    yield ratio("publishing a batch again / publishing it", again / first, "<= 0.60")
    each, together, size = named_batches(work, 1_000, events // 4)
    yield "events in a named batch each", f"{each:.0f} events/s", ""
    yield rate("events in one batch of a Producer", together)
    yield "a named batch of one event in the store", f"{size / 1000:.1f} kB", ""


def small(work: Path, events: int) -> Iterator[Row]:
    """Reading what 1,000 small batches of 200 tasks wrote, and a quarter as many events in chunks
    of one event each, against a feed of full chunks.
    """
    spark = queries.session()
    of_one = (filling(each % PARTITIONS, [each]) for each in range(events // 4))
    stores = {
        "full chunks": build(work, events),
        "small batches": small_batches(work, events // 2000, 2000, 200),
        "chunks of one event": fill(work, "one", PARTITIONS, of_one),
    }
    rates, costs_of = {}, {}
    for name, store in stores.items():
        with serving(store) as (url, publisher):
            frame = queries.feed(spark, url)
            queries.stream(frame)  # warms up
            rates[name] = best(lambda frame=frame: queries.stream(frame)).rate
            costs_of[name] = dict(costs.processes(frame, publisher))
    for name, measured in rates.items():
        yield rate(f"stream of {name}", measured)
    for name in list(rates)[1:]:
        yield ratio(f"{name} / full chunks", rates[name] / rates["full chunks"], ">= 0.3")
    for name, spent in costs_of.items():
        told = ", ".join(f"{part} {seconds * 1e6:.2f}" for part, seconds in spent.items())
        yield f"CPU time of an event, µs: {name}", told, ""


def best(run: Callable[[], Run]) -> Run:
    return max((run() for _ in range(3)), key=lambda each: each.rate)


def main() -> None:
    sink, given = sys.argv[1], json.loads(sys.argv[2])
    spark = queries.session(jars=given["jars"])
    runs = []
    for producer in ("first", "second"):
        options = given["options"] | ({"producerId": producer} if sink == "zeroeventhub" else {})
        runs.append(stream(spark, given["rows"], sink, options))
    best = max(runs, key=lambda each: each.rate)
    fields = ("events", "seconds", "trigger_seconds")
    print(json.dumps({name: getattr(best, name) for name in fields}))


if __name__ == "__main__":
    main()
