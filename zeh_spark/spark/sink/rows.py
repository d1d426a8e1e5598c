"""The rows of a DataFrame as events: the lines that are stored.

A Renderer runs in each write task and judges rows; `row_layout` has judged the schema before.

Rule for editors: work on columns, as in `decoding`. A batch with a row at fault is cut in halves
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

from zeh_spark.errors import RowError
from zeh_spark.spark.sink.headers import keys_of, stored_headers, too_long_with
from zeh_spark.spark.sink.origins import SeenOrigins, found_origins, origins_of, parts_of_one
from zeh_spark.spark.sink.row_layout import ORIGIN_PART, RowLayout
from zeh_spark.wire import event_key, event_origin, partitioning, upload_format, wire
from zeh_spark.wire.arrow_json import (
    TEXT,
    Unfit,
    first_unfit,
    json_of,
    refuse,
    utf8,
    within,
)

_ONE_BY_ONE = 16
"""Rows that are judged one by one, not by halves: next to one at fault are mostly others."""

_decode_lines = msgspec.json.Decoder(Raw).decode_lines


@dataclass(frozen=True, slots=True)
class Rendered:
    """The events of a batch of rows.

    Attributes:
        partitions: int32 for each row, -1 for a row that may go to any partition; None if all may.
        rests: For each row what the stored line has after `{"partition":P,`, without newline (see
            `wire.upload_format`).
    """

    partitions: np.ndarray | None
    rests: list[bytes]


class Renderer:
    """Renders the rows of one task, batch after batch, and counts them for its errors.

    With `keepOrigin` it also knows the origins of all events that it has rendered.

    Guarantee: the results are lines that fit in each of the partitions to which they may go.
    """

    def __init__(self, layout: RowLayout, partition_count: int) -> None:
        self._layout = layout
        self._partition_count = partition_count
        prefixes = map(upload_format.prefix, range(partition_count))
        self._room = np.array([upload_format.LINE_BYTES - len(each) for each in prefixes])
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

        It returns the events in the order of their rows, and reasons by row of this batch. Each row
        is judged as if it were alone. Raises RowError if two events of the task have one origin,
        and other headers or data.
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

        `rows` has the row of each event.
        """
        if not self._layout.keeps_origin:
            return
        columns = dict(zip(self._layout.columns, batch.columns, strict=True))
        found = found_origins(columns["headers"], columns.get(ORIGIN_PART))
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
        columns = dict(zip(self._layout.columns, batch.columns, strict=True))
        data = self._data(columns)
        added: dict[str, pa.Array] = {}
        if self._layout.keeps_origin:
            added[event_origin.HEADER] = origins_of(columns["headers"], columns.get(ORIGIN_PART))
        if self._layout.keeps_key:
            added[event_key.HEADER] = keys_of(columns["key"])
        headers = stored_headers(columns.get("headers"), added)
        if isinstance(headers, str):
            begin = b'"headers":%b,"data":' % headers.encode()
            rests = [begin + each + b"}" for each in data]
        else:
            both = zip(_texts(headers), data, strict=True)
            rests = [b'"headers":%b,"data":%b}' % each for each in both]
        partitions: np.ndarray | None = None
        if "partition" in columns:
            partitions = _numbered(columns["partition"], self._partition_count)
        elif "key" in columns:
            partitions = _hashed(columns["key"], self._partition_count)
        self._check_sizes(rests, data, partitions, added)
        return Rendered(partitions, rests)

    def _data(self, columns: dict[str, pa.Array]) -> list[bytes]:
        if "data" not in columns:
            whole = pa.StructArray.from_arrays(list(columns.values()), self._layout.members)
            return _texts(json_of(whole))
        data = columns["data"]
        if data.null_count:
            raise Unfit("data is NULL")
        with within("data"):
            return _json_texts(data) if self._layout.text else _texts(json_of(data))

    def _check_sizes(
        self,
        rests: Sequence[bytes],
        data: Sequence[bytes],
        partitions: np.ndarray | None,
        added: Collection[str],
    ) -> None:
        """Raise Unfit for a row that is too long for a line of its partition.

        Rows that may go anywhere have to fit into lines of the last partition too: index -1 takes
        its room.
        """
        sizes = np.fromiter(map(len, rests), np.int64, len(rests))
        room = self._room[-1 if partitions is None else partitions]
        for row in np.flatnonzero(sizes > room)[:1]:
            most, rest = np.broadcast_to(room, sizes.shape)[row], rests[row]
            size = sizes[row] + upload_format.LINE_BYTES - most
            grown = too_long_with(rest, added, most) if added else ()
            with_headers = f" with the header{'s' * (len(grown) > 1)} {' and '.join(grown)}"
            raise Unfit(
                f"the event takes {size:,} bytes as a line of the feed"
                f"{with_headers if grown else ''}; at most "
                f"{upload_format.LINE_BYTES:,} are allowed",
                data[row],
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


def _texts(column: pa.Array) -> list[bytes]:
    texts: list[bytes] = column.cast(pa.large_binary()).to_pylist()
    return texts


def _json_texts(column: pa.Array) -> list[bytes]:
    """Return texts that hold JSON in the form of `upload_format.validated_json`."""
    texts = _texts(column)
    if not _all_json(texts):
        utf8(column)
        texts = [*map(_validated, texts)]
    if b"null" in texts:
        raise Unfit("the JSON null, which some clients take for no event", b"null")
    return texts


def _all_json(texts: Sequence[bytes]) -> bool:
    """Return whether each text is one JSON value in exactly the form in which it is stored.

    Counts and lengths would not tell: `[1`, `,2]` and `1 2` hold three values of as many bytes.
    """
    lines = b"\n".join(texts)
    if b"\r" in lines or upload_format.count_lines(lines) != len(texts) - 1:
        return False
    try:
        lines.decode()
        values = _decode_lines(lines)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    if len(values) != len(texts) or b"\n".join(values) != lines:
        return False
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
    return not upload_format.may_be_deep(lines, ends)


def _validated(text: bytes) -> bytes:
    try:
        return upload_format.validated_json(text)
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
