"""Slow and broken storage takes a bounded part of the publisher, and is asked seldom."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import xxhash

from tests.cases import each_case
from tests.patience import PATIENCE, Halt, eventually
from zeh_spark.service.segments import block_reader
from zeh_spark.service.segments.block_reader import CALLERS, SHARE, BlockReader, ObjectThreads
from zeh_spark.service.segments.objects import Objects
from zeh_spark.service.store.interface import (
    DamagedObjectError,
    NoObjectError,
    ObjectError,
    StorageBusyError,
)
from zeh_spark.service.store.log import BlockPlace

CONTENT = bytes(range(250))


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def fail(error: Exception) -> None:
    raise error


def test_calls_are_done_at_the_same_time_and_answered_in_order() -> None:
    """What is in several objects is not read one after the other."""
    meeting = threading.Barrier(3, timeout=10)

    def meet(number: int) -> int:
        meeting.wait()
        return number

    assert [1, 2, 3] == ObjectThreads().run([partial(meet, each) for each in (1, 2, 3)])


def test_threads_are_used_again_and_end_when_they_are_idle(monkeypatch) -> None:
    """A publisher, and a process that opens many stores, keeps none that it does not need."""
    monkeypatch.setattr(block_reader, "_IDLE", PATIENCE)
    threads = ObjectThreads()
    used = {threads.run([threading.current_thread])[0] for _ in range(99)}
    assert 1 == len(used)
    monkeypatch.setattr(block_reader, "_IDLE", 0.01)
    assert [*used] == threads.run([threading.current_thread])
    eventually(lambda: not any(each.is_alive() for each in used))
    assert 0 == threads._threads
    assert used.isdisjoint(threads.run([threading.current_thread]))


def test_who_waits_too_long_is_sent_away_and_what_hangs_counts() -> None:
    """A publisher whose storage hangs answers 503, and the number of its threads is bounded."""
    time, halt = Time(), Halt()
    threads = ObjectThreads(seconds=0.05, clock=time)
    for _ in range(CALLERS):
        time.now += 60
        with pytest.raises(StorageBusyError, match=r"has not answered for 0\.05 s.*Try again"):
            threads.run([halt] * SHARE)
    time.now += 60
    with pytest.raises(StorageBusyError, match="too many requests wait"):
        threads.run([lambda: 1])
    halt.go.set()
    eventually(lambda: threads._calls == 0)
    assert [1] == threads.run([lambda: 1])


def test_few_callers_wait() -> None:
    """The other threads of a publisher are for readers of new events."""
    halt, threads = Halt(), ObjectThreads()
    with ThreadPoolExecutor(CALLERS) as pool:
        for _ in range(CALLERS):
            pool.submit(threads.run, [halt])
        eventually(lambda: threads._callers == CALLERS)
        with pytest.raises(StorageBusyError, match="too many requests wait"):
            threads.run([lambda: 1])
        halt.go.set()
    assert [1] == threads.run([lambda: 1])


def test_storage_that_fails_again_and_again_is_asked_once_in_a_while() -> None:
    """Each reader would otherwise wait for its time limit."""
    time = Time()
    threads = ObjectThreads(clock=time)
    why = ObjectError("cannot read s3://bucket/one: 403")
    asked = []
    for _ in range(3):
        with pytest.raises(StorageBusyError) as failed:
            threads.run([partial(fail, why)])
        assert why is failed.value.__cause__
        assert "bucket" not in str(failed.value)  # that is for the operator

    with pytest.raises(StorageBusyError, match="fails now"):
        threads.run([lambda: asked.append(1)])
    assert [] == asked
    time.now += 5
    threads.run([lambda: asked.append(2)])
    threads.run([lambda: asked.append(3)])
    assert [2, 3] == asked


def test_one_caller_finds_out_whether_it_still_fails() -> None:
    """The others are told at once, also if that one waits."""
    time, halt = Time(), Halt()
    threads = ObjectThreads(clock=time)
    for _ in range(3):
        with pytest.raises(StorageBusyError):
            threads.run([partial(fail, ObjectError("403"))])
    time.now += 5
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(threads.run, [halt])
        assert halt.reached.wait(10)
        with pytest.raises(StorageBusyError, match="fails now"):
            threads.run([lambda: 1])
        halt.go.set()
        assert [None] == first.result()


@pytest.mark.parametrize("error", [NoObjectError("gone"), DamagedObjectError("changed")])
def test_an_object_that_is_wrong_is_no_failure_of_the_storage(error: ObjectError) -> None:
    """It is told as it is, and others are read."""
    threads = ObjectThreads()
    for _ in range(4):
        with pytest.raises(type(error)):
            threads.run([partial(fail, error)])

    assert [1] == threads.run([lambda: 1])


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Objects:
    """Objects `a` and `b` with CONTENT. A call reads at most 20 bytes."""
    monkeypatch.setattr(block_reader, "SPAN_BYTES", 20)
    found = Objects(str(tmp_path))
    for name in "ab":
        found.put(name, [CONTENT])
    return found


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What is read of which object, from where and how much."""
    real, made = Objects.read, []

    def read(self: Objects, *given: str | int) -> bytes:
        made.append(given)
        return real(self, *given)

    monkeypatch.setattr(Objects, "read", read)
    return made


