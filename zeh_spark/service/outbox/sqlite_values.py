"""Values of a row in SQLite as JSON. In SQLite a column's type is only a convention. Pure.

These are functions for SQL. Rule for editors: they never fail. A value that cannot be read makes
its row a bad one, and no other row: as data it gives a text that is not JSON, as a header it gives
bytes, because any text could be a header's. Text comes as bytes, because it may not be UTF-8.
"""

from __future__ import annotations

import base64
import math
import re
from contextlib import suppress
from datetime import datetime, timezone

import msgspec

from zeh_spark.wire import partitioning, upload_format

Value = bytes | int | float | None

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d(?::\d\d)?)(\.\d+)?(Z|[+-]\d\d:?\d\d)?")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_TEXTUAL = re.compile("CHAR|TEXT|CLOB|JSON")
_NUMERIC = re.compile("INT|NUM|DEC|REAL|FLOA|DOUB")
_TEMPORAL = re.compile("TIMESTAMP|DATETIME")


class _UnreadableError(ValueError):
    """A value that cannot be read, with the reason. The reason is not JSON."""


def json_of(value: Value, is_text: int, kind: str) -> str | None:
    """Return a value as JSON; None for NULL; the reason if it cannot be read.

    Text comes as its bytes; `is_text` is 1 for it, and 0 for a BLOB. `kind` is the type that the
    column was declared with, in capitals.
    """
    try:
        return _json_of(value, is_text, kind)
    except _UnreadableError as exc:
        return str(exc)


def _json_of(value: Value, is_text: int, kind: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return _of_text(value, kind) if is_text else _of_bytes(value, kind)
    if isinstance(value, float) and not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else f'"{"-" * (value < 0)}Infinity"'
    if "BOOL" in kind and value in (0, 1):
        return "true" if value else "false"
    return repr(value)


def is_json(kind: str) -> bool:
    """Return whether text in a column of this type is JSON, if the column is the data."""
    return not kind or bool(_TEXTUAL.search(kind))


def data_of(value: Value, is_text: int, kind: str) -> str | None:
    """Return a value as an event's data: as `json_of`, but text in a text column is JSON."""
    if is_text and isinstance(value, bytes) and is_json(kind):
        with suppress(UnicodeDecodeError):
            return value.decode()
    return json_of(value, is_text, kind)


def text_of(value: Value, is_text: int, kind: str) -> str | bytes | None:
    """Return a value as a header's text; None for NULL, which leaves the header out.

    Returns bytes, the reason, if the value cannot be read.
    """
    try:
        if "JSON" in kind and is_text and isinstance(value, bytes):
            text: str | None = _decoded(value)
        else:
            text = _json_of(value, is_text, kind)
    except _UnreadableError as exc:
        return str(exc).encode()
    if text is None or text == "null":
        return None
    with suppress(msgspec.DecodeError):
        if text.startswith('"'):
            return str(msgspec.json.decode(text))
    return text


def partition_of(value: Value, is_text: int, key: object, partitions: int) -> int:
    """Return the stored partition of a row, by `partitioning.partition_of`.

    Rows without a `value` are spread by their ids, the `key`. `is_text` is not used: all functions
    that SQL calls with a value take it.
    """
    if value is None:
        return partitioning.partition_of(str(key), partitions)
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return partitioning.partition_of(text, partitions)


def _of_bytes(value: bytes, kind: str) -> str:
    """Return a BLOB as JSON. SQLite's own JSONB was made JSON before it comes here."""
    return _checked(value) if "JSON" in kind else f'"{base64.b64encode(value).decode()}"'


def _of_text(value: bytes, kind: str) -> str:
    if "JSON" in kind:
        return _checked(value)
    text = _decoded(value)
    if _NUMERIC.search(kind) and _NUMBER.fullmatch(text):
        return text
    moment = _moment(text) if _TEMPORAL.search(kind) else text
    return msgspec.json.encode(moment).decode()


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _UnreadableError("text that is not UTF-8") from None


def _checked(value: bytes) -> str:
    try:
        return upload_format.validated_json(value).decode()
    except ValueError as exc:
        raise _UnreadableError(f"JSON that is none: {exc}") from None


def _moment(text: str) -> str:
    """Return a time as ISO 8601, in UTC if the text has an offset from it."""
    match = _MOMENT.fullmatch(text)
    if not match:
        return text
    date, time, fraction, offset = match[1], match[2], match[3] or "", match[4]
    if not offset or offset == "Z":
        return f"{date}T{time}{fraction}{offset or ''}"
    try:
        whole = datetime.fromisoformat(f"{date}T{time}{offset[:3]}:{offset[-2:]}")
        utc = whole.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return text
    return f"{utc:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + f"{fraction}Z"
