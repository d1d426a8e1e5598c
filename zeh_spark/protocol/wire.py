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

_BOM = b"\xef\xbb\xbf"
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
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
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


class PageScanner:
    """Cuts the body of one answer into intervals, as its bytes arrive.

    It looks for checkpoints by searching bytes and parses only the lines that may be one; events
    are counted, not parsed. The same bytes give the same intervals however the network cut them.
    `ignored` counts unknown lines, `unknown` is the first of them.
    """

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.ignored = 0
        self.unknown = b""
        self.checkpoints = 0
        self.tail_events = 0
        self.tail_bytes = 0
        self._tail: list[bytes] = []
        self._partial: list[bytes] = []
        self._last_line = b""
        self._started = False

    @property
    def held_bytes(self) -> int:
        """Bytes that no checkpoint has closed yet."""
        return self.tail_bytes + sum(map(len, self._partial))

    @property
    def tail(self) -> bytes:
        """Event lines behind the last checkpoint."""
        return b"".join(self._tail)

    def feed(self, data: bytes) -> list[Interval]:
        """Take the next bytes of the body; returns the intervals that they complete."""
        end = data.rfind(b"\n") + 1
        if not end:
            self._partial.append(data)
            return []
        block = b"".join((*self._partial, memoryview(data)[:end]))
        self._partial = [data[end:]]
        return self._scan(block)

    def close(self) -> list[Interval]:
        """The body ended as its framing promised.

        A last line that is not JSON, blank lines aside, is a publisher's cry for help.

        Raises PublisherError for such a line; intervals handed out before stand.
        """
        rest = b"".join(self._partial)
        self._partial = []
        if rest.strip():
            self._check_last(rest)
            return self._scan(rest + b"\n")
        self._check_last(self._last_line)
        return []

    def _check_last(self, line: bytes) -> None:
        line = line.strip()
        if not line.removeprefix(_BOM):
            return
        try:
            _decode_object(line.removeprefix(_BOM))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
            raise PublisherError(
                f"partition {self.partition}: the publisher ended its answer with a line that is "
                f"not JSON ({why_not(line, exc)}), which is how it reports an error after the "
                f"answer has begun: {excerpt(line)}",
                partition=self.partition,
                body=excerpt(line),
            ) from None

    def _scan(self, block: bytes) -> list[Interval]:
        """Cut whole lines at their checkpoints."""
        if not self._started:
            block = block.removeprefix(_BOM)
            self._started = True
        self._last_line = _last_line(block) or self._last_line
        intervals = []
        begin = search = 0
        while (found := block.find(b'"cursor"', search)) >= 0:
            line_begin = block.rfind(b"\n", begin, found) + 1 or begin
            search = block.index(b"\n", found) + 1
            cursor = checkpoint_cursor(block[line_begin:search], self.partition)
            if cursor is None:
                continue
            self._add_events(block[begin:line_begin])
            self.checkpoints += 1
            intervals.append(Interval(self.tail, self.tail_events, cursor))
            self._tail, self.tail_events, self.tail_bytes = [], 0, 0
            begin = search
        self._add_events(block[begin:])
        return intervals

    def _add_events(self, lines: bytes) -> None:
        if not lines:
            return
        each = lines.split(b"\n")
        odd = len([line for line in each if b'"data"' not in line])
        if odd > 1 or b"\r" in lines:  # 1: what split puts behind the last newline
            each = self._only_events(each)
            lines = b"".join([line + b"\n" for line in each])
            events = len(each)
        else:
            events = len(each) - 1
        if events:
            self._tail.append(lines)
            self.tail_events += events
            self.tail_bytes += len(lines)

    def _only_events(self, lines: list[bytes]) -> list[bytes]:
        kept = []
        for line in lines:
            line = line.rstrip(b"\r")  # and no more: other blocks keep the spaces of such lines
            if not line.strip():
                continue
            if b'"data"' in line or not is_unknown(line):
                kept.append(line)
            else:
                self.ignored += 1
                self.unknown = self.unknown or line
        return kept


def _last_line(block: bytes) -> bytes:
    """The last line that is not blank."""
    last = block[block.rfind(b"\n", 0, len(block) - 1) + 1 :].strip()
    return last or block.rstrip().rpartition(b"\n")[2]


def checkpoint_cursor(line: bytes, asked: int) -> str | None:
    """The cursor of a checkpoint line; None for any other, malformed too [executors name those].

    Raises PublisherError for a cursor that is neither string nor integer, or of a partition that
    was not asked for.
    """
    try:
        fields = _decode_object(line)
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
        keys = _decode_object(line).keys()
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