def place(objects: Objects, name: str, offset: int, length: int) -> BlockPlace:
    digest = xxhash.xxh3_128_digest(CONTENT[offset : offset + length])
    return BlockPlace(objects.location, name, offset, length, digest)


SPANS = {
    "neighbours": ([("a", 0, 10), ("a", 10, 10)], [("a", 0, 20)]),
    "in any order": ([("a", 10, 10), ("a", 0, 10)], [("a", 0, 20)]),
    "with something between": ([("a", 5, 2), ("a", 15, 10)], [("a", 5, 20)]),
    "too far": ([("a", 5, 2), ("a", 16, 10)], [("a", 5, 2), ("a", 16, 10)]),
    "too much": ([("a", 0, 10), ("a", 10, 11)], [("a", 0, 10), ("a", 10, 11)]),
    "one that is too much": ([("a", 0, 99), ("a", 99, 1)], [("a", 0, 99), ("a", 99, 1)]),
    "of two objects": ([("a", 0, 10), ("b", 10, 10)], [("a", 0, 10), ("b", 10, 10)]),
    "many": (
        [("a", each * 25, 2) for each in range(10)],
        [("a", each * 25, 2) for each in range(10)],
    ),
}


@each_case("name", SPANS)
def test_neighbours_are_read_with_one_call(name: str, objects: Objects, calls: list) -> None:
    """An object store takes longer for a call than for a megabyte."""
    calls.clear()
    given, expected = SPANS[name]
    places = [place(objects, *each) for each in given]

    found = dict(BlockReader().read(places))

    assert {each: CONTENT[each.offset :][: each.length] for each in places} == found
    assert expected == sorted(calls)


def test_an_answer_reads_ahead_a_little(objects: Objects, calls: list) -> None:
    """Memory is bounded, however many blocks it needs."""
    blocks = BlockReader().read([place(objects, "a", each * 25, 2) for each in range(10)])
    next(blocks)
    assert SHARE == len(calls)
    assert 9 == len([*blocks])


def test_the_next_page_finds_the_block_in_which_it_begins(objects: Objects, calls: list) -> None:
    """Small pages do not read a block once for each of them."""
    reader, places = BlockReader(), [place(objects, "a", each, 5) for each in (0, 5)]
    first = [*reader.read(places[:1])]
    assert first == [*reader.read(places[:1])]
    assert [("a", 0, 5)] == calls
    assert dict(first) == dict([next(reader.read(places))])
    assert {*places} == {*dict(reader.read(places))}
    assert [("a", 0, 5), ("a", 5, 5)] == calls


def test_each_block_of_a_span_is_compared(objects: Objects) -> None:
    """A block that was changed is named, also behind others."""
    right, wrong = place(objects, "a", 0, 10), place(objects, "a", 10, 10)
    wrong = wrong._replace(digest=right.digest)
    with pytest.raises(DamagedObjectError, match=r"/a was changed.* its 10 bytes at 10 are"):
        [*BlockReader().read([right, wrong])]
