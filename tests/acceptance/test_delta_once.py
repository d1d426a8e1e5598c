"""A feed kept in a Delta table: each event once, whatever crashes, is lost or restored."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from chispa import assert_df_equality

from tests.fix_lake import DATA, said, why_absent
from tests.fix_spark import in_batches
from tests.patience import PATIENCE

pytest.importorskip("delta", reason=why_absent())

from zeh_spark import lakehouse
from zeh_spark.errors import LakehouseError


def test_the_rows_are_those_that_the_feed_gives(lake):
    """Nothing is added to them and nothing changed."""
    lake.add(range(30))
    lake.run()

    feed = lake.spark.read.format("zeroeventhub").load(lake.url())
    import zeh_spark

    expected = zeh_spark.parsed(feed, DATA)

    assert_df_equality(
        lake.table().drop("headers"), expected.drop("headers"), ignore_row_order=True
    )
    assert_df_equality(
        lake.table().selectExpr("i", "explode(headers)"),
        expected.selectExpr("i", "explode(headers)"),
        ignore_row_order=True,
    )


@pytest.mark.slow
def test_a_feed_is_in_the_table_once(lake):
    """F12: one call, run again and again while the feed grows, also when Spark crashed between the
    table's commit and its own, and when the checkpoint is lost: the table knows where it is. Paths
    may have any characters.
    """
    table, checkpoint = (f"a b c[1] {{x}} 50%25 späť {each}" for each in ("table", "checkpoint"))
    for numbers in range(50), range(30, 80):
        lake.add(numbers)
        lake.run(table, checkpoint=checkpoint)
    last = max(int(each.name) for each in (lake.folder / checkpoint / "commits").glob("[0-9]*"))
    lake.forget(last, checkpoint)
    before = lake.history(table)
    lake.run(table, checkpoint=checkpoint)
    assert before == lake.history(table)

    lake.add(range(80, 100))
    lake.drop(checkpoint)
    lake.run(table, checkpoint=checkpoint)

    assert lake.numbers(table) == Counter([*range(50), *range(30, 80), *range(80, 100)])


@pytest.mark.slow
def test_a_query_may_begin_anywhere_in_a_new_table(lake):
    """Who asks for the newest events only gets these."""
    lake.add(range(50))
    lake.run(source={"startingCursors": "last"})
    lake.add(range(50, 60))
    lake.run()

    assert lake.numbers() == Counter(range(50, 60))


@pytest.mark.slow
def test_two_queries_under_one_name_write_once(lake, gate):
    """The second of two that continue from one place at the same time is refused."""
    lake.batch(0, range(50))
    with gate.during(lake.refused, 1, range(50, 80)) as slow:
        lake.batch(0, range(50, 90), query="another")

    assert "if the other query still runs, stop one of them" in slow.result()
    assert lake.numbers() == Counter(range(90))


def test_a_second_call_for_a_batch_is_refused(lake):
    """Its rows would be taken for those of the first, and left out."""
    lake.add(range(10))
    one, two = (
        lakehouse.DeltaFeedWriter(
            lake.at("orders"), name="orders", checkpointLocation=lake.at("checkpoint")
        )
        for _ in range(2)
    )

    def write(batch, number):
        one(batch.where("i < 5"), number)
        two(batch.where("i >= 5"), number)

    with pytest.raises(Exception) as raised:
        in_batches(lake.read(), write, lake.at("checkpoint")).awaitTermination(PATIENCE)

    assert "Call it once for each table and batch" in said(raised.value)


@pytest.mark.slow
def test_tables_of_one_query_have_to_be_at_one_place(lake):
    """The error says where each is; a new one is at the beginning."""
    both = [lake.at("orders"), lake.at("returns")]
    lake.batch(0, range(10))

    with pytest.raises(LakehouseError, match=r"orders: \{.*returns: first"):
        lakehouse.cursors(lake.spark, both, name="orders")

    lake.batch(0, range(10), table="returns", change=lambda df: df.where("i > 5"))
    place = lakehouse.cursors(lake.spark, both, name="orders")
    assert place == lakehouse.cursors(lake.spark, both[0], name="orders") == '{"0": "10"}'


@pytest.mark.slow
def test_two_feeds_go_into_two_tables_in_one_query(lake):
    """Each table knows where it is in both; each batch is in both once, though one write fails."""
    lake.add(range(50))
    lake.add(range(50, 80), feed="returns")
    checkpoint = lake.at("checkpoint")
    orders, returns = (
        lakehouse.DeltaFeedWriter(lake.at(name), name="both", checkpointLocation=checkpoint)
        for name in ("orders", "returns")
    )
    broken = threading.Event()
    broken.set()

    def write(batch, number):
        batch = batch.persist()
        orders(batch.where("i < 50 OR i >= 80"), number)
        if broken.is_set():
            raise RuntimeError("between the two")
        returns(batch.where("i BETWEEN 50 AND 79"), number)
        batch.unpersist()

    def run(**sources):
        frames = [lake.read(feed, **sources.get(feed, {})) for feed in ("orders", "returns")]
        united = frames[0].union(frames[1])
        in_batches(united, write, checkpoint).awaitTermination(PATIENCE)

    with pytest.raises(Exception, match="between the two"):
        run()
    broken.clear()
    run()
    lake.add(range(80, 90))
    lake.drop("checkpoint")
    at = lake.at("orders")
    starts = {
        feed: lakehouse.cursors(lake.spark, at, name="both", feed=lake.url(feed))
        for feed in ("orders", "returns")
    }
    run(**{feed: {"startingCursors": start} for feed, start in starts.items()})

    assert lake.numbers("orders") == Counter([*range(50), *range(80, 90)])
    assert lake.numbers("returns") == Counter(range(50, 80))


@pytest.mark.slow
def test_a_table_may_have_a_name(lake):
    """Of one, two or three parts, as SQL has it."""
    lake.spark.sql("DROP TABLE IF EXISTS kept")
    given = {"name": "orders", "checkpointLocation": "none"}
    names = ("kept", "default.kept", "spark_catalog.default.kept")
    for number, name in enumerate(names):
        events = range(20 * number, 20 * number + 20)
        lake.batch(number, events, writer=lakehouse.DeltaFeedWriter(name, **given))
        assert lakehouse.cursors(lake.spark, name, name="orders") == f'{{"0": "{events.stop}"}}'

    assert Counter(row.i for row in lake.spark.table("kept").collect()) == Counter(range(60))
    lake.spark.sql("DROP TABLE kept")


@pytest.mark.slow
def test_new_columns_come_as_deltas_option_says(lake):
    """Refused by default, added with mergeSchema."""
    lake.batch(0, range(10), change=lambda df: df.drop("value"))

    assert "mergeSchema=true adds new columns" in lake.refused(1, range(10, 20))
    lake.batch(1, range(10, 20), mergeSchema=True)
    assert lake.numbers() == Counter(range(20))
    assert "value" in lake.table().columns


def test_a_function_of_the_users_gives_what_is_written(lake):
    """The writer makes the one write."""
    lake.add(range(10))

    lake.run(
        transform=lambda df, number: df.selectExpr("i", f"{number} AS batch", "i * 2 AS twice")
    )

    assert [(i, 0, 2 * i) for i in range(10)] == sorted(map(tuple, lake.table().collect()))


@pytest.mark.slow
def test_from_feed_to_table_to_feed_to_table_ends_equal(lake):
    """Nothing is lost, doubled or changed on the way."""
    import zeh_spark

    lake.publish(
        *({"i": i, "key": f"k{i % 7}", "value": f'"é\\{i}', "op": None} for i in range(40))
    )
    lake.run(change=lambda df: df.drop("headers", "partition"))
    query = (
        lakehouse.from_delta(lake.spark, lake.at("orders"), key="key")
        .writeStream.format("zeroeventhub")
        .options(url=lake.url("returns"), producerId="back")
        .option("checkpointLocation", lake.at("back"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE)
    feed = lake.spark.readStream.format("zeroeventhub").load(lake.url("returns"))
    query = lakehouse.to_delta(
        zeh_spark.parsed(feed, DATA).drop("headers", "partition"),
        lake.at("again"),
        name="again",
        checkpointLocation=lake.at("again-checkpoint"),
        trigger={"availableNow": True},
    )
    assert query.awaitTermination(PATIENCE)

    assert_df_equality(lake.table("orders"), lake.table("again"), ignore_row_order=True)
