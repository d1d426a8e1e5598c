"""The same code with Spark Connect: the server has the package, the client sends plans."""

import json
from collections import Counter
from functools import partial

import pytest

from tests import fix_connect, fix_lake
from tests.fix_lake import DATA, said
from tests.fix_spark import run_program
from tests.patience import PATIENCE, eventually

pytest.importorskip("grpc", reason=fix_connect.why_absent())

from pyspark.sql.connect.session import SparkSession as Session

import zeh_spark
from zeh_spark import dedup, lakehouse, sessions
from zeh_spark.errors import OptionError
from zeh_spark.spark.delta.commit_settings import committing

pytestmark = pytest.mark.slow  # the server alone takes 5 seconds to start
SINCE_4_1 = hasattr(Session, "cloneSession")
NOT_THERE = "Spark Connect 4.0 has neither this state nor clones of sessions"
needs_4_1 = pytest.mark.skipif(not SINCE_4_1, reason=NOT_THERE)
only_4_0 = pytest.mark.skipif(SINCE_4_1, reason="this Spark has what Spark Connect 4.0 has not")
needs_delta = pytest.mark.skipif(bool(fix_lake.why_absent()), reason=str(fix_lake.why_absent()))


@pytest.fixture(scope="module")
def spark(connect_server):
    """All fixtures of other tests have this session here. The server finds the format by itself."""
    with fix_connect.client(connect_server.url) as session:
        yield session


def saved(frame, folder):
    """Run a stream to its end into files."""
    writer = frame.writeStream.format("parquet").option("path", str(folder / "rows"))
    writer = writer.option("checkpointLocation", str(folder / "saved")).trigger(availableNow=True)
    assert writer.start().awaitTermination(PATIENCE)


def test_a_feed_is_read_and_published(lake, spark):
    """Batch and stream, each event once; the listener and the receipts count them."""
    lake.add(range(50))
    listener = zeh_spark.ProgressListener()
    spark.streams.addListener(listener)
    rows = lake.read().where("i >= 10").selectExpr("string(i) AS key", "struct(i) AS data")

    def publish():
        query = rows.writeStream.format("zeroeventhub").option("url", lake.url("returns"))
        query = query.option("producerId", "job").trigger(availableNow=True)
        return query.option("checkpointLocation", lake.at("checkpoint")).start()

    zeh_spark.drain(publish, timeout=PATIENCE)
    lake.add(range(50, 60))
    zeh_spark.drain(publish, timeout=PATIENCE)
    eventually(lambda: sum(listener.total_events.values()) == 60)
    spark.streams.removeListener(listener)

    zeh_spark.register(spark)  # does no harm
    feed = spark.read.format("zeroeventhub").load(lake.url("returns"))
    events = zeh_spark.parsed(feed, "i INT")
    assert [*range(10, 60)] == sorted(row.i for row in events.select("i").collect())
    unnamed = zeh_spark.parsed(feed, "j INT", rescued="rest").select("j", "rest").collect()
    assert {(None, f'{{"i":{i}}}') for i in range(10, 60)} == {*map(tuple, unnamed)}
    named = lakehouse.stamped(events).groupBy("_zeh.producer").count().collect()
    assert [("job", 50)] == [tuple(row) for row in named]
    receipts = zeh_spark.receipts(lake.url("returns"), "job", spark=spark)
    assert receipts.selectExpr("sum(events)").first()[0] == 50


def test_a_feed_is_a_table_in_sql(lake, connect_server):
    """It is selected from, read as a stream, and rows are inserted into another one."""
    lake.add(range(20))
    with fix_connect.client(connect_server.url) as sql:
        # Spark's own catalog: Delta's does not find tables of Python data sources.
        sql.conf.set("spark.sql.catalog.spark_catalog", "builtin")
        for feed in ("orders", "returns"):
            sql.sql(f"CREATE TABLE {feed} USING zeroeventhub OPTIONS (url '{lake.url(feed)}')")
        try:
            to = f"WITH (url = '{lake.url('returns')}', `producerId` = 'sql', `batchId` = 'one')"
            for _ in range(2):  # a batch with a name is published once
                sql.sql(f"INSERT INTO returns {to} SELECT * FROM orders WHERE data LIKE '%1%'")
            saved(sql.readStream.table("orders"), lake.folder)

            streamed = sql.read.parquet(lake.at("rows"))
            assert Counter(range(20)) == numbers(streamed)
            ones = [i for i in range(20) if "1" in str(i)]
            assert Counter(ones) == numbers(sql.sql("SELECT * FROM returns"))
        finally:
            for feed in ("orders", "returns"):
                sql.sql(f"DROP TABLE {feed}")


def numbers(frame):
    return Counter(json.loads(row.data)["i"] for row in frame.select("data").collect())


