"""How tests of stores write batches and read them back."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence

from zeh_spark.loading.load import next_batch
from zeh_spark.protocol.upload_format import Chunker, Content, StagedChunk, lines_of
from zeh_spark.publisher import Problem, Store
from zeh_spark.store.batches import Call, Declared, Overrides, StoredReceipt, TaskAttempt, Upload
from zeh_spark.store.interface import Chunk

FEED = "orders"


def chunk(partition: int, *data: bytes) -> StagedChunk:
    chunker = Chunker()
    full = [each for line in data for each in chunker.add(partition, {}, line)]
    (only,) = [*full, *chunker.close()]
    return only


def large(partition: int, *data: bytes) -> StagedChunk:
    """With so many events that a commit does not pack it with its neighbours."""
    return chunk(partition, *data, *[b"0"] * 200)


def upload(
    *chunks: StagedChunk, task: int = 0, attempt: int = 0, number: int = 0
) -> Upload:  # as a PUT would make it
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
    return Call(producer, incarnation, run, batch, partitions, Overrides(**overrides))


def declared(*uploads: Upload) -> Declared:
    """What a driver says whose tasks sent these."""
    attempts: dict[tuple[int, int], list[Upload]] = {}
    for each in uploads:
        attempts.setdefault((each.task, each.attempt), []).append(each)
    named = [
        TaskAttempt(task, attempt, len(found), sum(each.content.events for each in found))
        for (task, attempt), found in attempts.items()
    ]
    return Declared(sum((each.content for each in uploads), Content()), tuple(named))


def commit(store: Store, by: Call, *uploads: Upload) -> tuple[StoredReceipt, bool]:
    """Stage all, then commit all."""
    for each in uploads:
        store.stage(FEED, by, each)
    return store.commit(FEED, by, declared(*uploads))


def publish(store: Store, *chunks: StagedChunk, feed: str = FEED) -> StoredReceipt:
    """One batch of one task."""
    return publish_as(store, next_batch(store, feed, "test"), *chunks, feed=feed)[0]


def publish_as(
    store: Store, by: Call, *chunks: StagedChunk, feed: str = FEED
) -> tuple[StoredReceipt, bool]:
    """These chunks as one upload; the second value as of `Store.commit`."""
    one = upload(*chunks)
    store.stage(feed, by, one)
    return store.commit(feed, by, declared(one))


def everything(store: Store, feed: str = FEED) -> list[Chunk]:
    state = store.feed(feed)
    return store.chunks(feed, dict.fromkeys(range(state.partitions), 0), state.head, state.head)


def data(store: Store, chunks: Sequence[Chunk] | None = None) -> list[bytes]:
    """Of all events of the feed, in its order."""
    found = everything(store) if chunks is None else chunks
    frames = store.frames([each.blob for each in found])
    lines = [line for frame in frames for line in lines_of(frame).splitlines()]
    return [line.split(b'"data":')[1][:-1] for line in lines]


def until(condition: Callable[[], object], seconds: float = 10) -> None:
    """Looks again and again; fails where it never comes true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.002)


def refusal(problem: Problem) -> tuple[str, int]:
    return problem.name, problem.status
