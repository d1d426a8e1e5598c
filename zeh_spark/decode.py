"""Event lines to Arrow record batches, on executors.

Rule for editors: columns at a time, never a Python object per cell that Arrow could hold. A block
that is in any way unusual is decoded again line by line, which knows the reasons; the usual block
pays nothing for that.

Blocks of about 1 MiB with garbage collection held off: 623k events/s a core against 510k for whole
segments [a block's objects fit the cache, and collecting would walk them again and again].
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import UNSET, Raw

from zeh_spark import wire
from zeh_spark.errors import MalformedLineError

_BLOCK = 1 << 20
_FIELDS = {
    "partition": pa.int32(),
    "headers": pa.map_(pa.string(), pa.string()),
    "data": pa.string(),
}


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

    def batches(self, lines: bytes, partition: int) -> Iterator[pa.RecordBatch]:
        """Record batches of about 1 MiB of lines, in order; together one row for each event."""
        for block in blocks(lines):
            with _without_gc():
                batch = self._batch(block, partition)
            if batch.num_rows:
                yield batch

    def _batch(self, block: bytes, partition: int) -> pa.RecordBatch:
        events = _usual(block, partition)
        if events is not None:
            data = _joined([event.data for event in events])
            if _is_utf8(data):
                return self._record_batch(partition, events, data)
        return self._unusual(block, partition)

    def _unusual(self, block: bytes, partition: int) -> pa.RecordBatch:
        """Line by line. A line of another partition always raises [it may be there twice]."""
        events: list[wire.Event] = []
        corrupt: dict[int, str] = {}
        for line in block.split(b"\n"):
            try:
                event = wire.parse_event(line, partition) if line else None
            except MalformedLineError:
                if not self.permissive:
                    raise
                corrupt[len(events)] = line.decode(errors="replace")
                event = wire.Event()
            if event is not None:
                events.append(event)
        return self._record_batch(partition, events, _nullable(events), corrupt)

    def _record_batch(
        self,
        partition: int,
        events: Sequence[wire.Event],
        data: pa.Array,
        corrupt: dict[int, str] | None = None,
    ) -> pa.RecordBatch:
        arrays, fields = [], []
        for name in self.columns:
            if name == "partition":
                array = pa.array(np.full(len(events), partition, np.int32))
            elif name == "headers":
                array = _headers(events)
            elif name == "data":
                array = data
            else:
                rows = corrupt or {}
                array = pa.array([rows.get(row) for row in range(len(events))], pa.string())
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


def _usual(block: bytes, partition: int) -> list[wire.Event] | None:
    """The events of a block in which every line is one, with data, of this partition; else None."""
    try:
        events = wire.decode_events(block)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if len(events) != wire.count_lines(block):  # two objects on a line, or one over two lines
        return None
    if not {event.partition for event in events} <= {partition, None, UNSET}:
        return None
    return None if any(event.data is UNSET for event in events) else events


def _joined(values: list[Raw | msgspec.UnsetType]) -> pa.Array:
    """One string array of all values, by their lengths; no value becomes a Python string."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])  # type: ignore[arg-type]  # none is UNSET
    text = b"".join(values)  # type: ignore[arg-type]  # Raw is a buffer, which its stub does not say
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(text))


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


def _headers(events: Sequence[wire.Event]) -> pa.Array:
    """Absent, null and empty headers all mean none: an empty map."""
    each = [event.headers or {} for event in events]
    offsets = np.zeros(len(each) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, each), np.int32, len(each)), out=offsets[1:])
    keys = _repeated(list(chain.from_iterable(each)), len(each))
    values = pa.array(list(chain.from_iterable(map(dict.values, each))), pa.string())
    return pa.MapArray.from_arrays(pa.array(offsets), keys, values)


def _repeated(names: list[str], events: int) -> pa.Array:
    """Names of headers: nearly always the same ones in each event, and then made but once."""
    first = names[: len(names) // events] if events else []
    if first * events != names:
        return pa.array(names, pa.string())
    return pa.array(first, pa.string()).take(np.tile(np.arange(len(first)), events))


@contextmanager
def _without_gc() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
