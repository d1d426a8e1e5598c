"""The simulated clients: producers, sinks and readers, with what they keep when they die."""

from __future__ import annotations

import json
import pickle
import uuid
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper

from tests.simulation.publisher import COPY, COPY_URL, DEAD_URL, URL, Publisher
from tests.simulation.world import AnomalyError, World
from zeh_spark import reading
from zeh_spark.client.decoding.lines import Decoder
from zeh_spark.client.http.publish_client import BatchCall, TaskDone
from zeh_spark.client.options.given import parse
from zeh_spark.errors import (
    CheckpointError,
    CursorGoneError,
    OutcomeUnknownError,
    PublisherError,
    PublishError,
    ReplayError,
    UnavailableError,
    ZeroEventHubError,
)
from zeh_spark.publish import Producer
from zeh_spark.spark.sink.options import sink_options
from zeh_spark.spark.sink.row_layout import RowLayout
from zeh_spark.spark.sink.writer import StreamWriter, stage
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.stream import StreamReader

TEXT = RowLayout(("data",), text=True)
COPIED = RowLayout(("partition", "headers", "data"), text=True, keeps_origin=True)
DECODER = Decoder(("partition", "headers", "data"), "_corrupt_record", False)
AGAIN = (UnavailableError, OutcomeUnknownError)
"""The errors after which a client is started again, as a supervisor does."""

CHANGED = {"bad-commit", "bad-upload", "batch-conflict", "content-mismatch", "upload-missing"}
"""What a publisher may answer to a request that was changed on its way."""


@dataclass(eq=False)
class Writer:
    """Publishes batches, each once. `sizes` are their numbers of events.

    `receipts` has the cursor behind a batch by what the names of its events begin with.
    """

    world: World
    name: str
    sizes: list[int]
    committed: int = 0
    ended: bool = False
    receipts: dict[str, str] = field(default_factory=dict)

    @property
    def until(self) -> int:
        return len(self.sizes) - (not self.world.calm)

    def events(self, batch: int) -> list[str]:
        return [f"{self.name}.{batch}.{each}" for each in range(self.sizes[batch])]

    def live(self) -> None:
        while self.committed < len(self.sizes):
            if self.committed >= self.until:
                self.world.pause(1.0)  # its last batch is after the last restore, and notices it
                continue
            try:
                self.publish()
            except AGAIN as exc:
                self.world.say(f"{type(exc).__name__}")
            except PublishError as exc:
                self.world.say(f"{exc}"[:200])
                if not self.goes_on(exc):
                    return
            self.world.end_threads()
            self.world.pause(1.0)

    def goes_on(self, exc: PublishError) -> bool:
        """Do what the refusal says. Return whether to go on. Raises it if it should not be."""
        self.world.counts[f"told {exc.problem}"] += 1
        if not (self.world.restores or self.may_go_on(exc)):
            raise exc
        return True  # it asks for its last batch again

    def may_go_on(self, exc: PublishError) -> bool:
        """Whether its request was changed, or a clock that jumped has deleted its uploads."""
        counts = self.world.counts
        if counts["request changed"] and exc.problem in CHANGED:
            return True
        return bool(counts["act: clock"]) and exc.problem == "upload-missing"


class ProducerWriter(Writer):
    def publish(self) -> None:
        producer = Producer(URL, self.name, retryTimeout="20s")
        self.committed = producer.last.batch + 1
        while self.committed < self.until:
            with producer.batch() as batch:
                for each in self.events(self.committed):
                    batch.add(json.dumps(each))
            if batch.receipt.cursor:
                self.receipts[f"{self.name}.{self.committed}."] = batch.receipt.cursor
            self.committed += 1


class BufferedWriter(Writer):
    """Each of its batches is a single event, which it sends without waiting for the one before."""

    def publish(self) -> None:
        producer = Producer(URL, self.name, retryTimeout="20s")
        self.committed = producer.last.events
        with producer.buffered(linger=0.01, max_events=3) as events:
            sent = []
            while self.committed < self.until:
                for each in range(self.committed + len(sent), self.until):
                    data = json.dumps(self.events(each)[0])
                    sent.append(events.send(data, partition=each % 2))
                while sent and sent[0].done():
                    if cursor := sent.pop(0).result().receipt.cursor:
                        self.receipts[f"{self.name}.{self.committed}."] = cursor
                    self.committed += 1
                self.world.pause(0.05)


