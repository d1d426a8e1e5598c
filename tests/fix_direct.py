"""Chunks and answers written by hand, and a feed behind a raw server that offers direct reads."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
import xxhash

from tests.fix_raw_server import Answer, ok, refused
from zeh_spark.wire import direct_reads as wire
from zeh_spark.wire import problems
from zeh_spark.wire.direct_reads import PlannedRange
from zeh_spark.wire.upload_format import frame_of

TYPE = {"content_type": wire.CONTENT_TYPE}
LINE = b'{"partition":0,"headers":{},"data":1}\n'
BEGIN, END = "3.0a1b2c3d", "9.0a1b2c3d"
FEED_ID = "9f86d081884c7d65"


@dataclass(frozen=True)
class Sent:
    """A chunk as an answer has it; `events` and `size` are those of the lines unless given."""

    g: int
    lines: bytes = LINE
    partition: int = 0
    producer: str = "p"
    sequence: int = 0
    time: int = 10
    events: int | None = None
    size: int | None = None
    frame: bytes | None = None

    @property
    def record(self) -> tuple[int, ...]:
        events = self.lines.count(b"\n") if self.events is None else self.events
        size = len(self.lines) if self.size is None else self.size
        producer = wire.name_hash(self.producer)
        return (
            self.g, self.time, producer, 7, self.sequence, 0x0A1B2C3D, self.partition, events, size
        )  # fmt: skip


def records(chunks: Sequence[Sent]) -> np.ndarray:
    return np.array([each.record for each in chunks], wire.HEADERS)


def frames(chunks: Sequence[Sent]) -> list[bytes]:
    return [frame_of(each.lines) if each.frame is None else each.frame for each in chunks]


def planned(*chunks: Sent, partition: int = 0, begin: str = BEGIN, end: str = END) -> PlannedRange:
    """The range that a publisher plans which has these chunks."""
    found = wire.totals(records(chunks))
    return PlannedRange(partition, begin, end, found.chunks, found.events, found.bytes, found.hex)


def group(*chunks: Sent, number: int = 0, producers: Sequence[str] = ("p",)) -> bytes:
    """Neighbours in a range, as `wire.direct_reads` describes them."""
    sent = frames(chunks)
    sizes = list(map(len, sent))
    head = {"range": number, "chunks": len(sent), "producers": producers}
    head |= {"frames": len(sent), "bytes": sum(sizes)}
    places = np.array([(at, 0) for at in range(len(sent))], wire.PLACES)
    arriving = [(len(each), xxhash.xxh3_64_intdigest(each)) for each in sent]
    tables = records(chunks).tobytes() + places.tobytes()
    tables += np.array(arriving, wire.FRAMES).tobytes()
    return msgspec.json.encode(head) + b"\n" + tables + b"".join(sent)


def end_of(*chunks: Sent, number: int = 0, end: str = END) -> bytes:
    return wire.encode_end(number, end, wire.totals(records(chunks)))


@dataclass
class DirectFeed:
    """A feed of one partition that offers direct reads, behind a raw server.

    `plan` and `chunks` answer what is asked, given the parsed body; `page` answers a page.
    """

    server: object
    reads: object = field(default_factory=lambda: dict(wire.OFFER))
    partitions: int = 1
    plan: Callable[[dict], Answer] = lambda asked: refused(500, "no plan is scripted")
    chunks: Callable[[dict], Answer] = lambda asked: refused(500, "no chunks are scripted")
    page: Callable[[object], Answer] = lambda request: refused(500, "no page is scripted")
    allowed: Callable[[str], bool] = lambda authorization: True

    def __post_init__(self) -> None:
        told = {"id": FEED_ID, "epochs": [{"id": FEED_ID, "time": 0}], "reads": self.reads}
        document = {
            "type": f"{problems.URN}parameter-missing",
            "partitionCount": self.partitions,
            "feed": told,
        }
        self.server.discovery = refused(
            400, json.dumps(document), content_type="application/problem+json"
        )
        self.server.respond = self.respond

    def respond(self, request) -> Answer:
        if not self.allowed(request.headers.get("authorization", "")):
            return refused(401, "who are you?")
        if request.path.endswith("/plan"):
            return self.plan(json.loads(request.body))
        if request.path.endswith("/chunks"):
            return self.chunks(json.loads(request.body))
        return self.page(request)

    def script(self, *plans: Answer) -> None:
        """Answer the next requests for plans with these."""
        left = iter(plans)
        self.plan = lambda asked: next(left)

    def asked(self, what: str = "/plan") -> list[dict]:
        """The bodies of the requests for plans, or chunks."""
        found = [each for each in self.server.requests if each.path.endswith(what)]
        return [json.loads(each.body) for each in found]

    @property
    def pages(self) -> int:
        """How many pages were asked for."""
        return len(self.server.requests) - len(self.asked()) - len(self.asked("/chunks"))


def plan_of(
    *ranges: PlannedRange,
    ends: Sequence[str] | dict[str, str] = (END,),
    more: bool = False,
    head: str = END,
) -> Answer:
    """An answer with a plan."""
    every = {str(partition): end for partition, end in enumerate(ends)}
    cursors = ends if isinstance(ends, dict) else every
    found = wire.Plan(cursors, more, head, 10, 0, list(ranges))
    return ok(msgspec.json.encode(found), content_type="application/json")


def chunks_of(*chunks: Sent, end: str = END) -> Answer:
    """An answer with the chunks of one range."""
    return ok(wire.BEGINNING + group(*chunks) + end_of(*chunks, end=end), **TYPE)


@pytest.fixture
def direct_feed(raw_server) -> DirectFeed:
    """A feed that offers direct reads, whose answers are scripted."""
    return DirectFeed(raw_server)


def begun(start, feed: DirectFeed, **given):
    """A run that continues at BEGIN."""
    cursors = json.dumps({str(each): BEGIN for each in range(feed.partitions)})
    return start(url=feed.server.url, startingCursors=cursors, **given)


def next_batch(run):
    """The Spark partitions of the next batch, as tasks get them; None if there is none."""
    end = run.reader.latestOffset(run.offset, run.limit)
    if end is run.offset:
        return None
    found = run.reader.partitions(run.offset, end)
    run.offset = json.loads(json.dumps(end))
    return pickle.loads(pickle.dumps(found))


def rows(run, task) -> list[int]:
    """The rows of a task, which has nothing but the pickled reader."""
    reader = pickle.loads(pickle.dumps(run.reader))
    return [int(row["data"]) for batch in reader.read(task) for row in batch.to_pylist()]
