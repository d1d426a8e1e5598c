"""Kill the processes of a pipeline: `python -m tests.faults --kills 1000 --seed 7`."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.faults.run import DECK, Outcome, left_out, run

WORK = Path("/var/tmp")
"""Not in memory: checkpoints and tables are on a real disk."""


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    arguments.add_argument("--kills", type=int, default=100, help="how many SIGKILLs")
    arguments.add_argument("--seed", type=int, default=1, help="of all that is random")
    arguments.add_argument("--store", choices=["sqlite", "postgresql"], default="sqlite")
    arguments.add_argument("--work", type=Path, help="a folder that is kept, with the logs")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and end what was started
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="zeh-faults-", dir=WORK) as folder:
        work = given.work or Path(folder)
        work.mkdir(exist_ok=True)
        outcome = run(work, given.store, given.seed, kills=given.kills)
    for anomaly in outcome.anomalies:
        print(f"ANOMALY: {anomaly}\n")
    print(table(outcome, given.store, given.seed))
    return bool(outcome.anomalies)


def table(outcome: Outcome, store: str, seed: int) -> str:
    """What happened, line by line."""
    absent = left_out(store)
    lines = [
        f"seed {seed}, {store}: {outcome.kills:,} kills, {outcome.events:,} events, "
        f"{outcome.versions:,} versions of the table, {outcome.seconds:,.0f} s, "
        f"{len(outcome.anomalies)} anomalies",
        *(
            f"  {name:22}" + (f"absent: {absent[name]}" if name in absent else f"{times:6,}")
            for name, times in ((each, outcome.faults[each]) for each in DECK)
        ),
        "starts: " + ", ".join(f"{name} {times:,}" for name, times in outcome.starts.items()),
        *(f"  {times:6,} {failure}" for failure, times in outcome.failures.most_common()),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
