"""A feed kept in a Delta table: what a user may do wrong, each with an error that helps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.fix_lake import said, why_absent
from tests.fix_spark import ENVIRONMENT
from tests.patience import PATIENCE

pytest.importorskip("delta", reason=why_absent())

from zeh_spark import lakehouse
from zeh_spark.errors import LakehouseError, OptionError
from zeh_spark.lakehouse.delta_table import LakeTable


def test_another_feed_under_a_name_is_refused(lake):
    """Cursors of one feed mean nothing in another."""
    lake.add(range(10))
    lake.add(range(10), feed="returns")
    lake.run()
    query = lakehouse.to_delta(
        lake.read("returns"),
        lake.at("orders"),
        name="orders",
        checkpointLocation=lake.at("new"),
        trigger={"availableNow": True},
    )

    with pytest.raises(Exception) as raised:
        query.awaitTermination(PATIENCE)

    told = said(raised.value)
    assert lake.url("orders") in told and lake.url("returns") in told
    assert 10 == lake.table().count()


def test_a_feed_under_another_name_is_refused(lake):
    """A mistyped name would bring the whole feed again."""
    lake.add(range(10))
    lake.run()

    told = lake.fail(name="order", checkpoint="new")

    assert "under name='orders'" in told and lake.at("orders") in told
    assert 10 == lake.table().count()


def test_a_relative_path_is_one_from_the_working_directory(lake):
    """As for Spark's own readers and writers; statements that errors name work anywhere."""
    lake.add(range(10))
    table = os.path.relpath(lake.at("orders"))

    lake.run(table)
    lake.add(range(10, 20))
    lake.run(table)

    assert Counter(range(20)) == lake.numbers()
    assert f"delta.`file:{lake.at('orders')}`" == LakeTable(lake.spark, table).identifier


def test_a_checkpoint_of_another_query_is_refused(lake):
    """Its batches are not this query's."""
    lake.add(range(10))
    lake.run()
    writer = lakehouse.DeltaFeedWriter(
        lake.at("other"), name="other", checkpointLocation=lake.at("checkpoint")
    )
    lake.add(range(10, 20))

    told = foreach_batch(lake, writer, "its own")

    assert "is not that of the calling query" in told


def test_a_checkpoint_that_is_none_is_refused(lake):
    """The error names the folder."""
    lake.add(range(10))
    writer = lakehouse.DeltaFeedWriter(
        lake.at("orders"), name="orders", checkpointLocation=lake.at("nowhere")
    )

    told = foreach_batch(lake, writer, "its own")

    assert "nowhere' is no checkpoint of a query" in told


