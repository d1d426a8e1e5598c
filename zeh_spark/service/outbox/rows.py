"""Make lines of a feed from rows of a table. Pure.

Rule for editors: rows are checked by the block, in C. Only a block in which something is wrong is
checked row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from msgspec import Raw

from zeh_spark.service.outbox.table import Cells, OutboxRow, OutboxTable
from zeh_spark.wire import upload_format, wire

Headers = tuple[str | bytes | None, ...]
"""The values of a row's headers: None for no header, bytes (the reason) for one not readable."""
RenderHeaders = Callable[[Headers], str]

ROOM = wire.MAX_LINE - len('{"partition":999999999,"headers":,"data":}')
"""Bytes for data and headers in a line, whatever the number of the partition."""


def room_for_values(table: OutboxTable) -> int:
    """Return the bytes that a row's values have in its line, as JSON, if it has all headers."""
    names = [*table.headers, *(table.columns if table.is_object else ())]
    time = len('"zeh-time":"-123456789012345",') if table.time else 0
    return ROOM - time - len("{}{}") - sum(len(msgspec.json.encode(each)) + 2 for each in names)


_BYTES_OF_CHARACTER = 4
"""The most bytes of a character in UTF-8."""

_REMEMBERED, _SHORT = 10_000, 500
"""How many rendered headers are remembered, and up to how many characters each."""

_NULL = Raw(b"null")
_check = msgspec.json.Decoder(Raw).decode_lines


class BadRowError(ValueError):
    """A row that cannot be an event.

    Args:
        before: The lines of the rows before it.
        last: The last of the rows before it; None if there are none.
    """

    def __init__(
        self, why: str, row: OutboxRow, before: bytes = b"", last: OutboxRow | None = None
    ) -> None:
        super().__init__(why)
        self.row = row
        self.before = before
        self.last = last


def header_renderer(names: Sequence[str]) -> RenderHeaders:
    """Return a function that renders the values of headers as the JSON object of a line.

    None leaves a header out. The function remembers what it has rendered, because values repeat. It
    raises ValueError for a header that cannot be read.
    """
    seen: dict[Headers, str] = {}

    def render(values: Headers) -> str:
        if (known := seen.get(values)) is None:
            if len(seen) > _REMEMBERED:
                seen.clear()
            given = dict(zip(names, values, strict=True))
            for name, value in given.items():
                if isinstance(value, bytes):
                    raise ValueError(f"header {name}: {value.decode()}")
            wanted = {name: value for name, value in given.items() if value is not None}
            known = msgspec.json.encode(wanted, order="sorted").decode()
            if len(known) < _SHORT:
                seen[values] = known
        return known

    return render


def lines_of(
    partition: int,
    rows: Sequence[Cells],
    headers: RenderHeaders,
    skip: Callable[[BadRowError], object] | None,
) -> bytes:
    """Return the lines of rows, as one partition of the reader.

    `skip` is called for each bad row, which is left out. Without it, the first one raises
    BadRowError.
    """
    try:
        block = _block(partition, rows, headers)
    except ValueError:  # a header that cannot be read, or a text with a lone surrogate
        block = None
    return b"".join(_checked_lines(partition, rows, headers, skip)) if block is None else block


def _block(partition: int, rows: Sequence[Cells], headers: RenderHeaders) -> bytes | None:
    """Return all lines at once; None if a row is bad, or may be."""
    if not rows:
        return b""
    _, _, _, sizes, data, *values = zip(*rows, strict=True)
    if not _fine(data):
        return None
    rendered = [headers(each) for each in zip(*values, strict=True)] or ["{}"] * len(rows)
    if max(sizes) + max(map(len, rendered)) * _BYTES_OF_CHARACTER > ROOM:
        return None
    begin = f'{{"partition":{partition},"headers":'
    pairs = zip(rendered, data, strict=True)
    return "".join([f'{begin}{each},"data":{text}}}\n' for each, text in pairs]).encode()


def _fine(data: Sequence[str | None]) -> bool:
    """Return whether the data of all rows is JSON that can stand in a line.

    Rejected: to check the whole lines. They may be JSON if their data is not: `1,"cursor":"x"`.
    """
    given = [each for each in data if each is not None]
    if len(given) < len(data):
        return False
    block = "\n".join(given).encode()
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    if len(ends) != max(0, len(data) - 1) or b"\r" in block:
        return False
    if upload_format.may_be_deep(block, np.append(ends, len(block))):
        return False
    try:
        found = _check(block)
    except (msgspec.DecodeError, RecursionError):
        return False
    # `_check` takes `1 2` as two values, a blank line as none, and `[1,` with the next line.
    return len(found) == len(data) and b"\n".join(found) == block and _NULL not in found


def _checked_lines(
    partition: int,
    rows: Sequence[Cells],
    headers: RenderHeaders,
    skip: Callable[[BadRowError], object] | None,
) -> list[bytes]:
    """Do what `lines_of` does, row by row."""
    lines: list[bytes] = []
    for number, row in enumerate(map(OutboxRow.of, rows)):
        try:
            lines.append(_checked(partition, row, headers))
        except ValueError as exc:
            last = OutboxRow.of(rows[number - 1]) if number else None
            bad = BadRowError(str(exc), row, b"".join(lines), last)
            if skip is None:
                raise bad from None
            skip(bad)
    return lines


def _checked(partition: int, row: OutboxRow, headers: RenderHeaders) -> bytes:
    """Return the line of one row. Raises ValueError if it cannot be an event."""
    if row.size is None:
        raise ValueError("data: NULL is no event")
    if row.data is None:
        raise ValueError(
            f"data: {row.size} bytes with its headers, where a line takes {wire.MAX_LINE}"
        )
    try:
        data = upload_format.validated_json(row.data.encode())
    except ValueError as exc:
        raise ValueError(f"data: {exc}") from None
    if data == b"null":
        raise ValueError("data: null is no event")
    rendered = headers(row.headers)
    line = f'{{"partition":{partition},"headers":{rendered},"data":{data.decode()}}}\n'.encode()
    if len(line) > wire.MAX_LINE + 1:
        raise ValueError(f"its line has {len(line) - 1} bytes, of {wire.MAX_LINE} at most")
    return line
