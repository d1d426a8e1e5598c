"""A frame's types are judged by what becomes of them in Arrow."""

import pytest
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from tests.cases import each_case
from zeh_spark.spark.sink.spark_types import problems
from zeh_spark.wire import arrow_json

KINDS = [
    T.StringType(), T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType(), T.BooleanType(),
    T.FloatType(), T.DoubleType(), T.DecimalType(10, 2), T.DateType(), T.TimestampNTZType(),
    T.BinaryType(), T.NullType(), T.DayTimeIntervalType(),
]  # fmt: skip


@each_case("kind", KINDS)
def test_spark_types_and_arrow_types_are_refused_alike(kind):
    """There is one list of what has a form in JSON, and one of what can be the name of a member."""
    arrow = to_arrow_type(kind)
    keyed = T.MapType(kind, T.StringType())

    assert bool(list(problems("v", kind))) == bool(list(arrow_json.problems("v", arrow)))
    assert bool(list(problems("v", keyed))) == (not arrow_json.is_name(arrow))


@each_case("kind", [T.CharType(3), T.VarcharType(3), T.TimestampType()])
def test_types_that_python_does_not_hand_over_can_be_published(kind):
    """They arrive as strings, and as timestamps with a zone."""
    assert [] == list(problems("v", kind))


@pytest.mark.parametrize("name", ["TimeType", "YearMonthIntervalType", "CalendarIntervalType"])
def test_types_without_a_form_are_refused_by_name(name):
    """A new type of Spark is refused until somebody has decided what it becomes."""
    if not hasattr(T, name):
        pytest.skip(f"this Spark has no {name}")
    kind = getattr(T, name)()

    (problem,) = problems("v", kind)

    assert f"v is {kind.simpleString().upper()}; CAST it AS STRING" in problem
