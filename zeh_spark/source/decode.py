"""Event lines to Arrow record batches, on executors.

Rule for editors: columns at a time, never a Python object per cell that Arrow could hold. A block
that is in any way unusual is decoded again line by line, which knows the reasons; the usual block
pays nothing for that.

Blocks of about 1 MiB with garbage collection held off: 623k events/s a core against 510k for whole
segments [a block's objects fit the cache, and collecting would walk them again and again].
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Raw, UnsetType

from zeh_spark.errors import MalformedLineError
from zeh_spark.protocol import wire
from zeh_spark.protocol.feed_identity import HEADER, FeedIdentity
from zeh_spark.protocol.stamps import TIME_DIGITS, parse_stamped, stamp

T = TypeVar("T")

_BLOCK = 1 << 20
_MOST_NAMES = 64
"""Blocks with more different header names than this have their headers made one by one."""
_FIELDS = {
    "partition": pa.int32(),
    "headers": pa.map_(pa.string(), pa.string()),
    "data": pa.string(),
}


class _Line(msgspec.Struct, gc=False):
    """An event as `wire.Event`, its headers as the bytes that they came in."""

    partition: int | UnsetType | None = UNSET
    headers: Raw | UnsetType = UNSET
    data: Raw | UnsetType = UNSET


_decode_lines = msgspec.json.Decoder(_Line).decode_lines


@dataclass(frozen=True, slots=True)
class Decoder:
    """What a query wants from the lines: its columns in order, and what to do with lines that are
    no events.

    `columns` are names out of partition, headers, data and `corrupt`, the corrupt-record column.
    `permissive` puts bad lines there; else the first bad line raises MalformedLineError. Travels to
    executors.
    """

    columns: tuple[str, ...]
    corrupt: str
    permissive: bool

    def batches(
        self, lines: bytes, partition: int, feed: FeedIdentity | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Return record batches of about 1 MiB of lines, in order; together one row for each event.

        Args:
            lines: event lines of one partition.
            partition: its number.
            feed: the identity whose epochs' ids the events get as the header `zeh-feed`; None adds
                no header.
        """
        if "headers" not in self.columns:
            feed = None
        for block in blocks(lines):
            with _without_gc():
                batch = self._batch(block, partition, feed)
            if batch.num_rows:
                yield batch

    def _batch(self, block: bytes, partition: int, feed: FeedIdentity | None) -> pa.RecordBatch:
        lines = _usual(block, partition)
        if lines is not None:
            data = _joined([line.data for line in lines])
            headers = _cut_headers([line.headers or b"{}" for line in lines], feed)
            if headers is None and (events := _decoded(wire.decode_events, block)):
                headers = _headers(events) if stamp(events, feed) else None
            if headers is not None and _is_utf8(data):
                return self._record_batch(partition, headers, data)
        return self._unusual(block, partition, feed)

    def _unusual(self, block: bytes, partition: int, feed: FeedIdentity | None) -> pa.RecordBatch:
        """Line by line. A line of another partition always raises [it may be there twice]."""
        events: list[wire.Event] = []
        corrupt: dict[int, str] = {}
        for line in block.split(b"\n"):
            try:
                event = parse_stamped(line, partition, feed) if line else None
            except MalformedLineError:
                if not self.permissive:
                    raise
                corrupt[len(events)] = line.decode(errors="replace")
                event = wire.Event()
            if event is not None:
                events.append(event)
        return self._record_batch(partition, _headers(events), _nullable(events), corrupt)

    def _record_batch(
        self,
        partition: int,
        headers: pa.Array,
        data: pa.Array,
        corrupt: Mapping[int, str] = MappingProxyType({}),
    ) -> pa.RecordBatch:
        arrays, fields = [], []
        for name in self.columns:
            if name == "partition":
                array = pa.array(np.full(len(data), partition, np.int32))
            elif name == "headers":
                array = headers
            elif name == "data":
                array = data
            else:
                array = pa.array([corrupt.get(row) for row in range(len(data))], pa.string())
            arrays.append(array)
            fields.append(pa.field(name, _FIELDS.get(name, pa.string())))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def blocks(lines: bytes) -> Iterator[bytes]:
    """Cut lines into blocks of about 1 MiB, at newlines only."""
    begin = 0
    while begin < len(lines):
        end = lines.rfind(b"\n", begin, begin + _BLOCK) + 1 or lines.find(b"\n", begin) + 1
        yield lines[begin : end or len(lines)]
        begin = end or len(lines)


def _usual(block: bytes, partition: int) -> list[_Line] | None:
    """A block in which every line is an event, with data, of this partition; else None."""
    lines = _decoded(_decode_lines, block)
    if lines is None or len(lines) != wire.count_lines(block):  # two on a line, or one over two
        return None
    if not {line.partition for line in lines} <= {partition, None, UNSET}:
        return None
    return lines if {type(line.data) for line in lines} <= {Raw} else None


