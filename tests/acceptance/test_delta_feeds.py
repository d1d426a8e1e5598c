"""Several feeds in one merged Delta table: one feed's numbers say nothing about another's."""

import json
import re
import time
from contextlib import closing

import pytest
from pyspark.sql import functions as F

import zeh_spark
from tests.fix_backup import SqliteFile
from tests.fix_cli import call, published
from tests.fix_lake import DATA, why_absent
from tests.fix_publisher import new_feed
from tests.patience import eventually

pytest.importorskip("delta", reason=why_absent())

from zeh_spark import dedup, lakehouse
from zeh_spark.errors import LakehouseError
from zeh_spark.publish import Producer
from zeh_spark.publisher import open_store
from zeh_spark.testing import publish


@pytest.mark.slow
def test_two_feeds_are_merged_by_one_query(lake):
    """One job publishes to both; the union of the two keeps the events that came last."""
    for number in range(10):
        lake.publish({"key": "other", "value": str(number)})
    lake.publish({"key": "a", "value": "older"}, {"key": "gone", "value": "older"})
    lake.publish({"key": "a", "value": "newer"}, feed="returns")
    lake.publish({"key": "gone", "op": "delete"}, feed="returns")

    lake.run(
        change=lambda df: df.unionByName(lake.read("returns")),
        source={},
        merge_keys=["key"],
        deleted="op = 'delete'",
    )

    rows = {row.key: row for row in lake.table().where("NOT _zeh.deleted").collect()}
    assert {"other": "9", "a": "newer"} == {key: row.value for key, row in rows.items()}
    assert lake.store.identity("returns").id == rows["a"]._zeh.feed


@pytest.mark.slow
def test_two_feeds_are_merged_by_two_queries(lake):
    """Into one table, each by its name. Appending is refused: keys would be there twice."""
    lake.batch(0, range(10), merge_keys=["i"])
    assert "was made by a merge" in lake.refused(1, range(10, 20))
    another = {"query": "another", "feed": "https://shop.example/returns", "ids": ("returns",)}

    def newer(df):
        return df.withColumn("value", F.lit("newer"))

    lake.batch(0, range(3), name="returns", merge_keys=["i"], change=newer, **another)

    shown = {row.i: row.value for row in lake.table().collect()}
    assert {**{i: "newer" for i in range(3)}, **{i: str(i) for i in range(3, 10)}} == shown


@pytest.mark.slow
def test_stamps_without_their_feed_are_refused(lake):
    """Their events would all count as of the first epoch."""
    keyed = {"merge_keys": ["i"], "ids": ("e" * 16,)}

    def without_feed(df):
        own = F.col("_zeh").dropFields("feed")
        return lakehouse.stamped(df).drop("headers").withColumn("_zeh", own)

    told = lake.refused(0, range(5), change=without_feed, **keyed)
    assert "a merge keeps struct<feed:string,producer" in told
    told = lake.refused(0, range(5), **keyed)
    assert "an event has a producer and no zeh-feed" in told


@pytest.mark.slow
def test_the_newest_event_is_shown_after_deduplication(lake):
    """Rows come out in no order. Of two producers' events the later one is the newer one."""
    for producer, value in (("z", "placed"), ("a", "cancelled")):
        with Producer(lake.url(), producer).batch() as batch:
            batch.add({"i": 1, "value": value}, key="1")
        now = time.time_ns() // 10**6
        eventually(lambda now=now: time.time_ns() // 10**6 > now)

    for number, given in enumerate(({}, {"id": "value"})):
        lake.run(
            f"orders{number}",
            checkpoint=f"checkpoint{number}",
            change=lambda df, given=given: dedup.drop_seen(df, buckets=1, **given),
            merge_keys=["i"],
            order="sequence",
        )
        assert ["cancelled"] == [row.value for row in lake.table(f"orders{number}").collect()]


def test_a_feed_that_is_read_at_two_addresses_is_refused(lake):
    """Every event would be there twice."""
    lake.add(range(5))
    other = lake.spark.readStream.format("zeroeventhub").load(
        lake.url().replace("127.0.0.1", "localhost")
    )

    told = lake.fail(change=lambda df: df.unionByName(zeh_spark.parsed(other, DATA)))

    assert "twice, from two places or at two addresses" in told


@pytest.mark.slow
def test_a_merged_table_continues_after_the_publisher_was_restored(spark, tmp_path):
    """It has an event that the restore undid: the error says what to run, and it continues."""
    place, table = SqliteFile(tmp_path), str(tmp_path / "merged")
    new_feed(place.url)

    def add(key, value):
        with closing(open_store(place.url)) as store:
            publish(store, "orders", [{"key": key, "value": value}])

    def merge():
        with published(place.url) as base:
            feed = spark.read.format("zeroeventhub").load(f"{base}/orders")
            rows = zeh_spark.parsed(feed, "key STRING, value STRING").drop("partition")
            lakehouse.merge(rows, table, ["key"])

    add("a", "kept")
    backup = place.back_up()
    add("b", "undone")
    add("a", "undone")
    merge()
    place.restore(backup)
    add("a", "new")
    with pytest.raises(LakehouseError, match="was restored to an earlier state") as raised:
        merge()
    since = re.search(r"zeh-spark new-history FEED --since (\d+)", str(raised.value))[1]
    words = ["new-history", "orders", "--store", place.url, "--since", since, "--yes"]
    assert 0 == call(*words).returncode
    add("c", "new")

    merge()

    rows = spark.read.format("delta").load(table).select("key", "value").collect()
    assert {"a": "new", "b": "undone", "c": "new"} == {row.key: row.value for row in rows}


@pytest.mark.slow
def test_queries_that_share_a_feed_fill_a_table_each(lake):
    """ZE-10: a new checkpoint continues at the table's cursors, which are those of its partitions.
    In one table, a query could not tell what the other one has written.
    """
    for table, numbers in (("low", range(6)), ("high", range(6, 9))):
        lake.add(numbers)
        for partition, name in enumerate(("low", "high")):
            part = {"partitions": str(partition)}
            begin = lakehouse.cursors(lake.spark, lake.at(name), name=name)
            source = {**part, "startingCursors": begin}
            lake.run(name, checkpoint=f"{name} after {table}", name=name, source=source)

    assert lake.numbers("low") + lake.numbers("high") == dict.fromkeys(range(9), 1)
    assert {"1"} == json.loads(lakehouse.cursors(lake.spark, lake.at("high"), name="high")).keys()
    said = lake.fail("low", checkpoint="new", name="high", source={"partitions": "1"})
    assert "has no batch of name='high', but has the feed" in said
    said = lake.fail("low", checkpoint="newer", name="low", source={"partitions": "1"})
    assert "holds all up to batch" in said
