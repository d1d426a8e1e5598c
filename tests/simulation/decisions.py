"""The commit decision alone, in very many short runs: drivers, lost answers, late calls, restores,
lost checkpoints, and overrides that are left in the code.

The publisher here is a list of receipts and what is staged. All that it decides is decided by
`commit_decision.decide`, once for an upload and twice for a commit, as stores do.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import groupby

from zeh_spark.service.store.batches import (
    Call,
    CommitFacts,
    Declared,
    Found,
    Overrides,
    ProducerState,
    StoredReceipt,
    TaskAttempt,
    after,
    receipt_for,
)
from zeh_spark.service.store.commit_decision import Step, decide, unwrapped
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire.upload_format import Content

BATCHES, MOST_STEPS = 6, 400
Message = Callable[[], object]


def rows_of(batch: int, run: str) -> Content:
    return Content(1, zlib.crc32(f"{batch} {run}".encode()))


class BrokenError(Exception):
    """A promise is broken."""


@dataclass
class Publisher:
    """Its receipts and uploads, of one producer."""

    receipts: list[StoredReceipt] = field(default_factory=list)
    staged: dict[tuple[int, str], Content] = field(default_factory=dict)

    def facts(self, call: Call) -> CommitFacts:
        mine = [each for each in self.receipts if each.incarnation == call.incarnation]
        state = after(self.receipts[-1]) if self.receipts else ProducerState(call.producer)
        last = max((each.batch for each in mine), default=-1)
        receipt = next((each for each in mine if each.batch == call.batch), None)
        known = any(each.run == call.run for each in mine)
        return CommitFacts(state, 1, last, run_known=known, receipt=receipt)

    def upload(self, call: Call, content: Content) -> None:
        if unwrapped(decide(self.facts(call), call)) is Step.STAGE:
            self.staged[call.batch or 0, call.run] = content

    def commit(self, call: Call, content: Content) -> StoredReceipt:
        declared = Declared(content, (TaskAttempt(0, 0, 1, content.events),))
        step = unwrapped(decide(self.facts(call), call, declared))
        if isinstance(step, StoredReceipt):
            return step
        here = self.staged.get((call.batch or 0, call.run))
        found = {(0, 0): Found(1, here)} if here else {}
        step = unwrapped(decide(self.facts(call), call, declared, found))
        assert step is Step.PUBLISH
        if here != content:
            raise BrokenError(f"batch {call.batch}: {here} is published as {content}")
        self.staged = {key: each for key, each in self.staged.items() if key[0] != call.batch}
        newest = self.receipts[-1] if self.receipts else None
        changes = newest is not None and newest.incarnation != call.incarnation
        if changes and not call.overrides.replace_incarnation:
            raise BrokenError(f"{call.incarnation} took over without being told to")
        receipt = receipt_for(self.facts(call), call, declared, (), (0, 0), len(self.receipts))
        self.receipts.append(receipt)
        return receipt


@dataclass
class Driver:
    """A driver of a query. Its rows of a batch are always the same, or others in each run.

    `remedies` are overrides that were told once, and stay in its code.
    """

    name: str
    steady: bool
    incarnation: str = "i"
    batch: int = 0
    run: str = ""
    starts: int = 0
    staged: bool = False
    ended: bool = False
    accepts: bool = False
    remedies: Overrides = Overrides()

    def start(self) -> None:
        self.starts, self.staged = self.starts + 1, False
        self.run = f"{self.name}{self.starts}"

    def goes_to(self, incarnation: str, batch: int) -> None:
        """Start with another checkpoint."""
        self.incarnation, self.batch = incarnation, batch
        self.start()

    @property
    def content(self) -> Content:
        return rows_of(self.batch, "" if self.steady else self.run)


@dataclass
class Run:
    """A run of one or two drivers. `told` are the refusals by problem."""

    seed: int
    told: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.publisher = Publisher()
        self.late: list[Message] = []
        self.lost: set[tuple[str, int]] = set()
        steady = self.random.random() < 0.7
        self.drivers = [Driver(name, steady) for name in "ab"[: self.random.randint(1, 2)]]
        for each in self.drivers:
            each.accepts = self.random.random() < 0.3
            each.start()
        self.rate = self.random.choice((0.02, 0.1, 0.3))
        self.restores, self.loses = (self.random.random() < 0.3 for _ in range(2))

    def chance(self) -> bool:
        return self.random.random() < self.rate

    def go(self) -> None:
        """Run until all drivers have ended. Raises BrokenError if a promise was broken."""
        backups: list[list[StoredReceipt]] = []
        for step in range(MOST_STEPS):
            if not (alive := [each for each in self.drivers if not each.ended]):
                break
            calm = step > MOST_STEPS // 2
            if self.late and self.chance():
                self.answered(self.late.pop(self.random.randrange(len(self.late))))
            elif self.restores and not calm and self.chance():
                if backups and self.random.random() < 0.5:
                    self.publisher = Publisher([*self.random.choice(backups)])
                    self.told["restore"] += 1
                backups.append([*self.publisher.receipts])
            else:
                self.step(self.random.choice(alive), calm=calm)
        self.check()

    def step(self, driver: Driver, *, calm: bool) -> None:
        if driver.batch >= BATCHES:
            driver.ended = True
            return
        if driver.batch == BATCHES - 1 and not calm:
            return  # its last batch is after the last restore, and notices it
        if not calm and self.chance():
            driver.start()
        if self.loses and not calm and self.random.random() < 0.02:
            driver.goes_to(f"of {driver.name}{driver.starts}", 0)
        call = Call("p", driver.incarnation, driver.run, driver.batch, 1, driver.remedies)
        content, staged = driver.content, driver.staged

        def message() -> object:
            here = self.publisher
            return here.commit(call, content) if staged else here.upload(call, content)

        self.late.append(message) if self.chance() else None  # it also arrives again
        if not calm and self.chance():
            return  # the request is lost
        problem = self.answered(message)
        if not calm and self.chance():
            return  # the answer is lost
        if problem:
            self.refused(driver, problem, accepts=driver.accepts and not calm)
        elif driver.staged:
            driver.batch, driver.staged = driver.batch + 1, False
        else:
            driver.staged = True

    def answered(self, message: Message) -> Problem | None:
        try:
            message()
        except Problem as exc:
            return exc
        return None

    def refused(self, driver: Driver, problem: Problem, *, accepts: bool) -> None:
        """Do what the refusal says."""
        name, mine = problem.name, driver.incarnation
        self.told[name] += 1
        here = [each for each in self.publisher.receipts if each.incarnation == mine]
        last = max((each.batch for each in here), default=-1)
        if name == "fenced":  # perhaps by late messages of a run of its own
            driver.ended = any(each is not driver and not each.ended for each in self.drivers)
            driver.start()
        elif name == "incarnation-changed":
            newest = self.publisher.receipts[-1]
            remedy = f"{newest.incarnation}@{newest.batch}:{mine}"
            driver.remedies = replace(driver.remedies, replace_incarnation=remedy)
            if not accepts:  # back to the checkpoint with which the producer began
                driver.goes_to(newest.incarnation, newest.batch + 1)
        elif name == "batch-gap" and accepts:
            self.lost |= {(mine, each) for each in range(last + 1, driver.batch)}
            driver.remedies = replace(driver.remedies, accept_gap=f"{mine}@{last}:{driver.batch}")
        elif name in {"batch-gap", "batch-expired"}:
            driver.batch, driver.staged = last + 1, False
        elif name == "batch-conflict" and accepts:
            kept = next(each for each in here if each.batch == driver.batch)
            remedy = f"{mine}:{driver.batch}:{kept.identity}"
            driver.remedies = replace(driver.remedies, keep_first=remedy)
        elif name == "batch-conflict":
            driver.batch, driver.staged = driver.batch + 1, False  # it sees that it was published
        else:
            driver.start()

    def check(self) -> None:
        receipts = self.publisher.receipts
        if alive := [each.name for each in self.drivers if not each.ended]:
            raise BrokenError(f"no progress: {alive}")
        batches = [(each.incarnation, each.batch) for each in receipts]
        if len(batches) != len({*batches}):
            raise BrokenError(f"batches {batches}")
        for name, some in groupby(receipts, key=lambda each: each.incarnation):
            numbers = [each.batch for each in some]
            if numbers != sorted(numbers):
                raise BrokenError(f"batches of {name}: {numbers}")
        wanted = {(receipts[-1].incarnation, each) for each in range(BATCHES)}
        if missing := wanted - {*batches} - self.lost:
            raise BrokenError(f"lost without being told: {missing}")
        runs = [name for name, _ in groupby(each.run for each in receipts)]
        if len(runs) != len({*runs}):
            raise BrokenError(f"a run that was overtaken has published again: {runs}")
        allowed = {"fenced", "upload-missing"} if len(self.drivers) > 1 else {"upload-missing"}
        if self.drivers[0].steady and not self.told["restore"] and not self.loses:
            if strange := {*self.told} - allowed - {"restore"}:
                raise BrokenError(f"refused without a cause: {strange}")
            for each in receipts:
                if not rows_of(each.batch, "").is_in(each):
                    raise BrokenError(f"batch {each.batch} has other events")
