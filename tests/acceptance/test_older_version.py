"""What was written before the packages were arranged anew continues: a store, and checkpoints.

`tests/data/before_packages.tar.gz` was made by commit 6a5f3fe: a SQLite store with six events of
orders `a` and `b` (steps 0, 1 and 3), and checkpoints of three queries that have read them.
"""

from __future__ import annotations

import json
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

from zeh_spark import dedup, sessions
from zeh_spark.publish import Producer
from zeh_spark.publisher import migrate_store, open_store
from zeh_spark.testing import running_publisher

ARCHIVE = Path(__file__).parents[1] / "data" / "before_packages.tar.gz"


@pytest.fixture
def older(tmp_path):
    """The folder, and the URL of its feed, to which each order's step 2 and 1 is added."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "out"
    for described in folder.glob("*/state/*/_metadata/v2/*"):  # Spark keeps absolute paths there
        described.write_text(described.read_text().replace("/tmp/oldgen/out", str(folder)))
    migrate_store(f"sqlite:///{folder}/feeds.db")
    with (
        closing(open_store(f"sqlite:///{folder}/feeds.db")) as store,
        running_publisher(store) as base,
    ):
        with Producer(f"{base}/orders", "shop").batch() as batch:
            for order in "ab":
                for step in (2, 1):
                    named = {"order": order, "step": str(step)}
                    batch.add({"order": order, "step": step}, key=order, headers=named)
        yield folder, f"{base}/orders"


@pytest.fixture
def steps(older, spark):
    """Run a frame of the feed with an older checkpoint: the (order, step) that come out."""
    folder, url = older
    found = []

    def keep(batch, _):
        found.extend(tuple(json.loads(row.data).values()) for row in batch.collect())

    def run(name, make=lambda feed: feed):
        feed = spark.readStream.format("zeroeventhub").option("feedId", "orders").load(url)
        writer = make(feed).writeStream.foreachBatch(keep).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder / name)).start()
        query.awaitTermination()
        return found

    return run


@pytest.mark.parametrize(
    ("checkpoint", "make"),
    [("plain", lambda feed: feed), ("seen", lambda feed: dedup.drop_seen(feed, buckets=2))],
    ids=["plain", "drop_seen"],
)
def test_a_query_continues_after_what_it_has_read(steps, checkpoint, make):
    """Only the new events come."""
    found = steps(checkpoint, make)

    assert sorted(found) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def test_sessions_continue_with_what_they_hold(steps):
    """Step 3 was held; step 1 is a duplicate."""

    def ordered(feed):
        names = {"session": "headers['order']", "sequence": "headers['step']"}
        return sessions.in_order(feed, **names, buckets=2, gap_timeout=None)

    found = steps("ordered", ordered)

    assert [step for order, step in found if order == "a"] == [2, 3]
    assert [step for order, step in found if order == "b"] == [2, 3]
