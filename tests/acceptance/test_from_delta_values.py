"""A Delta table as a feed: what an event holds is what the table has, or it is refused."""

import re

import pytest
import requests
from chispa import assert_df_equality

from tests.fix_lake import why_absent

pytest.importorskip("delta", reason=why_absent())

from pyspark.sql import functions as F

import zeh_spark
from zeh_spark.wire.partitioning import partition_of

ALL_KINDS = """
    named_struct('x', id, 'y', array(id, NULL)) AS nested, CAST(NULL AS STRING) AS nothing,
    CAST(id AS DECIMAL(38, 18)) / 3 AS price, timestamp_micros(1700000000000001 + id) AS at,
    timestamp_ntz'2026-11-22 01:02:03.000004' AS clock, date'2026-11-22' AS day, X'00FF' AS bytes,
    map(string(id), 'é"\\n') AS texts, id % 2 = 0 AS even, id / 7 AS share,
    'd' AS data, 'h' AS headers, 'p' AS partition, 'k' AS `key`, id AS `a.b c`
"""


@pytest.mark.slow
def test_the_feed_holds_all_that_the_table_has(source, sink, spark):
    """Every column and digit, NULL too, and names that mean something elsewhere; also of a table
    with deletion vectors and renamed columns. A batch that is repeated in another time zone is the
    same: the sink would refuse other bytes under its number.
    """
    source.save(f"SELECT id AS i, {ALL_KINDS} FROM range(50)")
    source.sql(
        "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)",
        "DELETE FROM {} WHERE i % 2 = 0",
        "ALTER TABLE {} RENAME COLUMN price TO cost",
    )
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        for each in ("Asia/Kolkata", "America/St_Johns"):
            spark.conf.set("spark.sql.session.timeZone", each)
            sink.run(source.feed(key="a.b c"))
            sink.forget(0)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)

    table = spark.read.format("delta").load(source.path)
    url = f"{sink.target.publisher}/orders?n=3&cursor0=_first&cursor1=_first&cursor2=_first"
    texts = re.findall(r'"data":(.*)\}', requests.get(url, timeout=30).text)
    parsed = zeh_spark.parsed(
        spark.createDataFrame([(each,) for each in texts], "data STRING"), table.schema
    )
    assert_df_equality(parsed.sort("i"), table.sort("i"), ignore_nullable=True)
    events = sink.target.events()
    assert 25 == len(events)
    assert {*table.columns} == {*events[0].data}
    assert {each.data["at"][-8:] for each in events} >= {".000002Z", ".000050Z"}
    assert places(events) == {(i, partition_of(str(i), 3)) for i in range(1, 50, 2)}


def places(events):
    return {(each.data["i"], each.partition) for each in events}


def test_integer_and_text_keys_of_the_same_digits_go_to_one_partition(source, sink):
    """A nested field or an expression is a key, too."""
    source.add(range(30))

    sink.run(source.feed(key="named_struct('i', CAST(i AS STRING)).i"))

    assert places(sink.target.events()) == {(i, partition_of(str(i), 3)) for i in range(30)}


def test_what_json_has_not_is_refused_with_its_column(source, sink):
    """It is never altered. The user leaves the column out, or casts it: a VARIANT to text."""
    source.save(
        "SELECT 1 AS i, parse_json('[1]') AS v, double('NaN') AS price, X'FF'::STRING AS text"
    )
    told = sink.fail(source.feed())
    assert "the column 'data' cannot be rendered: data.v is VARIANT" in told
    frame = source.feed().withColumn("data", F.col("data").withField("v", F.to_json("data.v")))
    for column, reason in (
        ("price", "price: JSON has no NaN and no Infinity: 'nan'"),
        ("text", "text: not UTF-8"),
    ):
        told = sink.fail(frame)
        assert told.startswith("RowError: ") and reason in told
        assert sink.target.events() == []
        frame = frame.withColumn("data", F.col("data").dropFields(column))

    sink.run(frame)

    assert [each.data for each in sink.target.events()] == [{"i": 1, "v": "[1]"}]
