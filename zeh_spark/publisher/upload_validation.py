"""What a publisher looks at before it keeps an upload. Pure; runs in worker threads.

The publisher trusts no client: what is served later by cutting bytes must have exactly the form
that `rendering` relies on. A line is right if

1. it begins `{"partition":P,"headers":{`, with the chunk's P, which the feed has;
2. it is one JSON object of partition, headers and data and nothing else, twice nothing, no blanks
   between: then its length is that of its parts;
3. its headers are text by text, none of them a stamp's; its data is not null;
4. it is UTF-8, without a carriage return, and short enough to be stamped.

The rules are checked over a whole chunk at once; only one that breaks them is looked at line by
line, to name the line and the reason.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec
import numpy as np
import zstandard
from msgspec import Raw

from zeh_spark.protocol import problems, wire
from zeh_spark.protocol.upload_format import (
    CHUNK_BYTES,
    CHUNK_EVENTS,
    LINE_BYTES,
    UPLOAD_CHUNKS,
    UPLOAD_UNPACKED,
    IndexEntry,
    StagedChunk,
    content_of,
    lines_of,
    parse_upload,
    prefix,
)
from zeh_spark.store.batches import Upload
from zeh_spark.store.problems import Problem

MAX_CHUNKS, MAX_UNPACKED = UPLOAD_CHUNKS, UPLOAD_UNPACKED
MAX_BODY = 64 << 20


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
_HEADERS = b'"headers":{'
_NEITHER_HEADERS_NOR_DATA = len('"headers":,"data":}')


def verified_upload(
    body: bytes, task: int, attempt: int, number: int, partition_count: int
) -> Upload:
    """The upload that a body holds. Raises Problem `invalid-upload` naming chunk and line."""
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
    chunks = tuple(
        verified_chunk(at, entry, frame, partition_count)
        for at, (entry, frame) in enumerate(listed)
    )
    return Upload(task, attempt, number, hashlib.sha256(body).digest(), chunks)


def verified_chunk(at: int, entry: IndexEntry, frame: bytes, partition_count: int) -> StagedChunk:
    """Raises Problem."""
    if not 0 <= entry.partition < partition_count:
        raise invalid(
            f"chunk {at} is of partition {entry.partition}, the feed has 0 to "
            f"{partition_count - 1}",
            chunk=at,
        )
    lines = _unpacked(at, entry, frame)
    rests = _rests(lines, entry.partition)
    if rests is None:
        number, reason = next(_faults(lines, entry.partition))
        raise invalid(f"chunk {at}, line {number}: {reason}", chunk=at, line=number)
    if not len(rests) == entry.events <= CHUNK_EVENTS:
        raise invalid(
            f"chunk {at} has {len(rests)} lines, its entry says {entry.events}; at most "
            f"{CHUNK_EVENTS} are allowed",
            chunk=at,
        )
    return StagedChunk(entry.partition, len(rests), len(lines), content_of(rests).sum, frame)


def _unpacked(at: int, entry: IndexEntry, frame: bytes) -> bytes:
    """The size is read from the frame before anything is unpacked."""
    try:
        size = zstandard.frame_content_size(frame)
        if size != entry.size or not 0 < size <= CHUNK_BYTES:
            raise invalid(
                f"chunk {at} unpacks to {'an unknown number of' if size < 0 else f'{size:,}'} "
                f"bytes, its entry says {entry.size:,}; from 1 to {CHUNK_BYTES:,} are allowed",
                chunk=at,
            )
        if len(frame) > size + size // 128 + 512:  # what packing adds at most
            raise invalid(f"chunk {at} is a frame of {len(frame):,} bytes for {size:,}", chunk=at)
        lines = lines_of(frame)
    except zstandard.ZstdError as exc:
        raise invalid(f"chunk {at} is not one zstd frame: {exc}", chunk=at) from None
    if not lines.endswith(b"\n"):
        raise invalid(f"chunk {at}: the last line has no newline at its end", chunk=at)
    return lines


def _rests(lines: bytes, partition: int) -> list[bytes] | None:
    """What stands behind the partition in each line; None if something breaks the rules."""
    begin = prefix(partition)
    rests = lines[:-1].removeprefix(begin).split(b"\n" + begin)
    try:
        lines.decode()
        parsed = _decode_lines(lines)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    headers, data = [line.headers for line in parsed], [line.data for line in parsed]
    data_sizes = _lengths(data)
    sizes = _lengths(headers) + data_sizes + _NEITHER_HEADERS_NOR_DATA
    if (
        not lines.startswith(begin)
        or len(rests) != wire.count_lines(lines)  # each line begins so
        or {rest[: len(_HEADERS)] for rest in rests} != {_HEADERS}
        or not np.array_equal(sizes, _lengths(rests))  # no two lines of one object either
        or sizes.max() > LINE_BYTES - len(begin)
        or b"\r" in lines
        or any(bytes(data[at]) == b"null" for at in np.flatnonzero(data_sizes == len("null")))
        or not _are_headers(headers)
        or (wire.may_be_deep(lines, np.cumsum(sizes + len(begin) + 1)) and any(map(_is_deep, data)))
    ):
        return None
    return rests


def _is_deep(data: Raw) -> bool:
    try:
        wire.check_depth(bytes(data))
    except ValueError:
        return True
    return False


def _lengths(texts: Sequence[bytes | Raw]) -> np.ndarray:
    return np.fromiter(map(len, texts), np.int64, len(texts))


def _are_headers(texts: Sequence[Raw]) -> bool:
    """All at once, where they have the form that we would give them."""
    together = b"[%b]" % b",".join(texts)
    try:
        each = _decode_all_headers(together)
        if _encode(each) == together:
            names = set(chain.from_iterable(each))
            return not any(name.startswith(wire.RESERVED_HEADER) for name in names)
        return not any(map(_headers_fault, {bytes(text) for text in texts}))
    except msgspec.MsgspecError:
        return False


def _headers_fault(text: bytes) -> str | None:
    """Raises MsgspecError for what is not text by text."""
    headers = _decode_headers(text)
    if reserved := [name for name in headers if name.startswith(wire.RESERVED_HEADER)]:
        return f"the header {reserved[0]!r} is reserved for the publisher"
    if text != _encode(headers):  # other escapes are fine
        names = json.loads(text, object_pairs_hook=lambda pairs: [name for name, _ in pairs])
        if len(set(names)) != len(names) or not _WITHOUT_BLANKS.fullmatch(
            wire.STRING.sub(b"", text)
        ):
            return "its headers have blanks, or a name twice"
    return None


def _faults(lines: bytes, partition: int) -> Iterator[tuple[int, str]]:
    """Each line that breaks a rule, by number from 0, and how."""
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
        wire.check_depth(bytes(parsed.data))
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
