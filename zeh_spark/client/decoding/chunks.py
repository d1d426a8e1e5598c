"""Decode chunks, as they are stored, to Arrow record batches.

A stored line is canonical (see `wire.served_lines`), so it is cut and not parsed: the first
`},"data":` ends its headers, because no raw quotation mark stands inside a string. The stamps are
those of the chunk, and are made for all its lines at once.

Rule for editors: the rows are those that the driver's way gives. A group that is unusual in any way
is rendered as the publisher renders it, and decoded as the driver's way decodes it. A law in the
tests compares the two.

Runs in tasks; pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from zeh_spark.client.decoding.header_columns import columns_of, times_of, without
from zeh_spark.client.decoding.lines import Decoder, cut_strings, each_once, is_utf8, strings
from zeh_spark.client.http.direct_client import FetchedGroup
from zeh_spark.errors import PublisherError
from zeh_spark.wire import wire
from zeh_spark.wire.event_key import HEADER as KEY_HEADER
from zeh_spark.wire.event_origin import HEADER as ORIGIN
from zeh_spark.wire.feed_identity import HEADER as FEED
from zeh_spark.wire.feed_identity import FeedIdentity
from zeh_spark.wire.served_lines import Block, renderer, stamps
from zeh_spark.wire.stamp_columns import KEY, MAX_TIME, POSITION
from zeh_spark.wire.upload_format import CHUNK_BYTES

_DATA = b'},"data":'
_NEWLINE, _BRACE = ord("\n"), ord("}")
_STAMPS = ("zeh-producer", "zeh-batch", "zeh-partition", wire.TIME_HEADER, "zeh-sequence")
"""The names of the stamps, in the order in which they are served."""

_OF_WRITERS = {ORIGIN, KEY_HEADER}
"""The reserved headers that a stored line may have, because a writer adds them."""


@dataclass(frozen=True, slots=True)
class ChunkDecoder:
    """Decodes groups of chunks to the columns of a query.

    Args:
        wanted: the headers to ask for (`SourceOptions.requested_headers`).
        feed: the identity whose epochs' ids the events get as the header `zeh-feed`; None adds
            none.
    """

    decoder: Decoder
    wanted: tuple[str, ...]
    feed: FeedIdentity | None

    def batches(self, group: FetchedGroup) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group of chunks, in their order.

        Raises PublisherError if a frame is not what its header says, and MalformedLineError for a
        line that is no event if the mode is FAILFAST.
        """
        lines = unpacked(group)
        usual = _Lines.of(lines, newlines_of(lines, group), group.headers)
        batch = self._usual(usual, group) if usual else None
        if batch is not None:
            yield batch
        else:
            yield from self._unusual(lines, group)

    def _usual(self, lines: _Lines, group: FetchedGroup) -> pa.RecordBatch | None:
        if self._shows_headers and self.wanted != (wire.ALL_HEADERS,):
            return None
        own: _OwnHeaders | None = None
        if self._shows_headers or KEY.name in self.decoder.columns:
            own = lines.headers()
            if own is None:
                return None
        headers: pa.Array | None = None
        if "headers" in self.decoder.columns:
            headers = self._headers(lines, group, own)
        data = lines.data()
        stamps = self._columns(group, lines.chunk)
        if stamps is None or not is_utf8(data):
            return None
        if own is not None and KEY.name in self.decoder.columns:
            stamps[KEY.name] = own.keys()
        return self.decoder.record_batch(group.partition, headers, data, stamps)

    @property
    def _shows_headers(self) -> bool:
        """Whether the column `headers` may show any header."""
        return "headers" in self.decoder.columns and bool({*self.wanted} - {*self.decoder.hidden})

    def _headers(self, lines: _Lines, group: FetchedGroup, own: _OwnHeaders | None) -> pa.MapArray:
        """Return what the column `headers` shows."""
        if own is None or not self._shows_headers:
            return _no_headers(lines.count).maps
        if not self.decoder.hidden:
            return self._all_headers(lines, group, own)
        if own.keyed and KEY_HEADER in self.decoder.hidden:
            return without(own.maps, [KEY_HEADER])
        return own.maps

    def _columns(self, group: FetchedGroup, chunk: np.ndarray) -> dict[str, pa.Array] | None:
        """Return the columns of stamps, by name; None if one does not fit its type."""
        chunks = group.headers
        found: dict[str, pa.Array] = {}
        for name in self.decoder.columns:
            if name == "timestamp":
                if (chunks["time"] > MAX_TIME).any():
                    return None
                found[name] = times_of(pa.array(chunks["time"].astype(np.int64)[chunk]))
            elif name == "feed":
                assert self.feed is not None
                ids, epochs = _epochs(self.feed, chunks["time"])
                found[name] = ids.take(pa.array(epochs[chunk]))
            elif name == "producer":
                names = [group.producers[each] for each in chunks["producer"].tolist()]
                found[name] = pa.array(names, pa.string()).take(pa.array(chunk))
            elif name == "storedPartition":
                found[name] = pa.array(chunks["partition"].astype(np.int32)[chunk])
            elif name == "sequence":
                numbers = chunks["sequence"].astype(np.int64)[chunk]
                found[name] = pa.array(numbers + _place(chunk, len(chunks)))
            elif name == "batch":
                found[name] = pa.array(chunks["batch"].astype(np.int64)[chunk])
            elif name == POSITION:
                found[name] = pa.array(chunks["g"].astype(np.int64)[chunk])
        return found

    def _all_headers(self, lines: _Lines, group: FetchedGroup, own: _OwnHeaders) -> pa.MapArray:
        """Return the headers of all lines with their stamps."""
        names, values, begins = own.maps.keys, own.maps.items, own.maps.offsets.to_numpy()
        counts = np.diff(begins) + len(_STAMPS) + (self.feed is not None)
        offsets = np.concatenate(([0], np.cumsum(counts)))
        first, last = offsets[:-1], offsets[1:] - 1
        of_name = np.empty(offsets[-1], np.int32)
        of_value = np.empty(offsets[-1], np.int32)
        shifts = np.repeat(first + len(_STAMPS) - begins[:-1], np.diff(begins))
        places = np.arange(len(names)) + shifts
        of_name[places] = of_value[places] = np.arange(len(names))
        columns = self._stamps(group, lines.chunk)
        base = len(names)
        for number, (array, index) in enumerate(columns):
            place = first + number if number < len(_STAMPS) else last
            of_name[place] = len(names) + number
            of_value[place] = base + index
            base += len(array)
        added = pa.array([*_STAMPS, FEED][: len(columns)])
        return pa.MapArray.from_arrays(
            pa.array(offsets.astype(np.int32)),
            pa.concat_arrays([names, added]).take(pa.array(of_name)),
            pa.concat_arrays([values, *(array for array, _ in columns)]).take(pa.array(of_value)),
        )

    def _stamps(
        self, group: FetchedGroup, chunk: np.ndarray
    ) -> list[tuple[pa.StringArray, np.ndarray]]:
        chunks = group.headers
        producers, of_chunk = np.unique(chunks["producer"], return_inverse=True)
        each_line = np.arange(len(chunk))
        sequences = chunks["sequence"][chunk] + _place(chunk, len(chunks))
        found = [
            (pa.array([group.producers[each] for each in producers.tolist()]), of_chunk[chunk]),
            (_texts(chunks["batch"]), chunk),
            (_texts(chunks["partition"]), chunk),
            (_texts(chunks["time"]), chunk),
            (_texts(sequences), each_line),
        ]
        if self.feed is not None:
            ids, epochs = _epochs(self.feed, chunks["time"])
            found.append((ids, epochs[chunk]))
        return found

    def _unusual(self, lines: bytes, group: FetchedGroup) -> Iterator[pa.RecordBatch]:
        """Decode chunk by chunk, as the driver's way does."""
        render = renderer(self.wanted)
        begin = 0
        for each in group.headers:
            end = begin + int(each["size"])
            yield from self.decoder.batches(
                render(_block(each, lines[begin:end], group), group.partition),
                group.partition,
                self.feed,
                int(each["g"]),
            )
            begin = end


