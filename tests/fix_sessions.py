"""A feed of orders whose steps have an order, and a query that puts them into it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest

from tests.fix_spark import to_the_end
from tests.scratch_store import ScratchStore
from zeh_spark import sessions
from zeh_spark.publish import Producer
from zeh_spark.spark.frames.compat import HAS_ADMISSION_CONTROL
from zeh_spark.spark.sessions.routing import Writer
from zeh_spark.testing import running_publisher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

needs_batches = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="on this Spark a finite run is one batch, and judges no gap"
)
AT = "timestamp_seconds(cast(headers['at'] AS BIGINT))"


@dataclass
class Orders:
    """`add` publishes steps, `run` reads to the end: `ordered` as (order, step), `dead` as rows.

    `named` has the steps that have names.
    """

    spark: SparkSession
    url: str
    folder: Path
    store: ScratchStore
    producer: Producer
    dead_writer: Writer | None = None
    ordered: list[tuple[str, int]] = field(default_factory=list)
    named: list[tuple[str, str]] = field(default_factory=list)
    dead: list[Row] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    progress: list[dict[str, Any]] = field(default_factory=list)

    def add(self, *steps: tuple[str | None, object], at: int = 0, **headers: str) -> None:
        """(order, step) each, as one batch of the feed, at a second of the feed's time."""
        with self.producer.batch() as batch:
            for order, step in steps:
                text = None if step is None else str(step)
                given = {"order": order, "step": text, "at": str(at), **headers}
                given = {name: value for name, value in given.items() if value is not None}
                batch.add({"order": order}, key=order, headers=given)

    def frame(
        self,
        *,
        limit: str = "1000",
        reader: dict[str, str] | None = None,
        columns: Sequence[str] = ("*",),
        **options: Any,
    ) -> DataFrame:
        given = {"session": "headers['order']", "sequence": "headers['step']", "time": AT}
        feed = self.feed(limit, **(reader or {})).selectExpr(*columns)
        return sessions.in_order(feed, **{**given, **options})

    def feed(self, limit: str = "1000", **options: str) -> DataFrame:
        feed = self.spark.readStream.format("zeroeventhub").option("maxEventsPerTrigger", limit)
        return feed.options(**options).load(self.url)

    def create(self, name: str, partitions: int = 2) -> str:
        """Another feed of the publisher."""
        self.store.create(name, partitions)
        return f"{self.url.rpartition('/')[0]}/{name}"

    def start(self, *, trigger: dict[str, Any] | None = None, **options: Any) -> StreamingQuery:
        write = sessions.route(ordered=self._ordered, dead=self.dead_writer or self._dead)
        writer = self.frame(**options).writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self, **options: Any) -> None:
        queries: list[StreamingQuery] = []

        def start() -> StreamingQuery:
            queries.append(self.start(**options))
            return queries[-1]

        to_the_end(start)
        for progress in (each for query in queries for each in query.recentProgress):
            if metrics := progress.observedMetrics.get("sessions"):
                self.progress.append(metrics.asDict())

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def forget(self, batches: int) -> None:
        """As if the driver had died in the first of its last batches."""
        names = sorted(int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*"))
        last = names[-batches:]
        for log, gone in (("commits", last), ("offsets", last[1:])):
            for name in gone:
                (self.checkpoint / log / str(name)).unlink()
                (self.checkpoint / log / f".{name}.crc").unlink(missing_ok=True)

    def _ordered(self, batch: DataFrame, number: int) -> None:
        rows = batch.select("headers.order", "headers.step").collect()
        self.ordered += [(row[0], int(row[1])) for row in rows if row[1].isdigit()]
        self.named += [(row[0], row[1]) for row in rows if not row[1].isdigit()]
        self.batches.append(number)

    def _dead(self, batch: DataFrame, number: int) -> None:
        self.dead += batch.collect()

    def steps(self, order: str) -> list[int]:
        return [step for name, step in self.ordered if name == order]

    def reasons(self, order: str | None = "") -> list[tuple[str, int | None]]:
        """Of all dead letters, or those of an order: why, and which step."""
        dead = [each.dead for each in self.dead if order in ("", each.dead.session)]
        return [(each.reason, each.received) for each in dead]

    def count(self, name: str) -> int:
        return sum(each[name] for each in self.progress)


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Iterator[Orders]:
    store = ScratchStore(orders=2)
    with running_publisher(store) as base:
        url = f"{base}/orders"
        yield Orders(spark, url, tmp_path, store, Producer(url, "shop"))


@pytest.fixture
def line(orders: Orders) -> Orders:
    """Orders on a feed of one partition: with `limit="1"` each that are added are a batch."""
    url = orders.create("line", 1)
    return replace(orders, url=url, producer=Producer(url, "shop"))


def rows_of(folder: Path, name: str) -> list[tuple[str, int]]:
    """(order, step) of a table of `several_queries.py`, in the order of batches."""
    batches = (folder / name).glob("batch=*")
    found = []
    for batch in sorted(batches, key=lambda path: int(path.name[6:])):
        table = pyarrow.dataset.dataset(batch, format="parquet").to_table(columns=["headers"])
        rows = [dict(row) for row in table["headers"].to_pylist() if row]
        found += [(row["order"], int(row["step"])) for row in rows]
    return found
