"""Rows wait in state as text, and come out as they went in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.cases import each_case
from zeh_spark.errors import OptionError
from zeh_spark.spark.stateful.row_codec import packed, unpacked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ODD = ["a.b", "`", "``a`", "'", '"', "ü ☃", "with space", "c1", "a,b", "(x)", "\n", "$", "$.c0"]
"""Names of columns and fields: paths, SQL and the packing's own names among them."""

VALUES = {
    "tiny": ["-128Y", "127Y"],
    "small": ["-32768S", "32767S"],
    "int": ["-2147483648", "2147483647"],
    "big": ["(-9223372036854775807L - 1L)", "9223372036854775807L"],
    "boolean": ["true", "false"],
    "float": [
        "FLOAT('NaN')", "FLOAT('Infinity')", "FLOAT('-Infinity')", "FLOAT('-0.0')", "FLOAT(0.1)",
        "FLOAT('3.4028235E38')", "FLOAT('1.4E-45')", "FLOAT(16777217)", "FLOAT('7.038531E-26')",
    ],
    "double": [
        "DOUBLE('NaN')", "DOUBLE('Infinity')", "DOUBLE('-Infinity')", "DOUBLE('-0.0')", "0.1D",
        "DOUBLE('1.7976931348623157E308')", "DOUBLE('4.9E-324')", "1e22D", "2e-3D",
    ],
    "decimal": [
        "CAST('12345678901234567890.123456789012345678' AS DECIMAL(38, 18))",
        "CAST('-99999999999999999999.999999999999999999' AS DECIMAL(38, 18))",
        "CAST('0.000000000000000001' AS DECIMAL(38, 18))", "CAST(0 AS DECIMAL(38, 18))",
    ],
    "whole": ["CAST(repeat('9', 38) AS DECIMAL(38, 0))", "CAST(-1 AS DECIMAL(38, 0))"],
    "string": [
        "''", "' '", "'null'", "'NaN'", r"'\u0000\u0001\u001f\u007f\u2028\ufeff'", "'😀 é'",
        r"""'"\\\n\r\t/'""", """'{"c0": 1}'""",
    ],
    "binary": ["X''", "X'00FF0A'", "X'F09F9880'"],
    "date": [
        "DATE'0001-01-01'", "DATE'+12345-12-31'", "DATE'1582-10-04'", "DATE'1969-12-31'",
        "DATE'2024-02-29'", "DATE'-0044-03-15'",
    ],
    "timestamp": [
        "TIMESTAMP'0001-01-01 00:00:00.000001 UTC'", "TIMESTAMP'1969-12-31 23:59:59.999999 UTC'",
        "TIMESTAMP'+12345-12-31 23:59:59.999999 UTC'", "TIMESTAMP'2024-03-31 01:30:00.5 UTC'",
        # the hour that New York has twice
        "TIMESTAMP'2024-11-03 05:30:00 UTC'", "TIMESTAMP'2024-11-03 06:30:00 UTC'",
    ],
    "without_zone": [
        "TIMESTAMP_NTZ'2024-03-10 02:30:00.123456'",  # an hour that New York has not
        "TIMESTAMP_NTZ'0001-01-01 00:00:00'", "TIMESTAMP_NTZ'+12345-12-31 23:59:59.999999'",
        "TIMESTAMP_NTZ'1969-12-31 23:59:59.000001'", "TIMESTAMP_NTZ'-0044-03-15 12:00:00'",
    ],
}  # fmt: skip
"""SQL, of each type that is supported."""

SHAPES = [
    "{0}",
    "array({0}, NULL, {0})",
    "named_struct('f', {0}, 'none', CAST(NULL AS INT))",
    "if({0} IS NULL, NULL, named_struct('f', {0}))",
    "map('k', {0}, 'none', NULL, '', {0})",
    "if({0} IS NULL, NULL, map_from_entries(array(named_struct('k', {0}, 'v', {0}))))",
    "map_from_entries(array(if({0} IS NULL, NULL, named_struct('k', {0}, 'v', array({0})))))",
    "map(7, array(named_struct('f', {0}, 'm', if(true, map('k', {0}), NULL)), NULL), 8, NULL)",
    "array(array(NULL), NULL, array({0}))",
]
"""What a type can be in; each with NULLs at its levels, as values are NULL in some rows."""