def _epochs(feed: FeedIdentity, times: np.ndarray) -> tuple[pa.StringArray, np.ndarray]:
    """Return the ids of a feed's epochs, and of each time the number of its epoch."""
    begins = [each.time for each in feed.epochs[1:]]
    return pa.array([each.id for each in feed.epochs]), np.searchsorted(begins, times, "right")


def _place(chunk: np.ndarray, chunks: int) -> np.ndarray:
    """Return the place of each line in its chunk, given the chunk of each line."""
    return np.asarray(np.arange(len(chunk)) - np.searchsorted(chunk, np.arange(chunks))[chunk])


def _texts(numbers: np.ndarray) -> pa.StringArray:
    return pa.array(numbers.astype(np.int64)).cast(pa.string())


def _block(header: np.void, lines: bytes, group: FetchedGroup) -> Block:
    """Return a chunk as the publisher renders it."""
    producer = group.producers[int(header["producer"])]
    stored, batch, sequence = (int(header[each]) for each in ("partition", "batch", "sequence"))
    return Block(stored, lines, "", stamps(stored, int(header["time"]), producer, batch), sequence)


def unpacked(group: FetchedGroup) -> bytes:
    """Return the lines of all chunks of a group. Raises PublisherError for a damaged frame."""
    needed = group.headers["size"].astype(np.int64)
    try:
        told = [*map(zstandard.frame_content_size, group.frames)]  # of any size: a peer tells it
        if not (min(told) >= 0 < needed.min() and needed.max() <= CHUNK_BYTES) or (
            sum(told) > 2 * int(needed.sum())
        ):
            raise zstandard.ZstdError("a frame has another size than its chunks")
        sizes = np.array(told, np.int64)
        ends = np.cumsum(sizes)
        begins = (ends - sizes)[group.places["frame"]] + group.places["offset"]
        beyond = begins + needed
        order = np.argsort(begins)
        in_frames = (beyond <= ends[group.places["frame"]]).all()
        if not in_frames or (begins[order[1:]] < beyond[order[:-1]]).any():
            raise zstandard.ZstdError("a chunk is not in its frame, or where another one is")
        if len(group.frames) == 1:
            lines = zstandard.ZstdDecompressor().decompress(group.frames[0], allow_extra_data=False)
        else:
            found = zstandard.ZstdDecompressor().multi_decompress_to_buffer(
                list(group.frames), decompressed_sizes=sizes.astype(np.uint64).tobytes()
            )
            lines = b"".join(found)  # type: ignore[arg-type]  # segments are buffers
    except zstandard.ZstdError as exc:
        raise _damaged(group, exc) from None
    if len(lines) != ends[-1]:
        raise _damaged(group, "the lines have another size")
    if (begins[1:] == beyond[:-1]).all():
        return lines[begins[0] : beyond[-1]]
    places = zip(begins.tolist(), beyond.tolist(), strict=True)
    return b"".join([lines[begin:end] for begin, end in places])


