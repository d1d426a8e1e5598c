"""A feed and its feed of dead letters, for tests: a stream that publishes to both."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
import requests

from tests.fix_sink import Watched, remedy
from tests.scratch_store import ScratchStore
from zeh_spark.client.http.publish_client import BatchCall, TaskDone
from zeh_spark.client.http.tail import follow
from zeh_spark.errors import PublishError
from zeh_spark.spark.sink.options import sink_options
from zeh_spark.spark.sink.row_layout import RowLayout
from zeh_spark.spark.sink.writer import StagedTask, StreamWriter, stage
from zeh_spark.testing import running_publisher
from zeh_spark.wire.dead_letters import letters

TEXT = RowLayout(("data",), text=True)
QUERY = str(uuid.uuid4())


@contextmanager
def served(feed: str, partitions: int = 2) -> Iterator[Watched]:
    """A feed on a store and a publisher of its own, behind a gateway."""
    store = ScratchStore()
    store.create(feed, partitions)
    with running_publisher(store) as base, closing(Watched(base)) as gateway:
        gateway.store = store
        yield gateway


@dataclass
class Two:
    """A feed `orders`, and a feed `dead` elsewhere; a stream that publishes to both."""

    main: Watched
    dead: Watched
    query: str = QUERY
    given: dict[str, str] = field(default_factory=dict)
    layout: RowLayout = TEXT

    @property
    def url(self) -> str:
        return f"{self.main.address}/orders"

    @property
    def dead_url(self) -> str:
        return f"{self.dead.address}/dead"

    def but(self, **changes: Any) -> Two:
        return replace(self, **changes)

    def options(self, **more: str) -> Any:
        usual = {"url": self.url, "deadLetterUrl": self.dead_url, "producerId": "p"}
        usual["retryTimeout"] = "0"
        return sink_options({**usual, **self.given, **more}, streaming=True)

    def staged(self, number: int, *tasks: list[str], **more: str) -> list[StagedTask]:
        options = self.options(**more)
        batch = BatchCall("p", self.query, uuid.uuid4().hex, number, options.overrides)
        return [
            stage(options, self.layout, batch, TaskDone(task, 0), iter([frame(rows)]))
            for task, rows in enumerate(tasks)
        ]

    def commit(self, number: int, staged: list[StagedTask], **more: str) -> None:
        StreamWriter(self.options(**more), self.layout).commit(staged, number)

    def publish(self, number: int, *tasks: list[str], **more: str) -> None:
        """As Spark publishes a batch."""
        self.commit(number, self.staged(number, *tasks, **more), **more)

    def refused(self, number: int, *tasks: list[str], **more: str) -> str:
        with pytest.raises(PublishError) as raised:
            self.publish(number, *tasks, **more)
        assert remedy(str(raised.value)) == raised.value.facts["option"]
        return str(raised.value)

    def events(self) -> list[str]:
        return [json.dumps(each, separators=(",", ":")) for each in events(self.main, "orders")]

    def letters(self) -> list[dict[str, Any]]:
        return letters_of(direct(self.dead, "dead"))

    def repaired_letter(self, data: str = "2", **headers: str | None) -> bytes:
        """The one dead letter, repaired, with other headers; None takes one away."""
        (line,) = _lines(direct(self.dead, "dead"), whole=True)
        letter = json.loads(line)
        letter["data"]["row"]["data"] = data
        named = {**letter["headers"], **{f"zeh-{name}": each for name, each in headers.items()}}
        letter["headers"] = {name: each for name, each in named.items() if each is not None}
        return json.dumps(letter).encode()

    def batches(self, url: str) -> list[tuple[int, int]]:
        """Numbers and events of the batches that are published there, oldest first."""
        answer = requests.get(f"{url}/producers/p/batches?limit=1000", timeout=10).json()
        return [(each["batch"], each["events"]) for each in answer["receipts"]][::-1]


def frame(rows: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"data": pa.array(rows, pa.string())})


def direct(gateway: Watched, feed: str) -> str:
    """Past the gateway, which takes answers apart."""
    return f"http://127.0.0.1:{gateway.server_port}/{feed}"


def letters_of(url: str) -> list[dict[str, Any]]:
    """What a dead-letter feed holds, with parts put together."""
    return [json.loads(each.whole)["data"] for each in letters(_lines(url, whole=True))]


def events(gateway: Watched, feed: str) -> list[Any]:
    return [json.loads(line) for line in _lines(direct(gateway, feed), whole=False)]


def _lines(url: str, whole: bool) -> Iterator[bytes]:
    for page in follow(url, "_first", {}, whole=whole, endless=False):
        yield from page


@pytest.fixture
def two() -> Iterator[Two]:
    with served("orders") as main, served("dead", 3) as dead:
        yield Two(main, dead)
