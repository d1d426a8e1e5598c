"""Slow and broken storage takes a bounded part of the publisher."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from zeh_spark.service.segments.block_reader import ObjectThreads
from zeh_spark.service.store.interface import (
    DamagedObjectError,
    NoObjectError,
    ObjectError,
    StoreBusyError,
)


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def fail(error: Exception) -> None:
    raise error


def test_calls_are_done_at_the_same_time_and_answered_in_order() -> None:
    """Blocks of an answer are not read one after the other."""
    meeting = threading.Barrier(3, timeout=10)

    def meet(number: int) -> int:
        meeting.wait()
        return number

    assert [1, 2, 3] == ObjectThreads().run([(9, partial(meet, each)) for each in (1, 2, 3)])


def test_who_waits_too_long_is_sent_away_and_what_hangs_counts() -> None:
    """A publisher whose storage hangs answers 503, with all but a few threads."""
    hangs = threading.Event()
    threads = ObjectThreads(threads=2, calls=2, seconds=0.05)

    with pytest.raises(StoreBusyError, match=r"has not answered for 0\.05 s.*Try again"):
        threads.run([(1, hangs.wait), (1, hangs.wait)])
    with pytest.raises(StoreBusyError, match="too many requests wait"):
        threads.run([(1, lambda: 1)])
    hangs.set()
    ended = threading.Event()
    while True:  # until the threads have noticed
        try:
            threads.run([(1, ended.set)])
            break
        except StoreBusyError:
            continue
    assert ended.is_set()


def test_bytes_are_bounded_but_one_caller_is_always_let_in() -> None:
    """A single answer may need more than the bound."""
    hangs = threading.Event()
    threads = ObjectThreads(call_bytes=10, seconds=30)
    first = threading.Thread(target=lambda: threads.run([(100, hangs.wait)]))
    first.start()
    while not threads._bytes:
        pass

    with pytest.raises(StoreBusyError, match="too many requests wait"):
        threads.run([(1, lambda: 1)])
    hangs.set()
    first.join()


def test_storage_that_fails_again_and_again_is_asked_once_in_a_while() -> None:
    """Each reader would otherwise wait for its time limit."""
    time = Time()
    threads = ObjectThreads(clock=time)
    why = ObjectError("cannot read s3://bucket/one: 403")
    asked = []
    for _ in range(3):
        with pytest.raises(StoreBusyError) as failed:
            threads.run([(1, partial(fail, why))])
        assert why is failed.value.__cause__
        assert "bucket" not in str(failed.value)  # that is for the operator

    with pytest.raises(StoreBusyError, match="fails now"):
        threads.run([(1, lambda: asked.append(1))])
    assert (True, []) == (threads.is_failing, asked)
    time.now += 5
    threads.run([(1, lambda: asked.append(2))])
    threads.run([(1, lambda: asked.append(3))])
    assert (False, [2, 3]) == (threads.is_failing, asked)


@pytest.mark.parametrize("error", [NoObjectError("gone"), DamagedObjectError("changed")])
def test_an_object_that_is_wrong_is_no_failure_of_the_storage(error: ObjectError) -> None:
    """It is told as it is, and others are read."""
    threads = ObjectThreads()
    for _ in range(4):
        with pytest.raises(type(error)):
            threads.run([(1, partial(fail, error))])

    assert [1] == threads.run([(1, lambda: 1)])
