"""Reads blocks of segments, on threads of their own, so that slow storage stops nothing else.

A request for old events waits for the storage in one of the publisher's threads. Therefore only a
few requests may wait at a time, for a bounded number of bytes and a bounded time. Beyond that, and
while the storage fails again and again, the answer is StorageBusyError at once. The reader tries
again later, and requests for new events always find a thread.

Runs in the publisher and in commands.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, TimeoutError
from functools import lru_cache, partial
from typing import Any, TypeVar

from zeh_spark.errors import StoreError
from zeh_spark.service.reads.answer_cache import AnswerCache
from zeh_spark.service.segments.objects import Objects
from zeh_spark.service.segments.ownership import missing, read_marker
from zeh_spark.service.segments.segment_format import checked_block
from zeh_spark.service.store.interface import (
    DamagedObjectError,
    LocationAwayError,
    NoObjectError,
    StorageBusyError,
)
from zeh_spark.service.store.log import BlockPlace

T = TypeVar("T")

CALLERS, SECONDS = 4, 20.0
"""Most callers at a time, half of a publisher's threads, and the seconds for which one waits."""

SHARE = 4
"""Most calls of the storage that a caller makes at a time, each in a thread of its own."""

SPAN_BYTES = 1 << 20
"""Most bytes that a call reads, unless a block has more; some are of blocks that nobody needs. An
object store takes longer for another call than for these.
"""

KEPT_BYTES = 32 << 20
"""Most bytes of blocks that are kept for the next readers. Pages begin and end inside blocks."""

_FAILURES, _PAUSE = 3, 5.0
"""Failures in a row after which nothing is tried, but for one caller each so many seconds."""

_IDLE = 5.0
"""Seconds after which a thread ends. To begin one takes as long as to read a block ten times."""


class ObjectThreads:
    """Threads for objects. They end when they are idle, or with the process, if a call hangs."""

    def __init__(
        self, *, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._callers = self._calls = self._threads = self._failures = 0
        self._again = 0.0

    def run(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """Do at most SHARE calls at a time and return their results.

        Raises:
            StorageBusyError: The storage fails or is slow, or too many wait for it. The cause tells
                the operator which object it is about.
            StoreError: Another error of a call, like that of an object that is missing.
        """
        begun = [Future[T]() for _ in works]
        self._begin([*zip(works, begun, strict=True)])
        failed, end = False, time.monotonic() + self._seconds
        try:
            return [each.result(end - time.monotonic()) for each in begun]
        except (NoObjectError, DamagedObjectError):
            raise
        except (StoreError, TimeoutError) as exc:
            failed = True
            is_late = isinstance(exc, TimeoutError)
            what = f"has not answered for {self._seconds:g} s" if is_late else "fails now"
            raise _busy(f"the storage of old events {what}") from exc
        finally:
            with self._lock:
                self._callers -= 1
                self._failures = self._failures + 1 if failed else 0
                self._again = self._clock() + _PAUSE

    def _begin(self, calls: Sequence[tuple[Callable[[], Any], Future[Any]]]) -> None:
        with self._lock:
            if self._callers == CALLERS or self._calls + len(calls) > CALLERS * SHARE:
                raise _busy("too many requests wait for the storage of old events")
            if self._failures >= _FAILURES:
                if self._clock() < self._again:
                    raise _busy("the storage of old events fails now")
                self._again = self._clock() + self._seconds  # this one finds out, others do not
            while self._threads < self._calls + len(calls):
                threading.Thread(target=self._run, name="zeh-objects", daemon=True).start()
                self._threads += 1
            self._callers += 1
            self._calls += len(calls)  # what hangs counts until it ends
            for each in calls:
                self._queue.put(each)

    def _run(self) -> None:
        while True:
            try:
                work, done = self._queue.get(timeout=_IDLE)
            except queue.Empty:
                with self._lock:
                    if self._queue.empty():
                        self._threads -= 1
                        return
                continue
            try:
                tell = partial(done.set_result, work())
            except Exception as exc:  # noqa: BLE001  # the caller raises it
                tell = partial(done.set_exception, exc)
            with self._lock:
                self._calls -= 1
            tell()
            del work, done, tell  # an answer of megabytes would stay until the next call


class BlockReader:
    """Reads blocks by their places (see `Store.read_blocks`)."""

    def __init__(self) -> None:
        self.threads = ObjectThreads()
        self.kept = AnswerCache(KEPT_BYTES)
        self._opened = lru_cache(Objects)

    def read(self, places: Iterable[BlockPlace]) -> Iterator[tuple[BlockPlace, bytes]]:
        """Yield these blocks, each as it was written, a few megabytes at a time."""
        missing = []
        for place in places:
            if frame := self.kept.find(place):
                yield place, frame
            else:
                missing.append(place)
        left = spans(missing)
        for begin in range(0, len(left), SHARE):
            some = left[begin : begin + SHARE]
            for blocks in self.threads.run([partial(self._read, each) for each in some]):
                for place, frame in blocks:
                    self.kept.keep(place, frame, len(frame))
                    yield place, frame

    def _read(self, span: Sequence[BlockPlace]) -> list[tuple[BlockPlace, bytes]]:
        objects = self._opened(span[0].location)
        try:
            return read_span(objects, span)
        except NoObjectError as exc:
            if read_marker(objects) is None:
                raise LocationAwayError(f"{exc.what}, and {missing(objects).what}") from None
            raise


def spans(places: Iterable[BlockPlace]) -> list[list[BlockPlace]]:
    """Return blocks by the calls that read them: those near each other in one object."""
    found: list[list[BlockPlace]] = []
    for place in sorted(places):
        first = found[-1][0] if found else place
        if found and place[:2] == first[:2] and _end(place) - first.offset <= SPAN_BYTES:
            found[-1].append(place)
        else:
            found.append([place])
    return found


def read_span(objects: Objects, span: Sequence[BlockPlace]) -> list[tuple[BlockPlace, bytes]]:
    """Return blocks with their places, from one read. Raises DamagedObjectError for others."""
    (_, name, begin, *_), said = span[0], objects.name_of(span[0].name)
    read = objects.read(name, begin, _end(span[-1]) - begin)
    return [
        (each, checked_block(said, each, read[each.offset - begin : _end(each) - begin]))
        for each in span
    ]


def _end(place: BlockPlace) -> int:
    return place.offset + place.length


def _busy(what: str) -> StorageBusyError:
    return StorageBusyError(f"{what}. New events can be read. Try again in a few seconds")
