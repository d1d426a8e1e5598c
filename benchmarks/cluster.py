"""A standalone cluster with the publisher apart: what more executors bring, and what each part
takes for a million events, from which the ceiling of each part is a division.

Driver, publisher and workers compete for this machine's cores. So two workers cannot be twice as
fast as one where there are only two cores, and the CPU seconds decide: they say how many cores each
part needs at a given rate. Run as a program it is the driver: `python -m benchmarks.cluster
<master> <json>`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import cpu, feeds, queries
from benchmarks.feeds import PARTITIONS, flights, serving
from benchmarks.rows import Row, rate, ratio
from tests import standalone

FEW = 8
"""The smaller feed has one of so many events of the larger one."""

STREAM, READ, DRIVERS_WAY = "direct stream", "direct read", "stream, fetch=driver"


@dataclass(frozen=True)
class Measured:
    """Events per second, and what each part takes."""

    rate: float
    costs: Mapping[str, cpu.Cost]


def measured(work: Path, events: int) -> Iterator[Row]:
    """Streams and reads with one worker and with two."""
    found = {}
    with ExitStack() as stack:
        sizes = events // FEW, events
        stores = [feeds.fill(work, f"flights-{each}", PARTITIONS, flights(each)) for each in sizes]
        served = [stack.enter_context(serving(each)) for each in stores]
        urls = dict(zip((url for url, _ in served), sizes, strict=True))
        for workers in (1, 2):
            folder = work / f"cluster-{workers}"
            folder.mkdir()
            with standalone.cluster(folder, workers) as (master, pids):
                roots = {"publisher": [pid for _, pid in served], "executors": pids}
                found[workers] = driven(master, urls, roots)
    for workers, jobs in found.items():
        for name, each in jobs.items():
            yield rate(f"{name}, workers of one core: {workers}", each.rate)
    for name in (STREAM, READ):
        yield ratio(f"{name}: two workers / one", found[2][name].rate / found[1][name].rate, "")
    for name, each in found[2].items():
        for part, cost in each.costs.items():
            told = f"{cost.million:.2f} CPU s / million, {ceiling(cost.million)}; "
            yield f"{name}: {part}", f"{told}{cost.run:.1f} CPU s a run", ""
    yield from shares(found[2][STREAM].costs)


def ceiling(seconds: float) -> str:
    """Events per second of one core that does nothing else, given CPU seconds for a million."""
    return f"{1000 / seconds:,.0f}k events/s of a core" if seconds >= 0.005 else "no limit seen"


def shares(costs: Mapping[str, cpu.Cost]) -> Iterator[Row]:
    """What of the CPU time of a direct stream's events the two parts take that executors do not
    divide.
    """
    total = sum(each.million for each in costs.values())
    for part, aim in (("driver", 0.05), ("publisher", 0.10)):
        mine = sum(each.million for name, each in costs.items() if name.startswith(part))
        yield f"{part}'s part of a {STREAM}'s CPU time", f"{mine / total:.1%}", f"<= {aim:.0%}"


def driven(
    master: str, urls: Mapping[str, int], roots: Mapping[str, Sequence[int]]
) -> dict[str, Measured]:
    """Each job as a driver in a process of its own does it, given the events of each feed."""
    given = json.dumps({"urls": urls, "roots": roots})
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.cluster", master, given],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    found = {}
    for name, [(few, less, _), (many, more, fast)] in json.loads(done.stdout.splitlines()[-1]):
        found[name] = Measured(fast, cpu.costs(less, more, (few, many)))
    return found


def main() -> None:
    master, given = sys.argv[1], json.loads(sys.argv[2])
    urls, roots = given["urls"], {"driver": [os.getpid()], **given["roots"]}
    spark = queries.session(master=master)
    jobs: dict[str, Callable[[str, int], queries.Run]] = {
        STREAM: lambda url, _: queries.stream(queries.feed(spark, url)),
        READ: lambda url, events: queries.batch(
            spark.read.format("zeroeventhub").load(url), events
        ),
        DRIVERS_WAY: lambda url, _: queries.stream(queries.feed(spark, url, fetch="driver")),
    }
    found, smaller = [], next(iter(urls.items()))
    for name, run in jobs.items():
        runs = []
        for number, (url, events) in enumerate([smaller, *urls.items()]):
            before = cpu.by_part(cpu.look(), roots)
            done = finished(lambda run=run, url=url, events=events: run(url, events))
            spent = cpu.spent(before, cpu.by_part(cpu.look(), roots))
            if number:  # the first warms up
                runs.append((events, spent, done.rate))
        found.append((name, runs))
    print(json.dumps(found))


def finished(run: Callable[[], queries.Run]) -> queries.Run:
    """Run, and wait until the process that planned for it has ended, so that its time is told."""
    done = run()
    queries.wait(lambda: queries.source_runner() is None)
    return done


if __name__ == "__main__":
    main()
