"""Direct reads: a publisher plans a batch, and each task fetches the chunks of its ranges.

A *plan* says where a batch ends and which *ranges* it has. A range is a part of a reader's
partition between two cursors: whole chunks, in order of g. The answer to a request for chunks is
bytes of this form:

    {"format":"zeroeventhub-chunks","version":2}\\n
    {"range":0,"chunks":2,"producers":["p"],"frames":1,"bytes":310}\\n   neighbours: a *group*
        HEADERS records, PLACES records                       2 of each, in the order of g
        FRAMES records, frames                                1 of each; the frames have 310 bytes
    {"range":0,"to":"8.0a1b2c3d","chunks":2,"events":7,"digest":"…"}\\n    the range ends

Without the line that ends it, a range is only a beginning. A digest is the sum of the xxh3-128 of
the chunks' header records, modulo 2^128. Rejected: a digest over all headers in order, because
each record has its g, which orders them, and sums of ranges are the sums of their partitions,
wherever a plan cuts.

Rule for editors: digests are kept in checkpoints, so `HEADERS` never changes without a new VERSION.
Pure; runs in the publisher, on the driver and in tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
import xxhash
from msgspec import UNSET, UnsetType

from zeh_spark.wire.feed_identity import Epoch
from zeh_spark.wire.hashes import MODULUS, sum_of
from zeh_spark.wire.phrases import in_ranges
from zeh_spark.wire.upload_format import CHUNK_BYTES

VERSION, CHUNKS_VERSION = 1, 2
"""The version of plans and digests, and that of answers with chunks."""

OFFER = {"plan": VERSION, "chunks": CHUNKS_VERSION}
"""What discovery tells as `reads`, if a feed can be read directly."""

CONTENT_TYPE = "application/vnd.zeroeventhub.chunks"
"""The media type of an answer with chunks."""

MAX_RANGES = 10_000
"""Most ranges of a request for chunks. The publisher looks each of them up."""

PLAN_CHUNKS = 50_000
"""Most chunks of a plan; a whole pack counts as one."""

INLINE_BYTES = 64 << 10
"""Most bytes of lines of a plan that brings its chunks."""

WITH_CHUNKS = "zeh-chunks"
"""The preference (RFC 7240) of a request for a plan that is to bring its chunks, if it is small."""

MAX_LIMIT = 2**53 - 1
"""The largest limit of a request: JSON's decoders read larger integers as floats."""

GROUP_CHUNKS, GROUP_BYTES = 8192, 16 << 20
"""Most chunks of a group, and most bytes of its frames, and of the lines that they unpack to."""

HEADERS = np.dtype(
    [
        ("g", "<i8"),
        ("time", "<i8"),  # ms since 1970
        ("producer", "<u8"),  # xxh3-64 of the name
        ("batch", "<i8"),
        ("sequence", "<i8"),  # of the first event
        ("tag", "<u4"),
        ("partition", "<u4"),  # the stored one
        ("events", "<u4"),
        ("size", "<u4"),  # bytes of the lines
    ]
)
"""What a chunk is. All integers are little-endian, without gaps between them."""

PLACES = np.dtype([("frame", "<u4"), ("offset", "<u4")])
"""Where a chunk's lines are: in which frame, counted from 0, and where in what that unpacks to."""

FRAMES = np.dtype([("bytes", "<u4"), ("xxh3", "<u8")])
"""How a frame arrives: its length, and its xxh3-64."""

_LINE_BYTES = 1 << 20
_MAX_FRAME = CHUNK_BYTES + (64 << 10)


_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_LIMIT)]


