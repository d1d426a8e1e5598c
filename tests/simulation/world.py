"""The simulated world: who runs next, what time it is, what becomes of a message, and who dies.

Each process is a greenlet that runs until its next message, sleep or step, and then another one
does. A process that dies leaves what it has stored, and begins again with that.
"""

from __future__ import annotations

import contextlib
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import greenlet

from zeh_spark.client.http.retry import Retry
from zeh_spark.client.http.transport import Transport

MOST_STEPS = 20_000
"""Of a run. One that takes more makes no progress."""

BEGIN = 1_700_000_000.0
"""When a run begins, in seconds since 1970."""

FAULTS = (
    "request lost", "request late", "request doubled", "answer lost", "answer cut",
    "client dies", "publisher dies",
)  # fmt: skip


class Died(BaseException):
    """This process is dead: nothing may handle it but the world."""


class AnomalyError(Exception):
    """A promise is broken."""


@dataclass(eq=False)
class Process:
    """A process of the world. `life` begins again when it has died; its end is the process's."""

    name: str
    life: Callable[[], None]
    wakes: float = 0.0
    dead: bool = False
    ended: bool = False
    greenlet: Any = None


@dataclass(eq=False)
class World:
    """A run. `faulty` says of how many messages in 1,000 something becomes, by fault."""

    seed: int
    verbose: bool = False
    now: float = BEGIN
    steps: int = 0
    calm: bool = False
    restores: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    processes: list[Process] = field(default_factory=list)
    late: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        some = self.random.sample(FAULTS, self.random.randint(1, len(FAULTS)))
        self.faulty = {fault: self.random.choice((5, 20, 60)) for fault in some}
        self.last_fault = self.random.choice((100, 300, 800))  # the step after which all is calm

    def say(self, *words: object) -> None:
        if self.verbose:
            who = self.current.name if self.current else "-"
            print(f"{self.steps:6} {self.now - BEGIN:9.3f} {who:10}", *words)

    @property
    def current(self) -> Process | None:
        here = greenlet.getcurrent()
        return next((each for each in self.processes if each.greenlet is here), None)

    def chance(self, fault: str) -> bool:
        """Whether this fault happens now."""
        if self.calm or self.random.randrange(1000) >= self.faulty.get(fault, 0):
            return False
        self.counts[fault] += 1
        self.say("!", fault)
        return True

    def begin(self, name: str, life: Callable[[], None]) -> None:
        self.processes.append(Process(name, life))

    def step(self, what: str) -> None:
        """Let others run; perhaps die."""
        process = self.current
        if process is None:
            return
        if process.dead:
            raise Died
        self.say(what)
        self._hub.switch()
        if process.dead or self.chance("client dies"):
            process.dead = True
            raise Died

    def pause(self, seconds: float) -> None:
        """Let this process sleep, and others run, by the clock of the world."""
        if process := self.current:
            process.wakes = self.now + seconds
            self.step(f"pauses {seconds:.3f} s")

    def run(self) -> None:
        """Run until all processes have ended. Raises AnomalyError if they do not."""
        self._hub = greenlet.getcurrent()
        with self._installed():
            while alive := [each for each in self.processes if not each.ended]:
                self.steps += 1
                self.calm = self.steps > self.last_fault
                if self.steps > MOST_STEPS:
                    names = ", ".join(each.name for each in alive)
                    raise AnomalyError(f"no progress after {MOST_STEPS:,} steps: {names}")
                if self.late and (self.calm or self.random.randrange(8) == 0):
                    self.late.pop(self.random.randrange(len(self.late)))()
                    continue
                self.now = max(self.now, min(each.wakes for each in alive))
                ready = [each for each in alive if each.wakes <= self.now]
                self._continue(self.random.choice(ready))
                self.now += self.random.random() / 100

    def _continue(self, process: Process) -> None:
        if process.greenlet is None or process.greenlet.dead:
            process.dead = False
            process.greenlet = greenlet.greenlet(lambda: self._live(process))
        process.greenlet.switch()

    def _live(self, process: Process) -> None:
        try:
            process.life()
            process.ended = True
            self.say("has ended")
        except Died:
            process.wakes = self.now + self.random.random()
            self.say("is dead")

    @contextlib.contextmanager
    def _installed(self) -> Iterator[None]:
        """Have the processes use this world's clock, chance and threads."""
        real = time.monotonic, time.time, time.sleep

        def clock(of: Callable[[], float]) -> Callable[[], float]:
            return lambda: self.now if self.current else of()

        def sleep(seconds: float) -> None:
            (self.pause if self.current else real[2])(seconds)

        def retry(transport: Transport) -> Retry:
            timeout = transport._options.retry_timeout
            return Retry(timeout, lambda: self.now, self.pause, self.random.random)

        def identifier() -> uuid.UUID:
            return uuid.UUID(int=self.random.getrandbits(128), version=4)

        with contextlib.ExitStack() as patches:
            for where, what, instead in (
                ("time", "monotonic", clock(real[0])),
                ("time", "time", clock(real[1])),
                ("time", "sleep", sleep),
                ("uuid", "uuid4", identifier),
                ("zeh_spark.client.http.transport.Transport", "retry", retry),
                ("zeh_spark.spark.source.planned_source", "in_thread", in_place),
                ("zeh_spark.spark.source.replay", "ThreadPoolExecutor", Pool),
                ("zeh_spark.spark.source.stream_dispatcher", "ThreadPoolExecutor", Pool),
                ("zeh_spark.spark.sink.task_uploads", "ThreadPoolExecutor", Pool),
            ):
                patches.enter_context(mock.patch(f"{where}.{what}", instead))
            yield


def in_place(_name: str, work: Callable[[], Any]) -> Future[Any]:
    """Work as a thread would, and wait for it."""
    future: Future[Any] = Future()
    try:
        future.set_result(work())
    except Died:
        raise
    except BaseException as exc:  # noqa: BLE001 - raised by the future
        future.set_exception(exc)
    return future


class Pool:
    """Works as an executor of one thread does that is at once done."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        return in_place("", lambda: work(*given))

    def map(self, work: Callable[..., Any], *given: Any) -> Iterator[Any]:
        return map(work, *given)

    def shutdown(self, *_: object, **__: object) -> None: ...
