"""Threads, locks and futures of a simulated process: each thread is a greenlet of its world.

Where the code imports `threading`, the world puts a `Threads` in its place. A thread runs until it
waits or sends a message, and dies with its process.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.world import Process, World


class Threads:
    """What the code uses of `threading`."""

    local = threading.local

    def __init__(self, world: World) -> None:
        self._world = world

    def Thread(self, target: Callable[[], object], name: str = "", daemon: bool = True) -> Thread:
        return Thread(self._world, target, name)

    def Condition(self, lock: Lock | None = None) -> Condition:
        return Condition(self._world, lock or self.RLock())

    def Event(self) -> Event:
        return Event(self._world)

    def Lock(self) -> Lock:
        return Lock(self._world)

    RLock = Lock

    def Future(self) -> PatientFuture:
        return PatientFuture(self._world)

    def wait(self, futures: list[Future[Any]], timeout: float | None = None) -> None:
        """Stand in for that of `concurrent.futures`, for one future."""
        PatientFuture.settled(self._world, futures[0], timeout)

    def get_ident(self) -> int:
        return id(self._world.current)

    def current_thread(self) -> Any:
        return self._world.current


class Thread:
    def __init__(self, world: World, target: Callable[[], object], name: str) -> None:
        self._world, self._target, self.name = world, target, name
        self._process: Process | None = None

    def __eq__(self, other: object) -> bool:  # to `current_thread()`
        return other is self or (other is not None and other is self._process)

    __hash__ = None  # type: ignore[assignment]

    def start(self) -> None:
        self._process = self._world.begin(self.name, self._target, self._world.current)

    def is_alive(self) -> bool:
        return self._process is not None and not self._process.ended

    def join(self, timeout: float | None = None) -> None:
        deadline = self._world.now + (math.inf if timeout is None else timeout)
        while self.is_alive() and self._world.now < deadline:
            self._world.pause(0.01)


class Lock:
    """A lock that its holder may take again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._holder: Process | None = None
        self._times = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        deadline = self.world.now + (timeout if timeout >= 0 else math.inf)
        while self._times and self._holder is not self.world.current:
            if self._holder and self._holder.ended:
                break  # it has died
            if not blocking or self.world.now >= deadline:
                return False
            self.world.pause(0.01)
        self._holder, self._times = self.world.current, self._times + 1
        return True

    def release(self) -> None:
        self._times -= 1

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    def __init__(self, world: World, lock: Lock) -> None:
        self._world, self._lock = world, lock
        self._waiting: list[Process] = []
        self.acquire, self.release = lock.acquire, lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        process = self._world.current
        if process is None:
            return False
        self._waiting.append(process)
        process.wakes = self._world.now + (math.inf if timeout is None else timeout)
        self._lock.release()
        try:
            self._world.step("waits")
        finally:
            self._lock.acquire()
        if notified := process not in self._waiting:
            return notified
        self._waiting.remove(process)
        return False

    def wait_for(self, holds: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline = self._world.now + (math.inf if timeout is None else timeout)
        while not (found := holds()) and self._world.now < deadline:
            self.wait(deadline - self._world.now)
        return found

    def notify_all(self) -> None:
        for each in self._waiting:
            each.wakes = self._world.now
        self._waiting.clear()

    notify = notify_all


class Event:
    def __init__(self, world: World) -> None:
        self._changed = Condition(world, Lock(world))
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._changed.notify_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(self.is_set, timeout))


class PatientFuture(Future[Any]):
    """A future whose result is waited for by the clock of the world."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def result(self, timeout: float | None = None) -> Any:
        self.settled(self._world, self, timeout)
        return super().result(0)

    @staticmethod
    def settled(world: World, future: Future[Any], timeout: float | None) -> None:
        deadline = world.now + (math.inf if timeout is None else timeout)
        while not future.done() and world.now < deadline:
            world.pause(0.02)
