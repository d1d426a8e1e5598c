"""Random runs of producers, sinks, readers and a publisher, with every fault between them.

`make simulate` runs many more; a seed that finds something stays here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fix_publisher import HERE
from tests.simulation import decisions
from tests.simulation.runs import run
from tests.simulation.world import World


@pytest.mark.parametrize(
    "seeds", [range(6), pytest.param(range(6, 60), marks=[pytest.mark.slow])], ids=str
)
def test_each_event_is_once_on_the_feed_and_once_in_each_sink(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        run(World(seed), folder)


def test_nothing_is_lost_or_doubled_by_any_order_of_calls() -> None:
    """Whatever is restored, overridden, or arrives late: what a producer lost, it was told."""
    for seed in range(300):
        decisions.Run(seed).go()


def simulated(*given: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", "--jobs", "1", *given]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)


def test_a_seed_always_gives_the_same_run() -> None:
    """In another process, with other hashes of texts."""
    one, other = (simulated("--seeds", "3").stdout.splitlines() for _ in range(2))
    assert len(one) > 100
    assert one[:-2] == other[:-2]  # the last ones tell how long it took


@pytest.mark.slow
def test_a_check_that_is_removed_is_missed() -> None:
    """A simulation that finds nothing without the deduplication proves nothing."""
    whole = simulated("--seeds", "0:20")
    without = simulated("--seeds", "0:20", "--without", "repeated batch")
    assert (0, 1) == (whole.returncode, without.returncode), (whole, without)
    assert "batch" in without.stdout.splitlines()[0], without


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    ["fence", "incarnation", "gap", "override for what it was told", "counts and content sum"],
)
def test_each_check_of_a_commit_is_needed(check: str) -> None:
    without = simulated("--decisions", "--seeds", "0:1000", "--without", check)
    assert 1 == without.returncode, without
    assert "BrokenError: " in without.stdout, without
