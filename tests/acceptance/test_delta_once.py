"""A feed kept in a Delta table: each event once, whatever crashes, is lost or restored."""

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from chispa import assert_df_equality

from tests.fix_lake import DATA, said, why_absent
from tests.fix_spark import in_batches
from tests.patience import PATIENCE

pytest.importorskip("delta", reason=why_absent())

from pyspark import inheritable_thread_target

import zeh_spark
from zeh_spark import lakehouse
from zeh_spark.errors import LakehouseError


@pytest.mark.slow
def test_a_feed_is_in_the_table_once(lake):
    """F12: one call, run again and again while the feed grows, also when Spark crashed between the
    table's commit and its own, and when the checkpoint is lost: the table knows where it is. The
    first call may begin anywhere, with the newest events for instance. Paths may have any
    characters. Nothing is added to the feed's rows and nothing changed.
    """
    table, checkpoint = (f"a b c[1] {{x}} 50%25 späť {each}" for each in ("table", "checkpoint"))
    lake.add(range(-5, 0))
    lake.run(table, checkpoint=checkpoint, source={"startingCursors": "last"})
    lake.add(range(50))
    lake.run(table, checkpoint=checkpoint)
    last = max(int(each.name) for each in (lake.folder / checkpoint / "commits").glob("[0-9]*"))
    lake.forget(last, checkpoint)
    lake.add(range(30, 80))
    lake.run(table, checkpoint=checkpoint)
    assert lake.numbers(table) == Counter([*range(50), *range(30, 80)])

    lake.add(range(80, 100))
    lake.drop(checkpoint)
    lake.run(table, checkpoint=checkpoint)

    assert lake.numbers(table) == Counter([*range(50), *range(30, 80), *range(80, 100)])
    feed = lake.spark.read.format("zeroeventhub").load(lake.url())
    there, expected = lake.table(table), zeh_spark.parsed(feed, DATA).where("i >= 0")
    for columns in (["* EXCEPT (headers)"], ["i", "explode(headers)"]):
        one, other = (each.selectExpr(*columns) for each in (there, expected))
        assert_df_equality(one, other, ignore_row_order=True)


@pytest.mark.slow
def test_two_queries_under_one_name_write_once(lake, gate):
    """The second of two that continue from one place at the same time is refused."""
    lake.batch(0, range(50))
    with gate.during(lake.refused, 1, range(50, 80)) as slow:
        lake.batch(0, range(50, 90), query="another")

    assert "if the other query still runs, stop one of them" in slow.result()
    assert lake.numbers() == Counter(range(90))


@pytest.mark.slow
def test_a_merge_leaves_other_statements_of_the_session_alone(lake, gate):
    """Delta would leave out what another thread appends with the merge's settings, or merges; or
    what this one does afterwards.
    """
    lake.batch(0, range(10), merge_keys=["i"])
    for _ in range(2):
        later = lake.spark.sparkContext.parallelize([(1,)]).toDF(["i"])
        later.write.format("delta").mode("append").save(lake.at("later"))
    assert lake.table("later").count() == 2
    rows = lake.spark.range(5)
    with gate.during(lake.batch, 1, range(10, 20), merge_keys=["i"]):
        for _ in range(2):
            rows.write.format("delta").mode("append").save(lake.at("other"))

    assert lake.table("other").count() == 10
    assert lake.numbers() == Counter(range(20))


@pytest.mark.parametrize("catalog", ["spark_catalog", "other"])
def test_a_merge_finds_its_table_whatever_the_current_catalog_is(lake, catalog):
    """The settings of a commit are those of a session of its own. The other catalog has no default
    database.
    """
    spark = lake.spark
    other = "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog"
    spark.conf.set("spark.sql.catalog.other", other)
    spark.conf.set("spark.sql.catalog.other.url", "jdbc:derby:memory:other;create=true")
    spark.conf.set("spark.sql.catalog.other.driver", "org.apache.derby.jdbc.EmbeddedDriver")
    spark.sql("CREATE DATABASE elsewhere")
    try:
        spark.catalog.setCurrentDatabase("elsewhere")
        spark.catalog.setCurrentCatalog(catalog)
        table = "merged" if catalog == "spark_catalog" else "spark_catalog.elsewhere.merged"
        for version in range(2):
            rows = spark.range(version, version + 2).selectExpr("id AS i", "map('', '') AS headers")
            lakehouse.merge(rows, table, ["i"], app_id="app", version=version)
        assert lake.numbers("spark_catalog.elsewhere.merged") == Counter(range(3))
        assert not [each for each in spark.conf.getAll if ".write.txn" in each]
    finally:
        spark.catalog.setCurrentCatalog("spark_catalog")
        spark.catalog.setCurrentDatabase("default")
        spark.sql("DROP DATABASE elsewhere CASCADE")


def test_a_second_call_for_a_batch_is_refused(lake):
    """Its rows would be taken for those of the first, and left out; also when Spark repeats the
    batch. With the table as it was before, and a new checkpoint, united frames are written.
    """
    lake.add([-1])
    lake.run()
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

    for _ in range(2):
        with pytest.raises(Exception) as raised:
            in_batches(lake.read(), write, lake.at("checkpoint")).awaitTermination(PATIENCE)
        assert "call it once for each table and batch" in said(raised.value)

    lake.restore(0)
    lake.run(checkpoint="another")
    assert lake.numbers() == Counter(range(-1, 10))


