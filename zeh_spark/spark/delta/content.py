"""What a batch holds: the number of its rows, and a sum over them that their order does not change.

A batch of a query with state, or of a stream that is not a feed, is known by its number only. After
a crash Spark repeats it, and it may hold other rows then, because the query's options were changed
or an expression depends on chance. The sum shows that.

Rule for editors: the rows are evaluated once, by `persist`, before they are summed and before
anything is written. Rejected: Spark's `Observation`, which is complete only after the commit that
has to hold the sum, and which counts rows of a MERGE twice.

Runs on the driver; builds a query.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import Column, DataFrame
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

from zeh_spark.spark.delta.commits import BatchContent
from zeh_spark.spark.frames.compat import is_connect, quoted

_EXACT = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS",
    "timestampNTZFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS",
}
"""Options of `to_json` with which different values have different texts."""

_HALF = 32


@contextmanager
def evaluated(frame: DataFrame) -> Iterator[DataFrame]:
    """Yield the frame with its rows evaluated once, however often they are read."""
    if _is_evaluated(frame):
        yield frame
        return
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


def _is_evaluated(frame: DataFrame) -> bool:
    """Return whether the frame's plan only reads persisted rows, as the frames of `route` do.

    Spark Connect does not tell, and persists the rows once more.
    """
    if is_connect(frame.sparkSession):
        return False
    plan: Any = frame._jdf.queryExecution().withCachedData()
    leaves = plan.collectLeaves()
    names = [str(leaves.apply(place).nodeName()) for place in range(leaves.size())]
    return bool(names) and all(name == "InMemoryRelation" for name in names)


def content_of(frame: DataFrame) -> BatchContent:
    """Count and sum the rows. Call it within `evaluated`.

    The hash of a row is xxhash64 of its JSON. Spark refuses to hash a MAP, and leaves NULL out of a
    hash, so that rows with NULL in different columns would be equal. The halves of the hash are
    summed separately, because a sum of BIGINTs overflows. Maps are written as their sorted entries,
    because equal maps may have another order.
    """
    columns = [
        _ordered(F.col(quoted(field.name)), field.dataType).alias(f"c{number}")
        for number, field in enumerate(frame.schema)
    ]
    row = F.to_json(F.struct(*columns), _EXACT)
    number = F.xxhash64(row)
    low, high = number.bitwiseAND(F.lit((1 << _HALF) - 1)), F.shiftrightunsigned(number, _HALF)
    counted = frame.select(low.alias("low"), high.alias("high"))
    rows, lows, highs = counted.agg(
        F.count("*"), F.coalesce(F.sum("low"), F.lit(0)), F.coalesce(F.sum("high"), F.lit(0))
    ).collect()[0]
    total = (lows + (highs << _HALF)) % (1 << 64)
    return BatchContent(rows, f"{total:016x}")


def _ordered(column: Column, kind: DataType) -> Column:
    """Return the column with each map, at any depth, as a sorted array of its entries."""
    if not _has_map(kind):
        return F.to_json(column) if isinstance(kind, VariantType) else column
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
