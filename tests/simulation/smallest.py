"""Make a failing run smaller: fewer kinds of faults, and an earlier end of all faults."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.scratch_store import MEMORY
from tests.simulation.runs import run
from tests.simulation.world import World


def anomaly(world: World) -> str:
    """Run it in a folder of its own. Returns what was wrong, or nothing."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        try:
            run(world, Path(folder))
        except Exception as exc:  # noqa: BLE001 - an anomaly, or a fault of the code
            return f"{type(exc).__name__}: {exc}"
    return ""


def smallest(world: World) -> World:
    """Return a run of the same seed that fails, too, with no more faults than it needs.

    Raises ValueError if this one does not fail.
    """
    if not anomaly(world.again()):
        raise ValueError(f"seed {world.seed} has no anomaly")
    for fault in [*world.faulty]:
        if anomaly(less := world.again(without=world.without | {fault})):
            world = less
    low, high = 0, world.last_fault
    while low < high:
        middle = (low + high) // 2
        if anomaly(world.again(last_fault=middle)):
            high = middle
        else:
            low = middle + 1
    return world.again(last_fault=high)