def newlines_of(lines: bytes, group: FetchedGroup) -> np.ndarray:
    """Return where the lines of a group end.

    Raises PublisherError if a chunk has not as many lines as its header says.
    """
    newlines = np.flatnonzero(np.frombuffer(lines, np.uint8) == _NEWLINE)
    ends = np.cumsum(group.headers["size"], dtype=np.int64)
    upto = np.searchsorted(newlines, ends)
    counts = np.diff(upto, prepend=0)
    if (counts != group.headers["events"]).any() or (newlines[upto - 1] + 1 != ends).any():
        raise _damaged(group, "a chunk has another number of lines")
    return newlines


def _damaged(group: FetchedGroup, why: object) -> PublisherError:
    first, last = (int(group.headers["g"][at]) for at in (0, -1))
    return PublisherError(
        f"partition {group.partition}: a chunk of {first} to {last} cannot be unpacked ({why}): "
        f"the publisher's store is damaged. Tell the publisher's owner",
        partition=group.partition,
        anchor="the-store-is-damaged",
    )


class _OwnHeaders(NamedTuple):
    """The headers of lines as they are stored, and whether `zeh-key` is among them."""

    maps: pa.MapArray
    keyed: bool

    def keys(self) -> pa.StringArray:
        """Return the key of each line; NULL if it has none."""
        found = columns_of(self.maps, [KEY.name]) if self.keyed else None
        return found[KEY.name] if found else pa.nulls(len(self.maps), pa.string())


def _no_headers(lines: int) -> _OwnHeaders:
    empty = pa.array([], pa.string())
    offsets = pa.array(np.zeros(lines + 1, np.int32))
    return _OwnHeaders(pa.MapArray.from_arrays(offsets, empty, empty), keyed=False)


