"""A feed kept in a Delta table: what a user may do wrong, each with an error that helps."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.fix_lake import said, why_absent
from tests.fix_spark import ENVIRONMENT, in_batches
from tests.patience import PATIENCE

pytest.importorskip("delta", reason=why_absent())

from zeh_spark import lakehouse
from zeh_spark.errors import LakehouseError
from zeh_spark.spark.delta.delta_table import LakeTable


def test_a_relative_path_is_one_from_the_working_directory(lake):
    """As for Spark's own readers and writers; statements that errors name work anywhere."""
    table = os.path.relpath(lake.at("orders"))
    writer = lakehouse.DeltaFeedWriter(table, name="orders", checkpointLocation="none")

    lake.batch(0, range(10), writer=writer)

    assert [10, '{"0": "10"}'] == [
        lake.place(),
        lakehouse.cursors(lake.spark, table, name="orders"),
    ]
    assert Counter(range(10)) == lake.numbers()
    assert f"delta.`file:{lake.at('orders')}`" == LakeTable(lake.spark, table).identifier


def test_a_writer_is_called_by_a_query_of_a_feed_with_its_checkpoint(lake):
    """Elsewhere it does not know which batch it has, batches of another checkpoint are not this
    query's, and of another source the table could not tell where it is. A folder that is no
    checkpoint is named.
    """
    lake.add(range(10))
    rate = lake.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    for frame, checkpoint, given, told in (
        (lake.read(), "first", "nowhere", "nowhere' is no checkpoint of a query"),
        (lake.read(), "second", "first", "is not that of the calling query"),
        (rate, "third", "third", "no ZeroEventHub feed"),
    ):
        writer = lakehouse.DeltaFeedWriter(
            lake.at("other"), name="other", checkpointLocation=lake.at(given)
        )
        with pytest.raises(Exception) as raised:
            in_batches(frame, writer, lake.at(checkpoint)).awaitTermination(PATIENCE)
        assert told in said(raised.value)
        with pytest.raises(LakehouseError, match="outside of a query's foreachBatch"):
            writer(lake.spark.range(5), 0)


def test_what_is_no_table_is_refused(lake):
    """By its name: files, beside which Delta would make a table, and never show them again; a table
    of another format, and one with features of the future; and what is no name.
    """
    lake.spark.range(5).write.parquet(lake.at("orders"))
    lake.spark.sql("DROP TABLE IF EXISTS of_parquet")
    lake.spark.range(5).write.format("parquet").saveAsTable("of_parquet")
    make_table_of_the_future(lake)
    events = lake.read()
    for table, told in (
        (lake.at("orders"), "not a Delta table"),
        ("of_parquet", r"of_parquet.*not a Delta table"),
        (lake.at("future"), r"(?s)newer Delta.*quantum"),
        *((name, "the path or the name of a Delta table") for name in NO_NAMES),
    ):
        with pytest.raises(LakehouseError, match=told):
            lakehouse.cursors(lake.spark, table, name="orders")
        with pytest.raises(LakehouseError, match=told):
            lakehouse.to_delta(
                events, table, name="orders", checkpointLocation=lake.at("checkpoint")
            )
    lake.spark.sql("DROP TABLE of_parquet")


NO_NAMES = ["", "not a name", "a.b.c.d", "no_catalog.shop.orders"]


def make_table_of_the_future(lake):
    lake.spark.range(5).write.format("delta").save(lake.at("today"))
    name = f"_delta_log/{0:020}.json"
    actions = [json.loads(line) for line in (lake.folder / "today" / name).read_text().splitlines()]
    features = {"readerFeatures": ["quantum"], "writerFeatures": ["quantum"]}
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    first = lake.folder / "future" / name
    first.parent.mkdir(parents=True)
    first.write_text("".join(json.dumps(action) + "\n" for action in actions))


def test_a_frame_that_is_no_stream_is_refused(lake):
    """Feeds are read with readStream."""
    with pytest.raises(LakehouseError, match="readStream"):
        lakehouse.to_delta(lake.spark.range(5), "t", name="n", checkpointLocation="c")


def test_a_merge_key_that_is_no_column_is_refused_before_the_query_starts(lake):
    """The cause is what I read, and not the eleventh line of a query's end."""
    for keys in ("id", ["id"], []):
        with pytest.raises(LakehouseError, match=r"merge_keys .* have to be columns"):
            lakehouse.to_delta(
                lake.read(), lake.at("t"), name="n", checkpointLocation="c", merge_keys=keys
            )


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
