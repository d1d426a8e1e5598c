"""What a commit makes of the uploaded chunks: positions, tags and sequence numbers.

Chunks are put in order, and small ones are joined. The rules are the same for every store,
and have no side effects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from zeh_spark.errors import StoreError
from zeh_spark.service.store.batches import (
    MAX_NUMBER,
    Call,
    CommitFacts,
    Declared,
    Numbers,
    StoredRange,
    StoredReceipt,
    receipt_for,
)
from zeh_spark.service.store.log import Chunk, FeedState
from zeh_spark.wire.upload_format import CHUNK_BYTES, CHUNK_EVENTS, frame_of, lines_of

SMALL_EVENTS, SMALL_BYTES, JOINED_BYTES = 200, 32 << 10, 4 << 20
"""Most events and bytes of a small chunk, and bytes of a batch's chunks joined at its commit."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A staged chunk on its way into the feed."""

    blob: int
    partition: int
    events: int
    size: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Publication:
    """What a commit writes.

    Attributes:
        feed: The feed after the commit.
        sequences: The producer's numbers in each partition that the batch has events of.
    """

    feed: FeedState
    chunks: list[Chunk]
    receipt: StoredReceipt
    sequences: Mapping[int, Numbers]


def in_batch_order(chunks: Iterable[tuple[tuple[int, int, int], Moved]]) -> list[Moved]:
    """Return a batch's chunks in the order that they get in the feed.

    Each chunk comes with its task, its upload, and its place in the upload.
    """
    return [moved for _, moved in sorted(chunks, key=lambda each: (each[1].partition, each[0]))]


def joinable(chunks: Iterable[Moved]) -> Iterator[list[Moved]]:
    """Yield neighbours that become one chunk.

    They are small chunks of one partition, as many as fit in one, and a bounded number of bytes in
    all, because a commit has to be short. Measured: not joined, a batch of a few rows in each of
    200 tasks is read five times slower.
    """
    left = JOINED_BYTES
    for _, neighbours in groupby(chunks, key=lambda each: each.partition):
        group: list[Moved] = []
        events = size = 0
        for each in neighbours:
            small = each.events <= SMALL_EVENTS and each.size <= min(SMALL_BYTES, left)
            fits = events + each.events <= CHUNK_EVENTS and size + each.size <= CHUNK_BYTES
            if group and not (small and fits):
                yield group
                group, events, size = [], 0, 0
            if small:
                group.append(each)
                events, size, left = events + each.events, size + each.size, left - each.size
            else:
                yield [each]
        if group:
            yield group


def joined(frames: Iterable[bytes]) -> bytes:
    """Return the frame of joined chunks."""
    return frame_of(b"".join(map(lines_of, frames)))


def as_one(group: Sequence[Moved], blob: int, frame: bytes) -> Moved:
    """Return joined chunks as one, whose frame is kept as `blob`."""
    events, size = sum(each.events for each in group), sum(each.size for each in group)
    return Moved(blob, group[0].partition, events, size, hashlib.sha256(frame).digest())


def published(
    known: CommitFacts,
    call: Call,
    declared: Declared,
    feed: FeedState,
    moved: Sequence[Moved],
    sequences: Mapping[int, Numbers],
    now: int,
) -> Publication:
    """Return what to write for a batch that is to be published.

    Its chunks are in order, with positions and sequence numbers. The history continues with H(g) =
    SHA-256(H(g-1) ‖ partition, 4 bytes ‖ SHA-256 of the frame). `feed` is the feed before the
    commit, and `sequences` are the producer's numbers before it, by stored partition.
    """
    moment, history = max(now, feed.time), feed.history
    batch = known.number_of(call)
    firsts = {**dict(call.starting), **{each: own.first for each, own in sequences.items()}}
    before = {**firsts, **{each: own.next for each, own in sequences.items()}}
    following = dict(before)
    chunks: list[Chunk] = []
    for g, each in enumerate(moved, feed.head + 1):
        link = history + each.partition.to_bytes(4, "big") + each.digest
        history = hashlib.sha256(link).digest()
        sequence = following.get(each.partition, 0)
        following[each.partition] = sequence + each.events
        chunks.append(
            Chunk(
                g, each.partition, each.events, each.size, moment, tag(history),
                call.producer, batch, sequence, each.blob,
            )
        )  # fmt: skip
    if max(following.values(), default=0) > MAX_NUMBER:
        raise StoreError(f"producer {call.producer!r} has used up its sequence numbers")
    behind = {each.partition: each.cursor for each in chunks}
    ranges = [
        StoredRange(partition, before.get(partition, 0), following[partition] - 1, cursor)
        for partition, cursor in behind.items()
    ]
    head = feed.head + len(moved)
    receipt = receipt_for(known, call, declared, ranges, (feed.head, head), moment)
    after = replace(
        feed,
        head=head,
        history=history,
        time=moment,
        events=feed.events + sum(each.events for each in moved),
        size=feed.size + sum(each.size for each in moved),
    )
    numbers = {each: Numbers(firsts.get(each, 0), following[each]) for each in behind}
    return Publication(after, chunks, receipt, numbers)


def tag(history: bytes) -> str:
    """Return the tag of a history, which cursors carry."""
    return history[:4].hex()
