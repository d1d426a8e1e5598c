"""A feed of orders whose steps have an order, and a query that puts them into it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import zeh_spark
from zeh_spark import sessions
from zeh_spark._compat import HAS_ADMISSION_CONTROL
from zeh_spark.publish import Producer
from zeh_spark.publisher import MemoryStore
from zeh_spark.testing import running_publisher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PATIENCE = 120
AT = "timestamp_seconds(cast(headers['at'] AS BIGINT))"


@dataclass
class Orders:
    """`add` publishes steps of orders, `run` reads what is there to its end. What comes out is in
    `ordered`, as (order, step), and in `dead`, as rows.
    """

    spark: SparkSession
    url: str
    folder: Path
    producer: Producer
    ordered: list[tuple[str, int]] = field(default_factory=list)
    dead: list[Row] = field(default_factory=list)
    progress: list[dict[str, Any]] = field(default_factory=list)

    def add(self, *steps: tuple[str | None, object], at: int = 0, **headers: str) -> None:
        """(order, step) each, as one batch of the feed, at a second of the feed's time."""
        with self.producer.batch() as batch:
            for order, step in steps:
                text = None if step is None else str(step)
                given = {"order": order, "step": text, "at": str(at), **headers}
                given = {name: value for name, value in given.items() if value is not None}
                batch.add({"order": order}, key=order, headers=given)

    def frame(self, **options: Any) -> DataFrame:
        feed = self.spark.readStream.format("zeroeventhub").load(self.url)
        given = {"session": "headers['order']", "sequence": "headers['step']", "time": AT}
        return sessions.in_order(feed, **{**given, **options})

    def start(self, **options: Any) -> StreamingQuery:
        write = sessions.route(ordered=self._ordered, dead=self._dead)
        writer = self.frame(**options).writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    def run(self, **options: Any) -> None:
        if HAS_ADMISSION_CONTROL:
            query = self.start(**options)
            assert query.awaitTermination(PATIENCE)
            metrics = (each.observedMetrics.get("sessions") for each in query.recentProgress)
            self.progress += [each.asDict() for each in metrics if each]
        else:
            zeh_spark.drain(lambda: self.start(**options), timeout=PATIENCE)

    def _ordered(self, batch: DataFrame, number: int) -> None:
        rows = batch.select("headers.order", "headers.step").collect()
        self.ordered += [(row[0], int(row[1])) for row in rows]

    def _dead(self, batch: DataFrame, number: int) -> None:
        self.dead += batch.collect()

    def steps(self, order: str) -> list[int]:
        return [step for name, step in self.ordered if name == order]

    def reasons(self) -> list[tuple[str, str | None, int | None]]:
        return [(each.dead.reason, each.dead.session, each.dead.received) for each in self.dead]

    def count(self, name: str) -> int:
        return sum(each[name] for each in self.progress)


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> Iterator[Orders]:
    store = MemoryStore()
    store.create("orders", 2)
    with running_publisher(store) as base:
        url = f"{base}/orders"
        yield Orders(spark, url, tmp_path, Producer(url, "shop"))
