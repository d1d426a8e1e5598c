"""Checks an upload before the store keeps it. It has no side effects and runs in worker threads.

The publisher trusts no client. What it later serves by cutting bytes must have exactly the form
on which `rendering` relies. A line is valid if

1. it begins with `{"partition":P,"headers":{`, where P is the chunk's partition in the feed;
2. it is one JSON object of partition, headers and data and nothing else, without repeated members
   and without blanks: then its length is that of its parts;
3. its headers are strings with string values, and none of them a stamp's; of the reserved names
   only `zeh-origin`, which has its form, and `zeh-key`, which has its length, are allowed; its data
   is not null;
4. it is UTF-8, has no carriage return, and is short enough to be stamped.

The rules are checked over a whole chunk at once. Only a chunk that breaks them is examined line by
line, to name the line and the reason.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, islice

import msgspec
import numpy as np
import zstandard
from msgspec import Raw

from zeh_spark.service.store.batches import Upload
from zeh_spark.service.store.contracts import NAMED, FeedSchema, WrongEvent, wrong_in
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import event_key, event_origin, problems, wire
from zeh_spark.wire.upload_format import (
    CHUNK_BYTES,
    CHUNK_EVENTS,
    LINE_BYTES,
    UPLOAD_CHUNKS,
    UPLOAD_UNPACKED,
    IndexEntry,
    StagedChunk,
    check_depth,
    content_of,
    count_lines,
    frame_of,
    lines_of,
    may_be_deep,
    parse_upload,
    prefix,
)

MAX_CHUNKS, MAX_UNPACKED = UPLOAD_CHUNKS, UPLOAD_UNPACKED
MAX_BODY = 64 << 20
"""Most bytes in the body of an upload, which is compressed."""

Verified = tuple[Upload, list[WrongEvent], list[WrongEvent]]

MAX_TAKEN_OUT = 100_000
"""Most events that are taken out of an upload. Each of them takes some hundred bytes."""


class _Line(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    partition: int
    headers: Raw
    data: Raw


_decode_lines = msgspec.json.Decoder(_Line).decode_lines
_decode_line = msgspec.json.Decoder(_Line).decode
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
_decode_all_headers = msgspec.json.Decoder(list[dict[str, str]]).decode
_encode = msgspec.json.encode
_WITHOUT_BLANKS = re.compile(rb"\{(?::(?:,:)*)?\}")
_OF_WRITERS: dict[str, Callable[[str], str | None]] = {
    event_origin.HEADER: event_origin.fault,
    event_key.HEADER: event_key.fault,
}
"""The reserved headers that writers may add, each with what finds a fault in its value."""

_HEADERS = b'"headers":{'
_NEITHER_HEADERS_NOR_DATA = len('"headers":,"data":}')
_ORDER = np.frombuffer(b"ph{", np.uint8)
"""In a line, the first byte of its first name, of its second one, and of its headers."""


def verified_upload(
    body: bytes,
    task: int,
    attempt: int,
    number: int,
    partition_count: int,
    schema: FeedSchema | None = None,
    split: FeedSchema | None = None,
) -> Verified:
    """Return an upload without the events that break `split`; what breaks `schema`; those events.

    Raises Problem (`invalid-upload`) with the chunk and the line.
    """
    try:
        listed = parse_upload(body)
    except ValueError as exc:
        raise invalid(f"the body is no upload: {exc}") from None
    unpacked = sum(entry.size for entry, _ in listed)
    if len(listed) > MAX_CHUNKS or unpacked > MAX_UNPACKED:
        raise invalid(
            f"an upload has at most {MAX_CHUNKS:,} chunks and {MAX_UNPACKED:,} bytes of lines, "
            f"this one {len(listed):,} and {unpacked:,}"
        )
    chunks: list[StagedChunk] = []
    wrong: list[WrongEvent] = []
    taken_out: list[WrongEvent] = []
    for at, (entry, frame) in enumerate(listed):
        chunk, data = verified_chunk(at, entry, frame, partition_count)
        if split and (gone := [*wrong_in(split, at, chunk.partition, data)]):
            taken_out += gone
            if len(taken_out) > MAX_TAKEN_OUT:
                raise invalid(f"over {MAX_TAKEN_OUT:,} events break the schema: lower uploadBytes")
            chunk, data = _without(chunk, data, {each.line for each in gone})
        if not chunk.events:
            continue
        chunks.append(chunk)
        if schema and schema != split:
            wrong += islice(wrong_in(schema, at, chunk.partition, data), NAMED - len(wrong))
    digest = hashlib.sha256(body).digest()
    version, time = (schema.version, schema.time) if schema else (0, 0)
    upload = Upload(task, attempt, number, digest, tuple(chunks), version, time)
    return upload, wrong, taken_out


def _without(
    chunk: StagedChunk, data: Sequence[Raw], lines: Collection[int]
) -> tuple[StagedChunk, list[Raw]]:
    """Return a chunk without some lines, perhaps without any left, and its events' data."""
    every = lines_of(chunk.frame)[:-1].split(b"\n")
    kept = [at for at in range(chunk.events) if at not in lines]
    whole = b"".join(every[at] + b"\n" for at in kept)
    content = content_of([every[at][len(prefix(chunk.partition)) :] for at in kept])
    left = StagedChunk(chunk.partition, len(kept), len(whole), content.sum, frame_of(whole))
    return left, [data[at] for at in kept]


