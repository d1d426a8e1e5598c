"""Several feeds in one merged Delta table: one feed's numbers say nothing about another's."""

from __future__ import annotations

import re
from contextlib import closing

import pytest
from pyspark.sql import functions as F

import zeh_spark
from tests.fix_backup import SqliteFile
from tests.fix_cli import call, published
from tests.fix_lake import DATA, said, why_absent
from tests.patience import PATIENCE

pytest.importorskip("delta", reason=why_absent())

from tests.acceptance.test_delta_merge import merging
from zeh_spark import lakehouse
from zeh_spark.errors import LakehouseError
from zeh_spark.publisher import open_store
from zeh_spark.testing import publish

EU, US = "e" * 16, "a" * 16


def event(key, value, number, feed=EU, *, time=None, gone=False, producer="orders-job"):
    headers = {
        "zeh-feed": feed,
        "zeh-producer": producer,
        "zeh-partition": "0",
        "zeh-sequence": str(number),
        "zeh-time": None if time is None else str(time),
    }
    return key, value, gone, {name: each for name, each in headers.items() if each is not None}


@pytest.fixture
def merge(spark, tmp_path):
    return merging(spark, str(tmp_path / "merged"))


CASES = {  # three batches, and what is shown then
    "a change in another feed": ([(1, 10, EU)], [(2, 0, US)], [], 2),
    "a change in another feed, in one batch": ([(1, 10, EU), (2, 0, US)], [], [], 2),
    "a deletion in another feed": ([(1, 10, EU)], [(None, 0, US)], [], None),
    "a deletion in another feed, in one batch": ([(1, 10, EU), (None, 0, US)], [], [], None),
    "an older event of the same feed": ([(10, 5, EU, 50)], [(9, 4, EU, 40)], [], 10),
    "an older event of the other feed": ([(20, 7, US, 70)], [(19, 6, US, 60)], [], 20),
    "a later epoch": ([(10, 9, EU, 90)], [(11, 3, f"{EU}~1", 100)], [(8, 8, EU, 80)], 11),
    "an epoch before": (
        [(20, 8, EU, 80)],
        [(21, 4, f"{EU}~10", 101)],
        [(22, 4, f"{EU}~9", 99)],
        21,
    ),
}


def _event(key, value, number, feed, time=None):
    """A deletion if it has no value."""
    return event(key, value, number, feed, time=time, gone=value is None)


def test_a_newer_event_of_another_feed_wins_though_its_number_is_lower(merge):
    """One job publishes to two feeds under one name: each feed has numbers of its own, and an older
    event of the same feed changes nothing. After `new-history` a restored feed uses numbers again,
    and is right. Each case has a key.
    """
    for batch in range(3):
        given = ((key, case[batch]) for key, case in enumerate(CASES.values()))
        merge(*(_event(key, *each) for key, events in given for each in events))

    shown = merge.shown()
    assert {name: case[-1] for name, case in CASES.items()} == {
        name: shown.get(key) for key, name in enumerate(CASES)
    }


def test_numbers_that_a_restored_feed_uses_again_are_refused(merge):
    """A later time proves it; the error names the remedy, and the table stays as it is. A restore
    shows within a batch, too, whichever of the two events would be merged.
    """
    merge(event(1, 10, 10, time=1000))

    for events in (
        [event(1, 11, 9, time=2000)],
        [event(1, 11, 10, time=2000)],
        [event(2, 10, 10, time=1000), event(2, 11, 9, time=2000)],
    ):
        with pytest.raises(LakehouseError) as raised:
            merge(*events)
        told = str(raised.value)
        assert "was restored to an earlier state" in told and "zeh-spark new-history FEED" in told
    assert {1: 10} == merge.shown()


def test_a_row_without_its_feed_is_not_guessed_about(merge):
    """An event of the same producer is refused; one without a producer is newer, as it arrives
    later.
    """
    merge(event(1, 10, 10, None), event(2, 20, 3, None))
    with pytest.raises(LakehouseError, match="one of the two does not name its feed") as raised:
        merge(event(1, 11, 9, EU))
    assert EU in str(raised.value) and "Keep that header" in str(raised.value)

    merge((2, 21, False, {}))
    assert {1: 10, 2: 21} == merge.shown()


def test_a_table_whose_rows_cannot_name_their_feed_is_refused(merge, spark):
    """No release has made it."""
    columns = "key INT, value INT, gone BOOLEAN, headers MAP<STRING, STRING>"
    rows = lakehouse.stamped(spark.createDataFrame([event(1, 10, 10)], columns))
    made = rows.selectExpr("*", "false AS _zeh_deleted", "now() AS _zeh_changed")
    made.drop("_zeh_feed", "_zeh_time").write.format("delta").save(merge.table)

    with pytest.raises(LakehouseError, match="lacks the columns _zeh_feed, _zeh_time"):
        merge(event(1, 11, 11))


