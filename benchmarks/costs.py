"""What an event costs, piece by piece, in CPU time: of one core, so that a busy machine hardly
matters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from pyspark.sql import DataFrame

from benchmarks import queries
from benchmarks.feeds import PARTITIONS, build, serving
from benchmarks.rows import Row
from zeh_spark.client.decoding.lines import Decoder
from zeh_spark.client.http.feed_client import FeedClient, PageRequest
from zeh_spark.client.options.given import parse
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.segments import Segment, pack, unpack
from zeh_spark.wire import hashes, wire
from zeh_spark.wire.page_scanner import PageScanner

PARTITION = 0
PAGE = 10_000


def pieces(url: str, publisher: int, partitions: int) -> Iterator[tuple[str, float]]:
    """Seconds an event of one partition takes in each piece, one piece after the other; the best of
    five.
    """
    client = FeedClient(parse(SourceOptions, {"url": url}))
    bodies = fetched(client, partitions)  # warms up
    intervals = scanned(bodies)
    events = sum(each.events for each in intervals)
    lines = [each.lines for each in intervals]
    segment = Segment()
    for each in lines:
        segment.add(PARTITION, each)
    payload = pack(segment)
    decoder = Decoder(("partition", "headers", "data"), "_corrupt_record", False)

    def decode() -> None:
        for _ in decoder.batches(b"".join(lines), PARTITION):
            pass

    def fetch() -> None:
        fetched(client, partitions)

    served = psutil.Process(publisher)
    yield "serve", best(fetch, lambda: cpu([served])) / events
    for name, run in (
        ("fetch", fetch),
        ("scan", lambda: scanned(bodies)),
        ("digest", lambda: [hashes.sum_of_lines(each) for each in lines]),
        ("compress", lambda: pack(segment)),
        ("unpack", lambda: list(unpack(payload))),
        ("decode", decode),
    ):
        yield name, best(run, time.process_time) / events


def processes(frame: DataFrame, publisher: int) -> Iterator[tuple[str, float]]:
    """Seconds an event takes in each process while a stream runs, and in all of them."""
    queries.stream(frame)  # warms up
    jvm = next(each for each in psutil.Process().children() if "java" in each.name())
    begin = _by_process(jvm, publisher)
    reader = 0.0
    runs = []
    for _ in range(3):
        spent, run = reading(lambda: queries.stream(frame))
        reader += spent
        runs.append(run)
    end = _by_process(jvm, publisher)
    events = sum(each.events for each in runs)
    spent = {name: end[name] - begin[name] for name in begin} | {"driver's reader": reader}
    for name, seconds in spent.items():
        yield name, seconds / events
    yield "in all", sum(spent.values()) / events


def reading(run: Callable[[], queries.Run]) -> tuple[float, queries.Run]:
    """CPU seconds of the source runner that `run` starts, as far as it can be seen before it ends
    [its parent, the JVM, waits for it: what it took is then counted there as children's time].
    """
    jvm = next(each for each in psutil.Process().children() if "java" in each.name())
    before = _waited_for(jvm)
    done = run()
    queries.wait(lambda: queries.source_runner() is None)
    return _waited_for(jvm) - before, done


def _waited_for(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.children_user + times.children_system)


def _by_process(jvm: psutil.Process, publisher: int) -> dict[str, float]:
    for _ in range(100):
        with suppress(psutil.NoSuchProcess):  # a worker ended meanwhile: then its parent counts it
            daemons = [each for each in jvm.children() if _is_daemon(each)]
            workers = [*daemons, *(worker for each in daemons for worker in each.children())]
            return {
                "publisher": cpu([psutil.Process(publisher)]),
                "Python workers": cpu(workers) + sum(_waited_for(each) for each in daemons),
                "JVM": cpu([jvm]),
            }
    raise RuntimeError("no moment without an ending process: is the publisher still there?")


def _is_daemon(process: psutil.Process) -> bool:
    try:
        return "pyspark.daemon" in process.cmdline()
    except psutil.ZombieProcess:
        return False


def cpu(running: Sequence[psutil.Process]) -> float:
    times = [each.cpu_times() for each in running]
    return float(sum(each.user + each.system for each in times))


def best(run: Callable[[], object], clock: Callable[[], float]) -> float:
    took = []
    for _ in range(5):
        began = clock()
        run()
        took.append(clock() - began)
    return min(took)


def fetched(client: FeedClient, partitions: int) -> list[list[bytes]]:
    """The bodies of all pages of a partition, in the pieces in which they came."""
    bodies = []
    cursor, before = wire.FIRST, ""
    while cursor != before:
        request = PageRequest(PARTITION, cursor, partitions, PAGE, (wire.ALL_HEADERS,))
        body = client.transport.body(request.query())
        bodies.append(list(body))
        body.close()
        last = bodies[-1][-1].rstrip(b"\n").rpartition(b"\n")[2]
        before, cursor = cursor, wire.checkpoint_cursor(last, PARTITION) or cursor
    return bodies


def scanned(bodies: Iterable[Iterable[bytes]]) -> list[wire.Interval]:
    intervals = []
    for body in bodies:
        scanner = PageScanner(PARTITION)
        for data in body:
            intervals += scanner.feed(data)
        intervals += scanner.close()
    return intervals


def spent(work: Path, events: int) -> Iterator[Row]:
    """CPU time of each piece by itself, then of each process while a stream runs."""
    spark = queries.session()
    with serving(build(work, events)) as (url, publisher):
        for name, seconds in pieces(url, publisher, PARTITIONS):
            yield f"piece: {name}", f"{seconds * 1e6:.2f} µs", ""
        for fetch in ("executors", "driver"):
            frame = queries.feed(spark, url, fetch=fetch)
            shares = dict(processes(frame, publisher))
            aims = (
                {"driver's reader": "<= 5 %", "publisher": "<= 10 %"}
                if fetch == "executors"
                else {}
            )
            for name, seconds in shares.items():
                share = f"{seconds * 1e6:.2f} µs, {seconds / shares['in all']:.0%}"
                yield f"stream, fetch={fetch}: {name}", share, aims.get(name, "")