@needs_4_1
def test_sessions_come_in_order(orders, spark):
    """What waits is inspected, and comes out when the missing event arrives."""
    orders.add(("a", 1), ("b", 0))
    saved(orders.frame(gap_timeout=None), orders.folder)
    (waits,) = sessions.inspect(spark, str(orders.folder / "saved")).where("held > 0").collect()
    orders.add(("a", 0))
    saved(orders.frame(gap_timeout=None), orders.folder)

    assert ("a", "waiting", 1) == (waits.session, waits.status, waits.held)
    rows = spark.read.parquet(str(orders.folder / "rows")).select("headers.order", "headers.step")
    assert Counter([("a", "0"), ("a", "1"), ("b", "0")]) == Counter(map(tuple, rows.collect()))


@needs_4_1
@needs_delta
def test_a_handler_is_called_for_each_event_of_a_session(processing):
    """In order, in the server's processes; its results are in the table."""
    processing.orders.add(("a", 1), ("a", 0), ("b", 0))
    processing.run()

    assert [("a", 0), ("a", 1)] == [call[:2] for call in processing.shop.calls() if call[0] == "a"]
    assert [(0, "ok", 1), (1, "ok", 1)] == processing.verdicts("a")
    assert [(0, "ok", 1)] == processing.verdicts("b")


@needs_4_1
def test_each_number_passes_once(lake, stream, spark):
    """A feed that is read twice is one feed; two feeds are two."""
    lake.add(range(20))

    def frame():
        narrow = stream(url=lake.url(), partitionCount="1").load()
        return dedup.drop_seen(stream().load(lake.url()).union(narrow))

    saved(frame(), lake.folder)
    lake.add(range(20, 30))
    saved(frame(), lake.folder)

    rows = spark.read.parquet(lake.at("rows")).select("data", "dedup").collect()
    found = Counter((row.dedup, json.loads(row.data)["i"]) for row in rows)
    assert found == Counter(("new", i) for i in range(30))


@needs_4_1
def test_a_frame_that_has_an_order_or_a_watermark_is_refused(orders):
    """As in a classic session."""
    ordered = orders.frame(gap_timeout=None)
    with pytest.raises(OptionError, match="Call drop_seen before in_order"):
        dedup.drop_seen(ordered)
    marked = orders.feed().selectExpr("*", "current_timestamp() AS at")
    with pytest.raises(OptionError, match="has a watermark already"):
        sessions.in_order(
            marked.withWatermark("at", "1 second"), session="'a'", sequence="headers['step']"
        )


@needs_delta
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="append"),
        pytest.param({"merge_keys": ["key"]}, marks=needs_4_1, id="merge"),
    ],
)
def test_a_feed_is_in_a_table_once(options, lake):
    """A batch that Spark gives again, and a new checkpoint, add nothing."""
    lake.publish(*({"i": i, "key": f"k{i}"} for i in range(10)))
    lake.run(**options)
    lake.publish(*({"i": i, "key": f"k{i - 5}"} for i in range(10, 20)))
    lake.forget(0)
    lake.run(**options)
    lake.run(checkpoint="another", **options)

    newest = [*range(5), *range(10, 20)]  # k5 to k9 came again
    assert lake.numbers() == Counter(newest if options else range(20))


@needs_4_1
@needs_delta
def test_a_batch_with_other_rows_is_refused(lake):
    """A query with state is known by its rows, and its table's merges by numbers."""
    options = {"merge_keys": ["i"], "order": "sequence"}
    lake.add(range(5))
    lake.run(change=lambda df: dedup.drop_seen(df).drop("dedup"), **options)
    lake.forget(0)
    lake.run(change=lambda df: dedup.drop_seen(df).drop("dedup"), **options)
    lake.forget(0)

    def changed(df):
        return dedup.drop_seen(df).drop("dedup").where("i > 1")

    assert "Spark gives it again with 3 rows" in lake.fail(change=changed, **options)
    assert lake.numbers() == Counter(range(5))


@needs_4_1
@needs_delta
def test_settings_of_a_merge_are_not_those_of_other_statements(spark):
    """Delta would leave out what another thread of the session writes meanwhile."""
    name = "spark.databricks.delta.write.txnAppId"
    with committing(spark.range(3), {"txnAppId": "mine", "txnVersion": "1"}) as frame:
        assert frame.sparkSession.conf.get(name) == "mine"
        assert spark.conf.get(name, None) is None
        assert frame.count() == 3


@needs_delta
def test_another_checkpoint_is_refused(lake):
    """The writer cannot ask which query calls: the checkpoint has to be of one in this batch."""
    lake.add(range(5))
    lake.run()
    writer = lakehouse.DeltaFeedWriter(
        lake.at("orders"), name="orders", checkpointLocation=lake.at("checkpoint")
    )
    query = lake.read().writeStream.foreachBatch(writer).trigger(availableNow=True)
    query = query.option("checkpointLocation", lake.at("another")).start()
    with pytest.raises(Exception) as raised:
        query.awaitTermination(PATIENCE)

    assert "is not that of the calling query" in said(raised.value)
    with pytest.raises(Exception, match="Give an absolute path"):
        lakehouse.cursors(lake.spark, "lake/orders", name="orders")


