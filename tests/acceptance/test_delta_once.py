"""A feed kept in a Delta table: each event once, whatever crashes, is lost or restored."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from chispa import assert_df_equality

from tests.fix_lake import DATA, said, why_absent
from tests.fix_spark import check_killed, run_program
from tests.fix_stream import wait_for
from tests.patience import PATIENCE

pytest.importorskip("delta", reason=why_absent())

from zeh_spark import lakehouse
from zeh_spark.errors import LakehouseError


@pytest.mark.slow
def test_a_feed_is_in_the_table_once(lake):
    """One call, run again and again while the feed grows."""
    for begin in (0, 100, 100):
        lake.add(range(begin, begin + 50))
        lake.run()

    assert lake.numbers() == Counter([*range(50), *range(100, 150), *range(100, 150)])


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


@pytest.mark.kill
@pytest.mark.parametrize(
    ("settings", "crashes"),
    [
        pytest.param({}, [(0, "tasks")], id="append"),
        pytest.param(
            {},
            [(0, "planned"), (0, "written"), (1, "written")],
            id="more",
            marks=pytest.mark.campaign,
        ),
        pytest.param(
            {"merge_keys": ["i"]},
            [(0, "tasks"), (0, "written")],
            id="merge",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_each_event_is_there_once_when_the_driver_is_killed(lake, settings, crashes):
    """Killed before the Delta commit, in the middle of it and after it, while the feed grows; then
    the checkpoint is lost as well (PU-11, ZE-02).
    """
    for number, crash in enumerate(crashes):
        lake.add(range(50 * number, 50 * number + 50))
        run_to_the_crash(lake, settings, crash)
    lake.drop("checkpoint")
    count = 50 * len(crashes) + 50
    lake.add(range(count - 50, count))
    lake.run(**settings)

    assert lake.numbers() == Counter(range(count))


def run_to_the_crash(lake, settings, crash):
    job = {
        "url": lake.url(),
        "table": lake.at("orders"),
        "checkpoint": lake.at("checkpoint"),
        "options": {},
        "settings": settings,
        "data": DATA,
        "crash": crash,
    }
    check_killed(run_program("feed_to_delta.py", job))


@pytest.mark.slow
def test_a_batch_that_comes_again_is_not_written_again(lake):
    """Spark crashed between the table's commit and its own."""
    lake.add(range(50))
    lake.run()
    lake.forget(0)
    before = lake.history()

    lake.run()

    assert (Counter(range(50)), before) == (lake.numbers(), lake.history())


@pytest.mark.slow
def test_a_lost_checkpoint_changes_nothing(lake):
    """F12: the table knows where it is."""
    lake.add(range(50))
    lake.run()
    lake.add(range(50, 80))
    lake.drop("checkpoint")
    lake.run()
    lake.add(range(80, 100))
    lake.run(checkpoint="another")

    assert lake.numbers() == Counter(range(100))


@pytest.mark.slow
def test_a_new_checkpoint_from_elsewhere_is_refused(lake):
    """Who forgets startingCursors is told, and nothing is written twice."""
    lake.add(range(50))
    lake.run()
    lake.add(range(50, 60))

    told = lake.fail(checkpoint="another", source={})
    skipping = lake.fail(checkpoint="a third", source={"startingCursors": "last"})

    assert "zeh_spark.lakehouse.cursors(spark, " in told and "{_first}" in told
    assert "begins its batch 0 at" in skipping
    assert lake.numbers() == Counter(range(50))


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
    lake.add(range(50))
    lake.run()
    lake.add(range(50, 80))
    start = lakehouse.cursors(lake.spark, lake.at("orders"), name="orders")
    writer = lakehouse.DeltaFeedWriter(
        lake.at("orders"), name="orders", checkpointLocation=lake.at("slow")
    )
    slow = (
        gate(lake.read(startingCursors=start))
        .writeStream.foreachBatch(writer)
        .option("checkpointLocation", lake.at("slow"))
        .start()
    )
    wait_for(gate.come.exists)
    lake.add(range(80, 90))
    lake.run(checkpoint="another")
    gate.open()

    with pytest.raises(Exception) as raised:
        slow.awaitTermination(PATIENCE)

    assert "if the other query still runs, stop one of them" in said(raised.value)
    assert lake.numbers() == Counter(range(90))