def _decoded(decode: Callable[[bytes], T], block: bytes) -> T | None:
    try:
        return decode(block)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _joined(values: list[Raw | UnsetType]) -> pa.StringArray:
    """One string array of all values, by their lengths; no value becomes a Python string."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])  # type: ignore[arg-type]  # none is UNSET
    return _strings(offsets, b"".join(values))  # type: ignore[arg-type]  # Raw is a buffer, which its stub does not say


def _strings(offsets: np.ndarray, text: bytes) -> pa.StringArray:
    """The stretches of a text between neighbouring offsets, int32."""
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(text))


def _is_utf8(strings: pa.Array) -> bool:
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _nullable(events: Sequence[wire.Event]) -> pa.Array:
    return pa.array(
        [bytes(event.data) if isinstance(event.data, Raw) else None for event in events],
        pa.binary(),
    ).cast(pa.string())


def _cut_headers(objects: Sequence[Raw | bytes], feed: FeedIdentity | None) -> pa.MapArray | None:
    """Headers without a Python object for each: 0.5 µs an event with seven, against 1.4 µs.

    `objects` are JSON. Where they hold no backslash, quotation marks are what strings begin and end
    with: every fourth stretch between two of them is a name, every other one in between a value.
    None for what is not so simple: escapes, blanks, values that are no strings, a name twice; and
    with several epochs an event without a valid `zeh-time`.

    The entry `zeh-feed` is taken, like the others, from stretches of one text: its name and the
    epochs' ids are appended to it.
    """
    text = b"".join(objects)
    if b"\\" in text:
        return None
    characters = np.frombuffer(text, np.uint8)
    ends = np.cumsum(np.fromiter(map(len, objects), np.int64, len(objects)))
    marks = np.flatnonzero(characters == ord('"'))
    offsets = np.concatenate(([0], np.searchsorted(marks, ends)))
    if (
        (offsets % 4).any()
        or (characters[ends - 1] != ord("}")).any()
        or (marks[2::4] - marks[1::4] != len('":')).any()
    ):
        return None
    marks[::2] += 1
    added = [each.encode() for each in (HEADER, *(e.id for e in feed.epochs))] if feed else []
    stretches = _strings(
        np.concatenate((marks, np.cumsum([len(text), *map(len, added)]))).astype(np.int32),
        b"".join((text, *added)),
    )
    names, values = (np.arange(first, len(marks), 4) for first in (0, 2))
    offsets //= 4
    if feed:  # one entry more at each event's end
        names = np.insert(names, offsets[1:], len(marks))
        values = np.insert(values, offsets[1:], len(marks) + 1)
        offsets += np.arange(len(offsets))
    codes = (named := stretches.take(pa.array(names))).dictionary_encode()
    if not (_is_utf8(codes.dictionary) and _once(codes, offsets)):
        return None
    if feed and len(feed.epochs) > 1:
        times = stretches.take(pa.array(values[_is_time(codes)]))
        epochs = _epochs(times, feed)
        if epochs is None or len(epochs) != len(objects):  # each event has one at most
            return None
        values[offsets[1:] - 1] += epochs
    found = stretches.take(pa.array(values))
    if not _is_utf8(found):
        return None
    return pa.MapArray.from_arrays(pa.array(offsets.astype(np.int32)), named, found)


def _once(names: pa.DictionaryArray, offsets: np.ndarray) -> bool:
    """No event has a header twice."""
    different, codes = len(names.dictionary), names.indices.to_numpy()
    if different and (offsets == np.arange(len(offsets)) * different).all():
        each = codes.reshape(-1, different)
        if (each == np.arange(different)).all():  # usually all have the same, in one order
            return True
    event = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return different <= _MOST_NAMES and bool(
        np.bincount(event * different + codes, minlength=1).max() <= 1
    )


def _is_time(names: pa.DictionaryArray) -> np.ndarray:
    """Which of the headers are `zeh-time`."""
    code = names.dictionary.index(wire.TIME_HEADER).as_py()
    return np.asarray(names.indices.to_numpy() == code)


def _epochs(times: pa.StringArray, feed: FeedIdentity) -> np.ndarray | None:
    """The numbers of the epochs in which events were committed; None if a time is not valid."""
    valid = pc.and_(pc.ascii_is_decimal(times), pc.less_equal(pc.binary_length(times), TIME_DIGITS))
    if not pc.all(valid, min_count=0).as_py():
        return None
    begins = np.array([each.time for each in feed.epochs])
    committed = times.cast(pa.int64()).to_numpy()
    return np.asarray(np.searchsorted(begins, committed, side="right") - 1)


def _headers(events: Sequence[wire.Event]) -> pa.Array:
    """Absent, null and empty headers all mean none: an empty map."""
    each = [event.headers or {} for event in events]
    offsets = np.zeros(len(each) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, each), np.int32, len(each)), out=offsets[1:])
    names = pa.array(list(chain.from_iterable(each)), pa.string())
    values = pa.array(list(chain.from_iterable(map(dict.values, each))), pa.string())
    return pa.MapArray.from_arrays(pa.array(offsets), names, values)


@contextmanager
def _without_gc() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
