"""The contract for any history of drivers, crashes, restores and operators (F1-F19).

Acknowledged rows are on the feed once, complete and in order, or somebody got an error with a name
that says otherwise. The histories are random (`world`), and run the real code.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.scratch_store import MEMORY
from tests.store_contract.drivers import Execution, TaskLayout
from tests.store_contract.site import Site, StoppedClock, histories
from tests.store_contract.world import World
from tests.store_contract.writers import FEED
from zeh_spark.service.store.batches import Overrides

KEPT_RECEIPTS = 3
"""So few receipts of a producer are kept, so that histories soon come to their end."""

layouts = st.builds(
    TaskLayout,
    tasks=st.integers(1, 3),
    seed=st.integers(0, 50),
    length=st.integers(0, 5),
    version=st.sampled_from([0, 0, 0, 0, 1]),
    partitions=st.sampled_from([2, 2, 2, 2, 3]),
)


class Histories(RuleBasedStateMachine):
    """Random histories: a rule is an event that can happen, and the world notes what follows."""

    new_site: ClassVar[type[Site]]
    executions = Bundle("executions")
    backups = Bundle("backups")

    @initialize()
    def begin(self) -> None:
        self.directory = tempfile.TemporaryDirectory(dir=MEMORY)
        self.clock = StoppedClock()
        self.site = self.new_site(Path(self.directory.name), self.clock, KEPT_RECEIPTS)
        self.site.open().create(FEED, 2)
        self.world = World(self.site, publishers=2)

    @rule(layout=layouts, which=st.integers(0, 1), batches=st.integers(1, 4))
    def run_batches(self, layout: TaskLayout, which: int, batches: int) -> None:
        for _ in range(batches):
            self.world.run_batch(layout, which)
        self.site.settle()

    @rule(target=executions, layout=layouts, which=st.integers(0, 1))
    def execute(self, layout: TaskLayout, which: int) -> Any:
        """Run the tasks of a batch; whether and when it is committed is open."""
        done = self.world.execute(layout, which)
        return done if done else multiple()

    @rule(execution=executions, heard=st.booleans())
    def commit(self, execution: Execution, heard: bool) -> None:
        """Commit a batch: for the first time, again because the answer was lost, or late."""
        self.world.commit(execution, heard)
        self.site.settle()

    @precondition(lambda self: self.world.sent)
    @rule(data=st.data(), uploads=st.integers(1, 9))
    def deliver_again(self, data: st.DataObject, uploads: int) -> None:
        self.world.deliver_again(data.draw(st.sampled_from(self.world.sent)), uploads)

    @rule(execution=executions)
    def release(self, execution: Execution) -> None:
        self.world.release(execution)

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @precondition(lambda self: len(self.world.drivers) == 1)
    @rule()
    def start_a_second_driver(self) -> None:
        self.world.start_a_second_driver()

    @precondition(lambda self: len(self.world.drivers) > 1)
    @rule(layouts=st.lists(layouts, min_size=1, max_size=6))
    def run_both_in_turn(self, layouts: list[TaskLayout]) -> None:
        for number, layout in enumerate(layouts):
            self.world.run_batch(layout, number)
        self.site.settle()

    @precondition(lambda self: len(self.world.checkpoints) < 4)
    @rule(start=st.sampled_from([0, 1000]))
    def lose_checkpoint(self, start: int) -> None:
        """Lose the checkpoint; the source then begins again, or after all that was read."""
        self.world.lose_checkpoint(start and start * len(self.world.checkpoints))

    @rule(checkpoint=st.integers(0, 3))
    def return_to_a_checkpoint(self, checkpoint: int) -> None:
        """Continue from any checkpoint that there ever was."""
        self.world.return_to(checkpoint)

    @rule(batches=st.integers(1, KEPT_RECEIPTS + 2), recut=st.booleans())
    def roll_back(self, batches: int, recut: bool) -> None:
        self.world.roll_back(batches, recut=recut)

    @rule()
    def crash_publisher(self) -> None:
        self.world.crash_publisher()

    @rule(target=backups)
    def copy_store(self) -> Any:
        return self.world.copy_store()

    @rule(backup=backups)
    def restore_store(self, backup: Any) -> None:
        self.world.restore_store(backup)

    @rule(backup=consumes(backups))
    def restore_store_and_lose_the_backup(self, backup: Any) -> None:
        self.world.restore_store(backup)

    @rule(hours=st.sampled_from([1, 25]))
    def pass_time(self, hours: int) -> None:
        """Let time pass, so that uploads are dropped."""
        self.clock.pass_hours(hours)

    @precondition(lambda self: self.world.refusal)
    @rule()
    def paste_the_remedy(self) -> None:
        """Set the override that was printed; it stays in the code until another one replaces it."""
        self.world.paste_remedy()

    @rule()
    def take_remedies_out(self) -> None:
        self.world.overrides = Overrides()

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert [] == self.world.anomalies()

    def teardown(self) -> None:
        """Check that there is a way to continue, whatever has happened; then clean up."""
        try:
            if hasattr(self, "world"):
                self.go_on()
        finally:
            self.site.close()
            self.directory.cleanup()

    def go_on(self) -> None:
        """Publish a batch, with the overrides that refusals print, or with a new checkpoint."""
        world = self.world
        world.restart()
        for _ in range(20):
            name = world.run_batch(TaskLayout(length=2))
            if name is None:
                break
            if not world.paste_remedy():
                assert name in ("batch-expired", "fenced"), name
                world.lose_checkpoint(10_000)
        else:
            raise AssertionError(f"stuck: {world.refusal}")
        assert [] == world.anomalies()


@pytest.mark.timeout(1800)  # a campaign's
def test_any_history_keeps_what_it_acknowledges(new_site):
    """Whatever happens, I lose nothing and get nothing twice without an error."""
    machine = type("Histories", (Histories,), {"new_site": new_site})
    tried = settings(max_examples=histories(new_site), stateful_step_count=40)
    run_state_machine_as_test(machine, settings=tried)


def test_gap_accepted_for_a_lost_checkpoint_is_not_accepted_for_the_next(world):
    """An override left in the code never loses a batch of another checkpoint (A2)."""
    backup = world.copy_store()
    world.run_batch(TaskLayout())
    world.restore_store(backup)
    assert "batch-gap" == world.run_batch(TaskLayout())
    world.paste_remedy()
    standing = world.overrides
    world.lose_checkpoint(0)
    world.overrides = standing
    world.run_batch(TaskLayout())
    world.restore_store(backup)
    assert "batch-gap" == world.run_batch(TaskLayout())