@needs_delta
def test_a_table_is_a_feed(lake, spark):
    """Each of its rows is published once, also those of a later run."""
    for begin in (0, 10):
        rows = spark.range(begin, begin + 10).selectExpr("string(id) AS key", "int(id) AS i")
        rows.write.format("delta").mode("append").save(lake.at("source"))
        query = lakehouse.from_delta(spark, lake.at("source"), key="key").writeStream
        query = query.format("zeroeventhub").option("url", lake.url()).option("producerId", "job")
        query = query.option("checkpointLocation", lake.at("sink")).trigger(availableNow=True)
        assert query.start().awaitTermination(PATIENCE)

    feed = zeh_spark.parsed(spark.read.format("zeroeventhub").load(lake.url()), DATA)
    assert Counter(row.i for row in feed.select("i").collect()) == Counter(range(20))


@needs_4_1
@needs_delta
def test_a_version_of_an_app_is_merged_once(lake, spark):
    """`merge` with the number of the batch, which Spark gives again; then `purge`."""
    lake.publish(*({"i": i, "key": f"k{i}"} for i in range(10)))
    keep = partial(merge, table=lake.at("merged"), checkpoint=lake.at("checkpoint"))
    for _ in range(2):
        events = lake.read().writeStream.foreachBatch(keep).trigger(availableNow=True)
        query = events.option("checkpointLocation", lake.at("checkpoint")).start()
        assert query.awaitTermination(PATIENCE)
        lake.forget(0)
    assert lake.numbers("merged") == Counter(range(10))
    lakehouse.purge(spark, lake.at("merged"), "1 day")


@only_4_0
def test_ordered_sessions_are_refused_on_spark_4_0(orders):
    """By name, and with what to do. Handlers need the same."""
    with pytest.raises(OptionError, match=r"in_order: on Spark Connect it needs Spark 4\.1"):
        orders.frame()


@only_4_0
def test_deduplication_is_refused_on_spark_4_0(lake, stream):
    with pytest.raises(OptionError, match=r"drop_seen: on Spark Connect it needs Spark 4\.1"):
        dedup.drop_seen(stream().load(lake.url()))


@only_4_0
@needs_delta
def test_merges_are_refused_on_spark_4_0(lake):
    lake.add(range(5))
    assert "a merge on Spark Connect needs Spark 4.1" in lake.fail(merge_keys=["i"])


def merge(batch, number, table, checkpoint):
    lakehouse.merge(
        batch, table, ["key"], app_id="job", version=number, checkpointLocation=checkpoint
    )


@needs_4_1
@needs_delta
@pytest.mark.kill
def test_a_killed_server_loses_and_doubles_nothing(lake, connect_server, warm, tmp_path):
    """It dies after the table has a batch, before Spark knows; another one takes the checkpoint."""
    server = fix_connect.ConnectServer(tmp_path, warm)
    writer = lakehouse.DeltaFeedWriter(
        lake.at("orders"),
        name="orders",
        checkpointLocation=lake.at("checkpoint"),
        merge_keys=["i"],
    )

    def start(told=None):
        keep = partial(write_and_come, writer, told)
        stream = lake.read().writeStream.foreachBatch(keep).trigger(availableNow=True)
        return stream.option("checkpointLocation", lake.at("checkpoint")).start()

    lake.add(range(10))
    try:
        server.start()
        with fix_connect.client(server.url) as lake.spark:
            start(told=str(tmp_path / "written"))
            eventually((tmp_path / "written").exists)
            server.kill()
    finally:
        server.kill()
    lake.add(range(10, 20))
    with fix_connect.client(connect_server.url) as lake.spark:
        zeh_spark.drain(start, timeout=PATIENCE)
        assert lake.numbers() == Counter(range(20))


def write_and_come(writer, told, batch, number):
    """Write the batch; then tell it, and never come back."""
    from pathlib import Path
    from threading import Event

    writer(batch, number)
    if told is not None:
        Path(told).touch()
        Event().wait()


def test_a_session_that_starts_its_own_server_reads_a_feed(lake, warm, tmp_path):
    """`SparkSession.builder.remote("local[2]")` in one process, without anything registered."""
    lake.add(range(10))
    job = {"url": lake.url(), "folder": str(tmp_path)}
    own_port = {"SPARK_TESTING": "1"}  # otherwise it is 15002
    done = run_program("read_remote.py", job, environment={**warm, **own_port})

    assert done.stdout.split() == ["10", "10"]
