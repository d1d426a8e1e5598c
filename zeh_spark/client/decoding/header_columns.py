"""Make typed columns of headers, those of stamps and `key`, for many events at once.

Runs wherever feeds are read; pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from zeh_spark.errors import MalformedLineError
from zeh_spark.wire import wire
from zeh_spark.wire.stamp_columns import (
    MAX_DIGITS,
    MAX_TIME,
    OF_HEADERS,
    StampColumn,
    is_number,
)

TYPES = {
    "timestamp": pa.timestamp("us", tz="UTC"),
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
}


def columns_of(headers: pa.MapArray, names: Collection[str]) -> dict[str, pa.Array] | None:
    """Return the typed columns of events, NULL where an event has no such header.

    No event has a header twice. It returns None if a header is no number that fits its column.
    """
    found: dict[str, pa.Array] = {}
    if not names:
        return found
    codes = headers.keys.dictionary_encode()
    offsets = headers.offsets.to_numpy()
    for name in names:
        column = OF_HEADERS[name]
        texts = _texts(headers, codes, offsets, column.header)
        array = texts if column.kind == "string" else _numbers(texts, column)
        if array is None:
            return None
        found[name] = array
    return found


def _texts(
    headers: pa.MapArray, codes: pa.DictionaryArray, offsets: np.ndarray, name: str
) -> pa.StringArray:
    """Return the value of a header of each event; NULL if it has none."""
    places = np.full(len(headers), -1)
    code = codes.dictionary.index(name).as_py()
    if code >= 0:
        here = np.flatnonzero(codes.indices.to_numpy() == code)
        places[np.searchsorted(offsets, here, side="right") - 1] = here
    return headers.items.take(pa.array(places, mask=places < 0))


def _numbers(texts: pa.StringArray, column: StampColumn) -> pa.Array | None:
    short = pc.less_equal(pc.binary_length(texts), MAX_DIGITS[column.kind])
    valid = pc.and_(pc.ascii_is_decimal(texts), short)
    if not pc.all(valid, min_count=0).as_py():  # NULL is left out
        return None
    numbers = texts.cast(pa.int64())
    if column.kind != "timestamp":
        return numbers.cast(TYPES[column.kind])
    if len(numbers) > numbers.null_count and pc.max(numbers).as_py() > MAX_TIME:
        return None
    return times_of(numbers)


def times_of(milliseconds: pa.Array) -> pa.Array:
    """Return times in ms since 1970, BIGINT, as Spark's TIMESTAMP."""
    return milliseconds.cast(pa.timestamp("ms", tz="UTC")).cast(TYPES["timestamp"])


def without(headers: pa.MapArray, hidden: Collection[str]) -> pa.MapArray:
    codes = headers.keys.dictionary_encode()
    drop = np.isin(codes.dictionary.to_numpy(zero_copy_only=False), list(hidden))
    keep = ~drop[codes.indices.to_numpy()] if len(drop) else np.zeros(0, bool)
    before = np.concatenate(([0], np.cumsum(keep)))
    offsets = before[headers.offsets.to_numpy()]
    mask = pa.array(keep)
    return pa.MapArray.from_arrays(
        pa.array(offsets.astype(np.int32)), headers.keys.filter(mask), headers.items.filter(mask)
    )


def check(
    headers: Mapping[str, str | None], names: Sequence[str], partition: int, line: bytes
) -> None:
    """Check the stamps of a single event, for the columns that a query has.

    Raises MalformedLineError if one is no number that fits its column.
    """
    for name in names:
        column = OF_HEADERS[name]
        text = headers.get(column.header)
        if text is not None and column.kind != "string" and not is_number(text, column.kind):
            raise MalformedLineError(
                f"partition {partition}: an event's header {column.header!r} is {text[:100]!r}, "
                f"which is no number that fits the column {name} {column.kind.upper()}: "
                f"{wire.excerpt(line)}. Tell the publisher's owner, read without the column "
                f"{name!r}, or put such lines into a column with mode=PERMISSIVE",
                partition=partition,
                body=wire.excerpt(line),
                anchor="a-stamp-is-no-number",
            )
