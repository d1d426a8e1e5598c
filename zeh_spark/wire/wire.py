"""The ZeroEventHub wire format: bytes to lines to events and checkpoints, and back.

Pure: no socket, clock, Spark or SQL. Runs everywhere: driver, executors, publisher.

Rule for editors: bytes in, values out, one error type whatever the bytes (`MalformedLineError`).
Lines end at b"\\n" and nowhere else: U+2028, U+0085 and form feed are legal inside a JSON string.
The first of these rules that applies says what a line is (spec "Response", and what real publishers
send):

1. Only whitespace: nothing.
2. `cursor` is a non-empty string or an integer: a checkpoint. It is one even if the line also has
   `data`, as in every reference client.
3. `data` is there, whatever its value: an event.
4. Only `partition` and perhaps `headers`: an event without data. A Go publisher omits empty data.
5. Any other JSON object: unknown, left out and counted. Later versions of the protocol may add
   lines.
6. Anything else: malformed.

Envelope keys that are written with JSON escapes are not recognized. To find them, the driver would
have to parse every event.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, Raw, UnsetType

from zeh_spark.errors import MalformedLineError, PublisherError

FIRST = "_first"
LAST = "_last"
ALL_HEADERS = "_all"
CONTENT_TYPE = "application/x-ndjson"

CONSUMER_HEADER = "ZEH-Consumer"
"""The header of a request in which a reader tells its identity (see `store.cursor_sets`)."""

SUBSET_CONSUMER = "subset:"
"""How the identity of a reader begins that reads only the partitions of its first request."""

MAX_LINE = 65_535
"""Maximum bytes of a line, without its newline. The Go client stops there without an error."""

MAX_DEPTH = 500
"""Maximum depth of arrays and objects in the data of an event that a writer may store.

All readers can parse this depth. Rejected: no limit, because the depth at which Python's stack ends
depends on the parser and on its callers.
"""

RESERVED_HEADER = "zeh-"
"""The beginning of the names of the publisher's own stamps. Writers drop such headers."""

TIME_HEADER = "zeh-time"
"""The stamp that says when an event was committed, in ms since 1970."""

NAME = re.compile(r"(?!\.+\Z)[A-Za-z0-9._:@=-]{1,100}")
"""The form of names of producers and batches. A name of dots only means another path in a URL."""

BATCH_INCARNATION = "batch"
"""The incarnation of producers named `P#K`, which publish the one batch K."""

PLAIN_INCARNATION = "plain"
"""The incarnation of producers without memory, which ask the publisher which batch is next."""

REMEDIES = ("acceptGap", "replaceIncarnation", "keepFirst")
"""The names of the overrides that an operator may set once, as refusals have them."""

STARTING = "startingSequence"
"""The parameter that says with which numbers a new producer begins, like "0:1000,3:5"."""

SPLIT_BY = "schemaVersion"
"""The parameter with the version of a feed's schema by which a batch is split: see `BatchCall`."""

STAMPS = {
    "zeh-producer": 201,
    "zeh-batch": 19,
    "zeh-partition": 10,
    "zeh-sequence": 19,
    "zeh-time": 19,
}
"""The stamps that a publisher adds to a line, each with the maximum bytes of its value."""

STAMP_BYTES = sum(len(f'"{name}":"",') + size for name, size in STAMPS.items())
"""Room that a stored line leaves for its stamps."""

_LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])")
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NOT_JSON_NUMBER = re.compile(rb"(?<![\w\"])-?(?:NaN|Infinity)(?![\w\"])")


class Event(msgspec.Struct, gc=False):
    """The envelope of an event. `data` is the bytes that came, UNSET if it was left out."""

    partition: int | UnsetType | None = UNSET
    headers: dict[str, str | None] | UnsetType | None = UNSET
    data: Raw | UnsetType = UNSET


_decode_event = msgspec.json.Decoder(Event).decode
decode_events = msgspec.json.Decoder(Event).decode_lines
decode_object = msgspec.json.Decoder(dict[str, Raw]).decode


