"""Rows as JSON that is equal if and only if they are, to compare events and to sum batches.

Spark's `to_json` cuts times to milliseconds, writes them in the session's time zone, and writes
equal maps in any order. Nothing reads this text: `row_codec` has rows that come back.

Runs on the driver; builds expressions.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    MapType,
    StructField,
    StructType,
    VariantType,
)

_EXACT = {
    "ignoreNullFields": "true",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS",
    "timestampNTZFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS",
}
"""Options of `to_json`, so that no setting of the session counts. Fields that are NULL are left
out: a column that is added later, and is NULL, changes no text."""


def exact_json(columns: Mapping[str, tuple[Column, DataType]]) -> Column:
    """Return the text of a row: an object with these names, of these expressions and their types.

    It is never NULL. Maps are written as their sorted entries.
    """
    fields = [_ordered(column, kind).alias(name) for name, (column, kind) in columns.items()]
    return F.to_json(F.struct(*fields), _EXACT)


def _ordered(column: Column, kind: DataType) -> Column:
    """Return the column with each map, at any depth, as a sorted array of its entries."""
    if not _has_map(kind):
        return column
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda each: _ordered(each, kind.elementType))
    if isinstance(kind, StructType):
        numbered = [StructField(f"c{n}", each.dataType) for n, each in enumerate(kind)]
        values = column.cast(StructType(numbered))  # names may differ in case only
        fields = [
            _ordered(values[f"c{n}"], each.dataType).alias(f"c{n}") for n, each in enumerate(kind)
        ]
        return F.when(column.isNotNull(), F.struct(*fields))
    assert isinstance(kind, MapType)
    value = kind.valueType
    entries = F.map_entries(column)
    if _has_map(value) or not _is_orderable(value):
        entries = F.transform(
            entries,
            lambda entry: F.struct(entry["key"], _sortable(entry["value"], value).alias("value")),
        )
    return F.array_sort(entries)


def _sortable(column: Column, kind: DataType) -> Column:
    ordered = _ordered(column, kind)
    return ordered if _is_orderable(kind) else F.to_json(F.struct(ordered.alias("value")), _EXACT)


def _has_map(kind: DataType) -> bool:
    return isinstance(kind, MapType) or any(map(_has_map, _parts(kind)))


def _is_orderable(kind: DataType) -> bool:
    """Return whether Spark sorts such values, once maps are arrays."""
    unordered = isinstance(kind, VariantType | CalendarIntervalType)
    return not unordered and all(map(_is_orderable, _parts(kind)))


def _parts(kind: DataType) -> list[DataType]:
    if isinstance(kind, ArrayType):
        return [kind.elementType]
    if isinstance(kind, MapType):
        return [kind.keyType, kind.valueType]
    return [each.dataType for each in kind] if isinstance(kind, StructType) else []