@pytest.fixture
def zone(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", before or "UTC")


def kept(frame: DataFrame) -> DataFrame:
    """The frame, packed and unpacked. Its text is made before, as if it had waited."""
    text = packed(frame, "text").select("text").localCheckpoint()
    return text.select(*unpacked(text["text"], frame.schema))


def shown(frame: DataFrame) -> list[str]:
    """Its columns as Arrow writes them: Python lacks some of Spark's years, and NaN is not NaN."""
    table = frame.toDF(*(f"x{n}" for n in range(len(frame.columns)))).toArrow()
    texts = (each.combine_chunks().to_string(window=1000) for each in table.columns)
    return [text.replace(" not null>", ">") for text in texts]


def types(frame: DataFrame) -> list[tuple[str, str]]:
    """As `frame.dtypes`, but of fields with any name: what a column is, and what is in it."""
    return [(each.name, each.dataType.json().replace("true", "false")) for each in frame.schema]


def survives(frame: DataFrame) -> bool:
    again = kept(frame)
    assert types(frame) == types(again)
    assert shown(frame) == shown(again)
    return True


@pytest.mark.parametrize(
    ("zone", "names"),
    [("UTC", [*VALUES]), ("America/New_York", ["date", "timestamp", "without_zone"])],
    indirect=["zone"],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_type_survives(spark, zone, names, shape):
    """Alone and in others; NULL too. In New York an hour is missing each year, and one is twice."""
    cells = (f"get(array({', '.join(VALUES[name])}), CAST(id AS INT)) AS {name}" for name in names)
    values = spark.sql(f"SELECT {', '.join(cells)} FROM range(10)")

    assert survives(values.selectExpr(*(f"{shape.format(name)} AS {name}" for name in names)))


def test_columns_and_fields_with_any_name_survive(spark):
    fields = ", ".join(f"'{_escaped(name)}', nullif({n}, 3)" for n, name in enumerate(ODD))
    frame = spark.sql(f"SELECT named_struct({fields}), array(named_struct({fields}), NULL), 1")

    assert survives(frame.toDF("a.b", "`", "\n"))
    assert survives(spark.range(1).selectExpr(*["id"] * len(ODD)).toDF(*ODD))


def test_types_that_few_columns_have_survive(spark):
    """Fields that differ in case, as JSON's may, and nested types without room for NULL."""
    both = "named_struct('a', nullif(1, 2), 'A', nullif('2', ''))"
    values = [
        f"array({both}, NULL)", both, "split('a b', ' ')", "array(1, 2)",
        "array(DATE'2024-02-29')", "map('a', 1)", "map(1, 'a')",
        "map(1, array(named_struct('f', 1)))", "named_struct('f', 1)",
        "array(named_struct('f', array(TIMESTAMP'2024-02-29 00:00:00 UTC')))",
    ]  # fmt: skip
    assert survives(spark.sql(f"SELECT {', '.join(values)}"))


def test_long_texts_survive(spark):
    """Longer than what Spark's JSON reads by default."""
    frame = spark.sql("SELECT repeat('a', 20500000) AS x")
    again = packed(frame, "text").select("text")

    (row,) = again.select(*unpacked(again["text"], frame.schema)).selectExpr("length(x)").collect()

    assert 20_500_000 == row[0]


def test_the_text_of_a_row_is_made_once(spark):
    """It is what costs most: read, and handed on, in one projection it would be made twice."""
    frame = spark.range(1).selectExpr("map('k', CAST(id AS STRING)) AS headers", "id AS data")

    plan = packed(frame, "text").select("text")._jdf.queryExecution().optimizedPlan().toString()

    assert 1 == len(re.findall("to_json|StructsToJsonEvaluator", plan))


def test_a_row_without_an_event_has_no_columns(spark):
    """Records tell of a session, and have none."""
    values = "array(1, NULL) AS a, named_struct('f', nullif(1, 2)) AS s, map(1, nullif(1, 2)) AS m"
    schema = spark.sql(f"SELECT 1 AS i, {values}").schema
    nothing = spark.sql("SELECT CAST(NULL AS STRING) AS text")

    (row,) = nothing.select(*unpacked(nothing["text"], schema)).collect()

    assert [None] * 4 == list(row)


@each_case(
    ("kind", "sql"),
    [
        ("variant", "parse_json('1')"),
        ("interval day", "INTERVAL '1' DAY"),
        ("interval year", "INTERVAL '1' YEAR"),
        ("void", "NULL"),
    ],
)
@each_case(
    ("shape", "place"),
    [("{}", "x"), ("array({})", "x"), ("named_struct('f', {})", "x.f"), ("map('k', {})", "x")],
)
def test_what_cannot_be_brought_back_is_refused_by_its_name(spark, kind, sql, shape, place):
    frame = spark.sql(f"SELECT {shape.format(sql)} AS x")

    with pytest.raises(OptionError) as caught:
        packed(frame, "text")

    assert f"column {place}: events with {kind} cannot wait in state" in str(caught.value)
    assert place == caught.value.option


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("map(repeat('k', 50001), 'v')", "keys of over 50000 characters cannot wait in state"),
        ("CAST(X'FF41' AS STRING)", "INVALID_UTF8_STRING"),
    ],
)
def test_what_would_not_come_back_stops_before_it_waits(spark, sql, told):
    """Once it is in state, nothing could be done about it."""
    frame = spark.sql(f"SELECT {sql} AS x FROM range(1)")

    with pytest.raises(PySparkException, match=told):
        packed(frame, "text").collect()


def test_long_rows_with_short_keys_come_back(spark):
    frame = spark.sql("SELECT map(repeat('k', 50000), repeat('v', 60000)) AS x FROM range(1)")

    text = packed(frame, "text").select("text")
    (row,) = text.select(*unpacked(text["text"], frame.schema)).collect()

    assert {"k" * 50_000: "v" * 60_000} == row.x


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace("'", "\\'")