@pytest.mark.slow
def test_a_checkpoint_that_was_taken_back_is_refused(lake):
    """F13: it would cut the feed otherwise than the table has it."""
    import shutil

    lake.add(range(50))
    lake.run()
    shutil.copytree(lake.at("checkpoint"), lake.at("copy"))
    lake.grow(range(70, 80), range(80, 90))
    lake.add(range(90, 95))

    told = lake.fail(checkpoint="copy")

    assert "the checkpoint was taken back to an older state" in told
    assert lake.numbers() == Counter([*range(50), *range(70, 90)])


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

    query = (
        lake.read()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", lake.at("checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception) as raised:
        query.awaitTermination(PATIENCE)

    assert "Call it once for each table and batch" in said(raised.value)


@pytest.mark.slow
def test_tables_of_one_query_have_to_be_at_one_place(lake):
    """The error says where each is; a new one is at the beginning."""
    lake.add(range(10))
    lake.run("orders", name="shop")
    both = [lake.at("orders"), lake.at("returns")]

    with pytest.raises(LakehouseError, match=r"orders: \{.*returns: first"):
        lakehouse.cursors(lake.spark, both, name="shop")

    lake.run("returns", name="shop", checkpoint="another", change=lambda df: df.where("i > 5"))
    place = lakehouse.cursors(lake.spark, both, name="shop")
    assert place == lakehouse.cursors(lake.spark, both[0], name="shop")


@pytest.mark.slow
def test_paths_may_have_any_characters(lake):
    """Of the table and of the checkpoint."""
    place = "a b c[1] {x} 50%25 späť"
    for begin in (0, 10):
        lake.add(range(begin, begin + 10))
        lake.run(f"{place} table", checkpoint=f"{place} checkpoint")

    assert lake.numbers(f"{place} table") == Counter(range(20))


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
        query = (
            frames[0]
            .union(frames[1])
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(PATIENCE)

    with pytest.raises(Exception, match="between the two"):
        run()
    broken.clear()
    run()
    lake.add(range(80, 90))
    lake.drop("checkpoint")
    run(
        **{
            feed: {
                "startingCursors": lakehouse.cursors(
                    lake.spark, lake.at("orders"), name="both", feed=lake.url(feed)
                )
            }
            for feed in ("orders", "returns")
        }
    )

    assert lake.numbers("orders") == Counter([*range(50), *range(80, 90)])
    assert lake.numbers("returns") == Counter(range(50, 80))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kept", "default.kept", "spark_catalog.default.kept"])
def test_a_table_may_have_a_name(lake, name):
    """Of one, two or three parts, as SQL has it."""
    lake.spark.sql(f"DROP TABLE IF EXISTS {name}")
    settings = {"name": "orders", "trigger": {"availableNow": True}}
    for begin, checkpoint in ((0, "one"), (20, "two")):
        lake.add(range(begin, begin + 20))
        start = lakehouse.cursors(lake.spark, name, name="orders")
        frame = lake.read(startingCursors=start)
        query = lakehouse.to_delta(frame, name, checkpointLocation=lake.at(checkpoint), **settings)
        assert query.awaitTermination(PATIENCE)

    assert Counter(row.i for row in lake.spark.table(name).collect()) == Counter(range(40))
    lake.spark.sql(f"DROP TABLE {name}")


@pytest.mark.slow
def test_new_columns_come_as_deltas_option_says(lake):
    """Refused by default, added with mergeSchema."""
    lake.add(range(10))
    lake.run(change=lambda df: df.drop("value"))
    lake.add(range(10, 20))

    told = lake.fail()

    assert "mergeSchema=true adds new columns" in told
    lake.run(mergeSchema=True)
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
