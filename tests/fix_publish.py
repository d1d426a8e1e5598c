"""Publishing without our own client, as another program would: raw calls to a publisher."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
import requests

from tests.fix_publisher import Publisher, new_feed
from tests.store_contract.writers import frames_of
from zeh_spark.client.http.publish_client import BatchCall, PublishClient, Receipt, TaskDone
from zeh_spark.publisher import Store
from zeh_spark.wire.upload_format import Chunker, Content, StagedChunk, lines_of, upload_body

PROBLEM = "urn:zeroeventhub:problem:"


def rows(*data: object, partition: int = 0) -> list[StagedChunk]:
    """Events as the chunks of a task."""
    chunker = Chunker()
    lines = [each if isinstance(each, bytes) else msgspec.json.encode(each) for each in data]
    full = [chunk for line in lines for chunk in chunker.add(partition, {}, line)]
    return [*full, *chunker.close()]


@dataclass(frozen=True)
class Who:
    """Which batch a call is about, and who calls; None leaves a parameter out."""

    batch: int | str = 0
    producer: str = "p"
    incarnation: str | None = "a"
    run: str = "r1"
    n: int | str | None = 2
    overrides: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"/producers/{quote(self.producer, safe='')}/batches/{self.batch}"

    def query(self, **more: str) -> str:
        given = {"incarnation": self.incarnation, "n": self.n, **more, **self.overrides}
        return urlencode({name: value for name, value in given.items() if value is not None})

    def but(self, **changes: Any) -> Who:
        return replace(self, **changes)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    document: dict[str, Any]

    @property
    def short(self) -> tuple[int, str]:
        """Status, and what became of the call: its status in words, or the problem's name."""
        kind = str(self.document.get("type", "")).removeprefix(PROBLEM)
        return self.status, kind or str(self.document.get("status", ""))

    @property
    def remedy(self) -> dict[str, str]:
        option: dict[str, str] = self.document["option"]
        return option


class Caller:
    """Calls one feed's publish API, over one connection as long as it holds."""

    def __init__(self, url: str, timeout: float = 60) -> None:
        self.url = url
        self._session = requests.Session()
        self._timeout = timeout

    def call(
        self, method: str, path: str, query: str = "", body: object = None, **headers: str
    ) -> Reply:
        named = {"Content-Type": "application/json"} if method == "POST" else {}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"{self.url}{path}?{query}"
        answer = self._session.request(method, url, data=body, headers=named, timeout=self._timeout)
        return Reply(answer.status_code, answer.headers, answer.json())

    def upload(
        self,
        who: Who,
        chunks: Sequence[StagedChunk] | bytes,
        *,
        name: str | None = None,
        **headers: str,
    ) -> Reply:
        """As upload 0 of task 0's attempt 0, unless the name says otherwise."""
        body = chunks if isinstance(chunks, bytes) else upload_body(chunks)
        path = f"{who.path}/uploads/{who.run}.{name or '0.0.0'}"
        return self.call("PUT", path, who.query(), body, **headers)

    def commit(self, who: Who, chunks: Sequence[StagedChunk] = (), **changes: object) -> Reply:
        """Of one task with one upload of these chunks, none if there are none."""
        body = {**commit_of(chunks), **changes}
        return self.call(
            "POST", f"{who.path}/commit", who.query(run=who.run), msgspec.json.encode(body)
        )

    def publish(self, who: Who, *data: object) -> Reply:
        """A whole batch of partition 0."""
        chunks = rows(*data)
        self.upload(who, chunks)
        return self.commit(who, chunks)

    def release(self, who: Who) -> Reply:
        return self.call("DELETE", f"{who.path}/uploads", urlencode({"run": who.run}))

    def receipt(self, who: Who, query: str = "") -> Reply:
        return self.call("GET", who.path, query)

    def close(self) -> None:
        self._session.close()


def commit_of(chunks: Sequence[StagedChunk]) -> dict[str, object]:
    """The body of a commit, as a driver sends it."""
    content = sum((each.content for each in chunks), Content())
    task = {"task": 0, "attempt": 0, "uploads": int(bool(chunks)), "events": content.events}
    return {
        "events": content.events,
        "digest": content.digest,
        "digestVersion": 1,
        "attempts": [task],
    }


def publish_batch(
    client: PublishClient, batch: BatchCall, chunks: Sequence[StagedChunk]
) -> Receipt:
    """With our own client, as a driver of one task does."""
    receipt, count, *_ = client.look_up(batch)
    if receipt is None:
        client.upload(batch, count, 0, 0, 0, upload_body(chunks))
    content = sum((each.content for each in chunks), Content())
    return client.commit(batch, count, [TaskDone(0, 0, 1, content)])


@pytest.fixture
def caller(publisher: Publisher) -> Iterator[Caller]:
    """To the feed `orders` of the test's publisher."""
    with closing(Caller(publisher.url)) as caller:
        yield caller


@pytest.fixture(scope="module")
def quiet_caller(quiet_publisher: Publisher) -> Iterator[Caller]:
    """To a publisher for all tests of a module that publish nothing."""
    with closing(Caller(quiet_publisher.url)) as caller:
        yield caller


@pytest.fixture
def store_file(tmp_path: Path) -> Path:
    """A store with the feed `orders`, which nobody serves yet."""
    file = tmp_path / "feeds.db"
    new_feed(file, partitions=2)
    return file


def events_of(store: Store, feed: str = "orders", producer: str | None = None) -> list[bytes]:
    """The data of all events of a feed in its order, or of those of one producer."""
    with store.snapshot(feed) as log:
        found = log.scan(0, log.state.head, 1 << 40)
        mine = [each for each in found if producer in (None, each.producer)]
    return data_in(frames_of(store, mine, feed))


def data_in(frames: Iterable[bytes]) -> list[bytes]:
    """The data of the events in the frames of chunks."""
    lines = [line for frame in frames for line in lines_of(frame).split(b"\n")[:-1]]
    return [line.split(b'"data":', 1)[1][:-1] for line in lines]


def published(caller: Caller, *data: object, **who: object) -> Reply:
    reply = caller.publish(Who().but(**who), *data)
    assert (200, "committed") == reply.short, reply.document
    return reply
