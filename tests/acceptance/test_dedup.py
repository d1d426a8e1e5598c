"""Each number of a producer once, whatever comes twice."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("google.protobuf", reason="protobuf is not installed")

import requests
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from tests.fix_backup import SqliteFile
from tests.fix_cli import published, succeed
from tests.fix_publisher import new_feed
from tests.fix_spark import without_code
from zeh_spark import dedup
from zeh_spark.testing import publish

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


def load(store_url, feed, numbers):
    """As a user does it who names no producer. By key: all partitions of both feeds get events."""
    lines = "".join(json.dumps({"i": i, "d": "a"}) + "\n" for i in numbers)
    succeed("load", feed, "-", "--store", store_url, "--key", "i", stdin=lines)


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
def test_each_number_passes_once_however_the_feed_is_read(publisher, both, run):
    """Twice at once, and with another number of partitions: the stamps tell, not the reader. Two
    feeds that were loaded alike, whose events have the same producer and the same numbers, both
    pass whole.
    """

    def twice():
        return dedup.drop_seen(both().union(both(partitionCount="1", maxEventsPerTrigger="10")))

    load(publisher.store_url, "orders", range(50))
    load(publisher.store_url, "returns", range(50, 100))
    first = run(twice())
    load(publisher.store_url, "orders", range(100, 120))
    second = run(twice())

    assert Counter(("new", i) for i in range(100)) == first
    assert Counter(("new", i) for i in range(100, 120)) == second


@pytest.mark.slow
def test_only_what_was_seen_is_dropped(publisher, returns, both, run, collected):
    """Numbers of others, with holes, in any order, of which each batch has some. What was in a
    closed hole is told (PU-02). Two devices of one name are told apart by `feed=`, which has the
    role of the header. What is dropped is counted.
    """

    def add(*numbers, device="a", feed="orders"):
        publish(publisher.store, feed, [{"i": i, "d": device} for i in numbers], partition=0)

    add(5, 3, 3, 9)
    add(3, 5, feed="returns")
    add(4, 3, 9, 100)
    add(3, device="b", feed="returns")
    add(100, 99, 8, 8, 3)
    none = [{"i": 7}, {"i": -1, "d": "a"}, {"i": "5\n", "d": "a"}]
    publish(publisher.store, "returns", none, partition=0)
    events = both(maxEventsPerTrigger="1")
    given = {**OWN, "feed": "headers['zeh-feed']", "window": 50}

    found = run(dedup.drop_seen(events, **given))

    new = [3, 5, 9, 4, 100, 99, *(3, 5), 3]
    others = [*(("unstamped", each["i"]) for each in none), ("unknown", 8), ("unknown", 3)]
    assert Counter([*(("new", i) for i in new), *others]) == found
    told = [each for query in collected.queries for each in query.recentProgress]
    progress = (each.observedMetrics.get("dedup") for each in told)
    counts = [each.asDict() for each in progress if each]
    assert (len(new), 5, 2) == tuple(
        sum(each[name] for each in counts) for name in ("new", "dropped", "unknown")
    )
    assert 2 == counts[0]["producers"]  # of the buckets that have events in the batch


@pytest.mark.slow
def test_numbers_are_not_forgotten_if_they_belong_to_something_else(publisher, stream, run):
    """Another set of arguments stops the query, and the old one lets it continue."""

    def frame(**given):
        return dedup.drop_seen(stream(url=publisher.url, headers="_all").load(), **given)

    def add(*numbers):
        publish(publisher.store, "orders", [{"i": i, "d": "a"} for i in numbers], partition=0)

    given = {**OWN, "partition": "'p'", "feed": "headers['zeh-feed']"}
    add(*range(5))
    run(frame(**given))
    add(*range(5), 5)
    for other in (
        {**OWN, "partition": given["partition"]},
        {**OWN, "feed": given["feed"]},
        {},
        {"origin": True},
    ):
        said = refused(run, frame(**other))
        names = [name for name in other if name != "origin"] or [*other]
        assert said.startswith(f"CheckpointError: arguments={names}, and the checkpoint's state")

    assert {("new", 5): 1} == run(frame(**given))


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
    """What a query says that is refused."""
    with pytest.raises(StreamingQueryException) as error:
        run(frame)
    return without_code(re.findall(r"zeh_spark\.errors\.(.*)", str(error.value))[-1])


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
    new_feed(place.url)
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


@pytest.mark.slow
def test_numbers_that_a_restored_publisher_uses_again(place, landed, bronze, run):
    """After `zeh-spark new-history` its events pass: they are others, in the same checkpoint, too.
    Without it they would be dropped, and are refused, as often as the query is started. (That they
    may also come in one batch with those that had the numbers before:
    tests/unit/stateful/test_seen.py.)
    """
    frame = dedup.drop_seen(bronze.stream())
    load(place.url, "orders", range(10))
    backup = place.back_up()
    load(place.url, "orders", range(10, 30))
    landed(range(30))
    first = run(frame)
    place.restore(backup)
    succeed("new-history", "orders", "--store", place.url, "--yes")
    backup = place.back_up()
    load(place.url, "orders", range(100, 110))
    landed(range(100, 110))
    landed(range(100, 110))
    second = run(frame)
    place.restore(backup)
    load(place.url, "orders", range(200, 210))
    feed = landed(range(200, 210))

    said, again = refused(run, frame), refused(run, frame)

    assert Counter(("new", i) for i in range(30)) == first
    assert Counter(("new", i) for i in range(100, 110)) == second
    assert said == again
    assert said.startswith(f"PublisherError: drop_seen: feed {feed}")
    assert ", producer 'load', stored" in said
    assert "zeh-spark new-history" in said