def keys(lake, table="orders"):
    rows = lake.table(table).where("NOT _zeh_deleted").select("key", "value").collect()
    return {row.key: row.value for row in rows}


MERGED = {"merge_keys": ["key"], "deleted": "op = 'delete'"}


@pytest.fixture
def two_feeds(lake):
    """One job publishes to both feeds: key a gets number 10 of `orders`, then 0 of `returns`."""
    for number in range(10):
        lake.publish({"key": "other", "value": str(number)})
    lake.publish({"key": "a", "value": "older"}, {"key": "gone", "value": "older"})
    lake.publish({"key": "a", "value": "newer"}, feed="returns")
    lake.publish({"key": "gone", "op": "delete"}, feed="returns")
    return lake


@pytest.mark.slow
def test_two_feeds_are_merged_by_one_query(two_feeds):
    """The union of two feeds keeps the events that came last."""
    lake = two_feeds

    lake.run(change=lambda df: df.unionByName(lake.read("returns")), source={}, **MERGED)

    assert {"other": "9", "a": "newer"} == keys(lake)
    feeds = lake.table().where("key IN ('a', 'gone')").select("_zeh_feed").distinct().collect()
    assert [lake.store.identity("returns").id] == [row[0] for row in feeds]


@pytest.mark.slow
def test_two_feeds_are_merged_by_two_queries(two_feeds):
    """Into one table, each with a name of its own."""
    lake = two_feeds
    lake.run(**MERGED)
    returns = lake.read("returns")

    lake.run(checkpoint="second", name="returns", change=lambda _: returns, **MERGED)

    assert {"other": "9", "a": "newer"} == keys(lake)


@pytest.mark.slow
def test_stamps_without_their_feed_are_refused(lake):
    """Their events would all count as of the first epoch."""
    stamps = ["key", "value", "_zeh_producer", "_zeh_partition", "_zeh_sequence"]
    bare = F.map_filter("headers", lambda name, _: name != "zeh-feed")
    lake.publish({"key": "a", "value": "1"})

    keyed = {"merge_keys": ["key"]}

    told = lake.fail(change=lambda df: lakehouse.stamped(df).select(*stamps), **keyed)
    assert "zeh_spark.lakehouse.stamped(df) has to be called before headers are dropped" in told
    told = lake.fail(change=lambda df: df.withColumn("headers", bare), **keyed)
    assert "an event has a producer and no zeh-feed" in told

    whole = [*stamps, "_zeh_feed", "_zeh_time"]
    lake.run(change=lambda df: lakehouse.stamped(df).select(*whole), **keyed)
    assert {"a": "1"} == keys(lake)


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
    """The table was not restored, and has an event that the restore undid: the error says what to
    run at the publisher, and the same query then continues.
    """
    place, table = SqliteFile(tmp_path), str(tmp_path / "merged")
    with closing(open_store(place.url)) as store:
        store.create("orders", 1)

    def add(key, value):
        with closing(open_store(place.url)) as store:
            publish(store, "orders", [{"key": key, "value": value}])

    def run(base, checkpoint, **options):
        feed = spark.readStream.format("zeroeventhub").options(**options).load(f"{base}/orders")
        rows = zeh_spark.parsed(feed, "key STRING, value STRING").drop("partition")
        writer = (
            rows.writeStream.foreachBatch(lambda batch, _: lakehouse.merge(batch, table, ["key"]))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
        )
        zeh_spark.drain(writer.start, timeout=PATIENCE)  # Spark 4.0 and 4.1: a batch in each run

    with published(place.url) as base:
        add("a", "kept")
        run(base, "first", feedId="orders")
        backup = place.back_up()
        add("b", "undone")
        add("a", "undone")
        run(base, "first", feedId="orders")
    place.restore(backup)
    add("a", "new")
    with published(place.url) as base:
        first = str(tmp_path / "first")
        seam = zeh_spark.shared_cursors(first, f"{base}/orders", feedId="orders")
        with pytest.raises(Exception) as raised:
            run(base, "second", startingCursors=seam, feedId="orders")
        told = said(raised.value)
        since = re.search(r"zeh-spark new-history FEED --since (\d+)", told)[1]
        words = ["new-history", "orders", "--store", place.url, "--since", since, "--yes"]
        assert 0 == call(*words).returncode
        add("c", "new")

        run(base, "second", startingCursors=seam, feedId="orders")

    rows = spark.read.format("delta").load(table).select("key", "value").collect()
    assert {"a": "new", "b": "undone", "c": "new"} == {row.key: row.value for row in rows}
