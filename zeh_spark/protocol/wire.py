"""The ZeroEventHub wire format: bytes to lines to events and checkpoints, and back.

Pure: no socket, clock, Spark or SQL. Runs everywhere: driver, executors, publisher.

Rule for editors: bytes in, values out, one error type whatever the bytes (`MalformedLineError`).
Lines end at b"\\n" and nowhere else [U+2028, U+0085, form feed are legal inside a JSON string].
What a line is, in this order (spec "Response", and what real publishers send):

1. whitespace only: nothing;
2. `cursor` is a non-empty string or an integer: a checkpoint, also when `data` is beside it [as in
   every reference client];
3. `data` is there, whatever its value: an event;
4. nothing but `partition` and perhaps `headers`: an event without data [a Go publisher omits empty
   data];
5. any other JSON object: unknown, left out and counted [later versions of the protocol may add
   lines];
6. anything else: malformed.

Envelope keys written with JSON escapes are not recognised [finding them would mean to parse every
event on the driver].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import xxhash
from msgspec import UNSET, Raw, UnsetType

from zeh_spark.errors import MalformedLineError, PublisherError

FIRST = "_first"
LAST = "_last"
ALL_HEADERS = "_all"
CONTENT_TYPE = "application/x-ndjson"

MAX_LINE = 65_535
"""Bytes of the longest line, without its newline: the Go client silently reads no further."""

MAX_DEPTH = 500
"""Of arrays and objects within each other in the data of an event that a writer may store: what all
readers can follow. [Where Python's stack ends depends on who parses, and from where.]
"""

RESERVED_HEADER = "zeh-"
"""Header names that begin so are the publisher's own stamps; writers drop them."""

TIME_HEADER = "zeh-time"
"""The stamp that says when an event was committed, in ms since 1970."""

NAME = re.compile(r"(?!\.+\Z)[A-Za-z0-9._:@=-]{1,100}")
"""What names of producers and batches look like. [Dots alone mean another path in a URL.]"""

BATCH_INCARNATION = "batch"
"""That of producers named `P#K`, which publish the one batch K."""

PLAIN_INCARNATION = "plain"
"""That of producers that keep no memory of their own and ask the publisher which batch is next."""

REMEDIES = ("acceptGap", "replaceIncarnation", "keepFirst")
"""What an operator may allow once, as refusals name it."""

STAMPS = {
    "zeh-producer": 201,
    "zeh-batch": 19,
    "zeh-partition": 10,
    "zeh-sequence": 19,
    "zeh-time": 19,
}
"""The stamps a publisher puts into a served line, each with the most bytes its value takes."""

STAMP_BYTES = sum(len(f'"{name}":"",') + size for name, size in STAMPS.items())
"""Room that a stored line leaves for its stamps."""

_LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])")
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NOT_JSON_NUMBER = re.compile(rb"(?<![\w\"])-?(?:NaN|Infinity)(?![\w\"])")


class Event(msgspec.Struct, gc=False):
    """The envelope of an event; `data` stays as the bytes it came in, UNSET if it was left out."""

    partition: int | UnsetType | None = UNSET
    headers: dict[str, str | None] | UnsetType | None = UNSET
    data: Raw | UnsetType = UNSET


_decode_event = msgspec.json.Decoder(Event).decode
decode_events = msgspec.json.Decoder(Event).decode_lines
decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_json = msgspec.json.Decoder(Raw).decode


@dataclass(frozen=True, slots=True)
class Interval:
    """The events of one partition up to a checkpoint: the smallest thing that can be delivered.

    `lines`: event lines only, each ended by one b"\\n"; `events`: how many; `cursor`: the
    checkpoint behind them.
    """

    lines: bytes
    events: int
    cursor: str


