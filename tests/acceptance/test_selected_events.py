"""A query reads some of a feed's events (`only`), each once, and no others."""

import json
from collections import Counter

import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F

from tests.fix_killed import into_files, run_to_the_end, run_until_killed
from tests.fix_publisher import open_feeds
from tests.fix_spark import Table
from zeh_spark.publish import Producer
from zeh_spark.testing import running_publisher

ONLY = '{"type": ["paid", "refunded"]}'
TYPES = ("paid", "open", "late", "refunded", "lost")


def add(url, begin, end):
    """Orders of five types, of which two are wanted, in batches of ten."""
    with Producer(url, "shop") as producer:
        for number in range(begin, end, 10):
            with producer.batch() as batch:
                for i in range(number, number + 10):
                    batch.add({"i": i}, key=i // 5, headers={"type": TYPES[i % 5]})


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.spark
def test_selected_events_come_once_although_the_driver_is_killed(tmp_path):
    """ZE-13: each in the table once, in a stream whose driver dies before and after a write."""
    with open_feeds(tmp_path / "orders.db", orders=2) as store, running_publisher(store) as base:
        url = f"{base}/orders"
        job = into_files(tmp_path / "paid", url, only=ONLY, maxEventsPerTrigger="30")
        for count, place in enumerate(("0 planned", "0 tasks", "1 written", "1 planned")):
            add(url, 200 * count, 200 * (count + 1))
            run_until_killed(tmp_path, [{**job, "place": place}])
        run_to_the_end(tmp_path, [job])

    rows = Table(tmp_path / "paid" / "table").rows()
    wanted = Counter(i for i in range(800) if i % 5 in (0, 3))
    assert wanted == Counter(json.loads(data)["i"] for _, data in rows)


@pytest.mark.spark
def test_a_batch_has_the_rows_that_a_filter_leaves(spark, publisher):
    """ZE-13: I set an option instead of a condition, and get the same DataFrame, stamps too."""
    add(publisher.url, 0, 200)
    schema = "partition INT, data STRING, sequence LONG, headers MAP<STRING, STRING>"
    feed = spark.read.format("zeroeventhub").schema(schema).option("stamps", "columns")

    every = feed.load(publisher.url)
    some = feed.option("only", ONLY).load(publisher.url)
    bare = spark.read.format("zeroeventhub").options(only=ONLY, headers="none")

    left = every.where(F.col("headers")["type"].isin("paid", "refunded"))
    plain = [each.select("partition", "data", "sequence") for each in (left, some)]
    assert_df_equality(*plain, ignore_row_order=True)
    assert 80 == some.count() == bare.load(publisher.url).count()
