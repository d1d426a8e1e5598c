"""Dead letters: rows that cannot be published, as events of the dead-letter feed.

`dead_letters` defines the form of a dead letter. This module puts a row into it so that nothing is
lost: text as it was, what can be rendered as `arrow_json` renders it, and what has no form in JSON
in another form. All of it is text. Rejected: numbers, because many tools that edit dead letters
read them as doubles, even those that they do not change.

Rule for editors: what a row becomes depends on it alone, not on other rows, and not on the order in
which Spark keeps maps: a repeated batch has to give the same bytes. Only the rows at fault come
here, after every other way has failed, so speed matters little.

The module has no side effects; it runs on executors.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Raw

from zeh_spark.client.http.publish_client import BatchCall
from zeh_spark.spark.sink.row_layout import RowLayout
from zeh_spark.spark.sink.rows import Rendered
from zeh_spark.wire import dead_letters, partitioning
from zeh_spark.wire.arrow_json import (
    TEXT,
    Unfit,
    entries,
    instants_of,
    json_of,
    names_of,
    used,
)


def letters_of(
    layout: RowLayout,
    batch: BatchCall,
    rows: pa.RecordBatch,
    reasons: Mapping[int, str],
    partition_count: int,
) -> Rendered:
    """Return the rows for which there are reasons as events of the dead-letter feed.

    A dead letter goes where its row's key goes, so that a key's dead letters stay in order. The
    parts of one without a key stay together. `reasons` are by row.
    """
    refused = rows_of(layout, rows.take(pa.array(list(reasons), pa.int64())))
    partitions: list[int] = []
    rests: list[bytes] = []
    for row, reason in zip(refused, reasons.values(), strict=True):
        letter = dead_letters.letter(reason, batch.producer, batch.number, row)
        parts = dead_letters.cut(letter)
        key = row.get("key")
        if isinstance(key, str):
            partition = partitioning.partition_of(key, partition_count)
        elif len(parts) > 1:
            partition = partitioning.partition_of(dead_letters.letter_id(letter), partition_count)
        else:
            partition = -1
        partitions += [partition] * len(parts)
        rests += [b'"headers":{},"data":%b}' % part for part in parts]
    return Rendered(np.array(partitions, np.int32), rests)


def rows_of(layout: RowLayout, batch: pa.RecordBatch) -> list[dict[str, object]]:
    """Return the rows as members of dead letters, whatever the rows hold."""
    columns = dict(zip(layout.columns, batch.columns, strict=True))
    rows = _data(layout, columns)
    beside: dict[str, list[object]] = {}
    if "key" in columns:
        beside["key"] = _plain(columns["key"])
    if "partition" in columns:
        beside["partition"] = columns["partition"].to_pylist()
    if "headers" in columns:
        beside["headers"] = lenient(columns["headers"])[0]
    for name, values in beside.items():
        for row, value in zip(rows, values, strict=True):
            row |= {} if value is None else {name: value}
    return rows


def _data(layout: RowLayout, columns: Mapping[str, pa.Array]) -> list[dict[str, object]]:
    """Return each row's data under the name that says what it is (see `dead_letters`)."""
    if layout.text:
        return [
            {"data": each} if not isinstance(each, dict) else each
            for each in _plain(columns["data"])
        ]
    array = columns.get("data")
    if array is None:
        array = pa.StructArray.from_arrays(list(columns.values()), layout.members)
    values, odd = lenient(array)
    texts = [None if each is None else msgspec.json.encode(each).decode() for each in values]
    return [
        {"unfit" if unfit else "data": text}
        for text, unfit in zip(texts, odd.tolist(), strict=True)
    ]


def _plain(column: pa.Array) -> list[object]:
    """Return texts; {"base64": …} for a text that is not UTF-8."""
    texts = column.cast(pa.large_string()) if pa.types.is_integer(column.type) else column
    return [
        text if text is None else _text(text) for text in texts.cast(pa.large_binary()).to_pylist()
    ]


def _text(text: bytes) -> object:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(text).decode()}


# What has no form in JSON


def lenient(array: pa.Array) -> tuple[list[object], np.ndarray]:
    """Return values to be encoded as JSON, for any row, and where `json_of` would raise.

    There, what has no form in JSON is written in another one (see `_stand_in`). The result for an
    element does not depend on other elements.
    """
    try:
        values: list[object] = list(map(Raw, json_of(array).cast(pa.large_binary()).to_pylist()))
        odd = np.zeros(len(array), bool)
    except Unfit:
        found = [_lenient_one(one) for one in _each(array)]
        values, odd = [value for value, _ in found], np.array([odd for _, odd in found], bool)
    valid = np.asarray(array.is_valid())
    return [each if known else None for each, known in zip(values, valid, strict=True)], odd & valid


def _each(array: pa.Array) -> Iterator[pa.Array]:
    return (array.slice(number, 1) for number in range(len(array)))


def _lenient_one(one: pa.Array) -> tuple[object, bool]:
    """Return the only value of an array, and whether anything in it has another form."""
    try:
        return Raw(json_of(one)[0].as_py().encode()), False
    except Unfit:
        kind = one.type
    if pa.types.is_struct(kind):
        members = zip(kind, one.flatten(), strict=True)
        return {field.name: _lenient_one(member)[0] for field, member in members}, True
    if pa.types.is_map(kind):
        return _lenient_map(one), True
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        (inner,), _ = used(one, one.values)
        return [_lenient_one(each)[0] for each in _each(inner)], True
    return _stand_in(one), True


def _lenient_map(one: pa.Array) -> object:
    """Return an object sorted by name, or a sorted array of [name, value].

    The array stands for a map in which a name is not text or is repeated.
    """
    keys, items, _ = entries(one)
    pairs = [
        (_name(key), _lenient_one(item)[0])
        for key, item in zip(_each(keys), _each(items), strict=True)
    ]
    if len({name for name, _ in pairs if isinstance(name, str)}) == len(pairs):
        return dict(sorted(pairs, key=lambda pair: str(pair[0])))
    return sorted(pairs, key=msgspec.json.encode)


def _name(key: pa.Array) -> object:
    try:
        return names_of(key)[0].as_py()
    except Unfit:
        return _stand_in(key)


def _stand_in(one: pa.Array) -> object:
    """Return a leaf in another form.

    Text that is not UTF-8 is {"base64": …}; NaN, infinities, and dates and times of years outside 1
    to 9999 are text.
    """
    kind = one.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _text(one.cast(pa.large_binary())[0].as_py())
    if pa.types.is_floating(kind):
        value = one[0].as_py()
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return _far_moment(one)


def _far_moment(one: pa.Array) -> str:
    """Return a date or time of a year outside 1 to 9999, as Arrow writes it while it can."""
    dated = pa.types.is_date(one.type)
    text: str = one.cast(TEXT)[0].as_py() if dated else instants_of(one)[0].as_py()
    if not text.startswith("<"):  # <value out of range: …>
        return text
    number = one.cast(pa.int32() if dated else pa.int64())[0].as_py()
    return f"1970-01-01 {number:+} {'days' if dated else 'microseconds'}"
