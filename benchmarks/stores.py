"""Publishers over SQLite and PostgreSQL, without Spark: prepared batches, sent by threads."""

from __future__ import annotations

import http.client
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from benchmarks import publishing
from benchmarks.feeds import PARTITIONS, event, serving
from benchmarks.publishing import Published, best_of, costs_row, new_feed
from benchmarks.rows import Row, rate, ratio
from tests import postgresql
from zeh_spark.wire.batch_uploader import BatchUploader
from zeh_spark.wire.upload_format import StagedChunk, rest_of, upload_body


@dataclass(frozen=True)
class Prepared:
    """A batch: the bodies of its uploads, and that of its commit."""

    uploads: tuple[bytes, ...]
    commit: bytes
    events: int


def prepared(events: int) -> Prepared:
    bodies: list[bytes] = []

    def send(number: int, chunks: list[StagedChunk]) -> bool:
        bodies.append(upload_body(chunks))
        return True

    batch = BatchUploader(send, PARTITIONS, "bench")
    for number in range(events):
        batch.add([rest_of(*event(number))], number % PARTITIONS)
    batch.finish()
    content = batch.content
    task = {"task": 0, "attempt": 0, "uploads": len(bodies), "events": events}
    document = {
        "events": events, "digest": content.digest, "digestVersion": 1, "attempts": [task],
    }  # fmt: skip
    return Prepared(tuple(bodies), msgspec.json.encode(document), events)


@dataclass(frozen=True)
class Written:
    """Of all writers: events per second, and the seconds that each commit took."""

    rate: float
    commits: Sequence[float]


def write(
    urls: Sequence[str], writers: int, batches: int, batch: Prepared, name: str = "w"
) -> Written:
    """Each writer publishes its batches at the publisher whose turn it is."""
    commits: list[float] = []
    begin = threading.Barrier(writers + 1)

    def run(number: int) -> None:
        address = urlsplit(urls[number % len(urls)])
        connection = http.client.HTTPConnection(address.netloc, timeout=120)
        begin.wait()
        for each in range(batches):
            path = f"{address.path}/producers/{name}{number}/batches/{each}"
            commits.append(publish(connection, path, batch))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    begin.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    rate = writers * batches * batch.events / (time.perf_counter() - began)
    assert len(commits) == writers * batches, "a writer failed"
    return Written(rate, commits)


def publish(connection: http.client.HTTPConnection, path: str, batch: Prepared) -> float:
    """Upload and commit a batch, and return the seconds of the commit."""
    given = f"incarnation=i&n={PARTITIONS}"
    for part, body in enumerate(batch.uploads):
        call(connection, "PUT", f"{path}/uploads/r.0.0.{part}?{given}", body)
    began = time.perf_counter()
    call(connection, "POST", f"{path}/commit?{given}&run=r", batch.commit)
    return time.perf_counter() - began


def call(connection: http.client.HTTPConnection, method: str, target: str, body: bytes) -> None:
    headers = {"Content-Type": "application/json"} if method == "POST" else {}
    connection.request(method, target, body, headers)
    response = connection.getresponse()
    text = response.read()
    if response.status >= 300:
        raise AssertionError(f"{method} {target}: {response.status} {text[:500]!r}")


@contextmanager
def publishers(store_url: str, count: int = 1) -> Iterator[list[str]]:
    """A new feed `flights`, behind so many publishers."""
    new_feed(store_url)
    with ExitStack() as stack:
        yield [stack.enter_context(serving(store_url))[0] for _ in range(count)]


@contextmanager
def durable_server() -> Iterator[postgresql.Server]:
    """One that keeps its promises, unlike that of the tests."""
    server = postgresql.Server("fsync=on")
    try:
        yield server
    finally:
        server.remove()