def checkpoint_cursor(line: bytes, asked: int) -> str | None:
    """The cursor of a checkpoint line; None for any other, malformed too [executors name those].

    Raises PublisherError for a cursor that is neither string nor integer, or of a partition that
    was not asked for.
    """
    try:
        fields = decode_object(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    cursor = _value(fields.get("cursor", Raw(b"null")))
    if cursor is None or cursor == "":
        return None
    if isinstance(cursor, bool) or not isinstance(cursor, str | int):
        raise MalformedLineError(
            f"partition {asked}: a checkpoint's cursor must be a string, got {excerpt(line)}",
            partition=asked,
            body=excerpt(line),
        )
    check_partition(_value(fields.get("partition", Raw(b"null"))), asked, line)
    if cursor == LAST:
        raise MalformedLineError(
            f"partition {asked}: the publisher sent the special cursor {LAST!r} as a checkpoint; "
            f"going on from it would skip events",
            partition=asked,
            body=excerpt(line),
        )
    return str(cursor)


def _value(text: Raw) -> object:
    """A JSON value; what Python cannot hold stays as bytes [broken UTF-8, numbers out of range]."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return bytes(text)


def check_partition(partition: object, asked: int, line: bytes) -> None:
    """Refuse a line of another partition. One that names none belongs to the one asked for."""
    if partition is None or partition is UNSET or (partition == asked and type(partition) is int):
        return
    raise PublisherError(
        f"partition {asked}: the publisher sent a line of partition {partition!r}, which was not "
        f"asked for (is 'partitionCount' right?): {excerpt(line)}",
        partition=asked,
        body=excerpt(line),
    )


def is_unknown(line: bytes) -> bool:
    """A JSON object that is neither event nor checkpoint (rule 5 above)."""
    try:
        keys = decode_object(line).keys()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return "data" not in keys and not ("partition" in keys and keys <= {"partition", "headers"})


def parse_event(line: bytes, asked: int) -> Event | None:
    """One event line by itself; None for an unknown line. The slow way, which names what is wrong.

    Raises MalformedLineError with the line's beginning and the reason.
    """
    try:
        parsed = _decode_event(line)
        if isinstance(parsed.data, Raw):
            bytes(parsed.data).decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise MalformedLineError(
            f"partition {asked}: a line of the feed is not an event: {why_not(line, exc)}: "
            f"{excerpt(line)}; tell the publisher's owner, or put such lines into a column with "
            f"mode=PERMISSIVE",
            partition=asked,
            body=excerpt(line),
        ) from None
    if is_unknown(line):
        return None
    check_partition(parsed.partition, asked, line)
    return parsed


def why_not(line: bytes, error: Exception) -> str:
    """Say in words why a line could not be parsed."""
    if number := _NOT_JSON_NUMBER.search(line):
        return (
            f"{number[0].decode()} is not JSON (RFC 8259); the publisher has to send null or a "
            f"string instead, in Python with json.dumps(…, allow_nan=False)"
        )
    if surrogate := _LONE_SURROGATE.search(line):
        return f"half of a surrogate pair, {surrogate[0].decode(errors='replace')}, is no character"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 (byte {error.start})"
    return str(error)


def excerpt(line: bytes, length: int = 200) -> str:
    """The beginning of some bytes, fit for an error message."""
    text = repr(line[:length].decode(errors="replace"))
    return f"{text}… ({len(line)} bytes)" if len(line) > length else text


def validated_json(text: bytes) -> bytes:
    """JSON text as it can stand in a line: only newlines between tokens change, into spaces.
    Raises ValueError; why, depends on the text alone [not on how deep a parser comes: a dead letter
    would be another one when its batch is repeated].
    """
    check_depth(text)
    try:
        _decode_json(text)
        text.decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise ValueError(f"not JSON: {why_not(text, exc)}") from None
    return text.strip().replace(b"\r", b" ").replace(b"\n", b" ")


def check_depth(text: bytes) -> None:
    """Raises ValueError for JSON that is nested deeper than MAX_DEPTH."""
    if text.count(b"{") + text.count(b"[") <= MAX_DEPTH:
        return
    bare = np.frombuffer(STRING.sub(b"", text), np.uint8) | 0x20  # [ and ] become { and }
    steps = (bare == ord("{")).astype(np.int32) - (bare == ord("}"))
    if (depth := np.cumsum(steps).max(initial=0)) > MAX_DEPTH:
        raise ValueError(f"it is nested {depth} deep; at most {MAX_DEPTH} are allowed")


def may_be_deep(lines: bytes, ends: np.ndarray) -> bool:
    """Whether a line is so long, and has so many brackets, that its data could be nested deeper
    than MAX_DEPTH. `ends`: where each line ends.
    """
    if np.diff(ends, prepend=0).max(initial=0) < 2 * MAX_DEPTH:
        return False
    opened = np.flatnonzero((np.frombuffer(lines, np.uint8) | 0x20) == ord("{"))  # and [
    return bool(np.diff(np.searchsorted(opened, ends), prepend=0).max(initial=0) > MAX_DEPTH)


def event_line(partition: int, headers: Mapping[str, str], data: bytes) -> bytes:
    """An event as it is stored and served: headers always there, sorted, no newline at the end."""
    rendered = msgspec.json.encode(headers, order="sorted") if headers else b"{}"
    return b'{"partition":%d,"headers":%b,"data":%b}' % (partition, rendered, data)


def checkpoint_line(partition: int, cursor: str) -> bytes:
    return b'{"partition":%d,"cursor":%b}\n' % (partition, msgspec.json.encode(cursor))


def count_lines(block: bytes) -> int:
    """Newlines [counted four times as fast as by bytes.count]."""
    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == ord("\n")))


def digest(blocks: Iterable[bytes]) -> str:
    """Tells whether the same events came again: xxh3-128 of their lines, as 32 hex digits."""
    hasher = xxhash.xxh3_128()
    for block in blocks:
        hasher.update(block)
    return hasher.hexdigest()


def partition_of(key: str, partition_count: int) -> int:
    """The partition of a key: xxh3_64 of its UTF-8 text. The same for every writer, for ever."""
    return xxhash.xxh3_64_intdigest(key.encode()) % partition_count
