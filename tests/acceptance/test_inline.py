"""`inline`: rows of small batches come to Spark with the plan, and no Python task runs."""

import json
from collections import Counter

import pytest

from tests.fix_metrics import Scrape
from tests.fix_spark import in_batches, to_the_end
from tests.fix_stream import Feed, Log
from tests.patience import PATIENCE
from tests.scratch_store import ScratchStore
from zeh_spark.progress import feed_progress
from zeh_spark.spark.frames.compat import Py4JError
from zeh_spark.testing import publish, running_publisher


@pytest.fixture
def store():
    """Feed `orders`: 100 events, 25 in each of four partitions, of a few KiB."""
    store = ScratchStore(orders=4)
    for partition in range(4):
        publish(
            store, "orders", [{"i": 25 * partition + i} for i in range(25)], partition=partition
        )
    return store


@pytest.fixture
def base(store):
    with running_publisher(store) as base:
        yield base


@pytest.fixture
def fetches(base):
    """`fetches()`: how many requests of tasks the publisher has answered."""
    return lambda: Scrape(base)("zeh_requests_total", route="/{feed}/chunks")


def numbers(rows):
    return [json.loads(row.data)["i"] for row in rows]


def blocks_of(spark):
    """Spark's block manager."""
    try:
        return spark._jvm.org.apache.spark.SparkEnv.get().blockManager()
    except Py4JError:
        pytest.skip("Java cannot show SparkEnv to Python: Spark 4.3 comes without protobuf")


def drop_blocks(blocks):
    """Have Spark lose the rows that the driver gave it; gives how many blocks there were."""
    entries, found = blocks.blockInfoManager().entries(), []
    while entries.hasNext():
        block = entries.next()._1()
        if block.getClass().getSimpleName() == "PythonStreamBlockId":
            found.append(block)
    for block in found:
        blocks.removeBlock(block, True)
    return len(found)


@pytest.mark.parametrize("stamps", ["headers", "columns"])
def test_rows_come_with_the_plan_and_from_a_task_if_spark_loses_them(
    spark, stream, base, fetches, tmp_path, stamps
):
    """The same rows in the same order, each time that the batch is computed."""
    found, blocks = [], blocks_of(spark)

    def thrice(batch, _number):
        found.append((batch.collect(), fetches()))
        found.append((batch.collect(), fetches()))
        assert 1 == drop_blocks(blocks)
        found.append((batch.collect(), fetches()))

    feed = stream(url=f"{base}/orders", inline="true", stamps=stamps).load()
    assert in_batches(feed, thrice, tmp_path).awaitTermination(PATIENCE)

    (first, none), (second, still), (third, one) = found
    assert (0, 0, 1) == (none, still, one)
    assert first == second == third
    assert list(range(100)) == numbers(first)
    assert ["timestamp" in row for row in first] == 100 * [stamps == "columns"]


def test_a_batch_that_is_repeated_has_the_same_rows(stream, base, store, fetches, tmp_path):
    """After a crash between a batch and its commit: then a task reads it. The next one is inline
    again, and a frame may be in a query twice.
    """
    feed = stream(url=f"{base}/orders", inline="true", maxEventsPerTrigger="100").load()
    batches = {}

    def keep(batch, number):
        rows = sorted(numbers(batch.collect()))
        assert rows == batches.setdefault(number, rows)

    def run():
        to_the_end(lambda: in_batches(feed.union(feed), keep, tmp_path))

    run()
    assert 0 == fetches()
    for name in ("0", ".0.crc"):
        (tmp_path / "commits" / name).unlink()
    publish(store, "orders", [{"i": 100 + i} for i in range(50)])
    run()

    assert 2 == fetches()
    assert Counter(i for rows in batches.values() for i in rows) == Counter(2 * [*range(150)])


def test_a_large_batch_is_read_by_tasks(stream, collected, base, store, fetches):
    """A start from the beginning of a long feed costs what it did."""
    publish(store, "orders", [{"i": 100 + i, "text": 1000 * "."} for i in range(100)])

    collected.run(stream(url=f"{base}/orders", inline="true").load())

    assert collected.numbers() == Counter(range(200))
    assert fetches() > 0


def test_the_lag_is_still_in_the_progress(stream, collected, base):
    """Spark asks for the lag as before, and for a limit."""
    feed = stream(url=f"{base}/orders", inline="true", maxEventsPerTrigger="50").load()
    collected.run(feed)

    behind = [
        told.events_behind
        for query in collected.queries
        for each in query.recentProgress
        for told in feed_progress(json.loads(each.json))
        if each.numInputRows
    ]
    assert [50, 0] == behind
    assert collected.numbers() == Counter(range(100))


def test_a_line_that_is_no_event_fails_the_query(stream, raw_server, tmp_path):
    """FAILFAST holds where the driver decodes, too."""

    class Broken(Log):
        def event(self, number, partition=0):
            return b'{"partition":0,"headers":{},"data":\n' if number else super().event(number)

    feed = Feed(raw_server, [Broken(3)])
    options = {"url": feed.server.url, "partitionCount": "1", "inline": "true"}
    query = in_batches(stream(**options).load(), lambda batch, _: batch.collect(), tmp_path)
    with pytest.raises(Exception, match="ZEH_MALFORMED_LINE"):
        query.awaitTermination(PATIENCE)


def test_columns_with_comments_are_refused(stream, base, tmp_path):
    """Spark would refuse the rows, and say nothing of the reason."""
    feed = stream(url=f"{base}/orders", inline="true").schema("data STRING COMMENT 'JSON'").load()
    query = in_batches(feed, lambda batch, _: batch.collect(), tmp_path)
    with pytest.raises(Exception, match=r"'inline' is true, but the column 'data' has metadata"):
        query.awaitTermination(PATIENCE)


def test_a_checkpoint_goes_on_with_the_option_and_without(stream, base, store, tmp_path):
    """`inline` is no part of the checkpoint: it may be set and left out at each start."""
    found = []

    def keep(batch, _number):
        found.extend(numbers(batch.collect()))

    for inline in ("true", "false", "true"):
        feed = stream(url=f"{base}/orders", inline=inline).load()
        to_the_end(lambda feed=feed: in_batches(feed, keep, tmp_path))
        publish(store, "orders", [{"i": 100 + len(found)}])

    assert Counter(found) == Counter([*range(100), 200, 201])
