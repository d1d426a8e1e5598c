"""Reading a feed: rates of streams and batches beside their peers, memory, and the delay of events.

All ways of a table are measured in one run, turn by turn, because the machine is shared.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks import kafka, queries
from benchmarks.feeds import PARTITIONS, build, event, serving
from benchmarks.queries import Run
from benchmarks.rows import MIB, Row, rate, ratio
from zeh_spark.publisher import open_store
from zeh_spark.tools.loading import one_batch
from zeh_spark.wire.upload_format import rest_of

NAMED = 10_000
REFERENCE = Path(__file__).parents[1] / ".venv-reference" / "bin" / "python"


def throughput(work: Path, events: int) -> Iterator[Row]:
    """Everything against everything in one run, turn by turn, because the machine is shared."""
    spark = queries.session()
    with serving(build(work, events)) as (url, _):
        ways = reading_ways(spark, url, events)
        small = queries.feed(spark, url, fetch="driver", maxBytesPerTrigger="64m")
        large = queries.feed(spark, url, fetch="driver", maxBytesPerTrigger="512m")
        staging = {"stagingLocation": str(work / "staging")}
        ways |= {
            "stream, driver fetches, triggers of 64 MiB": lambda: queries.stream(small),
            "stream, driver fetches, triggers of 512 MiB": lambda: queries.stream(large),
            "stream, staged": lambda: queries.stream(queries.feed(spark, url, **staging)),
        }
        if REFERENCE.exists():
            ways["reference client, no Spark"] = lambda: queries.reference_client(
                REFERENCE, url, min(events, 200_000)
            )
        runs = turn_by_turn(ways)
        constant = max(
            queries.constant(spark, None, rows=200_000, tasks=2, batches=6),
            key=lambda each: each.rate,
        )
        runs["constant record batches"] = constant
        yield from rates_of(runs)
        rates = {name: run.trigger_rate for name, run in runs.items()}
        driver = rates["stream, driver fetches"]
        if REFERENCE.exists():
            client = rates["reference client, no Spark"]
            yield ratio("stream, driver fetches / reference client", driver / client, ">= 4")
        best_trigger = max(
            rates["stream, driver fetches, triggers of 64 MiB"],
            rates["stream, driver fetches, triggers of 512 MiB"],
            driver,
        )
        yield ratio(
            "stream, driver fetches: default / best trigger", driver / best_trigger, ">= 0.9"
        )
        yield ratio("batch / stream", rates["batch"] / rates["stream"], ">= 1")
        yield ratio("staging costs", 1 - rates["stream, staged"] / driver, "< 0.33")
        yield ratio("stream / constant", rates["stream"] / constant.rate, ">= 0.08")


def kafka_source(work: Path, events: int) -> Iterator[Row]:
    """Spark's Kafka source beside ours, on the same events, turn by turn."""
    spark = queries.session(jars=kafka.connector_jars())  # first: a JVM takes no jars later
    with serving(build(work, events)) as (url, _), kafka.broker(work) as (address, _):
        kafka.fill(spark.read.format("zeroeventhub").load(url), address)
        limited = kafka.stream(spark, address, maxOffsetsPerTrigger=500_000)
        ways = reading_ways(spark, url, events) | {
            "Kafka stream": lambda: queries.stream(kafka.stream(spark, address)),
            "Kafka stream, 500,000 a trigger": lambda: queries.stream(limited),
            "Kafka batch": lambda: queries.batch(kafka.batch(spark, address), events),
        }
        runs = turn_by_turn(ways)
    yield from rates_of(runs)
    for ours, peer, aim in (
        ("stream, stamps=columns", "Kafka stream", ">= 1.5"),
        ("stream", "Kafka stream", ">= 1.2"),
        ("stream, driver fetches", "Kafka stream", ">= 0.8"),
        ("batch", "Kafka batch", ">= 1.5"),
    ):
        mine, theirs = runs[ours], runs[peer]
        yield ratio(f"{ours} / {peer}", mine.trigger_rate / theirs.trigger_rate, aim)
        if "stream" in ours:
            yield ratio(f"{ours} / {peer}, over the query", mine.rate / theirs.rate, "")


