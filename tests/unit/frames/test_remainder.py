"""What typed columns show exactly, and what they do not, for values that Spark reads."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from zeh_spark.spark.frames.remainder import split

ITEM = T.StructType([T.StructField("n", T.IntegerType())])
KINDS = {
    "TINYINT": T.ByteType(),
    "DECIMAL(10,2)": T.DecimalType(10, 2),
    "FLOAT": T.FloatType(),
    "DOUBLE": T.DoubleType(),
    "STRING": T.StringType(),
    "DATE": T.DateType(),
    "TIMESTAMP": T.TimestampType(),
    "VARIANT": T.VariantType(),
    "ITEMS": T.ArrayType(ITEM),
    "ITEM": ITEM,
    "MAP": T.MapType(T.StringType(), T.IntegerType()),
}


def schema(kind: str) -> T.StructType:
    return T.StructType([T.StructField("a", KINDS[kind]), T.StructField("b", T.BooleanType())])


@pytest.mark.parametrize(
    ("kind", "exact", "changed"),
    [
        ("TINYINT", ["-128", "127", "null"], ["200"]),
        ("DECIMAL(10,2)", ["1.2", "1.230", '"1.23"', "1e5", "120e-1"],
         ["1.234", '"1.239"', '"1,234.5"', "1e-1000000000000000000"]),
        ("FLOAT", ["0.1", "16777216", "1e38"], ["16777217", "1e39"]),
        ("DOUBLE", ["0.1", "0.1234567890123456789", '"NaN"', "9007199254740992"],
         ["9007199254740993", "1e400"]),
        ("STRING", ['"é"', "1.10", "12345678901234567890", "true", '{"x": [1.5]}'],
         ["12345678901234567890.12", '"\\ud800"', '{"x": 1e400}']),
        ("DATE", ['"2020-01-01"', '"2020"'],
         ['"2020-01-01T10:00:00"', '"1"', '"20240101"', '"202401"']),
        ("TIMESTAMP", ['"2020-01-01"', '"2020-01-01T00:00:00.1234560+01:00"', "1600000000"],
         ['"2020-01-01T00:00:00.1234567Z"', '"12:00"', "9223372036854775807", '"20240101"',
          '"202401"']),
        ("VARIANT", ["1.10", "1" * 38], ["1" * 39]),
        ("ITEMS", ['[{"n": 1}, null]', "[]"], []),
        ("MAP", ['{"x": 1}'], ['{"\\udfff": 1}']),
    ],
)  # fmt: skip
def test_a_value_that_spark_would_change_is_left(kind, exact, changed):
    for value in exact:
        assert (None, None) == split(f'{{"a":{value}}}', None, schema(kind)), value
    for value in changed:
        typed, rest = split(f'{{"a":{value},"b":true}}', None, schema(kind))
        assert ('{"b":true}', f'{{"a":{value}}}'.replace(" ", "")) == (typed, rest.replace(" ", ""))


@pytest.mark.parametrize(
    ("kind", "text", "typed", "rest"),
    [
        ("TINYINT", '{"A":1,"\\u0061":2,"c":null}', '{"a":2}', '{"A":1,"c":null}'),
        ("ITEM", '{"a":{"n":1,"m":1.10}}', '{"a":{"n":1}}', '{"a":{"m":1.10}}'),
        ("ITEM", '{"a":[1],"b":true}', '{"b":true}', '{"a":[1]}'),
        ("ITEMS", '{"a":[{"n":1,"m":2}]}', '{"a":[{"n":1,"m":2}]}', '{"a":[{"n":1,"m":2}]}'),
        ("ITEM", '{"a":{"n":1,"n":2}}', "{}", '{"a":{"n":1,"n":2}}'),
        ("ITEM", '{"b":true,"b":true}', "{}", '{"b":true,"b":true}'),
        ("ITEM", '{"c":{"x":1,"x":2.50}, "b": true}', "{}", '{"c":{"x":1,"x":2.50}, "b": true}'),
        ("MAP", '{"a":{"x":1,"x":1}}', "{}", '{"a":{"x":1,"x":1}}'),
        ("ITEM", "[1]", "{}", "[1]"),
        ("ITEM", "{", "{}", "{"),
        ("ITEM", "[" * 100_000, "{}", "[" * 100_000),
        ("ITEM", "null", None, None),
        ("ITEM", None, None, None),
    ],
)
def test_the_rest_is_at_its_paths_or_the_whole_text(kind, text, typed, rest):
    assert (typed, rest) == split(text, None, schema(kind))


def test_what_spark_does_not_read_is_left():
    assert ('{"b":true}', '{"a":"x"}') == split('{"a":"x","b":true}', "01", schema("TINYINT"))
    assert ('{"a":"x"}', '{"b":1}') == split('{"a":"x","b":1}', "10", schema("STRING"))
