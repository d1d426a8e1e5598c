"""Whole rows as one text, and back, by Spark's own JSON: how events wait in state.

Values without an exact form in JSON become a number or text that has one: dates as days, times as
microseconds, times without a zone as text, maps with keys other than text as lists of entries. A
type that cannot be restored exactly is refused by its name. A column is found again by its name, so
that rows may wait while others are added; its type has to stay the same.

Runs on the driver; builds expressions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial, reduce
from operator import methodcaller, or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from zeh_spark.errors import OptionError
from zeh_spark.spark.frames.compat import quoted

_NAME = 50_000
"""Most characters of a member's name that Spark's JSON parser accepts."""

_cast = partial(methodcaller, "cast")
_Convert = Callable[[Column], Column]
_STAND_INS: dict[type[DataType], tuple[DataType, _Convert, _Convert]] = {
    DateType: (IntegerType(), F.unix_date, F.date_from_unix_date),
    TimestampType: (LongType(), F.unix_micros, F.timestamp_micros),
    TimestampNTZType: (StringType(), _cast("string"), _cast("timestamp_ntz")),
}
"""What stands for types without an exact form in JSON: a type, and how to go there and back."""

_AS_IT_IS = (BinaryType, BooleanType, DecimalType, DoubleType, FloatType, IntegralType, StringType)


def packed(df: DataFrame, name: str) -> DataFrame:
    """Return the frame with a STRING column `name` that holds all its columns.

    Raises OptionError if a column's type cannot be kept.
    """
    columns = [
        _encoded(F.col(quoted(field.name)), field.dataType, field.name).alias(_member(field.name))
        for field in df.schema
    ]
    given = df.withColumn(name, F.to_json(F.struct(*columns)))
    keyed = [field.name for field in df.schema if _is_object(field.dataType)]
    long = [F.exists(F.map_keys(quoted(n)), lambda key: F.length(key) > _NAME) for n in keyed]
    if not long:
        return given
    complaint = F.lit(
        f"events whose maps have keys of over {_NAME} characters cannot wait in state"
    )
    # This is a projection of its own. In the one before, Spark would write the JSON twice.
    return given.withColumn(
        name,
        F.when(
            (F.length(name) > _NAME) & reduce(or_, long), F.raise_error(complaint).cast("string")
        ).otherwise(F.col(name)),
    )


def unpacked(text: Column, schema: StructType) -> list[Column]:
    """Return the columns again; NULL where the text is NULL, or was made without the column.

    They share one from_json, which Spark evaluates once.
    """
    fields = schema.toNullable().fields  # as from_json gives it
    kind = StructType([StructField(_member(n.name), _packed_type(n.dataType)) for n in fields])
    value = F.from_json(text, kind, {"mode": "FAILFAST", "maxStringLen": str(2**31 - 1)})
    return [
        _decoded(value[_member(field.name)], field.dataType).cast(field.dataType).alias(field.name)
        for field in fields
    ]


def _member(column: str) -> str:
    """Return a short name, of which Spark does not take two that differ in case for one."""
    return "c" + hashlib.blake2b(column.encode(), digest_size=6).hexdigest()


def _encoded(column: Column, kind: DataType, place: str) -> Column:
    packed = _packed_type(kind, place)
    if isinstance(kind, StringType):
        return F.validate_utf8(column)  # JSON would replace invalid bytes by other characters
    if stand_in := _STAND_INS.get(type(kind)):
        return stand_in[1](column)
    if isinstance(kind, StructType):
        column = column.cast(_numbered(kind))  # names may differ in case only
        fields = [
            _encoded(column[f"c{n}"], field.dataType, f"{place}.{field.name}").alias(f"c{n}")
            for n, field in enumerate(kind)
        ]
        return F.when(column.isNotNull(), F.struct(*fields))
    if packed == kind:
        return column
    if isinstance(kind, MapType):
        return _encoded(F.map_entries(column), _entries(kind), place)
    assert isinstance(kind, ArrayType)
    return F.transform(column, lambda each: _encoded(each, kind.elementType, place))


def _decoded(column: Column, kind: DataType) -> Column:
    if stand_in := _STAND_INS.get(type(kind)):
        return stand_in[2](column)
    if isinstance(kind, StructType):
        fields = [
            _decoded(column[f"c{n}"], field.dataType).alias(field.name)
            for n, field in enumerate(kind)
        ]
        return F.when(column.isNotNull(), F.struct(*fields))
    if _packed_type(kind) == kind:
        return column
    if isinstance(kind, MapType):
        return F.map_from_entries(_decoded(column, _entries(kind)))
    assert isinstance(kind, ArrayType)
    return F.transform(column, lambda each: _decoded(each, kind.elementType))


def _entries(kind: MapType) -> ArrayType:
    fields = [StructField("key", kind.keyType, False), StructField("value", kind.valueType)]
    return ArrayType(StructType(fields), False)


def _is_object(kind: DataType) -> bool:
    return isinstance(kind, MapType) and isinstance(kind.keyType, StringType)


def _numbered(kind: StructType) -> StructType:
    return StructType([StructField(f"c{n}", each.dataType) for n, each in enumerate(kind)])


def _packed_type(kind: DataType, place: str = "") -> DataType:
    if stand_in := _STAND_INS.get(type(kind)):
        return stand_in[0]
    if isinstance(kind, ArrayType):
        return ArrayType(_packed_type(kind.elementType, place), kind.containsNull)
    if isinstance(kind, MapType):
        value = _packed_type(kind.valueType, place)
        if isinstance(kind.keyType, StringType) and value == kind.valueType:
            return kind
        return _packed_type(_entries(kind), place)
    if isinstance(kind, StructType):
        types = [_packed_type(each.dataType, f"{place}.{each.name}") for each in kind]
        return StructType([StructField(f"c{n}", packed) for n, packed in enumerate(types)])
    if isinstance(kind, _AS_IT_IS):
        return kind
    raise OptionError(
        f"column {place}: events with {kind.simpleString()} cannot wait in state. Leave the column "
        f"out, or CAST it to a type that can (STRING, for instance)",
        option=place,
        anchor="events-cannot-wait-in-state",
    )
