"""The sink on real Spark: a feed to publish to, what stands in between, and what to publish.

A test breaks things from outside, at the gateway, where it sees what the sink asks for: so drivers
are killed between two requests, and answers are lost, with no hook in the sink.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from tests.fix_middlemen import NOTHING, Gateway, passed
from tests.fix_publisher import open_feeds, store_url
from tests.fix_raw_server import Answer, Request
from tests.fix_spark import in_batches, without_code
from tests.patience import PATIENCE, Halt
from zeh_spark.publisher import open_store
from zeh_spark.testing import running_publisher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 3
UPLOADING = {"uploadBytes": "64k"}
"""With rows of 200 bytes: an upload for each thousand of them."""

CALLS = {
    "look up": "GET .*/batches/1$",
    "upload": "PUT .*/batches/1/",
    "commit": "POST .*/batches/1/commit",
}
"""The calls of batch 1, as the gateway notes them."""


def call_of(call: str, batch: int = 1, producer: str = ".*") -> str:
    """The same of another batch, or of one producer."""
    return CALLS[call].replace(".*/batches/1", f".*/{producer}/batches/{batch}")


# In between


class LostError(Exception):
    """Raised by what a test does at a request or an answer: it never arrives."""


@dataclass
class Rule:
    """What to do, once, at a request: before it reaches the publisher, or after the answer."""

    pattern: re.Pattern[str]
    before: Callable[[], object]
    after: Callable[[], object]


class Watched(Gateway):
    """A gateway at which things happen to requests that fit a pattern, as "METHOD path"."""

    def __init__(self, publisher: str) -> None:
        super().__init__(int(publisher.rpartition(":")[2]))
        self._rules: list[Rule] = []
        self._rules_lock = threading.Lock()
        self.fate = self._by_rules

    def once(
        self,
        pattern: str,
        *,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        """At the first request that fits. Who raises LostError lets it, or its answer, get lost."""
        self._rules.append(Rule(re.compile(pattern), before, after))

    def hold(self, pattern: str) -> tuple[threading.Event, threading.Event]:
        """Keep back the first request that fits: it has come, when the first event is set, and
        continues when the test sets the second."""
        halt = Halt()
        self.once(pattern, before=halt)
        return halt.reached, halt.go

    def asked(self, pattern: str) -> list[Request]:
        """The requests that fit."""
        return [each for each in self.requests if re.search(pattern, _line(each))]

    def count(self, pattern: str) -> int:
        return len(self.asked(pattern))

    def attempts(self, task: int) -> set[str]:
        """Those at a task of batch 0 that have sent uploads."""
        found = self.asked(rf"PUT .*/batches/0/uploads/.*[.]{task}[.]\d+[.]\d+$")
        return {_line(each).split(".")[-2] for each in found}

    def _by_rules(self, _: Gateway, request: Request) -> Answer:
        rule = self._rule(_line(request))
        try:
            rule.before()
            given = passed(self, request)
            rule.after()
        except (LostError, OSError, http.client.HTTPException):
            return NOTHING
        return given

    def _rule(self, line: str) -> Rule:
        with self._rules_lock:
            for rule in self._rules:
                if rule.pattern.search(line):
                    self._rules.remove(rule)
                    return rule
        return Rule(re.compile(""), lambda: None, lambda: None)


def _line(request: Request) -> str:
    return f"{request.method} {request.target.partition('?')[0]}"


def lost() -> None:
    raise LostError


# The feed


@dataclass(frozen=True)
class Published:
    """An event as the feed gives it, with all headers."""

    partition: int
    data: Any
    headers: dict[str, str]

    @property
    def stamp(self) -> tuple[str, int, int]:
        """Producer, stored partition, sequence number."""
        each = self.headers
        return each["zeh-producer"], int(each["zeh-partition"]), int(each["zeh-sequence"])


@dataclass
class Target:
    """Feeds of a store, each with three partitions, behind a gateway; `orders` is the usual one."""

    publisher: str
    gateway: Watched

    @property
    def url(self) -> str:
        return self.feed("orders")

    def feed(self, name: str) -> str:
        return f"{self.gateway.address}/{name}"

    def events(self, feed: str = "orders") -> list[Published]:
        cursors = "&".join(f"cursor{each}=_first" for each in range(PARTITIONS))
        answer = requests.get(
            f"{self.publisher}/{feed}?n={PARTITIONS}&{cursors}&headers=_all&pagesizehint=9999999",
            timeout=60,
        )
        answer.raise_for_status()
        lines = map(json.loads, answer.content.splitlines())
        return [
            Published(each["partition"], each["data"], each["headers"])
            for each in lines
            if "data" in each
        ]

    def receipts(self, producer: str, feed: str = "orders") -> list[dict[str, Any]]:
        """Oldest first."""
        name = producer.replace("#", "%23")
        answer = requests.get(
            f"{self.publisher}/{feed}/producers/{name}/batches?limit=1000", timeout=60
        )
        found: list[dict[str, Any]] = answer.json()["receipts"]
        return found[::-1]

    def check_once(self, numbers: Iterable[int], feed: str = "orders") -> None:
        """Each number is published once, as {"i": number}, and no batch is torn or missing."""
        events = self.events(feed)
        assert Counter(each.data["i"] for each in events) == Counter(numbers)
        self.check_stamps(events, feed)

    def check_stamps(self, events: list[Published], feed: str = "orders") -> None:
        sequences: dict[tuple[str, int], list[int]] = {}
        batches: dict[str, Counter[int]] = {}
        for each in events:
            producer, partition, sequence = each.stamp
            assert each.partition == partition
            sequences.setdefault((producer, partition), []).append(sequence)
            batches.setdefault(producer, Counter())[int(each.headers["zeh-batch"])] += 1
        for found in sequences.values():
            assert found == list(range(len(found)))
        for producer, found in batches.items():
            receipts = self.receipts(producer, feed)
            told: Counter[int] = Counter()
            for each in receipts:
                told[each["batch"]] += each["events"]
            assert +found == +told

    def batches(self, producer: str = "spark") -> list[int]:
        return [each["batch"] for each in self.receipts(producer)]


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    """Feeds `orders`, `copy` and `dead` on a publisher in this process."""
    with (
        closing(open_store(new_store(tmp_path / "store"))) as store,
        running_publisher(store) as base,
        closing(Watched(base)) as gateway,
    ):
        yield Target(base, gateway)


def new_store(folder: Path) -> str:
    folder.mkdir()
    with open_feeds(store_url(folder), orders=PARTITIONS, copy=PARTITIONS, dead=PARTITIONS):
        return store_url(folder)


# What is published


@dataclass
class Inbox:
    """A folder of files; a stream takes each one as a batch, in the order of their names."""

    folder: Path
    files: int = 0

    def add(self, *batches: Iterable[int], pad: int = 0, broken: Iterable[int] = ()) -> None:
        """A file of {"i": number} for each, longer by `pad` bytes; `broken` ones are no JSON."""
        odd = set(broken)
        self.folder.mkdir(exist_ok=True)
        for numbers in batches:
            rows = ({"i": i, "x": _noise(i, pad)} if pad else {"i": i} for i in numbers)
            hidden = self.folder / f".{self.files}"
            texts = (json.dumps(row)[: -1 if row["i"] in odd else None] for row in rows)
            hidden.write_text("".join(text + "\n" for text in texts))
            os.utime(hidden, times=(time.time() - 3600 + self.files,) * 2)
            hidden.rename(self.folder / f"{self.files:04}.json")
            self.files += 1

    def clear(self) -> None:
        for file in self.folder.iterdir():
            file.unlink()

    def rows(self, spark: SparkSession, at_once: int = 1) -> DataFrame:
        reader = spark.readStream.option("maxFilesPerTrigger", at_once)
        return reader.text(str(self.folder)).selectExpr("value AS data")


def _noise(seed: int, size: int) -> str:
    return random.Random(seed).randbytes(size // 2).hex()


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path / "inbox")


# Who publishes


def _options(target: Target) -> dict[str, str]:
    return {"url": target.url, "producerId": "spark", "retryTimeout": "20s"}


@dataclass
class Sink:
    """Queries of the shared session that publish into `orders`, as producer `spark`."""

    folder: Path
    target: Target
    queries: list[StreamingQuery] = field(default_factory=list)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def start(self, frame: DataFrame, checkpoint: Path | None = None, **how: Any) -> StreamingQuery:
        """`how`: options of the sink, or `trigger`, `mode` and `name` of the query."""
        writer = frame.writeStream.format("zeroeventhub").outputMode(how.pop("mode", "append"))
        if name := how.pop("name", None):
            writer = writer.queryName(name)
        writer = writer.trigger(**how.pop("trigger", {"availableNow": True}))
        options = {**_options(self.target), "checkpointLocation": checkpoint or self.checkpoint}
        for option, value in {**options, **how}.items():
            writer = writer if value is None else writer.option(option, str(value))
        self.queries.append(writer.start())
        return self.queries[-1]

    def run(self, frame: DataFrame, checkpoint: Path | None = None, **how: Any) -> None:
        """Publish all that is there."""
        assert self.start(frame, checkpoint, **how).awaitTermination(PATIENCE)

    def repeat_a_batch(self, frame: DataFrame, write: Callable[[DataFrame], object]) -> None:
        """Write each batch in foreachBatch; batch 1 fails after its write, and is repeated."""
        failures = [1]

        def publish(rows: DataFrame, batch: int) -> None:
            write(rows)
            if batch in failures:
                failures.remove(batch)
                raise RuntimeError("after the write")

        def run() -> None:
            self.queries.append(in_batches(frame, publish, self.checkpoint))
            assert self.queries[-1].awaitTermination(PATIENCE)

        with pytest.raises(Exception, match="after the write"):
            run()
        run()

    def fail(self, frame: DataFrame, checkpoint: Path | None = None, **how: Any) -> str:
        """The same, which has to fail; gives our line of the error."""
        with pytest.raises(Exception) as raised:
            self.run(frame, checkpoint, **how)
        return ours(raised.value)

    def forget(self, batch: int) -> None:
        """As if the driver had died before Spark noted that the batch was done."""
        commits = self.checkpoint / "commits"
        (commits / str(batch)).unlink()
        (commits / f".{batch}.crc").unlink()

    def stop(self) -> None:
        for query in self.queries:
            query.stop()


@pytest.fixture
def sink(spark: SparkSession, tmp_path: Path, target: Target) -> Iterator[Sink]:
    queries = Sink(tmp_path, target)
    yield queries
    queries.stop()


@pytest.fixture
def write(target: Target) -> Callable[..., None]:
    """`write(frame, batchId=…)`: as producer `spark`, into `orders`."""

    def write(frame: DataFrame, mode: str = "append", **options: str) -> None:
        writer = frame.write.format("zeroeventhub").mode(mode)
        writer.options(**{**_options(target), **options}).save()

    return write


@pytest.fixture
def fail_write(write: Callable[..., None]) -> Callable[..., str]:
    """The same, which has to fail; gives our line of the error."""

    def fail(frame: DataFrame, **options: str) -> str:
        with pytest.raises(Exception) as raised:
            write(frame, **options)
        return ours(raised.value)

    return fail


def ours(error: BaseException) -> str:
    """The line that names our error. There is no traceback of ours before it."""
    text = str(error)
    assert 'File "' not in text, text
    found = re.findall(r"^(?:.*: )?zeh_spark\.errors\.(.*)$", text, re.MULTILINE)
    assert found, text
    return without_code(found[0])


def remedy(said: str) -> dict[str, str]:
    """The option that an error says to set once."""
    name, value = re.findall(r"set once (\w+)=(\S+)$", said)[0]
    return {name: value}
