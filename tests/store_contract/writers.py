"""Functions with which tests of stores write batches and read them back.

Rule for editors: an upload is made here as a PUT to the publisher makes it.
"""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from zeh_spark.publisher import Problem, Store
from zeh_spark.service.reads.reading import Reading
from zeh_spark.service.store.batches import (
    Call,
    Declared,
    Overrides,
    StoredReceipt,
    TaskAttempt,
    Upload,
)
from zeh_spark.service.store.log import Chunk
from zeh_spark.service.store.packs import cut
from zeh_spark.tools.loading.one_batch import next_batch
from zeh_spark.wire.upload_format import Chunker, Content, StagedChunk, frame_of, lines_of

FEED = "orders"
"""The feed that the tests use."""

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])


def chunk(partition: int, *data: bytes) -> StagedChunk:
    """Return one chunk with events of these data, as JSON."""
    chunker = Chunker()
    full = [each for line in data for each in chunker.add(partition, {}, line)]
    (only,) = [*full, *chunker.close()]
    return only


def large(partition: int, *data: bytes) -> StagedChunk:
    """Return a chunk with so many events that a commit does not pack it with its neighbours."""
    return chunk(partition, *data, *[b"0"] * 200)


def upload(*chunks: StagedChunk, task: int = 0, attempt: int = 0, number: int = 0) -> Upload:
    """Return an upload of a task's attempt with these chunks; `number` is its number in it."""
    digest = hashlib.sha256(b"".join(each.frame for each in chunks)).digest()
    return Upload(task, attempt, number, digest, chunks)


def call(
    batch: int | None = 0,
    *,
    producer: str = "p",
    incarnation: str = "a",
    run: str = "r1",
    partitions: int = 2,
    **overrides: str,
) -> Call:
    """Return a call of a producer. The batch None is its next one; overrides as `Overrides` has."""
    return Call(producer, incarnation, run, batch, partitions, Overrides(**overrides))


def declared(*uploads: Upload) -> Declared:
    """Return what a driver declares whose tasks have sent these uploads."""
    attempts: dict[tuple[int, int], list[Upload]] = {}
    for each in uploads:
        attempts.setdefault((each.task, each.attempt), []).append(each)
    named = [
        TaskAttempt(task, attempt, len(found), sum(each.content.events for each in found))
        for (task, attempt), found in attempts.items()
    ]
    return Declared(sum((each.content for each in uploads), Content()), tuple(named))


def commit(
    store: Store, by: Call, *uploads: Upload, feed: str = FEED
) -> tuple[StoredReceipt, bool]:
    """Stage all uploads, then commit them; return what `Batches.commit` returns."""
    for each in uploads:
        store.stage(feed, by, each)
    return store.commit(feed, by, declared(*uploads))


def publish_as(
    store: Store, by: Call, *chunks: StagedChunk, feed: str = FEED
) -> tuple[StoredReceipt, bool]:
    """Publish chunks as one upload; return what `Batches.commit` returns."""
    return commit(store, by, upload(*chunks), feed=feed)


def publish(store: Store, *chunks: StagedChunk, feed: str = FEED) -> StoredReceipt:
    """Publish chunks as the next batch of the producer `test`, and return its receipt."""
    return publish_as(store, next_batch(store, feed, "test"), *chunks, feed=feed)[0]


def everything(store: Store, feed: str = FEED) -> list[Chunk]:
    """Return all chunks of a feed, in the order of their positions."""
    with store.snapshot(feed) as log:
        return log.scan(0, log.state.head, log.state.head)


def frames_of(store: Store, chunks: Iterable[Chunk], feed: str = FEED) -> list[bytes]:
    """Return the frames of chunks, in the given order; of what is packed, those it would have."""
    reading = Reading(store, feed, ())

    def frames() -> Iterator[bytes]:
        for chunk in chunks:
            (found,) = reading.frames([chunk.g], [chunk.blob])
            if found.offsets is None:
                yield found.packed
            else:
                yield from map(frame_of, cut([chunk.size], found))

    return next(reading.parts([*frames()] for _ in "1"))  # in one snapshot, but for objects


def data(store: Store, chunks: Sequence[Chunk] | None = None) -> list[bytes]:
    """Return the data of all events of the feed, or of some chunks, in order."""
    found = everything(store) if chunks is None else chunks
    frames = frames_of(store, found)
    lines = [line for frame in frames for line in lines_of(frame).splitlines()]
    return [line.split(b'"data":')[1][:-1] for line in lines]


def in_a_process(work: Callable[..., object], *given: Any) -> BaseProcess:
    """Start a function in a process of its own, forked from one that has loaded all this."""
    process = _PROCESSES.Process(target=work, args=given)
    process.start()
    return process


def refusal(problem: Problem) -> tuple[str, int]:
    """Return the name and the HTTP status of a refusal."""
    return problem.name, problem.status


def refused(work: Callable[..., object], *given: Any, **named: Any) -> Problem:
    """Return the refusal of a call; fail if it is not refused."""
    with pytest.raises(Problem) as found:
        work(*given, **named)
    return found.value
