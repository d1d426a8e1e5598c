"""How events become the uploads of a batch: each event in one of them, whatever their sizes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import each_case
from zeh_spark.wire.batch_uploader import BatchUploader, Group
from zeh_spark.wire.upload_format import (
    CHUNK_BYTES,
    CHUNK_EVENTS,
    UPLOAD_CHUNKS,
    UPLOAD_UNPACKED,
    StagedChunk,
    content_of,
    lines_of,
)

SIZE = 50_000
"""Of an upload: two chunks of `CHUNK`, whose lines have about 43,000 bytes, go into one."""

CHUNK = [b'"headers":{},"data":%06d}' % each for each in range(CHUNK_EVENTS)]


class Publisher:
    """Takes uploads; says from number `known` on that the batch is committed."""

    def __init__(self, known: int | None = None) -> None:
        self.uploads: dict[int, list[StagedChunk]] = {}
        self.threads: set[threading.Thread] = set()
        self.known = known

    def __call__(self, number: int, chunks: list[StagedChunk]) -> bool:
        assert number not in self.uploads
        self.uploads[number] = list(chunks)
        self.threads.add(threading.current_thread())
        return self.known is None or number < self.known

    @property
    def events(self) -> list[int]:
        """Of each upload, in order."""
        assert list(self.uploads) == list(range(len(self.uploads)))
        return [sum(chunk.events for chunk in each) for each in self.uploads.values()]

    def rests(self, partition: int) -> list[bytes]:
        chunks = [chunk for each in self.uploads.values() for chunk in each]
        lines = [lines_of(each.frame) for each in chunks if each.partition == partition]
        return [line.partition(b",")[2] for line in b"".join(lines).splitlines()]


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def uploader(send: Callable[[int, list[StagedChunk]], bool], **how: Any) -> BatchUploader:
    return BatchUploader(send, 1, "p/0", **{"upload_bytes": SIZE, **how})


events = st.lists(st.tuples(st.none() | st.integers(0, 3), st.binary(max_size=300)), max_size=40)


@given(events, st.integers(1, 3000), st.none() | st.integers(0, 3), st.booleans())
def test_each_event_is_in_one_upload_and_all_are_in_the_content(
    given_events: list[tuple[int | None, bytes]], size: int, known: int | None, together: bool
) -> None:
    """Smaller uploads, or a batch that is known half way: its identity stays. A body is one chunk,
    or at most what I allow; before compression at most twice that.
    """
    publisher = Publisher(known)
    rests = [noise.hex().encode() for _, noise in given_events]
    to = [-1 if partition is None else partition for partition, _ in given_events]
    batch = BatchUploader(publisher, 4, "p/0", upload_bytes=size)
    if together:
        batch.add(rests, np.array(to, np.int32))
    else:
        for partition, rest in zip(to, rests, strict=True):
            batch.add([rest], None if partition < 0 else partition)
    batch.finish()
    assert content_of(rests) == batch.content
    assert batch.uploads == len(publisher.uploads)
    for chunks in publisher.uploads.values():
        assert chunks
        assert len(chunks) == 1 or sum(len(each.frame) for each in chunks) <= size
        assert len(chunks) == 1 or sum(each.size for each in chunks) <= 2 * size
    if batch.wanted:
        found = [rest for partition in range(4) for rest in publisher.rests(partition)]
        assert sorted(rests) == sorted(found)
        for partition in range(4):
            mine = [rest for there, rest in zip(to, rests, strict=True) if there == partition]
            there = iter(publisher.rests(partition))
            assert all(rest in there for rest in mine)  # in their order


def test_largest_uploads_are_taken_by_the_publisher() -> None:
    """An option that I may set to its limit works there, however well my rows compress."""
    flat = [StagedChunk(0, 1, CHUNK_BYTES, 0, b"x")] * 600
    tiny = [StagedChunk(0, 1, 50, 0, b"x")] * (UPLOAD_CHUNKS + 1)
    for chunks in (flat, tiny):
        group = Group(32 << 20)
        for chunk in chunks:
            if not group.takes(chunk):
                break
            group.add(chunk)
        assert len(group.chunks) < len(chunks)
        assert sum(each.size for each in group.chunks) <= UPLOAD_UNPACKED
        assert len(group.chunks) <= UPLOAD_CHUNKS


# While the caller continues


@pytest.mark.parametrize(
    ("chunks", "events"), [(0, []), (2, [2000]), (7, [2000, 2000, 2000, 1000])]
)
def test_a_large_batch_sends_as_it_goes(
    executor: ThreadPoolExecutor, chunks: int, events: list[int]
) -> None:
    """Uploads of about the size asked for, numbered in order; an upload holds at most twice its
    size before compression. Most tasks are small: they send one upload, or none, which the commit
    names all the same, and start no thread.
    """
    publisher, before = Publisher(), threading.active_count()

    batch = uploader(publisher, executor=executor)
    for _ in range(chunks):
        batch.add(CHUNK)
    batch.finish()

    assert events == publisher.events
    assert (len(events), True) == (batch.uploads, batch.wanted)
    if len(events) < 2:
        assert publisher.threads <= {threading.current_thread()}
        assert threading.active_count() == before


def test_two_uploads_hold_back_the_third(executor: ThreadPoolExecutor) -> None:
    """One is on its way and one waits, however fast the rows come."""
    begun, go = threading.Semaphore(0), threading.Event()

    def send(number: int, chunks: list[StagedChunk]) -> bool:
        begun.release()
        assert go.wait(10)
        return True

    def fill() -> None:
        batch = uploader(send, executor=executor)
        for _ in range(100):
            batch.add(CHUNK)
            added.append(1)
        batch.finish()

    added: list[int] = []
    thread = threading.Thread(target=fill)
    thread.start()
    assert begun.acquire(timeout=10)
    thread.join(0.2)
    held = len(added)
    go.set()
    thread.join(10)

    assert held == 4
    assert len(added) == 100


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(("wanted", "uploads"), [(True, [0, 1]), (False, [])])
def test_a_batch_that_is_committed_needs_no_more_uploads(
    executor: ThreadPoolExecutor, background: bool, wanted: bool, uploads: list[int]
) -> None:
    """The publisher says so at an upload, or before the first one; the rest is counted only."""
    publisher = Publisher(known=1)

    batch = uploader(publisher, executor=executor if background else None, wanted=wanted)
    for _ in range(9):
        batch.add(CHUNK)
    batch.finish()

    assert (uploads, len(uploads)) == (sorted(publisher.uploads), batch.uploads)
    assert (False, content_of(CHUNK * 9)) == (batch.wanted, batch.content)
    assert sum(len(rest) + len('{"partition":0,\n') for rest in CHUNK * 9) == batch.size


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("error", [ConnectionError, KeyboardInterrupt])
def test_what_sending_raises_is_raised_for_ever(
    executor: ThreadPoolExecutor, background: bool, error: type[BaseException]
) -> None:
    """A program that catches it, Ctrl-C too, cannot finish the batch without an upload."""

    def send(number: int, chunks: list[StagedChunk]) -> bool:
        raise error(f"upload {number}")

    batch = uploader(send, executor=executor if background else None)
    with pytest.raises(error, match="upload 0"):
        for _ in range(9):
            batch.add(CHUNK)

    with pytest.raises(error, match="upload 0"):
        batch.add(CHUNK)
    with pytest.raises(error, match="upload 0"):
        batch.finish()


def test_a_batch_whose_end_failed_stays_failed() -> None:
    """Nobody takes a batch for staged because its end was asked for twice."""

    def refuse(number: int, chunks: list[StagedChunk]) -> bool:
        raise OSError(f"upload {number}")

    batch = BatchUploader(refuse, 2, "b")
    batch.add(CHUNK[:5])

    for _ in range(2):
        with pytest.raises(OSError, match="upload 0"):
            batch.finish()


@each_case(("kept", "expected"), [(1 << 30, True), (SIZE, False), (0, False)])
def test_what_is_kept_is_sent_again(kept: int, expected: bool) -> None:
    """The same uploads under the same numbers; or nothing, if they are larger than the bound."""
    sent: list[tuple[int, list[StagedChunk]]] = []

    def send(number: int, chunks: list[StagedChunk]) -> bool:
        sent.append((number, list(chunks)))
        chunks.clear()
        return True

    batch = BatchUploader(send, 1, "p/0", upload_bytes=SIZE // 8, kept_bytes=kept)
    for first in range(20):
        batch.add([b'"headers":{},"data":"%b"}' % os.urandom(4000).hex().encode()] * (1 + first))
    batch.finish()
    before, sent[:] = list(sent), []

    assert expected == batch.send_again()
    assert (before if expected else []) == sent
    batch.forget()
    assert not batch.send_again()