def foreach_batch(lake, writer, checkpoint):
    query = (
        lake.read()
        .writeStream.foreachBatch(writer)
        .option("checkpointLocation", lake.at(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception) as raised:
        query.awaitTermination(PATIENCE)
    return said(raised.value)


def test_a_writer_is_called_by_a_query(lake):
    """Elsewhere it does not know which batch it has."""
    writer = lakehouse.DeltaFeedWriter(
        lake.at("orders"), name="orders", checkpointLocation=lake.at("checkpoint")
    )

    with pytest.raises(LakehouseError, match="outside of a query's foreachBatch"):
        writer(lake.spark.range(5), 0)


def test_a_stream_that_is_no_feed_is_refused(lake):
    """The table could not tell where it is."""
    rate = lake.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    query = lakehouse.to_delta(
        rate,
        lake.at("orders"),
        name="orders",
        checkpointLocation=lake.at("checkpoint"),
        trigger={"availableNow": True},
    )

    with pytest.raises(Exception) as raised:
        query.awaitTermination(PATIENCE)

    assert "no ZeroEventHub feed" in said(raised.value)


@pytest.mark.parametrize("operation", [lakehouse.cursors, lakehouse.to_delta])
def test_files_that_are_no_table_are_refused(lake, operation):
    """Delta would make a table beside them, and never show them again."""
    lake.spark.range(5).write.parquet(lake.at("orders"))

    with pytest.raises(LakehouseError, match="not a Delta table"):
        call(operation, lake)


@pytest.mark.parametrize("operation", [lakehouse.cursors, lakehouse.to_delta])
def test_a_table_of_another_format_is_refused(lake, operation):
    """By its name."""
    lake.spark.sql("CREATE OR REPLACE TEMP VIEW unused AS SELECT 1")
    lake.spark.sql("DROP TABLE IF EXISTS of_parquet")
    lake.spark.range(5).write.format("parquet").saveAsTable("of_parquet")

    with pytest.raises(LakehouseError, match=r"of_parquet.*not a Delta table"):
        call(operation, lake, "of_parquet")
    lake.spark.sql("DROP TABLE of_parquet")


@pytest.mark.parametrize("operation", [lakehouse.cursors, lakehouse.to_delta])
def test_a_table_with_features_of_the_future_is_refused(lake, operation):
    """With the feature's name, and what to do."""
    lake.spark.range(5).write.format("delta").save(lake.at("orders"))
    log = lake.folder / "orders" / "_delta_log"
    first = log / f"{0:020}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    features = {"readerFeatures": ["quantum"], "writerFeatures": ["quantum"]}
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    (lake.folder / "future" / "_delta_log").mkdir(parents=True)
    text = "".join(json.dumps(action) + "\n" for action in actions)
    (lake.folder / "future" / "_delta_log" / first.name).write_text(text)

    with pytest.raises(LakehouseError, match=r"(?s)newer Delta.*quantum"):
        call(operation, lake, lake.at("future"))


def call(operation, lake, table=None):
    table = table or lake.at("orders")
    if operation is lakehouse.cursors:
        return operation(lake.spark, table, name="orders")
    checkpoint = lake.at("checkpoint")
    return operation(lake.read(), table, name="orders", checkpointLocation=checkpoint)


def test_a_frame_that_lacks_a_column_keeps_to_the_table(lake):
    """As with Delta itself: NULL where the frame has nothing, an error where types differ."""
    lake.add(range(5))
    lake.run()
    lake.add(range(5, 10))

    told = lake.fail(change=lambda df: df.selectExpr("* EXCEPT (i)", "concat(i, 'x') AS i"))

    assert "Give the frame the table's columns and types" in told


@pytest.mark.parametrize("name", ["", "not a name", "a.b.c.d", "no_catalog.shop.orders"])
def test_a_name_that_is_none_is_refused(lake, name):
    """With what names and paths look like."""
    with pytest.raises(LakehouseError, match="the path or the name of a Delta table"):
        lakehouse.cursors(lake.spark, name, name="orders")


@pytest.mark.slow
def test_appending_to_a_merged_table_is_refused(lake):
    """merge_keys were forgotten: keys would be there twice."""
    lake.add(range(10))
    lake.run(merge_keys=["i"])
    lake.add(range(10))

    assert "was made by a merge" in lake.fail()
    lake.run(merge_keys=["i"])
    assert 10 == lake.table().count()


def test_a_column_of_the_events_is_not_taken_for_cursors(lake):
    """It would be lost, whatever case its name is written in."""
    lake.add(range(10))

    assert "'value'" in lake.fail(cursorColumn="Value")


def test_a_frame_that_is_no_stream_is_refused(lake):
    """Feeds are read with readStream."""
    with pytest.raises(LakehouseError, match="readStream"):
        lakehouse.to_delta(lake.spark.range(5), "t", name="n", checkpointLocation="c")


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"name": ""}, "name"),
        ({"name": "a:b"}, "name"),
        ({"userMetadata": "mine"}, "userMetadata"),
        ({"txnappid": "mine"}, "txnappid"),
        ({"path": "/elsewhere"}, "path"),
        ({"deleted": "gone"}, "deleted"),
    ],
    ids=str,
)
def test_a_bad_option_is_named(options, option):
    """Before anything runs."""
    with pytest.raises(OptionError) as raised:
        lakehouse.DeltaFeedWriter("t", **{"name": "n", "checkpointLocation": "c", **options})

    assert raised.value.option == option


WITHOUT_DELTA = """
import sys
sys.modules["delta"] = None
from pyspark.sql import SparkSession
from zeh_spark import lakehouse
from zeh_spark.errors import LakehouseError

def tell():
    for operation, more in ((lakehouse.cursors, {"name": "orders"}), (lakehouse.from_delta, {})):
        try:
            operation(spark, sys.argv[1], **more)
        except LakehouseError as exc:
            print(exc)

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
tell()
del sys.modules["delta"]
tell()
"""


@pytest.mark.slow
def test_a_session_without_delta_is_told_how_to_get_it(lake):
    """Before anything runs: what to install, and the call that sets the session up."""
    lake.spark.range(3).write.format("delta").save(lake.at("orders"))

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_DELTA, lake.at("orders")],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )

    told = done.stdout.splitlines()
    whys = [*["this Python has no delta-spark"] * 2, *["this session has no Delta"] * 2]
    assert done.returncode == 0, done.stderr[-4000:]
    for why, line in zip(whys, told, strict=True):
        assert line.startswith(f"[ZEH_LAKEHOUSE] table {lake.at('orders')}: {why}: ")
        assert "pip install --no-deps delta-spark==" in line and "zeh_spark.configure(" in line
