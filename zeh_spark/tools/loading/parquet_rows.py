"""Parquet files as events: each row is an object, as `wire.arrow_json` writes it.

What JSON cannot say is refused with column and row, and never changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from typing import BinaryIO

import pyarrow as pa
from pyarrow import parquet

from zeh_spark.tools.loading.csv_rows import Row
from zeh_spark.wire import arrow_json, wire

_BATCH_ROWS = 16_384

READS_UUIDS = "arrow_extensions_enabled" in signature(parquet.ParquetFile).parameters
"""Whether pyarrow finds UUIDs in any writer's file. pyarrow 15 to 20 take them for bytes."""


def rows(stream: BinaryIO, key: str | None) -> Iterator[Row]:
    """Yield the rows of a Parquet file. Raises ValueError with the reason."""
    try:
        how = {"arrow_extensions_enabled": True} if READS_UUIDS else {}
        file = parquet.ParquetFile(stream, **how)
        _check_types(file.schema)
        _check(file.schema_arrow, key)
        number = 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            for some in arrow_json.slices(batch):
                for data, text in zip(_objects(some, number), _keys(some, key), strict=True):
                    number += 1
                    yield number, data, text
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as exc:
        raise ValueError(str(exc)) from None


def _check_types(schema: parquet.ParquetSchema) -> None:
    """Raise ValueError for times that may have a zone or not, and for UUIDs that would be bytes."""
    for number in range(len(schema)):
        column = schema.column(number)
        if column.physical_type == "INT96":
            raise ValueError(
                f"the column {column.path!r} has the outdated type INT96, which does not tell "
                f"whether its times have a zone. Write the file again; Spark does it with "
                f"spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS"
            )
        if column.logical_type.type == "UUID" and not READS_UUIDS:
            raise ValueError(
                f"the column {column.path!r} has the type UUID, which needs pyarrow 21"
            )


def _check(schema: pa.Schema, key: str | None) -> None:
    """Raise ValueError for columns that have no form in an event, or cannot be the key."""
    names = schema.names
    if not names:
        raise ValueError("there are no columns, so its rows say nothing")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"there are two columns {twice!r}; rename one")
    for field in schema:
        for problem in arrow_json.problems(field.name, field.type):
            raise ValueError(f"the column {field.name!r} cannot be rendered: {problem}")
    if key is None:
        return
    if key not in names:
        raise ValueError(f"there is no column {key!r} for the key; there are {', '.join(names)}")
    kind = schema.field(key).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (is_text or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise ValueError(f"column {key!r} is {kind}; a key is text or an integer")


def _objects(batch: pa.RecordBatch, before: int) -> list[bytes]:
    """Return each row as JSON; `before` is the number of rows that precede these in the file."""
    try:
        texts = _rendered(batch)
    except arrow_json.Unfit as exc:
        row, found = arrow_json.first_unfit(_rendered, batch, exc)
        shown = f": {wire.excerpt(found.value)}" if found.value else ""
        raise ValueError(
            f"row {before + row + 1}: {found.reason}{shown}; repair or drop such rows"
        ) from None
    found_texts: list[bytes] = texts.cast(pa.large_binary()).to_pylist()
    return found_texts


def _rendered(batch: pa.RecordBatch) -> pa.Array:
    return arrow_json.json_of(pa.StructArray.from_arrays(batch.columns, batch.schema.names))


def _keys(batch: pa.RecordBatch, key: str | None) -> list[str | None]:
    """Return the text of each row's key; an integer's is its decimal text."""
    if key is None:
        return [None] * batch.num_rows
    column = batch.column(key)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    keys: list[str | None] = arrow_json.names_of(column).to_pylist()
    return keys
