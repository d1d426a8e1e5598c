"""The newest events of a feed, as text for a page.

Nothing in an event is trusted: its line is shown as text, cut off at a length. Whatever is no event
is shown, too.

Rule for editors: a look reads the newest few chunks, one after the other, and stops as soon as
there are enough events, or enough bytes. Runs in the publisher's worker threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

import msgspec
from msgspec import Raw

from zeh_spark.service.console.text import visible
from zeh_spark.service.reads.reading import Reading
from zeh_spark.service.store.interface import Store
from zeh_spark.service.store.log import Chunk, Log

EVENTS, CHUNKS, BYTES = 25, 25, 4 << 20
"""Most events of a page, and most chunks and bytes of lines that are read for them."""

DATA_CHARACTERS, HEADER_CHARACTERS, HEADERS = 1_000, 200, 20
"""Characters of an event's data and of a header that are shown, and headers of an event."""


@dataclass(frozen=True, slots=True)
class ShownEvent:
    """An event as it is shown. `letter` is what a dead letter says, by names; None for others."""

    chunk: Chunk
    sequence: int
    headers: Sequence[tuple[str, str]]
    data: str
    size: int
    is_cut: bool
    letter: Mapping[str, str] | None


def newest(store: Store, feed: str, partition: int | None, most: int) -> list[ShownEvent]:
    """Return the newest events of a feed, the newest first."""
    reading = Reading(store, feed, ())
    return next(reading.parts([*islice(_events(reading, partition), most)] for _ in "1"))


def _events(reading: Reading, partition: int | None) -> Iterator[ShownEvent]:
    for chunk in [*_newest_chunks(reading.log(), partition)]:  # to read one may end the snapshot
        (lines,) = reading.lines([chunk])
        end = len(lines)
        for back in range(1, chunk.events + 1):
            begin = lines.rfind(b"\n", 0, end - 1) + 1
            sequence = chunk.sequence + chunk.events - back
            yield _shown(chunk, sequence, lines[begin:end].rstrip(b"\n"))
            end = begin


def in_batches(events: Iterable[ShownEvent]) -> list[tuple[Chunk, list[ShownEvent]]]:
    """Return events, in their order, with the chunks that they are in."""
    return [(chunk, list(some)) for chunk, some in groupby(events, lambda each: each.chunk)]


def _newest_chunks(log: Log, partition: int | None) -> Iterator[Chunk]:
    """Yield the newest chunks, the newest first, until they have BYTES."""
    upto, left = log.state.head, BYTES
    if partition is None:
        chunks = reversed(log.scan(max(0, upto - CHUNKS), upto, CHUNKS))
    else:
        chunks = _back_from(log, partition, upto)
    for chunk in chunks:
        yield chunk
        left -= chunk.size
        if left < 0:
            return


def _back_from(log: Log, partition: int, upto: int) -> Iterator[Chunk]:
    for _ in range(CHUNKS):
        last = log.last([partition], upto).get(partition)
        if last is None:
            return
        upto = last.g - 1
        yield from log.scan(upto, last.g, 1)


class _Event(msgspec.Struct):
    data: Raw
    headers: dict[str, str] = {}


_event = msgspec.json.Decoder(_Event).decode


def _shown(chunk: Chunk, sequence: int, line: bytes) -> ShownEvent:
    try:
        event = _event(line)
        headers, data = list(event.headers.items()), bytes(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        headers, data = [], line
    shown = [
        (visible(name, HEADER_CHARACTERS), visible(value, HEADER_CHARACTERS))
        for name, value in headers[:HEADERS]
    ]
    is_cut = len(headers) > HEADERS or any(
        max(map(len, each)) > HEADER_CHARACTERS for each in headers
    )
    return ShownEvent(
        chunk, sequence, shown, _text(data), len(line),
        is_cut or len(data.decode("utf-8", "replace")) > DATA_CHARACTERS, _letter(data),
    )  # fmt: skip


def _text(data: bytes) -> str:
    beginning = data[: 4 * DATA_CHARACTERS]  # a character has at most 4 bytes
    return visible(beginning.decode("utf-8", "backslashreplace"), DATA_CHARACTERS)


class _Whole(msgspec.Struct):
    reason: str
    producer: str
    batch: int
    row: dict[str, Raw] | None


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    part: int
    parts: int
    text: str


_whole, _part = msgspec.json.Decoder(_Whole).decode, msgspec.json.Decoder(_Part).decode


def _letter(data: bytes) -> Mapping[str, str] | None:
    """Return what a dead letter says (see `wire.dead_letters`); None for another event."""
    try:
        whole = _whole(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _letter_part(data)
    row = whole.row or {}
    given = next((row[each] for each in ("data", "base64", "unfit") if each in row), b"")
    return {
        "reason": visible(whole.reason, DATA_CHARACTERS),
        "producer": visible(whole.producer, HEADER_CHARACTERS),
        "batch": str(whole.batch),
        "key": _text(bytes(row.get("key", b"")))[:HEADER_CHARACTERS],
        "data": _text(bytes(given)),
        "part": "",
    }


def _letter_part(data: bytes) -> Mapping[str, str] | None:
    try:
        part = _part(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    which = f"{part.part} of {part.parts}"
    return {"part": which, "data": visible(part.text, DATA_CHARACTERS)}