class PlanRequest(msgspec.Struct, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """What a reader asks a plan for.

    Args:
        n: the number of partitions that the reader works with.
        cursors: where each of those begins that are to be read, by number.
        ends: where each of these ends; the limits are then soft hints of the publisher's own.
        upto: a cursor of the feed (`Plan.head`) after which nothing is planned.
        max_events: events of the plan, about.
        max_bytes: bytes of lines of the plan, about.
        range_bytes: bytes of lines of a range, about.
        wait: most seconds to wait for an event.
    """

    n: int
    cursors: dict[str, str]
    ends: dict[str, str] | UnsetType = UNSET
    upto: str | UnsetType = UNSET
    max_events: int | UnsetType = UNSET
    max_bytes: int | UnsetType = UNSET
    range_bytes: int | UnsetType = UNSET
    wait: int = 0


class PlannedRange(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a reader's partition: the chunks after `from_` up to `to`.

    Args:
        from_: the cursor before its first chunk.
        to: the cursor after its last chunk, or after nothing more of the partition.
        bytes: the bytes of their lines, as they are stored.
        digest: the digest, 32 hexadecimal digits.
    """

    partition: int
    from_: str = msgspec.field(name="from")
    to: str = ""
    chunks: int = 0
    events: int = 0
    bytes: int = 0
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")] = ""


class PartitionLag(msgspec.Struct, frozen=True):
    """How far a reader's partition is behind, after a plan or where a page begins.

    Args:
        events: events that follow. Of a store's feed the number is exact near the head, and may be
            too high by two percent far behind it.
        ms: the age of the oldest of them by the publisher's clock, in ms; 0 without one, None if
            it is not known: the feed has no times, or no event was found and there may be some.
        more: whether there may be more events: a table's rows are counted up to a limit.
    """

    events: _Count
    ms: _Count | None
    more: bool = False


class Plan(msgspec.Struct, rename="camel"):
    """What a publisher plans.

    Args:
        ends: the cursor of each of these partitions after the plan. None is `_first` or `_last`.
        more: whether there are more chunks than the plan has, before `upto` or `ends`.
        head: the cursor of the feed's newest chunk, as of the plan.
        time: when that was committed, in ms since 1970.
        behind: most chunks between the plan's last one and the head.
        ranges: the ranges in the order of partitions; those of a partition follow each other.
        lag: how far each of these is behind at its end; None if the publisher does not know it
            yet.
        epoch: the feed's newest epoch, as of the plan; None if the publisher does not tell it.
        chunks: the answer to the request for the chunks of all ranges; None if the plan is large,
            or the request did not prefer it.
    """

    ends: dict[str, str]
    more: bool
    head: str
    time: int
    behind: int
    ranges: list[PlannedRange]
    lag: dict[str, PartitionLag] | None = None
    epoch: Epoch | None = None
    chunks: bytes | None = None


class WantedRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A range whose chunks are asked for."""

    partition: int
    from_: str = msgspec.field(name="from")
    to: str = ""


class ChunksRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request for the chunks of some ranges, of a reader that works with n partitions."""

    n: int
    ranges: list[WantedRange]


class CursorsAtTime(msgspec.Struct, frozen=True):
    """Where a feed was at a time.

    Args:
        time: the time, in ms since 1970.
        cursors: by partition, the cursor before the first event that was committed since then.
    """

    time: int
    cursors: dict[str, str]


class AwaitedBatch(msgspec.Struct, frozen=True):
    """Whether a consumer has committed the batch that ends at a cursor, and all before it.

    `lag` is how far it is from the feed's end; None if it has, and if that is not known.
    """

    cursor: str
    cursorset: str
    committed: bool
    lag: PartitionLag | None = None


class RangeEnd(msgspec.Struct, frozen=True):
    """The line that ends a range of an answer: what was sent of it."""

    range: int
    to: str
    chunks: int
    events: int
    digest: str


class _Group(msgspec.Struct):
    range: int
    chunks: int
    producers: list[str]
    frames: int
    bytes: int


class _Format(msgspec.Struct):
    format: str
    version: int


_FORMAT = _Format("zeroeventhub-chunks", CHUNKS_VERSION)
BEGINNING = msgspec.json.encode(_FORMAT) + b"\n"
"""The first line of an answer."""

decode_plan_request = msgspec.json.Decoder(PlanRequest).decode
decode_chunks_request = msgspec.json.Decoder(ChunksRequest).decode
decode_cursors = msgspec.json.Decoder(CursorsAtTime).decode
decode_plan = msgspec.json.Decoder(Plan).decode
_decode_format = msgspec.json.Decoder(_Format).decode
_decode_part = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class Totals:
    """What a range, or several, have together.

    Args:
        bytes: the bytes of their lines, as they are stored.
        digest: the sum of the digests.
    """

    chunks: int = 0
    events: int = 0
    bytes: int = 0
    digest: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.chunks + other.chunks,
            self.events + other.events,
            self.bytes + other.bytes,
            (self.digest + other.digest) % MODULUS,
        )

    @property
    def hex(self) -> str:
        """The digest as 32 hexadecimal digits."""
        return f"{self.digest:032x}"


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring chunks of a range, as they came.

    Args:
        range: the number of the range in the request.
        headers: what the chunks are: an array of HEADERS.
        places: where their lines are: an array of PLACES.
        frames: their lines, compressed, and maybe those of other chunks.
    """

    range: int
    headers: np.ndarray
    producers: Sequence[str]
    places: np.ndarray
    frames: Sequence[bytes]


class FormatError(ValueError):
    """The bytes are no answer with chunks, or they were changed on their way."""


def name_hash(producer: str) -> int:
    """Return what stands for a producer's name in a header record."""
    return xxhash.xxh3_64_intdigest(producer.encode())


def totals(headers: np.ndarray) -> Totals:
    """Return the totals of chunks, given their header records."""
    raw, size = headers.tobytes(), HEADERS.itemsize
    digest = sum_of([raw[at : at + size] for at in range(0, len(raw), size)])
    events, lines = (int(headers[each].sum(dtype=np.int64)) for each in ("events", "size"))
    return Totals(len(headers), events, lines, digest)


def totals_between(sums: Totals, before: Totals) -> Totals:
    """Return what was added to some totals to make others."""
    return Totals(
        sums.chunks - before.chunks,
        sums.events - before.events,
        sums.bytes - before.bytes,
        (sums.digest - before.digest) % MODULUS,
    )


def totals_of(planned: PlannedRange) -> Totals:
    """Return the totals that a plan tells of a range."""
    return Totals(planned.chunks, planned.events, planned.bytes, int(planned.digest, 16))


@dataclass(frozen=True, slots=True)
class EncodedGroup:
    """A group as it is sent, whatever the number of its range.

    Args:
        producers: the names of their producers, sorted.
        frames: the number of their frames.
        size: the bytes of these.
        body: what follows the group's line.
    """

    totals: Totals
    producers: Sequence[str]
    frames: int
    size: int
    body: bytes

    @property
    def cost(self) -> int:
        """The bytes of memory that it takes, about."""
        return len(self.body)

    def line(self, number: int) -> bytes:
        """Return the line that begins the group, in the range of this number."""
        head = _Group(number, self.totals.chunks, list(self.producers), self.frames, self.size)
        return msgspec.json.encode(head) + b"\n"


def encode_group(
    headers: np.ndarray, names: Iterable[str], places: np.ndarray, frames: list[bytes]
) -> EncodedGroup:
    """Return a group as it is sent (see `Group`)."""
    lengths = list(map(len, frames))
    arriving = np.empty(len(frames), FRAMES)
    arriving["bytes"] = lengths
    arriving["xxh3"] = list(map(xxhash.xxh3_64_intdigest, frames))
    body = b"".join((headers.tobytes(), places.tobytes(), arriving.tobytes(), *frames))
    return EncodedGroup(totals(headers), sorted(names), len(frames), sum(lengths), body)


def encode_end(number: int, to: str, sent: Totals) -> bytes:
    """Return the line that ends a range."""
    return msgspec.json.encode(RangeEnd(number, to, sent.chunks, sent.events, sent.hex)) + b"\n"


def parse_answer(pieces: Iterable[bytes]) -> Iterator[Group | RangeEnd]:
    """Yield the groups and ends of an answer. Stops where the bytes end, be it in the middle.

    Raises FormatError if they have another form, or a frame does not have its hash.
    """
    reader = _Reader(pieces)
    beginning = reader.line()
    if beginning is None:
        return
    try:
        given = _decode_format(beginning)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise FormatError(f"it begins with {beginning[:100]!r}") from None
    if given != _FORMAT:
        raise FormatError(f"its format is {given}, known is {_FORMAT}")
    while (line := reader.line()) is not None:
        part = _parsed(line)
        if isinstance(part, RangeEnd):
            yield part
        else:
            group = _group(part, reader)
            if group is None:
                return
            yield group


def _parsed(line: bytes) -> _Group | RangeEnd:
    try:
        if "to" in _decode_part(line):
            return msgspec.json.decode(line, type=RangeEnd)
        return msgspec.json.decode(line, type=_Group)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise FormatError(f"a line of it is {line[:100]!r} ({exc})") from None


def _group(head: _Group, reader: _Reader) -> Group | None:
    """Return the group whose line was read; None if the bytes end before it does."""
    chunks, count = head.chunks, head.frames
    if not (0 < count <= chunks <= GROUP_CHUNKS and 0 <= head.bytes <= GROUP_BYTES):
        raise FormatError(
            f"a group of {chunks} chunks in {count} frames of {head.bytes} bytes is not allowed"
        )
    tables = reader.exactly(chunks * (HEADERS.itemsize + PLACES.itemsize) + count * FRAMES.itemsize)
    text = tables and reader.exactly(head.bytes)
    if tables is None or text is None:
        return None
    headers = np.frombuffer(tables, HEADERS, chunks)
    places = np.frombuffer(tables, PLACES, chunks, headers.nbytes)
    arriving = np.frombuffer(tables, FRAMES, count, headers.nbytes + places.nbytes)
    if places["frame"].max() >= count:
        raise FormatError(f"a chunk is in frame {places['frame'].max()}, and there are {count}")
    if (lines := int(headers["size"].sum(dtype=np.int64))) > GROUP_BYTES:
        raise FormatError(f"a group whose lines have {lines} bytes is not allowed")
    ends = np.cumsum(arriving["bytes"], dtype=np.int64).tolist()
    if ends[-1] != head.bytes or arriving["bytes"].max() > _MAX_FRAME:
        raise FormatError(f"the frames of a group of {head.bytes} bytes have {ends[-1]}")
    frames = [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    if list(map(xxhash.xxh3_64_intdigest, frames)) != arriving["xxh3"].tolist():
        raise FormatError("a frame does not have the hash with which it was sent")
    return Group(head.range, headers, head.producers, places, frames)


class _Reader:
    """Reads lines and blocks from pieces of bytes."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._held = b""

    def line(self) -> bytes | None:
        """Return the next line without its end; None if the bytes end before it."""
        while (end := self._held.find(b"\n")) < 0:
            if len(self._held) > _LINE_BYTES:
                raise FormatError(f"a line is longer than {_LINE_BYTES} bytes")
            piece = next(self._pieces, None)
            if piece is None:
                return None
            self._held += piece
        line, self._held = self._held[:end], self._held[end + 1 :]
        return line

    def exactly(self, size: int) -> bytes | None:
        """Return the next `size` bytes; None if there are not as many."""
        if len(self._held) < size:
            parts, have = [self._held], len(self._held)
            for piece in self._pieces:
                parts.append(piece)
                have += len(piece)
                if have >= size:
                    break
            self._held = b"".join(parts)
            if have < size:
                return None
        found, self._held = self._held[:size], self._held[size:]
        return found


def chunks_request(n: int, ranges: Iterable[PlannedRange]) -> ChunksRequest:
    """Return the request for the chunks of planned ranges."""
    return ChunksRequest(n, [WantedRange(each.partition, each.from_, each.to) for each in ranges])


def checked_ranges(plan: Plan, request: PlanRequest) -> dict[int, list[PlannedRange]]:
    """Return a plan's ranges by partition.

    Raises FormatError if they do not lead from each partition's cursor to its end without a gap, or
    there are none though the plan says that there is more.
    """
    if plan.more and not plan.ranges:
        raise FormatError("it says that there is more, but plans nothing")
    found: dict[int, list[PlannedRange]] = {int(each): [] for each in request.cursors}
    numbers = {str(partition) for partition in found}
    if plan.ends.keys() != numbers or not {str(each.partition) for each in plan.ranges} <= numbers:
        raise FormatError(f"it is not for the partitions {in_ranges(found)}")
    for each in plan.ranges:
        found[each.partition].append(each)
    for partition, ranges in found.items():
        asked, end = request.cursors[str(partition)], plan.ends[str(partition)]
        steps = [each.from_ for each in ranges] + [end]
        special = asked.startswith("_")
        leads = [each.to for each in ranges] == steps[1:] and (special or steps[0] == asked)
        if not ranges and isinstance(request.ends, dict):
            leads = True
        if not leads or end.startswith("_") or not all(each.events > 0 for each in ranges):
            raise FormatError(f"its ranges do not lead from {asked!r} to {end!r} in {partition}")
    return found
