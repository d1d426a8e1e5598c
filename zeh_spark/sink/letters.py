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
from collections.abc import Callable, Mapping
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Raw

from zeh_spark.client.publish_client import BatchCall
from zeh_spark.protocol import dead_letters, partitioning
from zeh_spark.protocol.arrow_json import (
    TEXT,
    Unfit,
    entries,
    instants_of,
    json_of,
    names_of,
    used,
)
from zeh_spark.sink.row_layout import RowLayout
from zeh_spark.sink.rows import Rendered


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
    if "key" in columns:
        _put(rows, "key", _plain(columns["key"]))
    if "partition" in columns:
        _put(rows, "partition", columns["partition"].to_pylist())
    if "headers" in columns:
        _put(rows, "headers", lenient(columns["headers"])[0])
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


def _put(rows: list[dict[str, object]], name: str, values: list[object]) -> None:
    """Add values to rows, except NULL."""
    for row, value in zip(rows, values, strict=True):
        if value is not None:
            row[name] = value


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

    There, what has no form in JSON is written in another one (see `_stand_ins`). The result for an
    element does not depend on other elements.
    """
    try:
        values: list[object] = list(map(Raw, json_of(array).cast(pa.large_binary()).to_pylist()))
        odd = np.zeros(len(array), bool)
    except Unfit:
        values, odd = _odd_ones(array)
    valid = np.asarray(array.is_valid())
    return [each if known else None for each, known in zip(values, valid, strict=True)], odd & valid


def _odd_ones(array: pa.Array) -> tuple[list[object], np.ndarray]:
    kind = array.type
    if pa.types.is_struct(kind):
        return _lenient_structs(array)
    if pa.types.is_map(kind):
        return _lenient_maps(array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        (inner,), offsets = used(array, array.values)
        found, odd_inside = lenient(inner)
        lists: list[object] = [found[begin:end] for begin, end in pairwise(offsets.tolist())]
        return lists, _any_within(odd_inside, offsets)
    return _stand_ins(array)


def _lenient_structs(array: pa.Array) -> tuple[list[object], np.ndarray]:
    columns, odd = [], np.zeros(len(array), bool)
    for column in array.flatten():
        found, inside = lenient(column)
        columns.append(found)
        odd |= inside
    names = [field.name for field in array.type]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)], odd


def _lenient_maps(array: pa.Array) -> tuple[list[object], np.ndarray]:
    """Return objects sorted by name, or sorted arrays of [name, value].

    The arrays stand for maps in which a name is not text or is repeated.
    """
    keys, items, offsets = entries(array)
    names, _ = _stand_ins(keys, names_of)
    found, odd_inside = lenient(items)
    odd = _any_within(odd_inside, offsets)
    values: list[object] = []
    for number, (begin, end) in enumerate(pairwise(offsets.tolist())):
        pairs = list(zip(names[begin:end], found[begin:end], strict=True))
        texts = {name for name, _ in pairs if isinstance(name, str)}
        if len(texts) == len(pairs):
            values.append(dict(sorted(pairs, key=lambda pair: str(pair[0]))))
        else:
            odd[number] = True
            values.append(sorted(pairs, key=msgspec.json.encode))
    return values, odd


def _any_within(odd: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    counts = np.append(0, np.cumsum(odd))
    return np.asarray(counts[offsets[1:]] > counts[offsets[:-1]])


def _stand_ins(
    array: pa.Array, form: Callable[[pa.Array], pa.Array] | None = None
) -> tuple[list[object], np.ndarray]:
    """Return leaves, each rendered by itself, and where they have another form.

    Text that is not UTF-8 is {"base64": …}; NaN, infinities, and dates and times of years outside 1
    to 9999 are text.
    """
    values: list[object] = []
    odd = np.zeros(len(array), bool)
    for number in range(len(array)):
        one = array.slice(number, 1)
        try:
            values.append(form(one)[0].as_py() if form else Raw(json_of(one)[0].as_py().encode()))
        except Unfit:
            values.append(_stand_in(one))
            odd[number] = True
    return values, odd


def _stand_in(one: pa.Array) -> object:
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
