"""A small world around a store: a source of rows, checkpoints, drivers of which there may be two at
once, a network that delivers late, an operator who pastes what errors print; and what each of them
believes.

Drivers act as Spark does: what a batch holds is written into the checkpoint before it runs, tasks
cut and order its rows anew each time, and a batch is done when its commit was answered. Nothing
here knows how the publisher decides.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, cycle
from typing import Any

from zeh_spark.protocol.upload_format import Chunker, Content
from zeh_spark.publisher import Problem, Store
from zeh_spark.store.batches import Call, Declared, Overrides, StoredReceipt, TaskAttempt, Upload
from zeh_spark.testing import anomalies
from zeh_spark.testing.anomalies import Entry
from zeh_spark.testing.drivers import Driver, DriverCheckpoint, DriverRow, Execution, TaskLayout
from zeh_spark.testing.site import Site
from zeh_spark.testing.writers import FEED

OPTIONS = {
    "acceptGap": "accept_gap",
    "replaceIncarnation": "replace_incarnation",
    "keepFirst": "keep_first",
}
HONEST = {"incarnation-changed", "fenced", "batch-conflict", "batch-gap", "batch-expired"}
HONEST |= {"upload-missing", "layout-changed", "producer-deleted"}
"""Refusals that are true in a world where each attempt has its own number and no byte changes."""


class World:
    """Guarantee: `anomalies()` is empty as long as the store keeps its promises."""

    def __init__(
        self, site: Site, publish: Callable[..., Any] | None = None, publishers: int = 1
    ) -> None:
        """`publish`: how to commit instead, for controls. `publishers`: over one store; calls go to
        each in turn.
        """
        self.site = site
        self._publishers = publishers
        self._open()
        self._publish = publish
        self._runs, self._attempts, self._incarnations = count(1), count(1), count(1)
        self.checkpoints = [DriverCheckpoint(self._new_incarnation())]
        self.drivers = [self._start(self.checkpoints[0])]
        self.overrides = Overrides()
        self.belief = anomalies.Belief(receipts=site.receipts)
        self.sent: list[Execution] = []
        self.refusal: tuple[Driver, Problem] | None = None
        self.refusals: list[str] = []
        self.honest = set(HONEST)
        self.restores = 0

    def _open(self) -> None:
        self._stores = cycle([self.site.open() for _ in range(self._publishers)])

    @property
    def store(self) -> Store:
        return next(self._stores)

    # What drivers do

    def execute(self, layout: TaskLayout, which: int = -1) -> Execution | None:
        """Run the tasks of the driver's batch; None if an upload was refused."""
        execution = self._planned(self.drivers[which % len(self.drivers)], layout)
        self.sent.append(execution)
        with self._refusable(execution.driver):
            for each in execution.uploads:
                self.store.stage(FEED, execution.call, each)
            return execution
        return None

    def commit(self, execution: Execution, heard: bool = True) -> StoredReceipt | None:
        """The driver's commit; `heard`: whether the answer reaches it, if it still waits."""
        call = replace(execution.call, overrides=self.overrides)
        if self._ended_with_a_restore(execution):
            return None
        with self._refusable(execution.driver):
            receipt, new = self._committed(call, execution)
            self.belief.acknowledged(execution, call, receipt, new, self._hears(execution, heard))
            if self._hears(execution, heard):
                driver = execution.driver
                driver.batch += 1
                driver.checkpoint.done = max(driver.checkpoint.done, driver.batch - 1)
            return receipt
        return None

    def run_batch(self, layout: TaskLayout, which: int = -1) -> str | None:
        """All of a batch; what it was refused for."""
        self.refusal = None
        execution = self.execute(layout, which)
        if execution:
            self.commit(execution)
        return self.refusal and self.refusal[1].name

    def deliver_again(self, execution: Execution, uploads: int) -> None:
        """Requests of the past arrive once more, or for the first time."""
        with self._refusable(None):
            for each in execution.uploads[:uploads]:
                self.store.stage(FEED, execution.call, each)

    def release(self, execution: Execution) -> None:
        self.store.release(FEED, "p", execution.call.batch, execution.call.run)

    def restart(self) -> None:
        """The driver died; another one goes on from the checkpoint."""
        self.drivers = [self._start(self.drivers[-1].checkpoint)]

    def start_a_second_driver(self) -> None:
        self.drivers.append(self._start(self.drivers[-1].checkpoint))

    # What happens to checkpoints and stores

    def lose_checkpoint(self, start: int) -> None:
        self.checkpoints.append(DriverCheckpoint(self._new_incarnation(), start))
        self.drivers = [self._start(self.checkpoints[-1])]

    def return_to(self, checkpoint: int) -> None:
        self.drivers = [self._start(self.checkpoints[checkpoint % len(self.checkpoints)])]

    def roll_back(self, batches: int, *, recut: bool) -> None:
        """An operator deletes the newest entries of a checkpoint; with `recut` also which rows they
        had.
        """
        checkpoint = self.drivers[-1].checkpoint
        checkpoint.done = max(-1, checkpoint.done - batches)
        if recut:
            del checkpoint.plans[checkpoint.done + 1 :]
        self.belief.forget(checkpoint.incarnation, checkpoint.done)
        self.drivers = [self._start(checkpoint)]

    def crash_publisher(self) -> None:
        self.site.crash()
        self._open()

    def copy_store(self) -> tuple[Any, list[Entry]]:
        return self.site.copy(), list(self.belief.log)

    def restore_store(self, backup: tuple[Any, list[Entry]]) -> None:
        """Not one of a history that was left, with batches cut anew since: a limit, as below."""
        known = self.belief.acknowledged_rows
        if any(known.get(each.batch, each.rows) != each.rows for each in backup[1]):
            return
        self.site.restore(backup[0])
        self._open()
        self.restores += 1
        self.belief.restored(backup[1])

    # What an operator does

    def delete_producer(self) -> None:
        self.store.delete_producer(FEED, "p")
        self.belief.deleted = True

    def paste_remedy(self) -> bool:
        """Set what the last refusal printed."""
        if not self.refusal or "option" not in self.refusal[1].members:
            return False
        ((name, value),) = self.refusal[1].members["option"].items()
        self.belief.granted(self.refusal[1], name, value)
        self.overrides = replace(self.overrides, **{OPTIONS[name]: value})
        return True

    def anomalies(self) -> list[str]:
        return anomalies.found(self.store, self.belief)

    # How

    def _planned(self, driver: Driver, layout: TaskLayout) -> Execution:
        begin, end = driver.checkpoint.plan(driver.batch, layout.length)
        rows = tuple(DriverRow(number, layout.version) for number in range(begin, end))
        chance = random.Random(layout.seed)
        shuffled = chance.sample(rows, len(rows)) if layout.seed else list(rows)
        tasks = [shuffled[number :: layout.tasks] for number in range(layout.tasks)]
        uploads: list[Upload] = []
        lines: dict[int, list[bytes]] = {}
        attempts: list[TaskAttempt] = []
        for task, mine in enumerate(tasks):
            attempt = next(self._attempts)
            cut = chance.randrange(len(mine) + 1)
            parts = [mine[:cut], mine[cut:]] if layout.seed else [mine]
            made = []
            for number, part in enumerate(part for part in parts if part):
                routed = [(chance.randrange(layout.partitions), row) for row in part]
                made.append(_upload(task, attempt, number, routed))
                for partition, row in routed:
                    lines.setdefault(partition, []).append(row.line(partition))
            uploads += made
            attempts.append(TaskAttempt(task, attempt, len(made), len(mine)))
        content = sum((each.content for each in uploads), Content())
        call = Call(
            "p",
            driver.checkpoint.incarnation,
            driver.run,
            driver.batch,
            layout.partitions,
            self.overrides,
        )
        declared = Declared(content, tuple(attempts))
        return Execution(
            driver, call, tuple(uploads), declared, rows, lines, (begin, end), self.restores
        )

    def _ended_with_a_restore(self, execution: Execution) -> bool:
        """A limit of what is promised: after a restore, a request from before it must not arrive
        once more whose rows differ from those acknowledged later, or whose batch was cut anew. The
        publisher has forgotten what it would compare it with.
        """
        if execution.restores == self.restores:
            return False
        batch = (execution.call.incarnation, execution.call.batch or 0)
        acknowledged = self.belief.acknowledged_rows.get(batch)
        plans = execution.driver.checkpoint.plans[batch[1] : batch[1] + 1]
        return plans != [execution.span] or acknowledged not in (
            None,
            tuple(sorted(execution.rows)),
        )

    def _committed(self, call: Call, execution: Execution) -> tuple[StoredReceipt, bool]:
        if self._publish:
            done: tuple[StoredReceipt, bool] = self._publish(self.store, call, execution)
            return done
        return self.store.commit(FEED, call, execution.declared)

    def _hears(self, execution: Execution, heard: bool) -> bool:
        driver = execution.driver
        return heard and driver in self.drivers and driver.batch == execution.call.batch

    @contextmanager
    def _refusable(self, driver: Driver | None) -> Iterator[None]:
        try:
            yield
        except Problem as problem:
            self.refusals.append(problem.name)
            assert problem.name in self.honest, problem
            if driver in self.drivers and driver:
                self.refusal = driver, problem

    def _start(self, checkpoint: DriverCheckpoint) -> Driver:
        return Driver(checkpoint, f"r{next(self._runs)}", checkpoint.done + 1)

    def _new_incarnation(self) -> str:
        return f"i{next(self._incarnations)}"


def _upload(task: int, attempt: int, number: int, routed: list[tuple[int, DriverRow]]) -> Upload:
    chunker = Chunker()
    for partition, row in routed:
        assert not chunker.add(partition, {}, row.data)
    chunks = tuple(chunker.close())
    digest = hashlib.sha256(b"".join(each.frame for each in chunks)).digest()
    return Upload(task, attempt, number, digest, chunks)
