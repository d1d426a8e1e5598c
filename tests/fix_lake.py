"""A feed and Delta tables that keep it: what is published, runs of the query, what a table has."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import zeh_spark
from tests.fix_spark import to_the_end, without_code
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.errors import LakehouseError
from zeh_spark.testing import publish, running_publisher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def why_absent() -> str | None:
    """Why the tests of Delta tables cannot run here: there is none for Spark 4.3."""
    return None if find_spec("delta") else "delta-spark is not installed"


DATA = "i INT, key STRING, value STRING, op STRING"
ORDERS = "https://shop.example/orders"


@dataclass
class Lake:
    """Feeds at `url(feed)`, of two partitions, and tables in a folder."""

    spark: SparkSession
    base: str
    store: Any
    folder: Path
    queries: list[StreamingQuery] = field(default_factory=list)

    def url(self, feed: str = "orders") -> str:
        return f"{self.base}/{feed}"

    def publish(self, *events: Mapping[str, object], feed: str = "orders") -> None:
        """One batch of events, as they stand."""
        publish(self.store, feed, events)

    def add(self, numbers: Iterable[int], feed: str = "orders") -> None:
        """One batch of events {"i": number}."""
        publish(self.store, feed, [{"i": number} for number in numbers])

    def at(self, name: str) -> str:
        """A place in the folder; a name with a dot is one of the catalog."""
        return name if "." in name else str(self.folder / name)

    # Running

    def read(self, feed: str = "orders", **options: str) -> DataFrame:
        """The feed's events with their fields as columns."""
        reader = self.spark.readStream.format("zeroeventhub").options(**options)
        return zeh_spark.parsed(reader.load(self.url(feed)), DATA)

    def start(
        self,
        table: str = "orders",
        *,
        checkpoint: str = "checkpoint",
        name: str = "orders",
        source: Mapping[str, str] | None = None,
        change: Callable[[DataFrame], DataFrame] = lambda df: df,
        **options: Any,
    ) -> StreamingQuery:
        """A query as in the README, to the feed's end; `source` are other options of the source."""
        from zeh_spark import lakehouse

        where = self.at(table)
        given = {"name": name, "cursorColumn": options.get("cursorColumn")}
        if source is None:
            source = {"startingCursors": lakehouse.cursors(self.spark, where, **given)}
        query = lakehouse.to_delta(
            change(self.read(**source)),
            where,
            name=name,
            checkpointLocation=self.at(checkpoint),
            **{"trigger": {"availableNow": True}, **options},
        )
        self.queries.append(query)
        return query

    def run(self, *arguments: Any, **options: Any) -> None:
        """Such a query to its end."""
        to_the_end(lambda: self.start(*arguments, **options))

    def fail(self, *arguments: Any, **options: Any) -> str:
        """Our line of the error that such a query ends with."""
        with pytest.raises(Exception) as raised:
            self.run(*arguments, **options)
        return said(raised.value)

    def forget(self, batch: int, checkpoint: str = "checkpoint") -> None:
        """As after a crash after the table's commit: Spark does not know of it."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.folder / checkpoint / "commits" / name).unlink(missing_ok=True)

    # Writing without a query: `orders` is a feed of one partition whose cursors count events

    def writer(self, table: str = "orders", name: str = "orders", **options: Any) -> Any:
        from zeh_spark import lakehouse

        return lakehouse.DeltaFeedWriter(
            self.at(table), name=name, checkpointLocation="none", **options
        )

    def batch(
        self,
        number: int,
        events: range,
        *,
        query: str = "query",
        change: Callable[[DataFrame], DataFrame] = lambda df: df,
        feed: str = ORDERS,
        ids: tuple[str, ...] = ("id of orders",),
        state: bool = False,
        writer: Any = None,
        run: str | None = None,
        **options: Any,
    ) -> None:
        """What Spark gives as a batch between two places of the feed, each in a `run` of its own.

        `state`: if it has state.
        """
        from zeh_spark.spark.delta.following import QueryBatch

        stamps = "'zeh-producer', 'p', 'zeh-partition', '0', 'zeh-sequence', string(id)"
        frame = self.spark.range(events.start, events.stop, 1, 1)
        frame = frame.selectExpr("int(id) AS i", "string(id) AS value", f"map({stamps}) AS headers")
        start, end = ({feed: {"0": str(at)} if at else {}} for at in (events.start, events.stop))
        place = QueryBatch(query, number, start, end, stateful=state and not number, ids=ids)
        writer = writer or self.writer(**options)
        writer._has_state, writer._run = state, run or uuid.uuid4().hex
        writer._write(change(frame), place)

    def batches(self, *several: range, **options: Any) -> None:
        for number, events in enumerate(several):
            self.batch(number, events, **options)

    def refused(self, number: int, events: range, **options: Any) -> str:
        """What the error says with which such a batch is refused."""
        with pytest.raises(LakehouseError) as raised:
            self.batch(number, events, **options)
        return without_code(str(raised.value))

    def place(self, table: str = "orders", name: str = "orders", **options: Any) -> int:
        """Where a new query has to begin."""
        from zeh_spark import lakehouse

        found = lakehouse.cursors(self.spark, self.at(table), name=name, **options)
        return 0 if found == "first" else int(json.loads(found)["0"])

    # Looking

    def table(self, table: str = "orders") -> DataFrame:
        if "." in table:
            return self.spark.table(table)
        return self.spark.read.format("delta").load(self.at(table))

    def numbers(self, table: str = "orders") -> Counter[int]:
        """How often each event is there."""
        return Counter(row.i for row in self.table(table).select("i").collect())

    def sql(self, text: str, table: str = "orders") -> DataFrame:
        """`{}` stands for the table."""
        return self.spark.sql(text.format(f"delta.`{self.at(table)}`"))

    def history(self, table: str = "orders") -> list[Any]:
        """Newest first."""
        return self.sql("DESCRIBE HISTORY {}", table).collect()

    def commit_of(self, batch: int) -> Any:
        """The newest commit of a batch."""
        records = ((row, json.loads(row.userMetadata or "{}")) for row in self.history())
        return next(row for row, of in records if of.get("batch") == batch)

    def restore(self, batch: int) -> None:
        """The table to what it was behind a batch."""
        self.sql(f"RESTORE TABLE {{}} TO VERSION AS OF {self.commit_of(batch).version}")

    def vacuum(self) -> None:
        vacuum(self.spark, self.at("orders"))

    def clean_log(self, table: str = "orders") -> None:
        """As Delta does with old commits: all but those after the log's newest checkpoint go."""
        from zeh_spark.spark.delta.delta_table import LakeTable

        self.sql("INSERT INTO {} (i) VALUES (-1)", table)
        next(LakeTable(self.spark, self.at(table))._logs()).checkpoint()
        log = self.folder / table / "_delta_log"
        newest = max(int(each.name[:20]) for each in log.glob("*.checkpoint*.parquet"))
        for each in log.iterdir():
            if (
                re.match(r"\.?\d{20}\.(json|crc)", each.name)
                and int(each.name.lstrip(".")[:20]) < newest
            ):
                each.unlink()

    def drop(self, *names: str) -> None:
        for name in names:
            shutil.rmtree(self.folder / name)


