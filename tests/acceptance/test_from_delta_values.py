"""A Delta table as a feed: what an event holds is what the table has, or it is refused."""

from __future__ import annotations

import re

import pytest
import requests
from chispa import assert_df_equality

from tests.fix_lake import why_absent

pytest.importorskip("delta", reason=why_absent())

import zeh_spark

ALL_KINDS = """
    named_struct('x', id, 'y', array(id, NULL)) AS nested, CAST(NULL AS STRING) AS nothing,
    CAST(id AS DECIMAL(38, 18)) / 3 AS price, timestamp_micros(1700000000000001 + id) AS at,
    timestamp_ntz'2026-11-22 01:02:03.000004' AS clock, date'2026-11-22' AS day, X'00FF' AS bytes,
    map(string(id), 'é"\\n') AS texts, id % 2 = 0 AS even, id / 7 AS share,
    'd' AS data, 'h' AS headers, 'p' AS partition, 'k' AS `key`, id AS `a.b c`
"""


def test_the_feed_holds_all_that_the_table_has(source, sink, spark):
    """Every column and digit, NULL too, and names that mean something elsewhere. A batch that is
    repeated in another time zone is the same: the sink would refuse other bytes under its number.
    """
    source.save(f"SELECT id AS i, {ALL_KINDS} FROM range(50)")
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
    events = spark.createDataFrame([(each,) for each in texts], "data STRING")
    parsed = zeh_spark.parsed(events, table.schema)
    assert_df_equality(parsed.sort("i"), table.sort("i"), ignore_nullable=True)
    assert {*table.columns} == {*sink.target.events()[0].data}
    assert {each.data["at"][-8:] for each in sink.target.events()} >= {".000001Z", ".000050Z"}


def test_deleted_rows_and_renamed_columns_are_as_in_the_table(source, sink):
    """Deletion vectors and column mapping, from before the query."""
    source.add(range(10))
    features = "'delta.enableDeletionVectors' = true, 'delta.columnMapping.mode' = 'name'"
    source.sql(
        f"ALTER TABLE {{}} SET TBLPROPERTIES ({features})",
        "DELETE FROM {} WHERE i % 2 = 0",
        "ALTER TABLE {} RENAME COLUMN i TO j",
    )

    sink.run(source.feed())

    assert sorted(each.data["j"] for each in sink.target.events()) == [1, 3, 5, 7, 9]


def test_integer_and_text_keys_of_the_same_digits_go_to_one_partition(source, sink):
    """A nested field or an expression is a key, too."""
    source.add(range(30))
    keys = ["i", "named_struct('i', CAST(i AS STRING)).i"]
    for number, key in enumerate(keys):
        sink.run(source.feed(key=key), sink.folder / str(number), producerId=f"p{number}")

    places = {(each.data["i"], each.partition) for each in sink.target.events()}
    assert len(places) == 30


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("double('NaN')", "price: JSON has no NaN and no Infinity: 'nan'"),
        ("CAST(X'FF' AS STRING)", "price: not UTF-8"),
    ],
)
def test_a_value_that_json_has_not_is_refused_with_its_column(column, reason, source, sink):
    """Nothing is altered in silence."""
    source.save(f"SELECT {column} AS price")

    said = sink.fail(source.feed())

    assert said.startswith("RowError: ") and reason in said
    assert sink.target.events() == []


def test_a_column_that_json_has_not_is_refused_by_name(source, sink):
    """VARIANT: the frame goes without it, or with what the user makes of it."""
    source.save("SELECT 1 AS i, parse_json('[1]') AS v")

    said = sink.fail(source.feed())
    from pyspark.sql import functions as F

    text = F.to_json(F.col("data.v"))
    sink.run(source.feed().withColumn("data", F.col("data").withField("v", text)))

    assert "the column 'data' cannot be rendered: data.v is VARIANT" in said
    assert [each.data for each in sink.target.events()] == [{"i": 1, "v": "[1]"}]
