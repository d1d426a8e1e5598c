"""Runs the parts and prints a table; `benchmarks/README.md` keeps one, with how it was got."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks import (
    cluster,
    costs,
    growth,
    kafka,
    lakehouse,
    publishing,
    queries,
    stateful,
    stores,
    tables,
)
from benchmarks.feeds import PARTITIONS, build, fill, filling, serving
from benchmarks.queries import Run
from benchmarks.rows import Row, rate, ratio
from benchmarks.serving import fanned_out

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / ".venv-reference" / "bin" / "python"
MIB = 1 << 20


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
    with serving(build(work, events)) as (url, _), kafka.broker(work) as address:
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
            reader = watched(lambda url=url: queries.stream(queries.feed(spark, url)))
            limit = 3 * 128 + 150
            yield f"reader's process, {name} feed", f"{reader / MIB:.0f} MiB", f"< {limit} MiB"
            peak = queries.peak_memory(publisher)
            yield f"publisher, {name} feed", f"{peak / MIB:.0f} MiB", "< 200 MiB"


def sink(work: Path, events: int) -> Iterator[Row]:
    """Onto a feed, against Spark's JSON files and against ourselves without any check."""
    ours, unchecked, files = [], [], []
    for _ in range(2):  # turn by turn, because the machine is shared
        ours.append(publishing.onto_a_feed(work, events))
        unchecked.append(publishing.onto_a_feed(work, events, checked=False))
        files.append(publishing.measured("json", events, {}))
    mine, bare, json = (max(each.rate for each in runs) for runs in (ours, unchecked, files))
    yield rate("sink, inside triggers", mine)
    yield rate("sink without any check", bare)
    yield rate("Spark's json file sink", json)
    yield ratio("sink / json file sink", mine / json, ">= 0.25")
    yield ratio("effectively once costs", 1 - mine / bare, "<= 0.20")


def kafka_sink(work: Path, events: int) -> Iterator[Row]:
    """Spark's Kafka sink beside ours, on the same frame, turn by turn."""
    runs = [
        (publishing.onto_a_feed(work, events), publishing.onto_kafka(work / str(each), events))
        for each in range(2)
    ]
    mine, peer = (max(each.rate for each in several) for several in zip(*runs, strict=True))
    yield rate("sink, beside Kafka", mine)
    yield rate("Spark's Kafka sink", peer)
    yield ratio("sink / Kafka sink", mine / peer, ">= 1")


