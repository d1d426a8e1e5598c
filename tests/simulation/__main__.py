"""Run seeds, and say what was found: `python -m tests.simulation --seeds 0:1000`."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from functools import partial

from tests.simulation.removed import REMOVED, remove


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    arguments.add_argument("--seeds", default="0:100", help="FIRST:END, or one, to show its steps")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    arguments.add_argument("--decisions", action="store_true", help="the commit decision alone")
    arguments.add_argument("--smallest", action="store_true", help="of one seed, which fails")
    arguments.add_argument("--without", choices=sorted(REMOVED), help="remove this check first")
    given = arguments.parse_args()
    first, colon, end = given.seeds.partition(":")
    seeds = range(int(first), int(end) if colon else int(first) + 1)
    begin = partial(_begin, given.without)
    if given.smallest:
        begin()
        return _smallest(seeds[0])
    counts: Counter[str] = Counter()
    anomalies, began = 0, time.perf_counter()
    with multiprocessing.get_context("fork").Pool(given.jobs, begin) as pool:
        one = _decide if given.decisions else partial(_run, not colon)
        for seed, steps, faults, anomaly in pool.imap(one, seeds, 1000 if given.decisions else 1):
            counts += faults
            counts["steps"] += steps
            if anomaly:
                anomalies += 1
                print(f"seed {seed}: {anomaly}", flush=True)
    seconds = time.perf_counter() - began
    rate = f"{len(seeds) / seconds:.1f} a second"
    print(f"{len(seeds)} seeds in {seconds:.1f} s, {rate}; {anomalies} with an anomaly")
    print(", ".join(f"{what}: {count:,}" for what, count in sorted(counts.items())))
    return bool(anomalies)


def _begin(without: str | None) -> None:
    logging.disable(logging.CRITICAL)
    if without:
        remove(without)


def _run(verbose: bool, seed: int) -> tuple[int, int, Counter[str], str]:
    from tests.simulation.smallest import anomaly
    from tests.simulation.world import World

    world = World(seed, verbose)
    found = anomaly(world)
    return seed, world.steps, world.counts, found


def _decide(seed: int) -> tuple[int, int, Counter[str], str]:
    from tests.simulation.decisions import Run

    run = Run(seed)
    try:
        run.go()
    except Exception as exc:  # noqa: BLE001 - an anomaly, or a fault of the code
        return seed, 0, run.told, f"{type(exc).__name__}: {exc}"
    return seed, 0, run.told, ""


def _smallest(seed: int) -> int:
    from tests.simulation.smallest import anomaly, smallest
    from tests.simulation.world import World

    found = smallest(World(seed))
    print(f"{anomaly(found.again(verbose=True))}\n{found.faulty}, until step {found.last_fault}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