def verified_chunk(
    at: int, entry: IndexEntry, frame: bytes, partition_count: int
) -> tuple[StagedChunk, list[Raw]]:
    """Return a chunk after all checks, and its events' data. Raises Problem if a rule is broken."""
    if not 0 <= entry.partition < partition_count:
        raise invalid(
            f"chunk {at} is of partition {entry.partition}, the feed has 0 to "
            f"{partition_count - 1}",
            chunk=at,
        )
    lines = _unpacked(at, entry, frame)
    found = _rests(lines, entry.partition)
    if found is None:
        number, reason = next(_faults(lines, entry.partition))
        raise invalid(f"chunk {at}, line {number}: {reason}", chunk=at, line=number)
    rests, data = found
    if not len(rests) == entry.events <= CHUNK_EVENTS:
        raise invalid(
            f"chunk {at} has {len(rests)} lines, its entry says {entry.events}; at most "
            f"{CHUNK_EVENTS} are allowed",
            chunk=at,
        )
    content = content_of(rests).sum
    return StagedChunk(entry.partition, len(rests), len(lines), content, frame), data


def _unpacked(at: int, entry: IndexEntry, frame: bytes) -> bytes:
    """Return the lines of a frame, whose size is read before anything is unpacked."""
    try:
        size = zstandard.frame_content_size(frame)
        if size != entry.size or not 0 < size <= CHUNK_BYTES:
            raise invalid(
                f"chunk {at} unpacks to {'an unknown number of' if size < 0 else f'{size:,}'} "
                f"bytes, its entry says {entry.size:,}; from 1 to {CHUNK_BYTES:,} are allowed",
                chunk=at,
            )
        if len(frame) > size + size // 128 + 512:  # the most that compression adds
            raise invalid(f"chunk {at} is a frame of {len(frame):,} bytes for {size:,}", chunk=at)
        lines = lines_of(frame)
    except zstandard.ZstdError as exc:
        raise invalid(f"chunk {at} is not one zstd frame: {exc}", chunk=at) from None
    if not lines.endswith(b"\n"):
        raise invalid(f"chunk {at}: the last line has no newline at its end", chunk=at)
    return lines


