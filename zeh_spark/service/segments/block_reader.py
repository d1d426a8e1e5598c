"""Reads blocks of segments, on threads of their own, so that slow storage stops nothing else.

Whoever reads an old event waits for the storage in one of the publisher's threads. So only a few
may wait at a time, with a bounded number of bytes, and for a bounded time. Beyond that, and while
the storage fails again and again, the answer is StorageBusyError at once: a reader tries again
later, and readers of new events keep their threads.

Runs in the publisher and in commands.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from zeh_spark.errors import StoreError
from zeh_spark.service.segments.objects import Objects
from zeh_spark.service.segments.segment_format import checked_block
from zeh_spark.service.store.interface import DamagedObjectError, NoObjectError, StorageBusyError
from zeh_spark.service.store.log import BlockPlace

T = TypeVar("T")

THREADS, CALLS, CALL_BYTES = 8, 16, 64 << 20
"""How many objects are read at a time, and how many calls and bytes may be admitted, at most."""

CALLERS, SECONDS = 4, 20.0
"""Most callers at a time, half of a publisher's threads, and the seconds for which one waits."""

KEPT_BYTES = 32 << 20
"""Most bytes of blocks that are kept for the next readers. Pages begin and end inside blocks."""

_FAILURES, _PAUSE = 3, 5.0
"""Failures in a row after which nothing is tried, but for one call each so many seconds."""


class ObjectThreads:
    """Threads for objects. They end with the process, also if the storage never answers."""

    def __init__(
        self,
        *,
        threads: int = THREADS,
        calls: int = CALLS,
        call_bytes: int = CALL_BYTES,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = calls, call_bytes
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any], int]] = (
            queue.SimpleQueue()
        )
        self._callers = self._calls = self._bytes = self._failures = 0
        self._again = 0.0
        for _ in range(threads):
            threading.Thread(target=self._run, name="zeh-objects", daemon=True).start()

    @property
    def is_failing(self) -> bool:
        """Whether the storage has failed again and again, and nothing is tried for now."""
        return self._failures >= _FAILURES

    def run(self, works: Sequence[tuple[int, Callable[[], T]]]) -> list[T]:
        """Do several calls at a time and return their results.

        Args:
            works: Each with about how many bytes it holds.

        Raises:
            StorageBusyError: The storage fails or is slow, or too many wait for it. The cause tells
                the operator which object it is about.
            StoreError: Another error of a call, like that of an object that is missing.
        """
        self._admit(len(works), sum(size for size, _ in works))
        begun = []
        for size, work in works:
            begun.append(done := Future[T]())
            self._queue.put((work, done, size))
        try:
            _, late = wait(begun, self._seconds)
        finally:
            with self._lock:
                self._callers -= 1
        for each in late:
            each.cancel()  # what has begun goes on, and counts until it ends
        if late:
            self._note(failed=True)
            raise _busy(
                f"the storage of old events has not answered for {self._seconds:g} s"
            ) from StoreError(f"{len(late)} of {len(begun)} calls of the storage did not end")
        try:
            results = [each.result() for each in begun]
        except (NoObjectError, DamagedObjectError):
            self._note(failed=False)
            raise
        except StoreError as exc:
            self._note(failed=True)
            raise _busy("the storage of old events fails now") from exc
        self._note(failed=False)
        return results

    def _admit(self, calls: int, size: int) -> None:
        most_calls, most_bytes = self._limits
        with self._lock:
            now = self._clock()
            if self.is_failing:
                if now < self._again:
                    raise _busy("the storage of old events fails now")
                self._again = now + self._seconds  # this one finds out, others wait for that
            if self._callers == CALLERS or (
                self._calls
                and (self._calls + calls > most_calls or self._bytes + size > most_bytes)
            ):
                raise _busy("too many requests wait for the storage of old events")
            self._callers += 1
            self._calls += calls
            self._bytes += size

    def _note(self, *, failed: bool) -> None:
        with self._lock:
            self._failures = self._failures + 1 if failed else 0
            if failed:
                self._again = self._clock() + _PAUSE

    def _run(self) -> None:
        while True:
            work, done, size = self._queue.get()
            try:
                if done.set_running_or_notify_cancel():
                    done.set_result(work())
            except Exception as exc:  # noqa: BLE001  # the caller raises it
                done.set_exception(exc)
            finally:
                with self._lock:
                    self._calls -= 1
                    self._bytes -= size
            del work, done  # an answer of megabytes would stay until the next call


class BlockReader:
    """Reads blocks by their places (see `Store.read_blocks`)."""

    def __init__(self) -> None:
        self.threads = ObjectThreads()
        self._lock = threading.Lock()
        self._kept: OrderedDict[BlockPlace, bytes] = OrderedDict()
        self._size = 0
        self._locations: dict[str, Objects] = {}

    def read(self, places: Collection[BlockPlace]) -> Mapping[BlockPlace, bytes]:
        """Return these blocks, each as it was written."""
        with self._lock:
            found = {each: self._kept[each] for each in places if each in self._kept}
            for each in found:
                self._kept.move_to_end(each)
        missing = [each for each in places if each not in found]
        if missing:
            works = [(each.length, partial(self._read, each)) for each in missing]
            new = dict(zip(missing, self.threads.run(works), strict=True))
            self._keep(new)
            found.update(new)
        return found

    def _read(self, place: BlockPlace) -> bytes:
        if (objects := self._locations.get(place.location)) is None:
            objects = self._locations[place.location] = Objects(place.location)
        frame = objects.read(place.name, place.offset, place.length)
        return checked_block(objects.name_of(place.name), place, frame)

    def _keep(self, new: Mapping[BlockPlace, bytes]) -> None:
        with self._lock:
            for place, frame in new.items():
                if place not in self._kept:
                    self._kept[place] = frame
                    self._size += len(frame)
            while self._size > KEPT_BYTES:
                _, dropped = self._kept.popitem(last=False)
                self._size -= len(dropped)


def _busy(what: str) -> StorageBusyError:
    return StorageBusyError(f"{what}. New events can be read. Try again in a few seconds")
