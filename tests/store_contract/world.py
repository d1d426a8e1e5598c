"""A small world around a store, in which tests let anything happen.

It has a source of rows, checkpoints, drivers (two at the same time, too), a network that delivers
late, and an operator who sets the overrides that refusals print. It keeps what each of them was
told, and compares that with the feed (`anomalies`).

Rules for editors:

- Drivers act as Spark does. What a batch holds is written into the checkpoint before it runs. Tasks
  divide and order its rows in a new way each time. A batch is done when its commit was answered.
- Nothing here knows how the publisher decides.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, cycle
from typing import Any

from tests.store_contract import anomalies
from tests.store_contract.anomalies import Entry
from tests.store_contract.drivers import Driver, DriverCheckpoint, DriverRow, Execution, TaskLayout
from tests.store_contract.site import Site
from tests.store_contract.writers import FEED, upload
from zeh_spark.publisher import Problem, Store
from zeh_spark.service.store.batches import (
    Call,
    Declared,
    Overrides,
    StoredReceipt,
    TaskAttempt,
    Upload,
)
from zeh_spark.wire.upload_format import Chunker, Content

OPTIONS = {
    "acceptGap": "accept_gap",
    "replaceIncarnation": "replace_incarnation",
    "keepFirst": "keep_first",
}
"""The overrides, as refusals print them and as `Overrides` has them."""

HONEST = {"incarnation-changed", "fenced", "batch-conflict", "batch-gap", "batch-expired"}
HONEST |= {"upload-missing", "layout-changed", "producer-deleted"}
"""Refusals that are true in a world where each attempt has its own number and no byte changes."""


def publish_batch(store: Store, call: Call, execution: Execution) -> tuple[StoredReceipt, bool]:
    return store.commit(FEED, call, execution.declared)


class World:
    """A store, a feed with one producer `p`, and everybody who uses it.

    `publish` is called instead of `Batches.commit`, for tests that have to find faults. Calls go to
    each of the `publishers` in turn.

    Guarantee: `anomalies()` is empty as long as the store keeps its promises.
    """

    def __init__(
        self, site: Site, publish: Callable[..., Any] = publish_batch, publishers: int = 1
    ) -> None:
        self.site = site
        self._publishers = publishers
        self._open()
        self._publish = publish
        self._runs, self._attempts, self._incarnations = count(1), count(1), count(1)
        self.checkpoints = [DriverCheckpoint(self._new_incarnation())]
        self.drivers = [self._start(self.checkpoints[0])]  # those that run
        self.overrides = Overrides()
        self.belief = anomalies.Belief(receipts=site.receipts)
        self.sent: list[Execution] = []  # everything that drivers have executed
        # The last one that reached a running driver, since its batch began.
        self.refusal: tuple[Driver, Problem] | None = None
        self.refusals: list[str] = []
        self.honest = set(HONEST)  # refusals that are not a fault of the store
        self.restores = 0

    def _open(self) -> None:
        self._stores = cycle([self.site.open() for _ in range(self._publishers)])

    @property
    def store(self) -> Store:
        """Return the store, through the next publisher."""
        return next(self._stores)

    # What drivers do

    def execute(self, layout: TaskLayout, which: int = -1) -> Execution | None:
        """Run the tasks of a driver's batch, and send their uploads; None if one was refused."""
        execution = self._planned(self.drivers[which % len(self.drivers)], layout)
        self.sent.append(execution)
        with self._refusable(execution.driver):
            for each in execution.uploads:
                self.store.stage(FEED, execution.call, each)
            return execution
        return None

    def commit(self, execution: Execution, heard: bool = True) -> StoredReceipt | None:
        """Commit what a driver has executed, which hears the answer if it still waits for it.

        None if the commit was refused, or must not happen after a restore.
        """
        call = replace(execution.call, overrides=self.overrides)
        if self._ended_with_a_restore(execution):
            return None
        with self._refusable(execution.driver):
            receipt, new = self._publish(self.store, call, execution)
            driver = execution.driver
            heard = heard and driver in self.drivers and driver.batch == call.batch
            self.belief.acknowledged(execution, call, receipt, new, heard)
            if heard:
                driver.batch += 1
                driver.checkpoint.done = max(driver.checkpoint.done, driver.batch - 1)
            return receipt
        return None

    def run_batch(self, layout: TaskLayout, which: int = -1) -> str | None:
        """Execute and commit a driver's batch; return the name of its refusal, or None."""
        self.refusal = None
        execution = self.execute(layout, which)
        if execution:
            self.commit(execution)
        return self.refusal and self.refusal[1].name

    def deliver_again(self, execution: Execution, uploads: int) -> None:
        """Deliver the first `uploads` of an execution's requests, again or late."""
        with self._refusable(None):
            for each in execution.uploads[:uploads]:
                self.store.stage(FEED, execution.call, each)

    def release(self, execution: Execution) -> None:
        """Let a driver give up a batch that it has executed."""
        self.store.release(FEED, "p", execution.call.batch, execution.call.run)

    def restart(self) -> None:
        """Let all drivers end, and another one continue from their checkpoint."""
        self.drivers = [self._start(self.drivers[-1].checkpoint)]

    def start_a_second_driver(self) -> None:
        """Start another driver on the same checkpoint, beside those that run."""
        self.drivers.append(self._start(self.drivers[-1].checkpoint))

    # What happens to checkpoints and stores

    def lose_checkpoint(self, start: int) -> None:
        """Start a driver on a new checkpoint, which reads the source from the row `start`."""
        self.checkpoints.append(DriverCheckpoint(self._new_incarnation(), start))
        self.drivers = [self._start(self.checkpoints[-1])]

    def return_to(self, checkpoint: int) -> None:
        """Start a driver on one of the checkpoints that there ever were, by an index."""
        self.drivers = [self._start(self.checkpoints[checkpoint % len(self.checkpoints)])]

    def roll_back(self, batches: int, *, recut: bool) -> None:
        """Delete the newest batches of a checkpoint; with `recut` which rows they had, too."""
        checkpoint = self.drivers[-1].checkpoint
        checkpoint.done = max(-1, checkpoint.done - batches)
        if recut:
            del checkpoint.plans[checkpoint.done + 1 :]
        self.belief.forget(checkpoint.incarnation, checkpoint.done)
        self.drivers = [self._start(checkpoint)]

    def crash_publisher(self) -> None:
        """End all publishers as kill -9 would, and start them again."""
        self.site.crash()
        self._open()

    def copy_store(self) -> tuple[Any, list[Entry]]:
        """Return a backup of the store, with what is visible in it."""
        return self.site.copy(), list(self.belief.log)

    def restore_store(self, backup: tuple[Any, list[Entry]]) -> None:
        """Restore the store to a backup.

        Nothing happens if a batch of the backup has been published with other rows since. That is a
        limit of what is promised, as in `_ended_with_a_restore`.
        """
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
        """Set the override that the last refusal printed; return False if it printed none."""
        if not self.refusal or "option" not in self.refusal[1].members:
            return False
        ((name, value),) = self.refusal[1].members["option"].items()
        self.belief.granted(self.refusal[1], name, value)
        self.overrides = replace(self.overrides, **{OPTIONS[name]: value})
        return True

    def anomalies(self) -> list[str]:
        """Return all that is wrong with the feed, one text for each anomaly."""
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
        incarnation, overrides = driver.checkpoint.incarnation, self.overrides
        call = Call("p", incarnation, driver.run, driver.batch, layout.partitions, overrides)
        declared = Declared(content, tuple(attempts))
        return Execution(
            driver, call, tuple(uploads), declared, rows, lines, (begin, end), self.restores
        )

    def _ended_with_a_restore(self, execution: Execution) -> bool:
        """Return whether a restore has made this commit one that must not arrive any more.

        That is a limit of what is promised. After a restore, a request from before it must not
        arrive if its rows differ from those that were acknowledged later, or if its batch has other
        rows since. The publisher has forgotten what it would compare the request with.
        """
        if execution.restores == self.restores:
            return False
        batch = (execution.call.incarnation, execution.call.batch or 0)
        acknowledged = self.belief.acknowledged_rows.get(batch)
        plans = execution.driver.checkpoint.plans[batch[1] : batch[1] + 1]
        rows = tuple(sorted(execution.rows))
        return plans != [execution.span] or acknowledged not in (None, rows)

    @contextmanager
    def _refusable(self, driver: Driver | None) -> Iterator[None]:
        """Note a refusal; fail if it is not an honest one."""
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
    return upload(*chunker.close(), task=task, attempt=attempt, number=number)
