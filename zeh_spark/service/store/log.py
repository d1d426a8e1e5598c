"""A feed's log as of one moment: what a store tells of it (see `Store.snapshot`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from zeh_spark.errors import StoreError
from zeh_spark.wire import direct_reads
from zeh_spark.wire.direct_reads import HEADERS, name_hash
from zeh_spark.wire.feed_identity import FeedIdentity

COLUMNS = ("g", "partition", "events", "size", "time", "batch", "sequence")
"""The fields of HEADERS whose names are those of a `Chunk`, but for the tag."""


class Chunk(NamedTuple):
    """A committed chunk, without its lines.

    It is a tuple, because feeds of tiny chunks make one for a few events: a frozen dataclass takes
    four times as long to make.

    Attributes:
        g: The position in the feed, from 1.
        partition: The stored partition.
        events: The number of events.
        size: The bytes of its lines.
        time: The time of its commit, in ms since 1970.
        tag: A short hash of the history up to this chunk.
        producer: The producer's name.
        batch: The number of the producer's batch.
        sequence: The producer's number of the first event, in the chunk's partition.
        blob: The number of its frame in the store; 0 if it is in a pack.
    """

    g: int
    partition: int
    events: int
    size: int
    time: int
    tag: str
    producer: str
    batch: int
    sequence: int
    blob: int = 0

    @property
    def cursor(self) -> str:
        """The feed's cursor after this chunk."""
        return f"{self.g}.{self.tag}"


class BlockPlace(NamedTuple):
    """Where a block of a pack is in an object; `digest` is its xxh3-128."""

    location: str
    name: str
    offset: int
    length: int
    digest: bytes


class Frame(NamedTuple):
    """Where the lines of chunks are.

    Attributes:
        packed: A zstd frame.
        chunks: Which of the chunks that were asked for are in it, as places in their list.
        offsets: Where the lines of each begin in what it unpacks to; None if it has the lines of
            one chunk, and no others.
        place: Where the frame is in an object (`Store.read_blocks`); `packed` is empty then.
    """

    packed: bytes
    chunks: Sequence[int]
    offsets: Sequence[int] | None = None
    place: BlockPlace | None = None


@dataclass(frozen=True, slots=True)
class FeedState:
    """A feed as of now.

    Attributes:
        name: The name.
        partitions: The number of stored partitions.
        origin: 32 random bytes, the history before the first chunk. The first 8 are the feed's id.
        head: The position of the newest chunk; 0 if there is none.
        history: The hash of the history up to `head`.
        time: The time of the last commit or epoch, whichever is later, in ms since 1970; 0 if there
            was none.
        events: The number of events that the feed has now.
        size: The bytes of their lines.
        replica: Whether the store is a replica, which may lag, and takes no writes.
        schema_version: The version of its schema (see `contracts`); 0 if it has none.
        schema_since: The oldest version whose checked events keep that one.
    """

    name: str
    partitions: int
    origin: bytes
    head: int
    history: bytes
    time: int
    events: int = 0
    size: int = 0
    replica: bool = False
    schema_version: int = 0
    schema_since: int = 0


@dataclass(frozen=True, slots=True)
class Anchor:
    """Where a chunk is, or was: its position and tag."""

    g: int
    tag: str

    @property
    def cursor(self) -> str:
        """The feed's cursor after this chunk."""
        return f"{self.g}.{self.tag}"


@dataclass(frozen=True)
class Run:
    """Chunks in the order of g, by columns.

    Attributes:
        headers: What they are: an array of HEADERS.
        producers: The names of their producers, and maybe others.
        of: For each chunk the number of its producer.
        blobs: For each chunk the number of its frame in the store; 0 if it is in a pack.
    """

    headers: np.ndarray
    producers: Sequence[str]
    of: np.ndarray
    blobs: Sequence[int]

    @classmethod
    def made(cls, chunks: Sequence[Chunk]) -> Run:
        """Return the same chunks by columns."""
        names = sorted({each.producer for each in chunks})
        numbers = {name: at for at, name in enumerate(names)}
        of = np.array([numbers[each.producer] for each in chunks], np.int64)
        return cls(header_records(chunks), names, of, [each.blob for each in chunks])

    @classmethod
    def joined(cls, runs: Sequence[Run]) -> Run:
        """Return runs that follow each other as one."""
        if len(runs) == 1:
            return runs[0]
        names: list[str] = []
        of = []
        for each in runs:
            of.append(each.of + len(names))
            names += each.producers
        headers = np.concatenate([each.headers for each in runs])
        blobs = [blob for each in runs for blob in each.blobs]
        return cls(headers, names, np.concatenate(of), blobs)

    @cached_property
    def names(self) -> list[str]:
        """The names of the producers of these chunks, sorted."""
        return sorted({self.producers[each] for each in np.unique(self.of).tolist()})

    @property
    def positions(self) -> list[int]:
        found: list[int] = self.headers["g"].tolist()
        return found

    def part(self, which: slice | np.ndarray) -> Run:
        """Return some of the chunks: those at these places, which ascend."""
        headers = self.headers[which]
        return Run(headers, self.producers, self.of[which], [0] * len(headers))

    def chunks(self) -> list[Chunk]:
        columns = {name: self.headers[name].tolist() for name in (*COLUMNS, "tag")}
        columns["tag"] = [f"{each:08x}" for each in columns["tag"]]
        columns["producer"] = [self.producers[each] for each in self.of.tolist()]
        columns["blob"] = self.blobs
        rows = zip(*(columns[name] for name in Chunk._fields), strict=True)
        return list(map(Chunk._make, rows))


