"""An event as a program gives it: its data as JSON text, and where it goes. Pure.

Runs in services that publish, in commands that write, and in the publisher.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from zeh_spark.protocol import wire


def json_of(data: object) -> bytes:
    """JSON text as it can stand in a line: text and bytes are JSON already, and are checked; any
    other object is rendered [text as a JSON string: what is JSON would be quoted unnoticed].

    Raises ValueError with the reason.
    """
    text = data.encode() if isinstance(data, str) else data
    if not isinstance(text, bytes | bytearray | memoryview):
        text = _rendered(data)
    return wire.validated_json(bytes(text))


def _rendered(data: object) -> bytes:
    try:
        text = msgspec.json.encode(data)
        if b"null" in text:  # as which msgspec renders NaN and infinity, too
            json.dumps(msgspec.to_builtins(data, str_keys=True), allow_nan=False)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (ValueError, TypeError, OverflowError, msgspec.MsgspecError) as exc:
        raise ValueError(f"it cannot be rendered as JSON: {exc}") from None
    return text


def checked_headers(headers: Mapping[str, str] | None) -> Mapping[str, str]:
    """Raises ValueError for what is not text by text."""
    if headers is not None and not isinstance(headers, Mapping):
        raise ValueError(f"the headers are {headers!r}; they are names and values, as a dict")
    for name, value in (headers or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ValueError(f"the header {name!r} is {value!r}; names and values are text")
    return headers or {}


def partition_for(key: str | int | None, partition: int | None, count: int) -> int | None:
    """Where an event goes: to its partition, else to its key's; None: anywhere.

    Raises ValueError.
    """
    if key is not None and partition is not None:
        raise ValueError("'partition' and 'key' exclude each other")
    if partition is not None:
        if type(partition) is not int or not 0 <= partition < count:
            raise ValueError(f"there is no partition {partition!r}: the feed has 0 to {count - 1}")
        return partition
    if key is None:
        return None
    if type(key) is not int and not isinstance(key, str):
        raise ValueError(f"the key is {key!r}; a key is text or an integer")
    return wire.partition_of(str(key), count)
