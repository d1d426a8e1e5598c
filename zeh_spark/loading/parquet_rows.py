"""Parquet files as events: each row is an object, rendered from Arrow columns.

What JSON cannot say is refused by name, never changed in silence: NaN and infinity, times finer
than a microsecond, maps, two columns of one name. Decimals and integers are exact numbers, times
are ISO 8601 text, binary is base64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

_encode = msgspec.json.Encoder(decimal_format="number").encode

Row = tuple[int, bytes, str | None]
"""The number of a row from 1, its JSON, its key."""


def rows(stream: BinaryIO, key: str | None) -> Iterator[Row]:
    """Raises ValueError with the reason."""
    try:
        file = parquet.ParquetFile(stream)
        yield from _numbered(file.iter_batches(batch_size=16_384), key)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as exc:
        raise ValueError(str(exc)) from None


def _numbered(batches: Iterator[pa.RecordBatch], key: str | None) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for data, text in _rows(batch, key):
            number += 1
            yield number, data, text


def _rows(batch: pa.RecordBatch, key: str | None) -> Iterator[tuple[bytes, str | None]]:
    names = batch.schema.names
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"there are two columns {twice!r}; rename one")
    values = [_values(name, column) for name, column in zip(names, batch.columns, strict=True)]
    keys = _keys(batch, key, values)
    for number, row in enumerate(zip(*values, strict=True)):
        yield _encode(dict(zip(names, row, strict=True))), keys[number] if keys else None


def _values(name: str, column: pa.Array) -> list[Any]:
    if reason := _why_not_json(column):
        raise ValueError(f"column {name!r} {reason}")
    if _is_too_fine(column.type):
        coarser = (
            pa.time64("us") if pa.types.is_time(column.type) else pa.timestamp("us", column.type.tz)
        )
        try:
            column = column.cast(coarser)
        except pa.ArrowInvalid:
            raise ValueError(
                f"column {name!r} has times finer than a microsecond; round them, or store "
                f"them as text"
            ) from None
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, TypeError, ValueError, KeyError) as exc:
        raise ValueError(
            f"column {name!r} has values of {column.type} without JSON: {exc}"
        ) from exc
    return found


def _is_too_fine(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_time(kind)) and kind.unit == "ns"


def _why_not_json(column: pa.Array) -> str | None:
    """What of a column, at any depth, has no JSON of its own."""
    kind = column.type
    if pa.types.is_floating(kind):
        finite = pc.all(pc.is_finite(column), min_count=0).as_py()
        return None if finite else "has NaN or infinity, which JSON has not; use null instead"
    if pa.types.is_map(kind):
        return "is a map; make it a struct, or a list of structs"
    if pa.types.is_duration(kind):
        return "is a duration; store it as a number"
    if pa.types.is_dictionary(kind):
        return _why_not_json(column.dictionary)
    if pa.types.is_struct(kind):
        parts = (_why_not_json(part) for part in column.flatten())
        return next((reason for reason in parts if reason), None)
    if pa.types.is_nested(kind):
        return _why_not_json(column.flatten())
    return None


def _keys(batch: pa.RecordBatch, key: str | None, values: list[list[Any]]) -> list[str | None]:
    """The text of each row's key; empty without one."""
    if key is None:
        return []
    if key not in batch.schema.names:
        raise ValueError(
            f"there is no column {key!r} for the key; there are {', '.join(batch.schema.names)}"
        )
    kind = batch.schema.field(key).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (is_text or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise ValueError(f"column {key!r} is {kind}; a key is text or an integer")
    found = values[batch.schema.get_field_index(key)]
    return [None if each is None else str(each) for each in found]