class PackTotals(NamedTuple):
    """What a pack has in all.

    Attributes:
        first: The position of its first chunk.
        last: That of its last one.
        time: When the first one was committed, in ms since 1970.
        sums: What it has of each stored partition with something.
        places: Where the last chunk of each of these is.
        later: How many events each of these has in the packs after it.
    """

    first: int
    last: int
    time: int
    sums: Mapping[int, direct_reads.Totals]
    places: Mapping[int, Anchor]
    later: Mapping[int, int]


class Log(Protocol):
    """A feed's log as of one moment (see `Store.snapshot`).

    Attributes:
        state: The feed.
        identity: The feed's id and its epochs.
        anchors: What was removed last, by stored partition, as far as something was removed.
        sealed: The position up to which chunks are in packs (see `packs`); 0 if there are none.
        tags: The tags by g: of the chunks at the positions that the snapshot was opened with, as
            far as they exist; of the anchors; and of the feed's beginning, position 0.
    """

    state: FeedState
    sealed: int
    anchors: Mapping[int, Anchor]
    tags: Mapping[int, str]

    @property
    def identity(self) -> FeedIdentity: ...

    def packed(self, after: Mapping[int, int], low: int, upto: int) -> Run | None:
        """Return chunks of some stored partitions that are in the next pack which has any.

        Args:
            after: For each stored partition, the position after which to begin.
            low: A position after which all begin.
            upto: The highest position.

        Returns:
            None if no more of them are in packs.
        """

    def packs(self, after: int, upto: int) -> Iterator[PackTotals]:
        """Yield what the packs that lie between two positions have, in order."""

    def chunks(self, positions: Mapping[int, int], upto: int, limit: int) -> list[Chunk]:
        """Return chunks of some stored partitions, in the order of g.

        Args:
            positions: For each stored partition, the position after which to begin.
            upto: The highest position.
            limit: Most chunks of each partition.
        """

    def scan(self, after: int, upto: int, limit: int) -> list[Chunk]:
        """Return at most `limit` chunks of all partitions with `after` < g <= `upto`, in order."""

    def unread(self, positions: Mapping[int, int], upto: int) -> set[int]:
        """Return the stored partitions that have a chunk after their position, up to `upto`."""

    def last(self, partitions: Iterable[int], upto: int) -> dict[int, Anchor]:
        """Return where the last chunk, up to g = `upto`, of each stored partition with one is."""

    def frames(self, positions: Sequence[int], blobs: Sequence[int]) -> Iterator[Frame]:
        """Yield the frames of chunks, each once, a few at a time (see `packs.lines_in`).

        `positions` ascend. `blobs` are the chunks' own (see `Chunk`). Of frames in objects it
        yields the places: `Reading.frames` reads them, without a snapshot.
        """


def header_records(chunks: Sequence[Chunk]) -> np.ndarray:
    """Return the header records of chunks: an array of HEADERS."""
    found = np.empty(len(chunks), HEADERS)
    if not chunks:
        return found
    columns = dict(zip(Chunk._fields, zip(*chunks, strict=True), strict=True))
    hashes = {name: name_hash(name) for name in set(columns["producer"])}
    for name in ("g", "time", "batch", "sequence", "partition", "events", "size"):
        found[name] = columns[name]
    found["producer"] = [hashes[each] for each in columns["producer"]]
    found["tag"] = np.frombuffer(bytes.fromhex("".join(columns["tag"])), ">u4")
    return found


def damaged(what: str) -> StoreError:
    """Return the error of a store in which something is missing or wrong."""
    return StoreError(
        f"the store is damaged: {what}. Restore it from a backup", anchor="the-store-is-damaged"
    )
