"""Split an event into the JSON that a schema's typed columns show exactly, and the rest.

Spark decides which values fit: what its `from_json` refuses is never typed. But some values become
others in it: it rounds decimals, cuts off nanoseconds, makes -56 of the TINYINT 200 and infinity of
1e400, and of two fields with one name it takes the last. They belong to the rest. Rejected: Spark's
own functions, which write numbers in another form, and a VARIANT, which refuses a name that comes
twice. Pure functions. Runs on executors, in a UDF.
"""

from __future__ import annotations

import json
import math
import re
import struct
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

Path = tuple[str, ...]

_INTEGER = re.compile(r"-?\d+")
_DAY = re.compile(r"[+-]?\d{4}(-\d\d?){0,2}")  # 20240101 would be a year, too
_MOMENT = re.compile(r"[+-]?\d{4}(?!\d)[^.]*(\.\d{1,6}0*(\D.*)?)?")
_LAST_SECOND = 253_402_300_799  # of the year 9999
_OTHER, _MORE, _SAME = range(3)
"""A type shows another value, the same without fields that it does not name, or the same."""


class _Number(str):
    """The text of a number."""


def leaves(schema: T.StructType, above: Path = ()) -> dict[Path, T.DataType]:
    """Return the path and the type of each field that is no struct, also in nested structs."""
    found: dict[Path, T.DataType] = {}
    for field in schema:
        path, kind = (*above, field.name), field.dataType
        found |= leaves(kind, path) if isinstance(kind, T.StructType) and kind else {path: kind}
    return found


def split(
    text: str | None, fits: str | None, schema: T.StructType
) -> tuple[str | None, str | None]:
    """Return the JSON of what is to be typed, and of the rest, each at its paths in the event.

    Both are None if nothing is left. The rest is the whole text if that is no JSON object, or if a
    name comes twice in an object. `fits` has "1" for each leaf that Spark reads, and "0" for the
    others, in the order of `leaves`; it is None if Spark reads all.
    """
    try:
        event = json.loads(
            text or "null", object_pairs_hook=_fields, parse_int=_Number, parse_float=_Number
        )
        if event is None:
            return None, None
        paths = leaves(schema)
        flags = dict(zip(paths, fits or "1" * len(paths), strict=True))
        typed, rest = _split(event, schema, (), flags)
        return (_write(typed), _write(rest)) if rest else (None, None)
    except (ValueError, RecursionError):
        return "{}", text


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name comes twice")
    return fields


def _split(
    event: Any, schema: T.StructType, above: Path, fits: dict[Path, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    if not isinstance(event, dict):
        raise ValueError("no object")
    types = {field.name: field.dataType for field in schema}
    typed, rest = {}, {}
    for name, value in event.items():
        path, kind = (*above, name), types.get(name)
        if path in fits:
            shown = _shown(value, kind) if fits[path] == "1" else _OTHER
            if shown > _OTHER:
                typed[name] = value
            if shown < _SAME:
                rest[name] = value
        elif isinstance(kind, T.StructType) and isinstance(value, dict):
            typed[name], below = _split(value, kind, path, fits)
            if below:
                rest[name] = below
        elif kind is None or value is not None:
            rest[name] = value
    return typed, rest


def _shown(value: Any, kind: T.DataType | None) -> int:
    """Return how much of a value is in what Spark reads as this type."""
    if isinstance(value, list):
        inner = kind.elementType if isinstance(kind, T.ArrayType) else kind
        return min((_shown(each, inner) for each in value), default=_SAME)
    if isinstance(value, dict):
        inner = kind.valueType if isinstance(kind, T.MapType) else kind
        types = dict.fromkeys(value, inner)
        if isinstance(kind, T.StructType):
            types = {field.name: field.dataType for field in kind}
        elif not all(map(_is_text, value)):
            return _OTHER
        shown = (_shown(value[name], types[name]) if name in types else _MORE for name in value)
        return min(shown, default=_SAME)
    try:
        return _SAME if not isinstance(value, str) or _is_exact(value, kind) else _OTHER
    except (ValueError, ArithmeticError):  # Spark reads "1,234.5", for instance
        return _OTHER


def _is_exact(value: str, kind: T.DataType | None) -> bool:
    """Return whether a text or number that Spark reads as this type is the same one there."""
    number = isinstance(value, _Number)
    match kind:
        case T.ByteType():
            return -128 <= int(value) <= 127
        case T.DecimalType():
            digits, exponent = Decimal(value).as_tuple()[1:]
            over = -int(exponent) - kind.scale
            return over <= 0 or not any(digits[-over:])
        case T.FloatType() | T.DoubleType() if number:
            form = "f" if isinstance(kind, T.FloatType) else "d"
            (nearest,) = struct.unpack(form, struct.pack(form, float(value)))
            fraction = not _INTEGER.fullmatch(value)
            return math.isfinite(nearest) and (fraction or nearest == int(value))
        case T.DateType():
            return bool(_DAY.fullmatch(value))
        case T.TimestampType() if number:
            return abs(int(value)) <= _LAST_SECOND
        case T.TimestampType() | T.TimestampNTZType():
            return bool(_MOMENT.fullmatch(value))
        case T.StringType() | T.VariantType() if number:
            integer = len(value) <= 38 and _INTEGER.fullmatch(value)
            return bool(integer) or Decimal(repr(float(value))) == Decimal(value)
    return number or _is_text(value)


def _is_text(value: str) -> bool:
    """Return whether Spark keeps a text: half of a surrogate pair becomes a question mark."""
    return value.isascii() or not any("\ud800" <= each <= "\udfff" for each in value)


def _write(value: Any) -> str:
    """Return JSON text in which numbers are as they came."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        fields = (f"{json.dumps(name)}:{_write(each)}" for name, each in value.items())
        return f"{{{','.join(fields)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_write, value))}]"
    return json.dumps(value)