@dataclass(frozen=True, slots=True)
class Interval:
    """The events of one partition up to a checkpoint, the smallest unit that can be delivered.

    Args:
        lines: event lines only, each ended by one b"\\n".
        digest: the sum of the lines' hashes (see `hashes.sum_of`).
    """

    lines: bytes
    events: int
    cursor: str
    digest: int = 0


@dataclass(frozen=True, slots=True)
class Loss(Interval):
    """The events before this cursor were removed unread. It has no events itself."""


def checkpoint_cursor(line: bytes, asked: int) -> str | None:
    """Return the cursor of a checkpoint line; None for any other line.

    None also for a malformed line: executors decode it, and raise the error. Raises
    MalformedLineError if the cursor is neither string nor integer, or `_last`; PublisherError if
    the checkpoint is of another partition than `asked`.
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
            f"partition {asked}: a checkpoint's cursor must be a string, got {excerpt(line)}. Tell "
            f"the publisher's owner",
            partition=asked,
            body=excerpt(line),
        )
    check_partition(_value(fields.get("partition", Raw(b"null"))), asked, line)
    if cursor == LAST:
        raise MalformedLineError(
            f"partition {asked}: the publisher sent the special cursor {LAST!r} as a checkpoint, "
            f"and to continue from it would skip events. Tell the publisher's owner",
            partition=asked,
            body=excerpt(line),
        )
    return str(cursor)


def _value(text: Raw) -> object:
    """Return a JSON value; broken UTF-8 and numbers that Python cannot hold stay as bytes."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return bytes(text)


def check_partition(partition: object, asked: int, line: bytes) -> None:
    """Raise PublisherError for a line of another partition than the one asked for.

    A line that names no partition belongs to the one asked for.
    """
    if partition is None or partition is UNSET or (partition == asked and type(partition) is int):
        return
    raise PublisherError(
        f"partition {asked}: the publisher sent a line of partition {partition!r}, which was not "
        f"asked for: {excerpt(line)}. Check 'partitionCount'",
        partition=asked,
        body=excerpt(line),
        anchor="a-line-of-a-partition-that-was-not-asked-for",
    )


def is_unknown(line: bytes) -> bool:
    """Return whether a line is a JSON object but neither event nor checkpoint (rule 5 above)."""
    try:
        keys = decode_object(line).keys()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return "data" not in keys and not ("partition" in keys and keys <= {"partition", "headers"})


def parse_event(line: bytes, asked: int) -> Event | None:
    """Return the event of one line; None for an unknown line.

    This is the slow way, which finds what is wrong with a line. Raises MalformedLineError, with the
    reason and the line's beginning, if it is no event; PublisherError if it is of another partition
    than `asked`.
    """
    try:
        parsed = _decode_event(line)
        if isinstance(parsed.data, Raw):
            bytes(parsed.data).decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise MalformedLineError(
            f"partition {asked}: a line of the feed is not an event: {why_not(line, exc)}: "
            f"{excerpt(line)}. Tell the publisher's owner, or put such lines into a column with "
            f"mode=PERMISSIVE",
            partition=asked,
            body=excerpt(line),
        ) from None
    if is_unknown(line):
        return None
    check_partition(parsed.partition, asked, line)
    return parsed


def why_not(line: bytes, error: Exception) -> str:
    """Return in words why a line could not be parsed. The text becomes part of dead letters."""
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
    """Return the beginning of some bytes as a text for an error message."""
    text = repr(line[:length].decode(errors="replace"))
    return f"{text}… ({len(line)} bytes)" if len(line) > length else text


def event_line(partition: int, headers: Mapping[str, str], data: bytes) -> bytes:
    """Return an event as it is stored and served: with sorted headers, without a newline."""
    rendered = msgspec.json.encode(headers, order="sorted") if headers else b"{}"
    return b'{"partition":%d,"headers":%b,"data":%b}' % (partition, rendered, data)


def by_partition(cursors: Mapping[int, str]) -> dict[str, str]:
    """Return cursors by the text of their partition's number, as requests and offsets have them."""
    return {str(partition): cursor for partition, cursor in cursors.items()}


def checkpoint_line(partition: int, cursor: str) -> bytes:
    return b'{"partition":%d,"cursor":%b}\n' % (partition, msgspec.json.encode(cursor))