@dataclass(frozen=True, slots=True)
class _Lines:
    """The lines of a group of chunks, and where their parts are.

    Attributes:
        characters: the same, as an array of uint8.
        chunk: for each line, the number of its chunk in the group.
        opened: for each line, where its headers begin, at their brace.
        closed: for each line, where they end, behind their brace.
        ends: for each line, where its data ends, at the brace of the line.
    """

    text: bytes
    characters: np.ndarray
    count: int
    chunk: np.ndarray
    opened: np.ndarray
    closed: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, text: bytes, newlines: np.ndarray, chunks: np.ndarray) -> _Lines | None:
        """Return the lines of chunks, given their ends and headers; None if they are unusual."""
        characters = np.frombuffer(text, np.uint8)
        begins = np.concatenate(([0], newlines[:-1] + 1))
        chunk = np.repeat(np.arange(len(chunks)), chunks["events"])
        opened = _headers_open(text, characters, begins, chunks["partition"][chunk])
        if opened is None:
            return None
        closed = _headers_close(characters, opened, newlines)
        if closed is None or (characters[newlines - 1] != _BRACE).any():
            return None
        return cls(text, characters, len(newlines), chunk, opened, closed, newlines - 1)

    def data(self) -> pa.StringArray:
        return self._between(self.closed + len(_DATA) - 1, self.ends)

    def headers(self) -> _OwnHeaders | None:
        """Return the headers of the lines as they are stored; None if they are not simple."""
        if (self.closed - self.opened == 2).all():
            return _no_headers(self.count)
        objects = self._between(self.opened, self.closed)
        ends = np.frombuffer(objects.buffers()[1], np.int32, self.count + 1)[1:]
        text = objects.buffers()[2].to_pybytes()
        cut = cut_strings(np.frombuffer(text, np.uint8), ends)
        if cut is None:
            return None
        marks, offsets = cut
        stretches = strings(np.concatenate((marks, [len(text)])).astype(np.int32), text)
        names, values = (stretches.take(pa.array(np.arange(at, len(marks), 4))) for at in (0, 2))
        codes = names.dictionary_encode()
        if not (is_utf8(codes.dictionary) and each_once(codes, offsets) and is_utf8(values)):
            return None
        reserved = pc.starts_with(codes.dictionary, wire.RESERVED_HEADER)
        of_writers = {*codes.dictionary.filter(reserved).to_pylist()}
        if of_writers - _OF_WRITERS:
            return None
        maps = pa.MapArray.from_arrays(pa.array(offsets.astype(np.int32)), names, values)
        return _OwnHeaders(maps, KEY_HEADER in of_writers)

    def _between(self, begins: np.ndarray, ends: np.ndarray) -> pa.StringArray:
        places = np.empty(2 * self.count + 1, np.int32)
        places[:-1:2], places[1::2], places[-1] = begins, ends, len(self.text)
        return strings(places, self.text).take(pa.array(np.arange(0, 2 * self.count, 2)))


def _headers_open(
    text: bytes, characters: np.ndarray, begins: np.ndarray, partitions: np.ndarray
) -> np.ndarray | None:
    """Return where the headers of each line begin; None if a line begins in another way."""
    opened = np.empty(len(begins), np.int64)
    for partition in np.unique(partitions).tolist():
        prefix = b'{"partition":%d,"headers":{' % partition
        here = np.flatnonzero(partitions == partition)
        if len(here) == len(begins):
            if text.count(b"\n" + prefix) + text.startswith(prefix) != len(begins):
                return None
        else:
            if begins[here[-1]] + len(prefix) > len(text):
                return None
            found = characters[begins[here][:, None] + np.arange(len(prefix))]
            if (found != np.frombuffer(prefix, np.uint8)).any():
                return None
        opened[here] = begins[here] + len(prefix) - 1
    return opened


def _headers_close(
    characters: np.ndarray, opened: np.ndarray, newlines: np.ndarray
) -> np.ndarray | None:
    """Return where the headers of each line end; None if a line has no data behind them."""
    places = np.flatnonzero(characters == _BRACE)
    places = places[places + len(_DATA) <= len(characters)]
    for number, character in enumerate(_DATA):
        if number:
            places = places[characters[places + number] == character]
    which = np.searchsorted(places, opened)
    if len(places) == 0 or which[-1] == len(places):
        return None
    closed = places[which] + 1
    if (closed + len(_DATA) - 1 >= newlines - 1).any():
        return None
    return closed
