"""The rows of a DataFrame as events: what its columns mean, and the lines that are stored.

`layout` runs on the driver and judges the schema; a Renderer runs in each write task and judges
rows. Data that is text holds JSON and stays as it is; other data is rendered by `arrow_json`. A
frame without a column `data` is published with each row as an object.

Rule for editors: work on columns, as in `decode`. A batch with a row at fault is cut in halves
until the row is found, because each row has to be judged by itself; other batches pay nothing for
that. If there is a feed for such rows they are sifted out, and `letters` writes them. The module
has no side effects.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw
from pyspark.sql import types as T

from zeh_spark.errors import OptionError, RowError
from zeh_spark.protocol import event_key, event_origin, partitioning, upload_format, wire
from zeh_spark.protocol.arrow_json import (
    TEXT,
    Unfit,
    first_unfit,
    joined,
    json_of,
    one_text,
    refuse,
    utf8,
    within,
)
from zeh_spark.protocol.stamp_columns import BY_NAME, POSITION
from zeh_spark.sink.headers import keys_of, stored_headers, too_long_with
from zeh_spark.sink.origins import SeenOrigins, found_origins, origins_of, parts_of_one
from zeh_spark.sink.spark_types import INTEGERS, STRINGS, named, problems

_ENVELOPE = ("data", "headers", "partition", "key")
_PART = "origin_part"
"""The column that numbers the events which a relay makes of one (option `keepOrigin`)."""

_ONE_BY_ONE = 16
"""Rows that are judged one by one, not by halves: next to one at fault are mostly others."""

_decode_lines = msgspec.json.Decoder(Raw).decode_lines


# What the columns mean


@dataclass(frozen=True, slots=True)
class RowLayout:
    """What the columns of a frame mean, decided once from its schema. It is sent to executors.

    Attributes:
        columns: The names of the columns in order.
        text: Whether the column `data` holds JSON already.
        keeps_origin: Whether events keep where they were first published (`keepOrigin`).
        keeps_key: Whether events keep their keys (`keepKey`).
    """

    columns: tuple[str, ...]
    text: bool
    keeps_origin: bool = False
    keeps_key: bool = False


def layout(
    schema: T.StructType, *, keeps_origin: bool = False, keeps_key: bool = False
) -> RowLayout:
    """Return what the columns of a frame mean.

    Args:
        schema: The frame's schema.
        keeps_origin: Whether events keep where they were first published (`keepOrigin`).
        keeps_key: Whether events keep their keys (`keepKey`).

    Raises:
        OptionError: A column cannot be published; its name is the error's `option`.
    """
    columns = tuple(schema.names)
    if not columns:
        raise OptionError("a frame without columns cannot be published", option="data")
    for name in columns:
        if columns.count(name) > 1:
            raise _refused(name, "is there twice: rename or drop one of them")
    if keeps_origin:
        schema = _check_origin(schema)
    if "data" in columns:
        _check_beside_data(schema)
    else:
        _check_object(schema)
    if "key" in columns and not isinstance(schema["key"].dataType, (*STRINGS, *INTEGERS)):
        raise _refused("key", f"is {named(schema['key'].dataType)}: CAST it AS STRING")
    if keeps_key and "key" not in columns:
        raise _without_key(columns)
    text = "data" in columns and isinstance(schema["data"].dataType, STRINGS)
    return RowLayout(columns, text, keeps_origin, keeps_key)


def _without_key(columns: Sequence[str]) -> OptionError:
    """Return the error for `keepKey` without keys, with what is probably missing."""
    others = [name for name in columns if name.lower() == "key"]
    if others:
        remedy = f"Rename the column {others[0]!r}: upper and lower case differ here"
    elif "partition" in columns:
        remedy = "Put the column key in the place of partition, or leave out keepKey"
    else:
        remedy = "Add the column, like customer AS key, or leave out keepKey"
    return OptionError(
        f"keepKey=true needs the column key, and the frame has {', '.join(columns)}. {remedy}",
        option="keepKey",
        anchor="keepkey-needs-the-column-key",
    )


def _check_origin(schema: T.StructType) -> T.StructType:
    """Check what `keepOrigin` needs, and return the schema without the column that is for it."""
    if missing := [name for name in ("data", "headers") if name not in schema.names]:
        raise OptionError(
            f"keepOrigin=true needs the columns data and headers, and there is no {missing[0]}. "
            f"Read the feed with headers=_all, and keep its columns",
            option="keepOrigin",
        )
    if _PART in schema.names and not isinstance(schema[_PART].dataType, INTEGERS):
        raise _refused(_PART, f"is {named(schema[_PART].dataType)}: CAST it AS INT")
    return T.StructType([field for field in schema if field.name != _PART])


def _check_beside_data(schema: T.StructType) -> None:
    columns = schema.names
    for name in columns:
        if name in BY_NAME or name == POSITION:
            raise _refused(
                name,
                "is a stamp of the feed that was read, and the event gets new ones: drop "
                "it, or put it into the event, to_json(struct(*)) AS data",
            )
        if name not in _ENVELOPE:
            raise _refused(
                name,
                f"has no meaning beside 'data': put it into the event, to_json(struct(*)) AS data, "
                f"or drop it{_case(name)}",
            )
    if "partition" in columns and "key" in columns:
        raise _refused("key", "contradicts 'partition': keep the one that says where events go")
    if "partition" in columns and not isinstance(schema["partition"].dataType, INTEGERS):
        raise _refused(
            "partition",
            f"is {named(schema['partition'].dataType)}: CAST it AS INT, or name it key",
        )
    if "headers" in columns:
        _check_headers(schema["headers"].dataType)
    _check_data(schema["data"].dataType)


def _check_headers(kind: T.DataType) -> None:
    if not (
        isinstance(kind, T.MapType)
        and isinstance(kind.keyType, STRINGS)
        and isinstance(kind.valueType, STRINGS)
    ):
        raise _refused("headers", f"is {named(kind)}: CAST it AS MAP<STRING, STRING>")


def _check_data(kind: T.DataType) -> None:
    if isinstance(kind, STRINGS):
        return
    if isinstance(kind, T.VariantType):
        raise _refused("data", "is VARIANT: publish to_json(data)")
    if not isinstance(kind, (T.StructType, T.MapType, T.ArrayType)):
        raise _refused(
            "data",
            f"is {named(kind)}, which is no event: publish to_json(struct(data)), or CAST it AS "
            f"STRING if it holds JSON",
        )
    _check_inside("data", kind)


def _check_object(schema: T.StructType) -> None:
    for name in schema.names:
        if name in ("partition", "headers"):
            raise _refused(
                name,
                f"has a meaning only beside 'data': put the columns of the event into one, "
                f"to_json(struct(…)) AS data, or rename it{''.join(map(_case, schema.names))}",
            )
    for field in schema:
        _check_inside(field.name, field.dataType)


def _check_inside(column: str, kind: T.DataType) -> None:
    for problem in problems(column, kind):
        raise _refused(column, problem)


def _refused(column: str, problem: str) -> OptionError:
    return OptionError(
        f"the column {column!r} {problem}",
        option=column,
        anchor="the-column-has-no-meaning-beside-data",
    )


def _case(name: str) -> str:
    if name in _ENVELOPE or name.lower() not in _ENVELOPE:
        return ""
    return f" ({name!r} is not {name.lower()!r}: upper and lower case differ here)"


# What the rows say


@dataclass(frozen=True, slots=True)
class Rendered:
    """The events of a batch of rows.

    Attributes:
        partitions: int32 for each row, -1 for a row that may go to any partition; None if all may.
        rests: For each row what the stored line has after `{"partition":P,`, without newline (see
            `protocol.upload_format`).
    """

    partitions: np.ndarray | None
    rests: list[bytes]


class Renderer:
    """Renders the rows of one task, batch after batch, and counts them for its errors.

    With `keepOrigin` it also knows the origins of all events that it has rendered.

    Guarantee: the results are lines that fit in each of the partitions to which they may go.
    """

    def __init__(self, layout: RowLayout, partition_count: int) -> None:
        self._columns = layout.columns
        self._text = layout.text
        self._keeps_origin = layout.keeps_origin
        self._keeps_key = layout.keeps_key
        self._partition_count = partition_count
        self._room = np.array(
            [
                upload_format.LINE_BYTES - len(upload_format.prefix(each))
                for each in range(partition_count)
            ]
        )
        self._rows = 0
        self._origins = SeenOrigins()

    def render(self, batch: pa.RecordBatch) -> Rendered:
        """Return the events of a batch. Raises RowError for the first row at fault."""
        try:
            rendered = self._render(batch)
        except Unfit as exc:
            row, unfit = first_unfit(self._render, batch, exc)
            raise _row_error(self._rows + row, unfit) from None
        self._check_origins(batch, rendered, range(batch.num_rows))
        self._rows += batch.num_rows
        return rendered

    def sift(self, batch: pa.RecordBatch) -> tuple[Rendered, dict[int, str]]:
        """Return the events of the rows that can be published, and why the others cannot.

        Returns:
            The events in the order of their rows, and reasons by row of this batch. Each row is
            judged as if it were alone.

        Raises:
            RowError: Two events of the task have one origin, and other headers or data.
        """
        pieces: list[Rendered] = []
        reasons: dict[int, str] = {}
        self._sift(batch, 0, batch.num_rows, pieces, reasons)
        rendered = _in_one(pieces)
        good = [row for row in range(batch.num_rows) if row not in reasons]
        self._check_origins(batch, rendered, good)
        self._rows += batch.num_rows
        return rendered, reasons

    def _check_origins(
        self, batch: pa.RecordBatch, rendered: Rendered, rows: Sequence[int]
    ) -> None:
        """Raise RowError if an event has the origin of another one of this task.

        Args:
            batch: The rows of the events, and rows that cannot be published.
            rendered: The events.
            rows: The row of each event.
        """
        if not self._keeps_origin:
            return
        columns = dict(zip(self._columns, batch.columns, strict=True))
        found = found_origins(columns["headers"], columns.get(_PART))
        origins = found.take(pa.array(rows, pa.int64())).to_pylist()
        wrong = self._origins.add(origins, rendered.rests)
        if wrong is not None:
            raise parts_of_one(origins[wrong], self._rows + rows[wrong])

    def _sift(
        self,
        batch: pa.RecordBatch,
        begin: int,
        end: int,
        pieces: list[Rendered],
        reasons: dict[int, str],
    ) -> None:
        """Judge rows by halves, then one by one.

        k rows at fault among n take about k log(n) tries, and at most n. Rejected: looking for the
        first one again and again, which takes k times n rows.
        """
        try:
            pieces.append(self._render(batch.slice(begin, end - begin)))
            return
        except Unfit as exc:
            if end - begin == 1:
                reasons[begin] = exc.reason
                return
        step = 1 if end - begin <= _ONE_BY_ONE else (end - begin + 1) // 2
        for each in range(begin, end, step):
            self._sift(batch, each, min(each + step, end), pieces, reasons)

    def _render(self, batch: pa.RecordBatch) -> Rendered:
        columns = dict(zip(self._columns, batch.columns, strict=True))
        data = self._data(columns)
        added: dict[str, pa.Array] = {}
        if self._keeps_origin:
            added[event_origin.HEADER] = origins_of(columns["headers"], columns.get(_PART))
        if self._keeps_key:
            added[event_key.HEADER] = keys_of(columns["key"])
        headers = stored_headers(columns.get("headers"), added)
        rests = joined('"headers":', headers, ',"data":', data, "}")
        partitions = self._partitions(columns)
        self._check_sizes(rests, partitions, added)
        return Rendered(partitions, rests.cast(pa.large_binary()).to_pylist())

    def _data(self, columns: dict[str, pa.Array]) -> pa.Array:
        if "data" not in columns:
            return json_of(pa.StructArray.from_arrays(list(columns.values()), list(columns)))
        data = columns["data"]
        if data.null_count:
            raise Unfit("data is NULL")
        with within("data"):
            return _json_texts(data) if self._text else json_of(data)

    def _partitions(self, columns: dict[str, pa.Array]) -> np.ndarray | None:
        if "partition" in columns:
            return _numbered(columns["partition"], self._partition_count)
        if "key" in columns:
            return _hashed(columns["key"], self._partition_count)
        return None

    def _check_sizes(
        self, rests: pa.Array, partitions: np.ndarray | None, added: Collection[str]
    ) -> None:
        """Raise Unfit for a row that is too long for a line of its partition.

        Rows that may go anywhere have to fit into lines of the last partition too: index -1 takes
        its room.
        """
        sizes = np.asarray(pc.binary_length(rests))
        room = self._room[-1 if partitions is None else partitions]
        for row in np.flatnonzero(sizes > room)[:1]:
            most, rest = np.broadcast_to(room, sizes.shape)[row], rests[row].as_py().encode()
            size = sizes[row] + upload_format.LINE_BYTES - most
            grown = too_long_with(rest, added, most) if added else ()
            with_headers = f" with the header{'s' * (len(grown) > 1)} {' and '.join(grown)}"
            raise Unfit(
                f"the event takes {size:,} bytes as a line of the feed"
                f"{with_headers if grown else ''}; at most "
                f"{upload_format.LINE_BYTES:,} are allowed",
                rest,
            )


def _in_one(pieces: list[Rendered]) -> Rendered:
    if len(pieces) == 1:
        return pieces[0]
    rests = [rest for piece in pieces for rest in piece.rests]
    known = [piece.partitions for piece in pieces if piece.partitions is not None]
    return Rendered(np.concatenate(known) if known else None, rests)


def _row_error(row: int, unfit: Unfit) -> RowError:
    shown = f": {wire.excerpt(unfit.value)}" if unfit.value else ""
    return RowError(
        f"row {row} of this task cannot be published: {unfit.reason}{shown}; repair or filter such "
        f"rows",
        row=row,
        reason=unfit.reason,
    )


def _json_texts(column: pa.Array) -> pa.Array:
    """Return texts that hold JSON in the form of `wire.validated_json`."""
    texts = utf8(column)
    if not _all_json(one_text(texts, "\n"), len(texts)):
        texts = pa.array(map(_validated, texts.cast(pa.large_binary()).to_pylist()), TEXT)
    refuse(pc.equal(texts, "null"), texts, "the JSON null, which some clients take for no event")
    return texts


def _all_json(lines: bytes, rows: int) -> bool:
    """Return whether each row is one JSON value in exactly the form in which it is stored.

    Counts and lengths would not tell: `[1`, `,2]` and `1 2` hold three values of as many bytes.
    """
    if b"\r" in lines or wire.count_lines(lines) != rows - 1:
        return False
    try:
        values = _decode_lines(lines)
    except (msgspec.DecodeError, RecursionError):
        return False
    if len(values) != rows or b"\n".join(values) != lines:
        return False
    ends = np.cumsum(np.fromiter(map(len, values), np.int64, rows) + 1)
    return not wire.may_be_deep(lines, ends)


def _validated(text: bytes) -> bytes:
    try:
        return wire.validated_json(text)
    except ValueError as exc:
        raise Unfit(str(exc), text) from None


def _numbered(column: pa.Array, partition_count: int) -> np.ndarray:
    """Return partitions by their number."""
    outside = pc.or_(pc.less(column, 0), pc.greater_equal(column, partition_count))
    refuse(outside, column, f"the partition is not in 0 to {partition_count - 1}")
    partitions: np.ndarray = np.asarray(column.cast(pa.int32()).fill_null(-1))
    return partitions


def _hashed(column: pa.Array, partition_count: int) -> np.ndarray:
    """Return partitions by key; the last place of the table is for NULL."""
    keys = column.dictionary_encode()
    with within("key"):
        names = utf8(keys.dictionary.cast(TEXT)).to_pylist()
    table = [partitioning.partition_of(name, partition_count) for name in names]
    partitions: np.ndarray = np.array([*table, -1], np.int32)[keys.indices.fill_null(-1)]
    return partitions
