"""Whether values of one type stay as they are in a column of another one.

Rejected: Spark's own rules for upcasts, which Spark Connect does not show, and by which a TIMESTAMP
may become the text of a time zone.

Has no side effects.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
)


def fields(
    name: str, given: DataType, known: DataType | None
) -> Iterator[tuple[str, DataType, DataType | None]]:
    """Yield the types at any depth that hold no others: name, the frame's, the table's.

    The latter is None if the table has no such field.
    """
    match given, known:
        case StructType(), StructType():
            types = {field.name.lower(): field.dataType for field in known}
            for each in given:
                inner = f"{name}.{each.name}" if name else each.name
                yield from fields(inner, each.dataType, types.get(each.name.lower()))
        case ArrayType(), ArrayType():
            yield from fields(f"{name}.element", given.elementType, known.elementType)
        case MapType(), MapType():
            yield from fields(f"{name}.key", given.keyType, known.keyType)
            yield from fields(f"{name}.value", given.valueType, known.valueType)
        case _:
            yield name, given, known


def widest(given: StructType, known: StructType) -> StructType:
    """Return the frame's type with the table's types in it, where the table has them."""
    types = {field.name.lower(): field.dataType for field in known}
    return StructType(
        [
            StructField(each.name, _widest(each.dataType, types.get(each.name.lower())))
            for each in given
        ]
    )


def _widest(given: DataType, known: DataType | None) -> DataType:
    match given, known:
        case StructType(), StructType():
            return widest(given, known)
        case ArrayType(), ArrayType():
            return ArrayType(_widest(given.elementType, known.elementType))
        case MapType(), MapType():
            keys = _widest(given.keyType, known.keyType)
            return MapType(keys, _widest(given.valueType, known.valueType))
    return known or given


def holds(known: DataType, given: DataType) -> bool:
    """Return whether a column of the type `known` keeps all values of `given` as they are."""
    match given, known:
        case (StringType(), StringType()) | (NullType(), _):
            return True
        case DecimalType(), DecimalType():
            digits = known.precision - known.scale
            return digits >= given.precision - given.scale and known.scale >= given.scale
        case IntegralType(), DecimalType():
            return known.precision - known.scale >= _DIGITS[given.typeName()]
    return known.typeName() in _WIDER.get(given.typeName(), ())


_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
_WIDER = {
    "byte": ("short", "integer", "long", "float", "double"),
    "short": ("integer", "long", "float", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
}
"""The types that keep all values of a smaller one, by their names in PySpark."""