def selected(work: Path, events: int) -> Iterator[Row]:
    """One percent of a feed (`only`) beside all of it, in streams."""

    def flight(number: int) -> tuple[dict[str, str], bytes]:
        headers, data = event(number)
        return {**headers, "kind": str(number % 100)}, data

    spark = queries.session()
    with serving(build(work, events, flight)) as (url, _):
        some = queries.feed(spark, url, only='{"kind": ["7"]}')
        runs = turn_by_turn(
            {
                "all": lambda: queries.stream(queries.feed(spark, url)),
                "all, driver fetches": lambda: queries.stream(
                    queries.feed(spark, url, fetch="driver")
                ),
                "one percent": lambda: queries.stream(some),
            }
        )
    assert [events, events, events // 100] == [run.events for run in runs.values()]
    least = runs["one percent"].trigger_seconds
    for name, run in runs.items():
        yield f"{name}: seconds inside triggers", f"{run.trigger_seconds:.2f}", ""
    for name in ("all", "all, driver fetches"):
        yield ratio(f"time of {name} / of one percent", runs[name].trigger_seconds / least, ">= 5")


def rates_of(runs: Mapping[str, Run]) -> Iterator[Row]:
    """Yield the rates of runs; of a stream also over the query, whose processes have to start."""
    for name, run in runs.items():
        yield rate(name, run.trigger_rate)
        if run.trigger_rate != run.rate:
            yield rate(f"{name}, over the query", run.rate)


def reading_ways(spark: SparkSession, url: str, events: int) -> dict[str, Callable[[], Run]]:
    """Return the ways to read a feed, by name."""

    def stream(**options: object) -> Callable[[], Run]:
        frame = queries.feed(spark, url, **options)
        return lambda: queries.stream(frame)

    def batch(**options: object) -> Callable[[], Run]:
        frame = spark.read.format("zeroeventhub").options(**options).load(url)
        return lambda: queries.batch(frame, events)

    return {
        "stream": stream(),
        "stream, stamps=columns": stream(stamps="columns"),
        "stream, stamps=none": stream(stamps="none"),
        "stream, driver fetches": stream(fetch="driver"),
        "batch": batch(),
        "batch, stamps=columns": batch(stamps="columns"),
        "batch, page by page": batch(fetch="driver"),
    }


def turn_by_turn(ways: Mapping[str, Callable[[], Run]], rounds: int = 3) -> dict[str, Run]:
    """Return the best run of each way. A first round, which is not counted, warms up."""
    runs = [{name: run() for name, run in ways.items()} for _ in range(rounds + 1)][1:]
    return {name: max((each[name] for each in runs), key=lambda run: run.rate) for name in ways}


def memory(work: Path, events: int) -> Iterator[Row]:
    """Peaks of the reader's process and of the publisher, on a feed of 1 GB and on one of 4 GB."""
    spark = queries.session()
    for name, count in (("1 GB", 2_400_000), ("4 GB", 9_600_000)):
        with serving(build(work, count)) as (url, publisher):
            peaks = queries.peaks_of(lambda url=url: queries.stream(queries.feed(spark, url)))
            reader = peaks["driver's reader"]
            limit = 3 * 128 + 150
            yield f"reader's process, {name} feed", f"{reader / MIB:.0f} MiB", f"< {limit} MiB"
            peak = queries.peak_memory(publisher)
            yield f"publisher, {name} feed", f"{peak / MIB:.0f} MiB", "< 200 MiB"


def audited(work: Path, events: int) -> Iterator[Row]:
    """An audit of a feed, beside Spark's batch read of it."""
    spark = queries.session()
    with serving(build(work, events)) as (url, _):
        frame = spark.read.format("zeroeventhub").load(url)
        queries.batch(frame, events)  # warms up
        runs = [(timed(lambda: audit(url)), queries.batch(frame, events)) for _ in range(3)]
    seconds = min(each for each, _ in runs)
    batch = max(each.rate for _, each in runs)
    yield rate("audit", events / seconds)
    yield rate("batch, beside it", batch)
    yield ratio("audit / batch", events / seconds / batch, ">= 1")
    few, many = (named_batches(work, count) for count in (NAMED // 10, NAMED))
    yield f"audit of {NAMED:,} named batches of one event", f"{many:.1f} s", ""
    yield ratio(f"the same / a tenth of them ({few:.1f} s)", many / few, "<= 10")


def named_batches(work: Path, count: int) -> float:
    """Seconds of an audit of so many named batches of one event, the best of three."""
    store = open_store(f"sqlite:///{work}/named-{count}.db")
    store.create("flights", PARTITIONS)
    flight = rest_of(*event(0))
    for number in range(count):
        call = one_batch.named_batch(store, "flights", "bench", str(number))
        one_batch.publish(store, "flights", call, lambda batch: batch.add([flight], 0))
    store.close()
    with serving(f"sqlite:///{work}/named-{count}.db") as (url, _):
        return min(timed(lambda: audit(url)) for _ in range(3))


def audit(url: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "zeh_spark", "audit", url], check=True, capture_output=True
    )


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def latency(work: Path, events: int) -> Iterator[Row]:
    """From the commit of an event by another process to foreachBatch of an idle query, and what
    idling costs.
    """
    spark = queries.session()
    store = build(work, 1000)
    peer = queries.constant(spark, lambda frame, _: frame.count(), rows=1, tasks=1, batches=21)
    floor = statistics.median(each.seconds for each in peer)
    yield "micro-batch of one constant row", f"{floor * 1000:.0f} ms", ""
    with serving(store) as (url, _):
        medians = []
        for given in ({}, {"fetch": "driver"}, {"inline": "true"}):
            frame = queries.feed(spark, url, startingCursors="last", **given)
            delays, idle = delays_of(frame, store)
            medians.append(statistics.median(delays))
            way = "".join(f", {name}={value}" for name, value in given.items()) or ", direct"
            beyond = (medians[-1] - floor) * 1000
            name = f"commit to foreachBatch{way}"
            yield f"{name}, median", f"{medians[-1] * 1000:.0f} ms", ""
            yield f"{name}, beyond a constant row", f"{beyond:.0f} ms", "<= 20 ms"
            yield f"idle{way}: reader's CPU", f"{idle:.1%} of a core", "< 5 %"
        yield ratio("inline / direct", medians[-1] / medians[0], "<= 0.65")


def delays_of(frame: DataFrame, store: str) -> tuple[list[float], float]:
    """Return seconds from commits to rows, and which part of a core the idle reader takes."""
    arrived: list[float] = []

    def note(batch: DataFrame, _number: int) -> None:
        if batch.count():
            arrived.append(time.time())

    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.foreachBatch(note).option("checkpointLocation", checkpoint)
        query = writer.start()
        query.processAllAvailable()
        delays = []
        for number in range(21):
            count = len(arrived)
            committed = commit_one(store)
            queries.wait(lambda count=count: len(arrived) > count)
            if number:  # the first warms up
                delays.append(arrived[-1] - committed)
        reader = queries.source_runner()
        assert reader is not None
        before = reader.cpu_times()
        time.sleep(10)  # idle, on purpose
        after = reader.cpu_times()
        query.stop()
    return delays, (after.user + after.system - before.user - before.system) / 10


def commit_one(store: str) -> float:
    """An event, by another process; gives the time of its commit."""
    program = (
        "import sys, time; from zeh_spark.publisher import open_store\n"
        "from zeh_spark.testing import publish\n"
        "store = open_store(sys.argv[1]); publish(store, 'flights', [{'i': 1}])\n"
        "print(time.time())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, store], check=True, capture_output=True, text=True
    )
    return float(done.stdout)
