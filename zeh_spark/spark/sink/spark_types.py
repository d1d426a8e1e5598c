"""Which Spark types a frame may have to become events: those that `arrow_json` writes.

Runs in the driver.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import types as T

from zeh_spark.wire import arrow_json

INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
STRINGS = (T.StringType, T.CharType, T.VarcharType)

_ARROW = {
    **dict.fromkeys(STRINGS, pa.string()),
    **dict.fromkeys(INTEGERS, pa.int64()),
    T.BooleanType: pa.bool_(),
    T.FloatType: pa.float32(),
    T.DoubleType: pa.float64(),
    T.DecimalType: pa.decimal128(38),
    T.DateType: pa.date32(),
    T.TimestampType: pa.timestamp("us", "UTC"),
    T.TimestampNTZType: pa.timestamp("us"),
    T.BinaryType: pa.binary(),
    T.NullType: pa.null(),
    T.DayTimeIntervalType: pa.duration("us"),
}
"""The Arrow types of Spark's types. TIME is not among them: Spark before 4.1 does not have it."""


def problems(path: str, kind: T.DataType) -> Iterator[str]:
    """Yield what in a type has no form in JSON, in Spark's words."""
    if isinstance(kind, T.StructType):
        for field in kind:
            if kind.names.count(field.name) > 1:
                yield f"cannot be an object: {path}.{field.name} is there twice"
            yield from problems(f"{path}.{field.name}", field.dataType)
    elif isinstance(kind, T.ArrayType):
        yield from problems(f"{path}[]", kind.elementType)
    elif isinstance(kind, T.MapType):
        key = _arrow(kind.keyType)
        if key is None or not arrow_json.is_name(key):
            yield (
                f"cannot be an object: the keys of {path} are {named(kind.keyType)}, not STRING, "
                f"BOOLEAN, DATE or an integer type"
            )
        yield from problems(f"{path}[]", kind.valueType)
    elif isinstance(kind, T.VariantType):
        yield f"cannot be rendered: {path} is VARIANT; make the event with to_json in Spark"
    elif (arrow := _arrow(kind)) is None or not arrow_json.has_form(arrow):
        yield f"cannot be rendered: {path} is {named(kind)}; CAST it AS STRING, or drop it"


def named(kind: T.DataType) -> str:
    """Return a type's name as SQL writes it."""
    return kind.simpleString().upper()


def _arrow(kind: T.DataType) -> pa.DataType | None:
    return next((arrow for spark, arrow in _ARROW.items() if isinstance(kind, spark)), None)