@dataclass(eq=False)
class SinkWriter(Writer):
    """A stream of Spark that publishes. Each attempt at a batch has other tasks.

    Some of its rows are no JSON, and become dead letters. `twin` is a driver of the same query that
    still runs.
    """

    twin: SinkWriter | None = None

    def wrong(self, batch: int) -> list[str]:
        return [f"wrong {self.name}.{batch}"] if batch % 3 == 1 else []

    def goes_on(self, exc: PublishError) -> bool:
        self.world.counts[f"told {exc.problem}"] += 1
        if exc.problem == "fenced" and self.twin:
            self.ended = True
            if self.twin.ended:
                raise AnomalyError("of two drivers, each was fenced") from exc
            return False
        if not (self.world.restores or self.may_go_on(exc)):
            raise exc
        if exc.problem == "batch-gap":  # go back to a checkpoint of that time
            self.keep(exc.facts["current"]["lastBatch"] + 1)
        return True

    def keep(self, committed: int) -> None:
        for each in filter(None, (self, self.twin)):
            each.committed = committed

    def publish(self) -> None:
        random, run = self.world.random, str(uuid.uuid4())
        query = str(uuid.uuid5(uuid.NAMESPACE_DNS, self.name))
        given = {"url": URL, "deadLetterUrl": DEAD_URL, "producerId": self.name}
        options = sink_options({**given, "retryTimeout": "20s"}, streaming=True)
        while self.committed < self.until:
            number = self.committed
            rows = [json.dumps(each) for each in self.events(number)] + self.wrong(number)
            tasks = [rows[each::3] for each in range(random.randint(1, 3))] if rows else [[]]
            tasks = [rows[each :: len(tasks)] for each in range(len(tasks))]
            call = BatchCall(self.name, query, run, number, options.overrides)
            staged = []
            for task, some in enumerate(tasks):
                for attempt in range(random.choice((1, 1, 1, 2))):  # one of them is dropped
                    frame = pa.RecordBatch.from_pydict({"data": pa.array(some, pa.string())})
                    done = stage(options, TEXT, call, TaskDone(task, attempt), iter([frame]))
                staged.append(pickle.loads(pickle.dumps(done)))
            StreamWriter(options, TEXT).commit(staged, number)
            self.world.step(f"notes batch {number}")
            self.keep(max(self.committed, number + 1))


@dataclass(eq=False)
class Reader:
    """Reads all events, each once. `rows` are what its sink has, by partition."""

    world: World
    name: str
    writers: list[Writer]
    error: ZeroEventHubError | None = None
    failures: int = 0

    def is_done(self) -> bool:
        return self.world.calm and all(each.committed == len(each.sizes) for each in self.writers)

    def live(self) -> None:
        while True:
            done = self.is_done()
            try:
                self.read()
                if done:
                    return
                self.world.pause(0.5)
            except AGAIN as exc:
                self.world.say(f"{type(exc).__name__}")
                self.world.end_threads()
                self.world.pause(1.0)
                self.failures += 1
                if self.world.calm and self.failures > 20 and self.world.restores:
                    self.error = exc  # it has read more than the feed will ever have
                    return
            except (CursorGoneError, ReplayError, CheckpointError, PublisherError) as exc:
                self.world.say(f"{exc}"[:200])
                self.world.counts[f"told {type(exc).__name__}"] += 1
                if not self.was_changed(exc):
                    self.error = exc
                    return
                self.world.end_threads()
                self.world.pause(1.0)

    def was_changed(self, exc: ZeroEventHubError) -> bool:
        """Whether an answer, or a request of a relay, was changed on its way."""
        if isinstance(exc, PublishError):
            return bool(self.world.counts["request changed"]) and exc.problem in CHANGED
        return type(exc) is PublisherError and bool(self.world.counts["chunks changed"])


