"""What this version stores, written once, for every later version to open: `make frozen`.

`tests/data/frozen.tar.gz` has:

    feeds.db                                a SQLite store: the feed `orders` with EVENTS, and
                                            `copies` with what `sink` has published
    feeds.sql                               a PostgreSQL store with `orders`, as pg_dump prints it
    driver, executors, seen, sessions       checkpoints of queries that have read EVENTS
    sink, delta                             those of queries that have published and kept them,
                                            the latter only if there is Delta for that Spark
    table                                   the Delta table of `delta`
    spark                                   the version of Spark that has written them

Rule for editors: from the tag v0.1.0 on the archive stays as it is. A later format gets an archive
of its own beside it, and the tests open both. `make upgrades` writes others, elsewhere.
"""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import zeh_spark
from tests.fix_lake import why_absent
from tests.fix_spark import ENVIRONMENT, to_the_end
from tests.postgresql import Server
from zeh_spark.client.http.tail import follow
from zeh_spark.publish import Producer
from zeh_spark.publisher import Store, open_store
from zeh_spark.service.store.interface import Retention, now_ms
from zeh_spark.testing import running_publisher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ARCHIVE = Path(
    os.environ.get("ZEH_FROZEN") or Path(__file__).parent / "data" / "frozen.tar.gz"  # another one
)
STEPS = (0, 1, 3)
EVENTS = [(name, step) for name in "ab" for step in STEPS]
"""The events of the feed `orders`: orders `a` and `b`, in order within each."""

_HERE = "FOLDER-OF-FROZEN"
"""Stands for the folder, whose whole path Spark keeps in the metadata of state."""


def fill(store: Store) -> None:
    """Make the feeds, with all that a store keeps of them except events."""
    store.create("orders", 2)
    store.create("copies", 2)
    store.set_retention("orders", Retention(bytes=10**9, readers=("mailer",), names_ms=None))
    store.save_cursors("orders", "mailer", 2, {0: "_first"}, "spark:1")


def add(base: str, steps: Iterable[int], batch: str = "first") -> None:
    """Publish steps of both orders, as a named batch."""
    with Producer(f"{base}/orders", "shop").batch(batch) as events:
        for name in "ab":
            for step in steps:
                headers = {"name": name, "step": str(step)}
                events.add({"name": name, "step": step}, key=name, headers=headers)


def event(data: str | bytes) -> tuple[str, int]:
    """Return the order and the step of an event's data."""
    found = json.loads(data)
    return found["name"], found["step"]


def events(url: str) -> list[tuple[str, int]]:
    """Return all events of a feed, sorted."""
    pages = follow(url, "_first", {}, whole=False, endless=False)
    return sorted(event(line) for page in pages for line in page)


# Queries


def ordered(feed: DataFrame) -> DataFrame:
    from zeh_spark import sessions

    names = {"session": "headers['name']", "sequence": "headers['step']"}
    return sessions.in_order(feed, **names, buckets=2, gap_timeout=None)


def seen(feed: DataFrame) -> DataFrame:
    from zeh_spark import dedup

    return dedup.drop_seen(feed, buckets=2)


READ: Mapping[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "driver": ("driver", lambda feed: feed),
    "executors": ("executors", lambda feed: feed),
    "seen": ("driver", seen),
    "sessions": ("driver", ordered),
}
"""Queries that read: who fetches, and what they do."""


class Queries:
    """Queries on the feed of a publisher, with the checkpoints in a folder."""

    def __init__(self, spark: SparkSession, base: str, folder: Path) -> None:
        self.base, self.folder = base, folder
        self._spark = spark

    def read(self, name: str) -> list[tuple[str, int]]:
        """Run a query of READ to the feed's end; return what comes out."""
        fetch, make = READ[name]
        found: list[tuple[str, int]] = []

        def keep(batch: DataFrame, _: int) -> None:
            found.extend(event(row.data) for row in batch.collect())

        writer = make(self._feed(fetch)).writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(self.folder / name))
        to_the_end(writer.trigger(availableNow=True).start)
        return found

    def publish(self) -> None:
        """Publish the feed's events to `copies`."""
        writer = self._feed("driver").select("data").writeStream.format("zeroeventhub")
        options = {"producerId": "relay", "checkpointLocation": str(self.folder / "sink")}
        writer = writer.options(**options).trigger(availableNow=True)
        to_the_end(lambda: writer.start(f"{self.base}/copies"))

    def keep(self) -> list[tuple[str, int]]:
        """Keep the feed's events in the table, and return its rows, sorted."""
        from zeh_spark import lakehouse

        rows = zeh_spark.parsed(self._feed("driver"), "name STRING, step INT")
        table, checkpoint = str(self.folder / "table"), str(self.folder / "delta")
        options = {"checkpointLocation": checkpoint, "trigger": {"availableNow": True}}
        to_the_end(lambda: lakehouse.to_delta(rows, table, name="orders", **options))
        found = self._spark.read.format("delta").load(table).select("name", "step").collect()
        return sorted((row.name, row.step) for row in found)

    def _feed(self, fetch: str) -> DataFrame:
        reader = self._spark.readStream.format("zeroeventhub").options(feedId="orders", fetch=fetch)
        return reader.load(f"{self.base}/orders")


# The archive


def unpacked(folder: Path) -> Path:
    """Unpack the archive into a folder, and return it."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    _replace(folder, _HERE, str(folder))
    return folder


def trusted(store: Store) -> Store:
    """Return a store whose clock is trusted, though nobody has served it for years."""
    store.see_clock(now_ms())
    return store


def _replace(folder: Path, old: str, new: str) -> None:
    for described in folder.glob("*/state/*/_metadata/v2/[0-9]*"):
        described.write_text(described.read_text().replace(old, new))


def write(spark: SparkSession, folder: Path) -> None:
    """Write all that the archive has into a folder."""
    with closing(open_store(f"sqlite:///{folder}/feeds.db")) as store:
        fill(store)
        with running_publisher(store) as base:
            add(base, STEPS)
            queries = Queries(spark, base, folder)
            for name in READ:
                queries.read(name)
            queries.publish()
            if not why_absent():
                queries.keep()
    server = Server()
    try:
        database = server.create_database()
        with closing(open_store(server.url(database))) as store:
            fill(store)
            with running_publisher(store) as base:
                add(base, STEPS)
        (folder / "feeds.sql").write_text(server.run("pg_dump", "--no-owner", database))
    finally:
        server.remove()
    (folder / "spark").write_text(spark.version)
    _replace(folder, str(folder), _HERE)


def main() -> None:
    """Write the archive anew."""
    os.environ.update(ENVIRONMENT)
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.python.authenticate.socketTimeout", "5m")  # of a busy machine
    )
    spark = zeh_spark.configure(builder, parallelism=2).getOrCreate()
    with tempfile.TemporaryDirectory() as made:
        write(spark, Path(made))
        spark.stop()
        with tarfile.open(ARCHIVE, "w:gz") as archive:
            for path in sorted(Path(made).rglob("*")):
                if path.is_file() and not path.name.startswith("."):  # Spark's own checksums
                    archive.add(path, path.relative_to(made))


if __name__ == "__main__":
    main()