def commit(work: Path, events: int) -> Iterator[Row]:
    """What a commit takes, and what a repeated batch and a batch for each event cost."""
    for size, seconds in publishing.commits(work):
        name = f"commit of 1,000 chunks, {size / MIB:.1f} MiB"
        yield name, f"{seconds * 1000:.0f} ms", "< 50 ms"
    first, again = publishing.replay(queries.session(), work, events)
    yield ratio("publishing a batch again / publishing it", again / first, "<= 0.60")
    each, together, size = publishing.named_batches(work, 1_000, events // 4)
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
        "small batches": publishing.small_batches(work, events // 2000, 2000, 200),
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


def postgresql(work: Path, events: int) -> Iterator[Row]:
    """The sink onto PostgreSQL beside SQLite, turn by turn; then writers without Spark."""
    with stores.durable_server() as server:
        ours, theirs = [], []
        for _ in range(2):
            ours.append(publishing.onto_a_feed(work, events))
            new = publishing.new_feed(server.url(server.create_database()))
            theirs.append(publishing.onto_store(new, events))
        sqlite, mine = (max(each.rate for each in runs) for runs in (ours, theirs))
        yield rate("sink, into SQLite", sqlite)
        yield rate("sink, into PostgreSQL", mine)
        yield ratio("PostgreSQL / SQLite", mine / sqlite, ">= 0.5")
        runs = [dict(stores.throughput(work, server)) for _ in range(2)]
        rates = {name: max(run[name].rate for run in runs) for name in runs[0]}
        for name, measured in rates.items():
            yield rate(f"4 writers, {name}", measured)
        one, two = rates["PostgreSQL"], rates["PostgreSQL, two publishers"]
        yield ratio("two publishers / one", two / one, ">= 1.3")
        alone, median, slowest = stores.many_writers(server)
        yield "commit of one writer alone, median", f"{alone * 1000:.1f} ms", ""
        yield "commit with 16 writers, median", f"{median * 1000:.1f} ms", ""
        yield ratio("99th of a hundred with 16 / one alone", slowest / alone, "< 20")


def own_tables(work: Path, events: int) -> Iterator[Row]:
    """A service's own table as a feed, of half as many rows as `events`; and one of five times as
    many, read far in.
    """
    with stores.durable_server() as server:
        orders = tables.filled(server, events // 2)
        yield from table_rates(work, orders, events // 2)
        for name, notify, aim in (("", True, "< 50 ms"), (" without the trigger", False, "")):
            median, slow = tables.delays(orders, work, notify=notify)
            times = f"{median * 1000:.0f}, {slow * 1000:.0f} ms"
            yield f"commit of a row to answer{name}, median and p95", times, aim
        begin, second, far = tables.far_in(server, 5 * events)
        yield "page of 1,000 rows at row 0", f"{begin * 1000:.1f} ms", ""
        yield ratio(f"page behind row {5 * events:,} / at row 0", far / begin, "<= 1.2")
        yield ratio("the same / behind row 1,000", far / second, "")


def table_rates(work: Path, orders: tables.Outbox, rows: int) -> Iterator[Row]:
    """Pages, in process and over HTTP, against a bare COPY."""
    with orders.serving(work) as url:
        measures: dict[str, Callable[[], float]] = {
            "COPY": lambda: tables.copied(orders, rows),
            "one reader of pages, n = 1": lambda: tables.in_process(orders, rows, 1),
            "one reader of pages, n = 4": lambda: tables.in_process(orders, rows, PARTITIONS),
            "over HTTP, one reader": lambda: tables.over_http(url, rows, 1),
            "over HTTP, two readers": lambda: tables.over_http(url, rows, 2),
        }
        runs = [{name: run() for name, run in measures.items()} for _ in range(3)]
    rates = {name: max(run[name] for run in runs) for name in measures}
    for name, measured in rates.items():
        yield f"table: {name}", f"{measured / 1000:,.0f}k rows/s", ""
    for name in list(rates)[1:]:
        yield ratio(f"{name} / COPY", rates[name] / rates["COPY"], ">= 0.3")


def delta_tables(work: Path, events: int) -> Iterator[Row]:
    """A feed into a Delta table, and Delta tables onto a feed, of half as many rows as `events`."""
    rates = lakehouse.kept(work, events // 2)
    for name, measured in rates.items():
        yield rate(f"a feed into Delta, {name}", measured)
    own, ours = rates["Delta's own sink"], rates["to_delta"]
    yield ratio("time of to_delta / of Delta's own sink", own / ours, "<= 1.15")
    rates = lakehouse.published(work, events // 2)
    for name, measured in rates.items():
        yield rate(f"onto a feed: {name}", measured)
    yield ratio(
        "Delta table / Parquet files", rates["Delta table"] / rates["Parquet files"], ">= 0.8"
    )


def state(work: Path, events: int) -> Iterator[Row]:
    """Sessions and deduplication beside Spark's own operators, a million rows at least."""
    ordered = stateful.measured("sessions", max(events, 1_000_000), work)
    yield rate("sessions in order", ordered["sessions"])
    yield rate("dropDuplicates", ordered["dropDuplicates"])
    yield ratio(
        "sessions / dropDuplicates", ordered["sessions"] / ordered["dropDuplicates"], ">= 0.3"
    )
    found = stateful.measured("process", max(events // 4, 250_000), work)
    yield rate("a feed's sessions in order", found["ordered"])
    yield rate("and processed, with a handler that does nothing", found["processed"])
    found = stateful.measured("dedup", max(4 * events, 4_000_000), work)
    peer = "dropDuplicatesWithinWatermark"
    yield rate("drop_seen", found["drop_seen"])
    yield rate(peer, found[peer])
    yield ratio(f"drop_seen / {peer}", found["drop_seen"] / found[peer], ">= 0.5")
    smaller = found[f"{peer} state"] / found["drop_seen state"]
    yield "state of that / of drop_seen", f"{smaller:.0f}", ">= 100"
    seconds = stateful.measured("large", max(events, 1_000_000), work)
    beside = seconds["beside"] / seconds["alone"]
    yield ratio("batches beside a session that holds a million / without it", beside, "<= 1.5")


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


def audit(url: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "zeh_spark.cli", "audit", url], check=True, capture_output=True
    )


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def watched(run: Callable[[], object]) -> int:
    """The highest VmHWM of the source runner while `run` runs."""
    peaks = [0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            process = queries.source_runner()
            if process and process.is_running():
                try:
                    peaks.append(queries.peak_memory(process.pid))
                except (FileNotFoundError, StopIteration):
                    continue  # it has ended meanwhile

    thread = threading.Thread(target=watch)
    thread.start()
    run()
    done.set()
    thread.join()
    return max(peaks)


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
        for fetch in ("executors", "driver"):
            frame = queries.feed(spark, url, startingCursors="last", fetch=fetch)
            delays, idle = delays_of(frame, store)
            median = statistics.median(delays)
            name = f"commit to foreachBatch, fetch={fetch}"
            yield f"{name}, median", f"{median * 1000:.0f} ms", ""
            yield f"{name}, beyond a constant row", f"{(median - floor) * 1000:.0f} ms", "<= 20 ms"
            yield f"idle, fetch={fetch}: reader's CPU", f"{idle:.1%} of a core", "< 5 %"


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


def spent(work: Path, events: int) -> Iterator[Row]:
    """CPU time of each piece by itself, then of each process while a stream runs."""
    spark = queries.session()
    with serving(build(work, events)) as (url, publisher):
        for name, seconds in costs.pieces(url, publisher, PARTITIONS):
            yield f"piece: {name}", f"{seconds * 1e6:.2f} µs", ""
        for fetch in ("executors", "driver"):
            frame = queries.feed(spark, url, fetch=fetch)
            shares = dict(costs.processes(frame, publisher))
            aims = (
                {"driver's reader": "<= 5 %", "publisher": "<= 10 %"}
                if fetch == "executors"
                else {}
            )
            for name, seconds in shares.items():
                share = f"{seconds * 1e6:.2f} µs, {seconds / shares['in all']:.0%}"
                yield f"stream, fetch={fetch}: {name}", share, aims.get(name, "")


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


def best(run: Callable[[], Run]) -> Run:
    return max((run() for _ in range(3)), key=lambda each: each.rate)


PARTS = {
    "throughput": throughput,
    "memory": memory,
    "latency": latency,
    "costs": spent,
    "sink": sink,
    "commit": commit,
    "small": small,
    "postgresql": postgresql,
    "audit": audited,
    "tables": own_tables,
    "lakehouse": delta_tables,
    "stateful": state,
    "cluster": cluster.measured,
    "growth": growth.measured,
    "fanout": fanned_out,
}
"""The parts, which measure with so many events."""

PEERS = {"kafka": [kafka_source, kafka_sink]}


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    arguments.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if none is given")
    arguments.add_argument("--events", type=int, default=2_000_000)
    arguments.add_argument("--chunks", type=int, default=1_000_000, help="of growth's large store")
    arguments.add_argument(
        "--gigabytes", type=float, nargs="*", default=[0.5, 2], help="of growth's feeds"
    )
    arguments.add_argument("--peers", choices=["kafka"], help="measure this peer too; needs mvn")
    given = arguments.parse_args()
    if unknown := set(given.parts) - PARTS.keys():
        arguments.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    print("| what | measured | aim |\n|---|---|---|")
    grown = partial(growth.measured, chunks=given.chunks, gigabytes=given.gigabytes)
    parts = [{**PARTS, "growth": grown}[name] for name in given.parts or PARTS]
    for part in [*PEERS.get(given.peers, ()), *parts]:
        with tempfile.TemporaryDirectory(prefix="zeh-spark-bench-") as folder:
            for row in part(Path(folder), given.events):
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