@dataclass(eq=False)
class PlainReader(Reader):
    """A program without Spark, which keeps events and cursors in one transaction."""

    kept: list[tuple[list[tuple[int, Any]], str]] = field(default_factory=list)

    def read(self) -> None:
        cursors = self.kept[-1][1] if self.kept else None
        for page, after in reading.reader(URL, cursors, retry_timeout="20s", page_size_hint=5):
            self.world.step("keeps a page")
            rows = [(row["partition"], json.loads(row["data"])) for row in page.to_pylist()]
            self.kept.append((rows, after))

    def rows(self) -> dict[int, list[Any]]:
        return _by_partition(row for rows, _ in self.kept for row in rows)


@dataclass(eq=False)
class StreamQuery(Reader):
    """A query of Spark, with its checkpoint and an idempotent sink. `fetch` is as its option.

    Its cursor set has its name.
    """

    fetch: str = "executors"
    offsets: list[str] = field(default_factory=list)
    commits: int = 0
    output: dict[int, list[tuple[int, Any]]] = field(default_factory=dict)

    def read(self) -> None:
        given = {"url": URL, "retryTimeout": "20s", "wait": "0", "pollInterval": "10ms"}
        given |= {"fetch": self.fetch, "maxEventsPerTrigger": "7", "cursorSet": self.name}
        reader = StreamReader(parse(SourceOptions, given), DECODER)
        start = json.loads(self.offsets[self.commits - 1]) if self.commits else None
        start = start or reader.initialOffset()
        while True:
            if len(self.offsets) == self.commits:
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                if end is start:
                    return
                self.world.step(f"writes offset {self.commits}")
                self.offsets.append(json.dumps(end))
            end = json.loads(self.offsets[-1])
            self.write(self._rows(reader, start, end))
            self.world.step(f"commits batch {self.commits}")
            self.commits += 1
            reader.commit(end)
            start = end

    def write(self, batches: list[pa.RecordBatch]) -> None:
        """Keep the rows of batch `commits`, which are always the same."""
        self.world.step(f"writes rows of batch {self.commits}")
        rows = [
            (row["partition"], json.loads(row["data"]))
            for batch in batches
            for row in batch.to_pylist()
        ]
        before = self.output.setdefault(self.commits, rows)
        if before != rows:
            raise AnomalyError(f"{self.name}: batch {self.commits} was {before}, is {rows}")

    def _rows(self, reader: StreamReader, start: Any, end: Any) -> list[pa.RecordBatch]:
        tasks = reader.partitions(start, end)
        if isinstance(reader, _SimpleStreamReaderWrapper):  # what it says if it has them already
            return [*reader.getCache(start, end)]
        copies = pickle.loads(pickle.dumps(tasks)), pickle.loads(pickle.dumps(reader))
        return [batch for task in copies[0] for batch in copies[1].read(task)]

    def rows(self) -> dict[int, list[Any]]:
        return _by_partition(row for each in sorted(self.output) for row in self.output[each])


@dataclass(eq=False)
class Relay(StreamQuery):
    """A query of Spark that publishes what it reads in another feed."""

    publisher: Publisher = field(kw_only=True)

    def write(self, batches: list[pa.RecordBatch]) -> None:
        given = {"url": COPY_URL, "producerId": self.name, "keepOrigin": "true"}
        options = sink_options({**given, "retryTimeout": "20s"}, streaming=True)
        query = str(uuid.uuid5(uuid.NAMESPACE_DNS, self.name))
        call = BatchCall(self.name, query, str(uuid.uuid4()), self.commits, options.overrides)
        done = stage(options, COPIED, call, TaskDone(0, 0), iter(batches))
        StreamWriter(options, COPIED).commit([pickle.loads(pickle.dumps(done))], self.commits)

    def rows(self) -> dict[int, list[Any]]:
        return self.publisher.events(COPY)


def _by_partition(rows: Any) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for partition, row in rows:
        found.setdefault(partition, []).append(row)
    return found