def _rests(lines: bytes, partition: int) -> tuple[list[bytes], list[Raw]] | None:
    """Return what follows the partition in each line, and its data; None if a rule is broken.

    Each object takes at least the bytes of its parts. If the sums of these bytes are where all
    newlines are, no object is on two lines, and none has blanks, escapes in its names, or a member
    twice. So three bytes of a line tell the order of its members.
    """
    try:
        lines.decode()
        parsed = _decode_lines(lines)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    if {line.partition for line in parsed} != {partition}:
        return None
    before = len(prefix(partition))
    headers, data = [line.headers for line in parsed], [line.data for line in parsed]
    header_sizes, data_sizes = _lengths(headers), _lengths(data)
    sizes = header_sizes + data_sizes + _NEITHER_HEADERS_NOR_DATA
    newlines = np.cumsum(sizes + (before + 1)) - 1
    begins = newlines - sizes
    characters = np.frombuffer(lines, np.uint8)
    if (
        newlines[-1] != len(lines) - 1
        or count_lines(lines) != len(parsed)
        or (characters[newlines] != ord("\n")).any()
        or (characters[begins[:, None] + (2 - before, 1, len(_HEADERS) - 1)] != _ORDER).any()
        or sizes.max() > LINE_BYTES - before
        or b"\r" in lines
        or any(bytes(data[at]) == b"null" for at in np.flatnonzero(data_sizes == len("null")))
        or (header_sizes.max() > len("{}") and not _are_headers(headers))
        or (may_be_deep(lines, newlines + 1) and any(map(_is_deep, data)))
    ):
        return None
    both = zip(begins.tolist(), newlines.tolist(), strict=True)
    return [lines[begin:end] for begin, end in both], data


def _is_deep(data: Raw) -> bool:
    try:
        check_depth(bytes(data))
    except ValueError:
        return True
    return False


def _lengths(texts: Sequence[bytes | Raw]) -> np.ndarray:
    return np.fromiter(map(len, texts), np.int64, len(texts))


def _are_headers(texts: Sequence[Raw]) -> bool:
    """Check the headers of all lines at once if they have the form that this package writes."""
    together = b"[%b]" % b",".join(texts)
    try:
        each = _decode_all_headers(together)
        if _encode(each) == together:
            names = set(chain.from_iterable(each))
            if any(name.startswith(wire.RESERVED_HEADER) for name in names - _OF_WRITERS.keys()):
                return False
            return not any(
                any(map(_OF_WRITERS[name], {one[name] for one in each if name in one}))
                for name in names & _OF_WRITERS.keys()
            )
        return not any(map(_headers_fault, {bytes(text) for text in texts}))
    except msgspec.MsgspecError:
        return False


def _headers_fault(text: bytes) -> str | None:
    """Return what is wrong with headers. Raises MsgspecError if they are not strings by string."""
    headers = _decode_headers(text)
    reserved = [name for name in headers if name.startswith(wire.RESERVED_HEADER)]
    if others := [name for name in reserved if name not in _OF_WRITERS]:
        return f"the header {others[0]!r} is reserved for the publisher"
    for name in reserved:
        if fault := _OF_WRITERS[name](headers[name]):
            return f"the header {name!r}: {fault}"
    if text != _encode(headers):  # other escapes are allowed
        names = json.loads(text, object_pairs_hook=lambda pairs: [name for name, _ in pairs])
        if len(set(names)) != len(names) or not _WITHOUT_BLANKS.fullmatch(
            wire.STRING.sub(b"", text)
        ):
            return "its headers have blanks, or a name twice"
    return None


def _faults(lines: bytes, partition: int) -> Iterator[tuple[int, str]]:
    """Yield each line that breaks a rule, by number from 0, and the reason."""
    begin = prefix(partition) + _HEADERS
    for number, line in enumerate(lines[:-1].split(b"\n")):
        if not line.startswith(begin):
            yield number, f"it has to begin {begin.decode()}, and is {wire.excerpt(line)}"
        elif reason := _fault(line, len(prefix(partition))):
            yield number, f"{reason}: {wire.excerpt(line)}"


def _fault(line: bytes, begin: int) -> str | None:
    try:
        line.decode()
        parsed = _decode_line(line)
        fault = _headers_fault(bytes(parsed.headers))
        check_depth(bytes(parsed.data))
    except (msgspec.MsgspecError, RecursionError, ValueError) as exc:
        return wire.why_not(line, exc)
    length = begin + _NEITHER_HEADERS_NOR_DATA + len(parsed.headers) + len(parsed.data)
    if len(line) != length or b"\r" in line:
        return "it has blanks, or a member twice; allowed is the shortest form alone"
    if len(line) > LINE_BYTES:
        return f"it has {len(line):,} bytes, at most {LINE_BYTES:,} are allowed"
    if bytes(parsed.data) == b"null":
        return "its data is null"
    return fault


def invalid(detail: str, **members: object) -> Problem:
    return Problem(problems.INVALID_UPLOAD, f"{detail}; nothing of the upload was kept", **members)