def throughput(folder: Path, server: postgresql.Server) -> Iterator[tuple[str, Written]]:
    """Four writers of large batches, at SQLite and at PostgreSQL, there also at two publishers."""
    batch = prepared(20_000)
    sqlite = f"sqlite:///{folder}/writers-{time.monotonic_ns()}.db"
    for name, url, count in (
        ("SQLite", sqlite, 1),
        ("PostgreSQL", server.url(server.create_database()), 1),
        ("PostgreSQL, two publishers", server.url(server.create_database()), 2),
    ):
        with publishers(url, count) as urls:
            write(urls, len(urls), 1, batch, "warm")
            yield name, write(urls, 4, 8, batch)


def many_writers(server: postgresql.Server) -> tuple[float, float, float]:
    """Seconds of a commit of one writer alone (median); with 16 the median and the 99th percentile
    of a hundred.
    """
    batch = prepared(10)
    with publishers(server.url(server.create_database())) as urls:
        write(urls, 1, 20, batch, "warm")
        alone = write(urls, 1, 200, batch)
    with publishers(server.url(server.create_database())) as urls:
        write(urls, 16, 5, batch, "warm")
        together = sorted(write(urls, 16, 60, batch).commits)
    return (
        statistics.median(alone.commits),
        statistics.median(together),
        together[len(together) * 99 // 100],
    )


def kafka_sink(work: Path, events: int) -> Iterator[Row]:
    """Spark's Kafka sink beside ours into SQLite and PostgreSQL, on the same frame, turn by turn:
    rows that Spark makes, and rows from files.
    """
    files = publishing.flights_in_files(work, events)
    with durable_server() as server:
        for shape, of_shape in (("range", ""), ("parquet", files)):
            runs: dict[str, list[Published]] = {"SQLite": [], "PostgreSQL": [], "Kafka": []}
            for each in range(2):
                runs["SQLite"].append(publishing.onto_a_feed(work, events, files=of_shape))
                new = new_feed(server.url(server.create_database()))
                runs["PostgreSQL"].append(publishing.onto_store(new, events, files=of_shape))
                broker = work / f"{shape}-{each}"
                runs["Kafka"].append(publishing.onto_kafka(broker, events, of_shape))
            best = {name: best_of(several).rate for name, several in runs.items()}
            for name, several in runs.items():
                yield rate(f"sink into {name}, rows from {shape}", best[name])
                yield costs_row(f"sink into {name}, rows from {shape}", several)
            for name, aim in (("SQLite", ">= 1.1"), ("PostgreSQL", ">= 1")):
                told = f"sink into {name} / into Kafka, rows from {shape}"
                yield ratio(told, best[name] / best["Kafka"], aim)


def beside_sqlite(work: Path, events: int) -> Iterator[Row]:
    """The sink onto PostgreSQL beside SQLite, turn by turn; then writers without Spark."""
    with durable_server() as server:
        ours, theirs = [], []
        for _ in range(2):
            ours.append(publishing.onto_a_feed(work, events))
            new = publishing.new_feed(server.url(server.create_database()))
            theirs.append(publishing.onto_store(new, events))
        sqlite, mine = (max(each.rate for each in runs) for runs in (ours, theirs))
        yield rate("sink, into SQLite", sqlite)
        yield rate("sink, into PostgreSQL", mine)
        yield ratio("PostgreSQL / SQLite", mine / sqlite, ">= 0.5")
        runs = [dict(throughput(work, server)) for _ in range(2)]
        rates = {name: max(run[name].rate for run in runs) for name in runs[0]}
        for name, measured in rates.items():
            yield rate(f"4 writers, {name}", measured)
        one, two = rates["PostgreSQL"], rates["PostgreSQL, two publishers"]
        yield ratio("two publishers / one", two / one, ">= 1.3")
        alone, median, slowest = many_writers(server)
        yield "commit of one writer alone, median", f"{alone * 1000:.1f} ms", ""
        yield "commit with 16 writers, median", f"{median * 1000:.1f} ms", ""
        yield ratio("99th of a hundred with 16 / one alone", slowest / alone, "< 20")
