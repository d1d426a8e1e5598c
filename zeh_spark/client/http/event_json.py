"""Check an event that a program gives, and make JSON text of its data.

Rule for editors: the texts of the errors become reasons in dead letters, so they have to be the
same for the same event. Pure. Runs in services that publish, and in commands that write.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
import orjson

from zeh_spark.wire import upload_format


class AddedBefore:
    """Stands for an event that was added or sent before, so that it is no data of another one."""

    __slots__ = ()


def json_of(data: object) -> bytes:
    """Return data as JSON text that fits into a line.

    Text and bytes have to be JSON already, and are checked. Any other object is rendered. Rejected:
    to render text as a JSON string, because text that is JSON would be quoted unnoticed. Raises
    ValueError with the reason.
    """
    text = data.encode() if isinstance(data, str) else data
    if not isinstance(text, bytes | bytearray | memoryview):
        if isinstance(data, AddedBefore):
            raise ValueError("it stands for an event that was added before. Give the event's data")
        text = _rendered(data)
    return upload_format.validated_json(bytes(text))


_RENDERING = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_UTC_Z | orjson.OPT_PASSTHROUGH_DATACLASS
_TIME = re.compile(rb"\dT\d\d:\d\d")
"""What each rendered time has in it."""


def _rendered(data: object) -> bytes:
    """Return an object as JSON text, by orjson; if orjson refuses it, by msgspec.

    Rejected: msgspec alone, which knows neither NumPy nor pandas. orjson takes no integers beyond
    64 bits and no structure deeper than 254.
    """
    try:
        text = orjson.dumps(data, default=_value_of, option=_RENDERING)
    except TypeError:
        text = _with_other_keys(data)
    if b"null" in text:  # orjson also renders NaN and infinity as null
        _check_finite(data)
    if _TIME.search(text):  # orjson drops what is finer than µs, and seconds of an offset
        _check_times(data)
    return text


def _with_other_keys(data: object) -> bytes:
    """Return an object as JSON text if keys in it may be other values than text."""
    try:
        _check_keys(data)
        return orjson.dumps(data, default=_value_of, option=_RENDERING | orjson.OPT_NON_STR_KEYS)
    except (TypeError, RecursionError):
        return _rendered_by_msgspec(data)


def _rendered_by_msgspec(data: object) -> bytes:
    try:
        text = msgspec.json.encode(data)
        if b"null" in text:  # msgspec also renders NaN and infinity as null
            json.dumps(msgspec.to_builtins(data, str_keys=True), allow_nan=False)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (ValueError, TypeError, OverflowError, msgspec.MsgspecError) as exc:
        raise ValueError(f"it cannot be rendered as JSON: {exc}") from None
    return text


def _value_of(value: object) -> object:
    """Return what stands for an object of a type that orjson does not know.

    Raises TypeError for a type that msgspec does not know either.
    """
    if (fields := _fields_of(value)) is not None:
        return fields
    if isinstance(value, np.ndarray):  # an array that is not contiguous, or of objects
        return value.tolist()
    if isinstance(value, datetime):  # a subclass, like pandas.Timestamp
        _check_finite(value)
        return value.isoformat()
    return msgspec.to_builtins(value, str_keys=True)


def _fields_of(value: Any) -> dict[str, object] | None:
    """Return a dataclass's fields; orjson would leave out those like _id. None for other values."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return None
    names = [each.name for each in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _check_finite(value: Any) -> None:
    """Raise ValueError for a number or a time that JSON cannot express, at any depth."""
    value = _fields_of(value) or value
    if isinstance(value, float | np.floating | np.datetime64 | datetime):
        # NaN and NaT are not equal to themselves.
        if value != value or (isinstance(value, float | np.floating) and math.isinf(value)):
            raise ValueError(
                f"it cannot be rendered as JSON: Out of range float or time: {value!r}"
            )
    elif isinstance(value, Mapping):
        for each in value.items():
            _check_finite(each)
    elif isinstance(value, list | tuple | set | frozenset | np.ndarray):
        for each in value.tolist() if isinstance(value, np.ndarray) else value:
            _check_finite(each)
    elif value is not None and not isinstance(value, str | bytes | int | np.generic):
        _check_finite(msgspec.to_builtins(value, str_keys=True))


def _check_times(value: Any) -> None:
    """Raise ValueError for a time that its JSON text would change, at any depth."""
    value = _fields_of(value) or value
    if isinstance(value, datetime):
        offset = value.utcoffset()
        if offset is not None and offset.total_seconds() % 60:
            raise ValueError(
                f"it cannot be rendered as JSON exactly: {value!r} has an offset of {offset}, and "
                f"offsets have whole minutes; give the time in UTC"
            )
    elif isinstance(value, np.datetime64 | np.ndarray) and value.dtype.kind == "M":
        if (np.isfinite(value) & (value != value.astype("datetime64[us]"))).any():
            raise ValueError(
                f"it cannot be rendered as JSON exactly: {value!r} is finer than microseconds; "
                f"give it as text"
            )
    elif isinstance(value, Mapping):
        for each in value.items():
            _check_times(each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            _check_times(each)
    elif isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            _check_times(value.tolist())
    elif value is not None and not isinstance(value, str | bytes | int | float | np.generic):
        with suppress(TypeError):  # of a type that something inside it has
            plain = msgspec.to_builtins(value, str_keys=True, builtin_types=(datetime,))
            if type(plain) is not type(value):
                _check_times(plain)


def _check_keys(value: Any) -> None:
    """Raise ValueError for a mapping of which two keys have the same text, at any depth."""
    value = _fields_of(value) or value
    if isinstance(value, Mapping):
        keys = [key for key in value if not isinstance(key, str)]
        texts = [
            orjson.loads(orjson.dumps({key: 0}, option=orjson.OPT_NON_STR_KEYS)) for key in keys
        ]
        names = [name for text in texts for name in text]
        if len({*names, *map(str, value.keys() - set(keys))}) < len(value):
            raise ValueError(
                f"it cannot be rendered as JSON: two of the keys {[*value]!r} have the same text"
            )
        for each in value.values():
            _check_keys(each)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_keys(each)


def checked_headers(headers: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return headers whose names and values are texts. Raises ValueError for any others."""
    if headers is not None and not isinstance(headers, Mapping):
        raise ValueError(f"the headers are {headers!r}; they are names and values, as a dict")
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ValueError(f"the header {name!r} is {value!r}; names and values are text")
    return headers or {}