def test_two_threads_write_a_batch_of_one_table_once(lake, gate):
    """Delta would leave out the rows of the one that comes second, without an error. After a call
    that failed the batch is still to be written.
    """
    one, two = lake.writer(), lake.writer(f"delta.`{lake.at('orders')}`")
    with gate.during(lake.batch, 0, range(10), writer=one, run="run"):
        assert "was written in this batch" in lake.refused(0, range(10), writer=two, run="run")

    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        lake.batch(1, range(10, 20), writer=one, run="run", change=lambda df: df.where("1 / 0 = 1"))
    lake.batch(1, range(10, 20), writer=two, run="run")
    assert lake.numbers() == Counter(range(20))


def test_a_table_whose_first_write_was_killed_is_made(lake):
    """Delta's writer has left a folder for its log, and files that no commit has."""
    (lake.folder / "orders" / "_delta_log" / "_staged_commits").mkdir(parents=True)
    for name in ("part-00000-a-c000.snappy.parquet", ".part-00000-a-c000.snappy.parquet.crc"):
        (lake.folder / "orders" / name).touch()
    assert lake.place() == 0
    lake.batch(0, range(5))
    assert lake.numbers() == Counter(range(5))


def test_a_job_group_of_my_own_is_no_run_of_the_query(lake):
    """I name the jobs of my function, in threads of my own. A batch that Spark repeats is no second
    call, and a second call is one, also under another name.
    """
    lake.add(range(10))
    writer = lakehouse.DeltaFeedWriter(
        lake.at("orders"), name="orders", checkpointLocation=lake.at("checkpoint")
    )

    def run(calls):
        def write(batch, number):
            def call(group):
                lake.spark.sparkContext.setJobGroup(f"orders {group}", "keeps orders")
                writer(batch, number)

            with ThreadPoolExecutor(1) as pool:
                for group in range(calls):
                    pool.submit(inheritable_thread_target(lake.spark)(call), group).result()

        in_batches(lake.read(), write, lake.at("checkpoint")).awaitTermination(PATIENCE)

    run(calls=1)
    lake.forget(0)
    run(calls=1)
    assert lake.numbers() == Counter(range(10))

    lake.add(range(10, 20))
    with pytest.raises(Exception) as raised:
        run(calls=2)
    assert "call it once for each table and batch" in said(raised.value)


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
    tables = "orders", "returns"
    checkpoint = lake.at("checkpoint")
    orders, returns = (
        lakehouse.DeltaFeedWriter(lake.at(name), name="both", checkpointLocation=checkpoint)
        for name in tables
    )
    broken = threading.Event()
    broken.set()

    def write(batch, number):
        batch = batch.persist()
        orders(batch.where("i < 50"), number)
        if broken.is_set():
            raise RuntimeError("between the two")
        returns(batch.where("i >= 50"), number)
        batch.unpersist()

    def run():
        united = lake.read("orders").union(lake.read("returns"))
        in_batches(united, write, checkpoint).awaitTermination(PATIENCE)

    with pytest.raises(Exception, match="between the two"):
        run()
    broken.clear()
    run()

    assert lake.numbers("orders") == Counter(range(50))
    assert lake.numbers("returns") == Counter(range(50, 80))
    for feed, later in ("orders", range(80, 90)), ("returns", range(90, 99)):
        lake.add(later, feed=feed)
        starts = {
            lakehouse.cursors(lake.spark, lake.at(table), name="both", feed=lake.url(feed))
            for table in tables
        }
        reader = lake.spark.read.format("zeroeventhub").option("startingCursors", starts.pop())
        rows = reader.load(lake.url(feed)).select("data").collect()
        assert (set(), [*later]) == (starts, sorted(json.loads(row.data)["i"] for row in rows))


@pytest.mark.slow
def test_a_table_may_have_a_name(lake):
    """Of one, two or three parts, as SQL has it."""
    lake.spark.sql("DROP TABLE IF EXISTS kept")
    given = {"name": "orders", "checkpointLocation": "none"}
    names = ("kept", "default.kept", "spark_catalog.default.kept")
    for number, name in enumerate(names[::2]):
        events = range(20 * number, 20 * number + 20)
        lake.batch(number, events, writer=lakehouse.DeltaFeedWriter(name, **given))
    assert ['{"0": "40"}'] * 3 == [
        lakehouse.cursors(lake.spark, name, name="orders") for name in names
    ]

    assert lake.numbers("default.kept") == Counter(range(40))
    lake.spark.sql("DROP TABLE kept")


@pytest.mark.slow
def test_columns_fit_the_tables_as_with_delta_itself(lake):
    """New ones are refused by default, and added with mergeSchema; NULL where the frame has
    nothing, and an error where types differ. The events' own column is not taken for cursors,
    whatever case its name is written in. The writer makes the one write, also of what a function of
    the user's gives.
    """

    def other_type(df):
        return df.selectExpr("* EXCEPT (i)", "concat(i, 'x') AS i")

    def transform(df, number):
        return df.selectExpr("i", f"'of batch {number}' AS value")

    lake.batch(0, range(5), change=lambda df: df.drop("value"))
    assert "mergeSchema=true adds new columns" in lake.refused(1, range(5, 10))
    lake.batch(1, range(5, 10), mergeSchema=True)
    told = lake.refused(2, range(10, 15), change=other_type)
    assert "Give the frame the table's columns and types" in told
    assert "'value'" in lake.refused(2, range(10, 15), cursorColumn="Value")

    lake.batch(2, range(10, 15), transform=transform)

    rows = {row.i: (row.value, row.headers is None) for row in lake.table().collect()}
    assert lake.numbers() == Counter(range(15))
    assert ((None, False), ("5", False), ("of batch 2", True)) == (rows[0], rows[5], rows[10])
