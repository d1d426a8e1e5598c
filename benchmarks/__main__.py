"""Runs the parts and prints a table; `benchmarks/README.md` keeps one, with how it was got."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks import (
    backfill,
    cluster,
    contracts,
    costs,
    duplicates,
    growth,
    lakehouse,
    publishing,
    reading,
    sealing,
    session_matrix,
    stateful,
    stores,
    strain,
    tables,
)
from benchmarks.serving import all_kept, fanned_out

PARTS = {
    "throughput": reading.throughput,
    "selected": reading.selected,
    "memory": reading.memory,
    "latency": reading.latency,
    "costs": costs.spent,
    "sink": publishing.sink,
    "contract": contracts.measured,
    "commit": publishing.commit,
    "small": publishing.small,
    "postgresql": stores.beside_sqlite,
    "audit": reading.audited,
    "tables": tables.own_tables,
    "lakehouse": lakehouse.delta_tables,
    "stateful": stateful.operators,
    "sessions": session_matrix.measured,
    "cluster": cluster.measured,
    "backfill": backfill.measured,
    "growth": growth.measured,
    "sealing": sealing.measured,
    "duplicates": duplicates.measured,
    "fanout": fanned_out,
    "serving": all_kept,
    "strain": strain.measured,
}
"""The parts, which measure with so many events."""

PEERS = {
    "kafka": {
        "throughput": reading.kafka_source,
        "sink": stores.kafka_sink,
        "duplicates": duplicates.of_kafka,
    }
}
"""For each peer, what is measured before a part."""


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    arguments.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if none is given")
    arguments.add_argument("--events", type=int, default=2_000_000)
    arguments.add_argument("--chunks", type=int, default=1_000_000, help="of growth's large store")
    arguments.add_argument(
        "--gigabytes", type=float, nargs="*", default=[0.5, 2], help="of growth's feeds"
    )
    arguments.add_argument("--peers", choices=["kafka"], help="measure this peer too; needs mvn")
    given = arguments.parse_args()
    if unknown := set(given.parts) - PARTS.keys():
        arguments.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    print("| what | measured | aim |\n|---|---|---|")
    grown = partial(growth.measured, chunks=given.chunks, gigabytes=given.gigabytes)
    wanted = given.parts or PARTS
    peers = [part for name, part in PEERS.get(given.peers, {}).items() if name in wanted]
    for part in [*peers, *({**PARTS, "growth": grown}[name] for name in wanted)]:
        with tempfile.TemporaryDirectory(prefix="zeh-spark-bench-") as folder:
            for row in part(Path(folder), given.events):
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