def vacuum(spark: SparkSession, path: str) -> None:
    """Of all that a table's newest version does not need, in few tasks."""
    settings = {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    for name in settings:
        spark.conf.unset(name)


def said(error: BaseException) -> str:
    """Our line of an error."""
    text = str(error)
    found = re.findall(r"^(?:.*: )?zeh_spark\.errors\.\w+: (.*)$", text, re.MULTILINE)
    if found:
        return without_code(found[0])
    assert type(error).__module__ == "zeh_spark.errors", text
    return without_code(text)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    store = ScratchStore(orders=2, returns=2)
    with running_publisher(store) as base:
        found = Lake(spark, base, store, tmp_path)
        yield found
        for query in found.queries:
            query.stop()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    found = Gate(tmp_path / "come", tmp_path / "gate")
    os.mkfifo(found.pipe)
    yield found
    found.open()  # whatever became of the test, no task stays behind


@dataclass
class Gate:
    """Where the tasks of a query wait until the test lets them on."""

    come: Path
    pipe: Path
    writer: int | None = None

    def __call__(self, frame: DataFrame) -> DataFrame:
        come, pipe = str(self.come), str(self.pipe)

        def wait(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                open(come, "w").close()
                with open(pipe, "rb"):  # comes back when the test has it open for writing
                    yield batch

        return frame.coalesce(1).mapInArrow(wait, frame.schema)  # others need a core, too

    @contextmanager
    def during(self, write: Callable[..., Any], *arguments: Any, **options: Any) -> Iterator[Any]:
        """While such a write waits, half way; gives the future of what it returns."""
        with ThreadPoolExecutor() as pool:
            writing = pool.submit(write, *arguments, change=self, **options)
            try:
                eventually(self.come.exists)
                yield writing
            finally:
                self.open()
            writing.result()

    def open(self) -> None:
        """From now on, also for tasks that come later."""
        if self.writer is None:
            self.writer = os.open(self.pipe, os.O_RDWR)
