"""The simulated world: who runs next, what time it is, what becomes of a message, and who dies.

Each thread of a process is a greenlet that runs until its next message, wait or step, and then
another one does. A process that dies leaves what it has stored, and begins again with that.
"""

from __future__ import annotations

import contextlib
import math
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

from tests.simulation.threads import Threads
from zeh_spark.client.http.retry import Retry
from zeh_spark.client.http.transport import Transport

MOST_STEPS = 20_000
"""Of a run. One that takes more makes no progress."""

BEGIN = 1_700_000_000.0
"""When a run begins, in seconds since 1970."""

FAULTS = (
    "request lost", "request late", "request doubled", "request changed", "answer lost",
    "answer cut", "chunks changed", "client dies", "publisher dies", "disk full",
)  # fmt: skip


THREADED = (
    "client.batch_line", "client.buffered_producer", "client.http.feed_client",
    "client.http.retry", "client.http.transport", "client.open_batch",
    "client.polling.position_reporter", "spark.source.batch_source",
    "spark.source.paged_source", "spark.source.prefetch",
)  # fmt: skip
"""Modules that begin threads or wait for them, or hold locks while they send a message."""


class Died(BaseException):
    """This process is dead: nothing may handle it but the world."""


class AnomalyError(Exception):
    """A promise is broken."""


@dataclass(eq=False)
class Process:
    """A process of the world, or a thread of its `owner`. `life` begins again when a process has
    died; its end is the process's.
    """

    name: str
    life: Callable[[], object]
    owner: Process | None = None
    wakes: float = 0.0
    dead: bool = False
    ended: bool = False
    greenlet: Any = None


@dataclass(eq=False)
class World:
    """A run. `faulty` says of how many messages in 1,000 something becomes, by fault. Nothing does
    after the step `last_fault`.
    """

    seed: int
    verbose: bool = False
    without: frozenset[str] = frozenset()
    last_fault: int = -1
    now: float = BEGIN
    steps: int = 0
    calm: bool = False
    restores: int = 0
    skew: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    processes: list[Process] = field(default_factory=list)
    late: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        some = self.random.sample(FAULTS, self.random.randint(1, len(FAULTS)))
        rates = {fault: self.random.choice((5, 20, 60)) for fault in some}
        self.faulty = {each: rate for each, rate in rates.items() if each not in self.without}
        drawn = self.random.choice((100, 300, 800))
        self.last_fault = drawn if self.last_fault < 0 else self.last_fault

    def again(self, **changes: Any) -> World:
        """Return the same run from its beginning, but for these changes."""
        same = {"without": self.without, "last_fault": self.last_fault, "verbose": self.verbose}
        return World(self.seed, **{**same, **changes})

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

    def begin(
        self, name: str, life: Callable[[], object], beside: Process | None = None
    ) -> Process:
        """Begin a process; or a thread in the process that `beside` belongs to."""
        made = Process(name, life, beside and (beside.owner or beside), wakes=self.now)
        self.processes.append(made)
        return made

    def end_threads(self) -> None:
        """End all threads of this process but this one, as the end of a program does."""
        self._kill([each for each in self.processes if each.owner is self.current])

    def _kill(self, some: list[Process]) -> None:
        for each in some:
            each.dead, each.wakes = True, self.now

    def step(self, what: str) -> None:
        """Let others run; perhaps die."""
        process = self.current
        if process is None:
            return
        if process.dead:
            raise Died
        self.say(what)
        self._hub.switch()
        if not process.dead and self.chance("client dies"):
            whole = process.owner or process
            self._kill([each for each in self.processes if whole in (each, each.owner)])
        if process.dead:
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
                if self.now == math.inf:
                    raise AnomalyError(f"all wait: {', '.join(each.name for each in alive)}")
                ready = [each for each in alive if each.wakes <= self.now]
                self._continue(self.random.choice(ready))
                self.now += self.random.random() / 100

    def _continue(self, process: Process) -> None:
        if process.greenlet is None or process.greenlet.dead:
            process.dead = process.owner is not None and process.dead
            process.greenlet = greenlet.greenlet(lambda: self._live(process))
        process.greenlet.switch()

    def _live(self, process: Process) -> None:
        try:
            if not process.dead:
                process.life()
            process.ended = True
            self.say("has ended")
        except Died:
            process.ended = process.owner is not None
            process.wakes = self.now + self.random.random()
            self.say("is dead")
        if process.ended:
            self.end_threads()
            self.processes.remove(process)

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

        threads = Threads(self)
        with contextlib.ExitStack() as patches:
            for module in THREADED:
                patches.enter_context(mock.patch(f"zeh_spark.{module}.threading", threads))
            for where, what, instead in (
                ("time", "monotonic", clock(real[0])),
                ("time", "time", clock(real[1])),
                ("zeh_spark.client.buffered_producer", "atexit", mock.Mock()),
                ("zeh_spark.spark.source.batch_source", "Future", threads.Future),
                ("zeh_spark.spark.source.planned_source", "wait", threads.wait),
                ("time", "sleep", sleep),
                ("uuid", "uuid4", identifier),
                ("zeh_spark.client.http.transport.Transport", "retry", retry),
                ("zeh_spark.spark.source.paged_source", "ThreadPoolExecutor", Pool),
                ("zeh_spark.spark.source.replay", "ThreadPoolExecutor", Pool),
                ("zeh_spark.spark.source.stream_dispatcher", "ThreadPoolExecutor", Pool),
                ("zeh_spark.spark.sink.task_uploads", "ThreadPoolExecutor", Pool),
            ):
                patches.enter_context(mock.patch(f"{where}.{what}", instead))
            yield


class Pool:
    """Works as an executor of one thread does that is at once done."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*given))
        except Exception as exc:  # noqa: BLE001 - raised by the future
            future.set_exception(exc)
        return future

    def map(self, work: Callable[..., Any], *given: Any) -> Iterator[Any]:
        return map(work, *given)

    def shutdown(self, *_: object, **__: object) -> None: ...
