"""Each number of a producer once, whatever comes twice."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

import requests
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from tests.fix_backup import SqliteFile
from tests.fix_cli import call, published
from tests.fix_spark import without_code
from zeh_spark import dedup
from zeh_spark.publisher import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWN = {
    "producer": "get_json_object(data, '$.d')",
    "sequence": "get_json_object(data, '$.i')",
}


@pytest.fixture
def run(collected):
    """Runs a frame to its end: how often each (flag, i) came out of this run."""

    def go(frame):
        collected.rows.clear()
        collected.run(frame)
        return Counter((row["dedup"], json.loads(row["data"])["i"]) for row in collected.rows)

    return go


@pytest.mark.slow
def test_each_number_passes_once_however_the_feed_is_read(publisher, stream, run):
    """Twice at once, and with another number of partitions: the stamps tell, not the reader."""

    def twice():
        narrow = stream(url=publisher.url, partitionCount="1").load()
        return dedup.drop_seen(stream(url=publisher.url).load().union(narrow))

    publisher.publish(*({"i": i} for i in range(100)))
    first = run(twice())
    publisher.publish(*({"i": i} for i in range(100, 150)))
    second = run(twice())

    assert Counter(("new", i) for i in range(100)) == first
    assert Counter(("new", i) for i in range(100, 150)) == second


@pytest.mark.slow
def test_only_what_was_seen_is_dropped(publisher, stream, run):
    """Numbers of others, with holes, in any order. What was in a closed hole is told (PU-02)."""
    frame = dedup.drop_seen(stream(url=publisher.url).load(), **OWN, window=50)
    publisher.publish(*({"i": i, "d": "a"} for i in (5, 3, 3, 9)), {"i": 3, "d": "b"}, {"i": 7})
    first = run(frame)
    publisher.publish(*({"i": i, "d": "a"} for i in (4, 3, 9, 100)), {"i": -1, "d": "a"})
    second = run(frame)
    publisher.publish(*({"i": i, "d": "a"} for i in (100, 99, 8, 8, 3)))
    third = run(frame)

    assert Counter([("new", 3), ("new", 3), ("new", 5), ("new", 9), ("unstamped", 7)]) == first
    assert Counter([("new", 4), ("new", 100), ("unstamped", -1)]) == second
    assert Counter({("new", 99): 1, ("unknown", 8): 1, ("unknown", 3): 1}) == third


def test_what_is_dropped_is_counted(publisher, stream, collected):
    frame = dedup.drop_seen(stream(url=publisher.url).load(), **OWN)
    publisher.publish(*({"i": i, "d": "a"} for i in (0, 1, 1, 1)), {"i": 0, "d": "b"})

    query = collected(frame, availableNow=True)
    query.awaitTermination()

    (counts,) = [
        each.observedMetrics["dedup"].asDict() for each in query.recentProgress if each.numInputRows
    ]
    assert (3, 2, 0, 2) == tuple(
        counts[name] for name in ("new", "dropped", "unknown", "producers")
    )


# Several feeds


def load(store_url, feed, numbers):
    """As a user does it who names no producer. By key: all partitions of both feeds get events."""
    lines = "".join(json.dumps({"i": i, "d": "a"}) + "\n" for i in numbers)
    command(["load", feed, "-", "--store", store_url, "--key", "i"], lines)


def command(words, given=""):
    done = call(*words, stdin=given)
    assert done.returncode == 0, done.stderr


def id_of(url):
    """The id that a publisher tells of a feed."""
    return requests.get(url, timeout=30).json()["feed"]["id"]


def without_feed(frame):
    """The frame, with all headers except the one that tells the feed."""
    return frame.withColumn("headers", F.map_filter("headers", lambda name, _: name != "zeh-feed"))


@pytest.fixture
def returns(publisher):
    """A second feed beside `orders`: its URL."""
    publisher.store.create("returns", 2)
    return f"{publisher.base}/returns"


@pytest.fixture
def both(publisher, returns, stream):
    """`both(…)`: the events of the two feeds."""

    def union(**options):
        return (
            stream(url=publisher.url, **options).load().union(stream(url=returns, **options).load())
        )

    return union


@pytest.mark.slow
def test_two_feeds_that_were_loaded_alike_both_pass_whole(publisher, both, run):
    """Their events have the same producer and the same numbers. Read again, none passes."""
    load(publisher.store_url, "orders", range(50))
    load(publisher.store_url, "returns", range(50, 100))
    again = both(partitionCount="1", maxEventsPerTrigger="10")

    found = run(dedup.drop_seen(both().union(again)))

    assert Counter(("new", i) for i in range(100)) == found


@pytest.mark.slow
def test_own_numbers_of_two_feeds_are_told_apart_by_an_argument(publisher, both, run):
    """Two devices of one name: `feed=` has the role of the header."""
    load(publisher.store_url, "orders", range(5))
    load(publisher.store_url, "returns", range(8))

    found = run(dedup.drop_seen(both(), **OWN, feed="headers['zeh-feed']"))

    assert Counter({("new", i): 2 if i < 5 else 1 for i in range(8)}) == found


# Events that do not tell their feed


@dataclass
class Bronze:
    """A table of events as they were read, which a query deduplicates."""

    spark: SparkSession
    folder: Path

    def land(self, frame):
        frame.select("headers", "data").write.mode("append").parquet(str(self.folder))

    def stream(self):
        schema = "headers MAP<STRING, STRING>, data STRING"
        return self.spark.readStream.schema(schema).parquet(str(self.folder))


@pytest.fixture
def bronze(spark, tmp_path):
    folder = tmp_path / "bronze"
    folder.mkdir()
    return Bronze(spark, folder)


@pytest.fixture
def read(spark):
    """`read(url, …)`: the events that the feed has now."""
    return lambda url, **options: (
        spark.read.format("zeroeventhub").options(url=url, **options).load()
    )


def refused(run, frame):
    """What a query says that is refused, as often as it is started."""
    said = []
    for _ in range(2):
        with pytest.raises(StreamingQueryException) as error:
            run(frame)
        said.append(without_code(re.findall(r"zeh_spark\.errors\.(.*)", str(error.value))[-1]))
    assert said[0] == said[1]
    return said[0]


@pytest.mark.slow
def test_numbers_of_events_without_a_feed_are_of_the_first_that_comes(
    publisher, returns, bronze, read, run
):
    """Its events are known again. A second one is refused, though the plan shows only a table."""
    load(publisher.store_url, "orders", range(40))
    load(publisher.store_url, "returns", range(20))
    bronze.land(without_feed(read(publisher.url)))
    first = run(dedup.drop_seen(bronze.stream()))
    load(publisher.store_url, "orders", range(40, 60))
    bronze.land(read(publisher.url))
    second = run(dedup.drop_seen(bronze.stream()))
    bronze.land(read(returns))
    said = refused(run, dedup.drop_seen(bronze.stream()))

    assert Counter(("new", i) for i in range(40)) == first
    assert Counter(("new", i) for i in range(40, 60)) == second
    assert said.startswith("CheckpointError: drop_seen: the checkpoint has numbers")
    assert id_of(publisher.url) in said and id_of(returns) in said


@pytest.mark.slow
def test_events_without_a_feed_of_a_query_with_two_are_refused(publisher, both, run):
    load(publisher.store_url, "orders", range(20))

    said = refused(run, dedup.drop_seen(without_feed(both())))

    assert "several feeds" in said and "here came none with an id" in said


# Publishers that were restored


@pytest.fixture
def place(tmp_path):
    """A store with the feed `orders` of one partition, which can be restored."""
    place = SqliteFile(tmp_path)
    with closing(open_store(place.url)) as store:
        store.create("orders", 1)
    return place


@pytest.fixture
def landed(place, bronze, read):
    """`landed(…)`: what a publisher serves of some numbers is in the bronze table."""

    def land(numbers):
        with published(place.url) as base:
            events = read(f"{base}/orders")
            bronze.land(events.where(F.get_json_object("data", "$.i").isin(*numbers)))
            return id_of(f"{base}/orders")

    return land


def restored(place, landed, before=lambda: None, after=lambda: None):
    """Ten events, a backup, twenty more that are read; then the backup, and ten others."""
    load(place.url, "orders", range(10))
    backup = place.back_up()
    load(place.url, "orders", range(10, 30))
    feed = landed(range(30))
    before()
    place.restore(backup)
    after()
    load(place.url, "orders", range(100, 110))
    landed(range(100, 110))
    return feed


@pytest.mark.slow
def test_numbers_that_a_restored_publisher_uses_again_are_refused(place, landed, bronze, run):
    """Its other events would be dropped. (That they may also come in one batch with those that had
    the numbers before: tests/unit/stateful/test_seen.py.)
    """
    first = []
    frame = dedup.drop_seen(bronze.stream())
    feed = restored(place, landed, before=lambda: first.append(run(frame)))

    said = refused(run, frame)

    assert [Counter(("new", i) for i in range(30))] == first
    assert said.startswith(f"PublisherError: drop_seen: feed {feed}, producer 'load', stored")
    assert "zeh-spark new-history" in said


@pytest.mark.slow
def test_events_of_a_new_epoch_pass_though_their_numbers_were_used(place, landed, bronze, run):
    """After `zeh-spark new-history` they are other events, in the same checkpoint, too."""
    first = []

    def frame():
        return dedup.drop_seen(bronze.stream())

    restored(
        place,
        landed,
        before=lambda: first.append(run(frame())),
        after=lambda: command(["new-history", "orders", "--store", place.url, "--yes"]),
    )
    second = run(frame())
    landed(range(100, 110))

    assert [Counter(("new", i) for i in range(30))] == first
    assert Counter(("new", i) for i in range(100, 110)) == second
    assert Counter() == run(frame())
