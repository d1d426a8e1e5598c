"""Hours of publishing, reading, packing, pruning and restarting at a steady rate: what grows.

`python -m benchmarks.soak --hours 2` runs a publisher over SQLite, a `Producer`, a query that
copies the feed into another one by the sink, and a reader of each feed, all in processes of their
own. In the first half the publisher and the query are restarted, by SIGTERM and by SIGKILL; in the
second half nothing is. Each ten seconds it writes a line of JSON with the memory, file descriptors
and threads of each process, the sizes of the store's files, and the lags that `/metrics` tells. At
the end each reader must have had each number once and, in its partition, in order.

`python -m benchmarks.soak --plot SAMPLES.jsonl PICTURE.svg` draws the lines.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import orjson
import psutil
import requests

from benchmarks import queries
from benchmarks.feeds import PARTITIONS, event
from benchmarks.rows import MIB, Row, ratio
from tests.ports import free_port
from zeh_spark.publish import Producer
from zeh_spark.publisher import open_store
from zeh_spark.reading import reader
from zeh_spark.service.store.interface import Retention

SAMPLED = 10.0
"""Seconds between two samples."""

PATIENT = "10m"
FEEDS, COLUMNS = ("flights", "copy"), ("partition", "data")
KINDS = ("memory", "descriptors", "threads")
Sample = Mapping[str, float]


# The programs


def write(url: str, folder: Path, rate: int, until: float) -> None:
    """Publish so many flights each second; then say how many there are."""
    with Producer(url, "soak", retryTimeout=PATIENT) as producer:
        numbers = itertools.count()
        for second in itertools.count(int(time.time())):
            time.sleep(max(second - time.time(), 0))
            if time.time() > until:
                break
            with producer.batch() as batch:
                for number in itertools.islice(numbers, rate):
                    headers, data = event(number)
                    batch.add(data, headers=headers, partition=number % PARTITIONS)
    (folder / "published").write_text(str(next(numbers)))


def read(url: str, folder: Path, name: str) -> None:
    """Read a feed for ever, and keep in a file how many events there were."""
    newest, count, noted = [-1] * PARTITIONS, 0, 0.0
    for page, _ in reader(url, follow=True, cursor_set=name, retry_timeout=PATIENT):
        for partition, data in zip(
            *(page.column(each).to_pylist() for each in COLUMNS), strict=True
        ):
            number = orjson.loads(data)["flight"]["number"]
            expected = newest[partition] + PARTITIONS if newest[partition] >= 0 else partition
            if number != expected:
                raise SystemExit(f"{name}: {number} after {newest[partition]} in {partition}")
            newest[partition] = number
            count += 1
        if time.monotonic() > noted + 1 or not page.num_rows:
            (folder / f"{name}.new").write_text(str(count))
            (folder / f"{name}.new").replace(folder / name)
            noted = time.monotonic()


def copy(url: str, target: str, folder: Path) -> None:
    """Publish the feed again, by a query."""
    frame = queries.feed(
        queries.session(), url, cursorSet="query", stamps="none", retryTimeout=PATIENT
    )
    (
        frame.selectExpr("partition", "headers", "data")
        .writeStream.format("zeroeventhub")
        .options(url=target, producerId="soak-copy", retryTimeout=PATIENT)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
        .awaitTermination()
    )


# The run


class Soak:
    """The processes of a run, in a folder: by name, each with its command."""

    def __init__(self, folder: Path, rate: int, seconds: float) -> None:
        self.folder, self.store = folder, f"sqlite:///{folder}/soak.db"
        self.began = time.time()
        self.until = self.began + seconds
        self.root = f"http://127.0.0.1:{free_port()}"
        feeds = [f"{self.root}/{each}" for each in FEEDS]
        program = [sys.executable, "-m", "benchmarks.soak"]
        serve = [sys.executable, "-m", "zeh_spark", "serve", "--store", self.store]
        self.commands = {
            # With the default of 64 MiB, answers would fill the cache for longer than the run.
            "publisher": [*serve, "--answer-cache", "8m", "--port", self.root.rpartition(":")[2]],
            "writer": [*program, "write", feeds[0], str(folder), str(rate), str(self.until)],
            "reader": [*program, "read", feeds[0], str(folder), "reader"],
            "reader of the copy": [*program, "read", feeds[1], str(folder), "reader-copy"],
            "query": [*program, "copy", *feeds, str(folder)],
        }
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.restarts = 0

    def prepare(self, kept: float) -> None:
        """Make the feeds, which keep their events for so many seconds, and for their readers."""
        store = open_store(self.store)
        for feed, readers in zip(FEEDS, (("reader", "query"), ("reader-copy",)), strict=True):
            store.create(feed, PARTITIONS)
            store.set_retention(feed, Retention(age_ms=int(kept * 1000), readers=readers))
        store.close()

    def start(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                self.commands[name], stdout=log, stderr=log, start_new_session=True
            )

    def end(self, name: str, sent: signal.Signals) -> None:
        process = self.running.pop(name)
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(process.pid, sent)
        process.wait()

    def restart(self, name: str) -> None:
        """In two of four times as a machine that fails, and otherwise as an operator does it."""
        self.end(name, signal.SIGKILL if self.restarts % 4 < 2 else signal.SIGTERM)
        self.start(name)
        self.restarts += 1

    def check(self) -> None:
        """Raise if a process has ended that should not have."""
        for name, process in self.running.items():
            if process.poll() is not None and (name != "writer" or process.returncode):
                log = (self.folder / f"{name}.log").read_text()[-4000:]
                raise RuntimeError(f"the {name} ended with {process.returncode}:\n{log}")

    def sample(self) -> Sample:
        """What there is now. What cannot be asked at this moment is left out."""
        found: dict[str, float] = {"seconds": time.time() - self.began, "restarts": self.restarts}
        for name, process in self.running.items():
            with suppress(psutil.Error):
                found |= of_tree(name, psutil.Process(process.pid))
        for what, suffix in (("store", ""), ("WAL", "-wal")):
            with suppress(OSError):
                found[f"{what}: bytes"] = (self.folder / f"soak.db{suffix}").stat().st_size
        with suppress(requests.RequestException):
            found |= lags(requests.get(f"{self.root}/metrics", timeout=SAMPLED).text)
        return found

    def read_all(self) -> int:
        """Wait until both readers have had all. Returns how many events there were."""
        published = int((self.folder / "published").read_text())
        deadline = time.time() + 300
        while not all(self.count(each) == published for each in ("reader", "reader-copy")):
            self.check()
            if time.time() > deadline:
                counts = {each: self.count(each) for each in ("reader", "reader-copy")}
                raise RuntimeError(f"{published} were published; read were {counts}")
            time.sleep(0.5)
        return published

    def count(self, name: str) -> int:
        with suppress(OSError):
            return int((self.folder / name).read_text())
        return 0


def of_tree(name: str, root: psutil.Process) -> dict[str, float]:
    """Sums over a process and all below it; those of a query apart for its JVM and its Python."""
    found: dict[str, float] = {}
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.Error):
            part = name
            if name == "query":
                part = "query: JVM" if process.name() == "java" else "query: Python"
            with process.oneshot():
                values = process.memory_full_info().pss, process.num_fds(), process.num_threads()
            for kind, value in zip(KINDS, values, strict=True):
                found[f"{part}: {kind}"] = found.get(f"{part}: {kind}", 0) + value
    return found


def lags(metrics: str) -> dict[str, float]:
    """Events that each reader has not read, by what the publisher tells."""
    found = {}
    for line in metrics.splitlines():
        if line.startswith("zeh_consumer_lag_events{"):
            name = line.split('cursorset="')[1].split('"')[0]
            found[f"{name}: lag"] = float(line.rpartition(" ")[2])
    return found


def run(folder: Path, hours: float, rate: int, samples: Path) -> Iterator[Row]:
    """All of it; restarts in the first half, three of the publisher and three of the query."""
    soak = Soak(folder, rate, hours * 3600)
    soak.prepare(hours * 3600 / 4)
    planned = [
        (soak.began + hours * 3600 * (2 * each + 1) / 26, ("publisher", "query")[each % 2])
        for each in range(6)
    ]
    try:
        for name in soak.commands:
            soak.start(name)
            if name == "publisher":
                until_served(soak.root)
        with samples.open("w") as lines:
            while time.time() < soak.until:
                soak.check()
                while planned and planned[0][0] < time.time():
                    soak.restart(planned.pop(0)[1])
                lines.write(json.dumps(soak.sample()) + "\n")
                lines.flush()
                time.sleep(SAMPLED)
        published = soak.read_all()
    finally:
        for name in [*soak.running]:
            soak.end(name, signal.SIGKILL)
    yield "events, each read once from both feeds", f"{published:,}", ""
    yield "restarts", f"{soak.restarts}", ""
    yield from rows([json.loads(line) for line in samples.read_text().splitlines()])


def until_served(root: str) -> None:
    deadline = time.time() + 60
    while True:
        with suppress(requests.RequestException):
            if requests.get(f"{root}/readyz", timeout=5).ok:
                return
        if time.time() > deadline:
            raise RuntimeError("the publisher does not answer")
        time.sleep(0.1)


# What came of it


def rows(samples: Sequence[Sample]) -> Iterator[Row]:
    """For each figure its median in the first and in the last third of the second half."""
    second = samples[len(samples) // 2 :]
    third = len(second) // 3
    for name in sorted(set().union(*second) - {"seconds", "restarts"}):
        first, last = (median(some, name) for some in (second[:third], second[-third:]))
        if name.endswith(": lag"):
            most = max(each.get(name, 0) for each in second)
            yield f"{name}, events", f"{first:,.0f}; {last:,.0f}; at most {most:,.0f}", "flat"
        elif name.endswith(("memory", "bytes")):
            yield ratio(
                f"{name} ({first / MIB:,.0f} MiB, then {last / MIB:,.0f})", last / first, "<= 1.1"
            )
        else:
            yield ratio(f"{name} ({first:,.0f}, then {last:,.0f})", last / first, "<= 1.1")


def median(samples: Sequence[Sample], name: str) -> float:
    return statistics.median(each[name] for each in samples if name in each)


def plot(samples: Sequence[Sample], picture: Path) -> None:
    """Draw memory, descriptors, files and lags over the hours."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "soak", "font.size": 8})
    from matplotlib import pyplot

    groups = {
        "memory, MiB": (": memory", MIB),
        "file descriptors": (": descriptors", 1),
        "files of the store, MiB": (": bytes", MIB),
        "lag, events": (": lag", 1),
    }
    figure, places = pyplot.subplots(len(groups), sharex=True, figsize=(9, 9), layout="constrained")
    names = sorted(set().union(*samples))
    for place, (title, (suffix, unit)) in zip(places, groups.items(), strict=True):
        for name in (each for each in names if each.endswith(suffix)):
            having = [each for each in samples if name in each]
            hours = [each["seconds"] / 3600 for each in having]
            label = name.removesuffix(suffix)
            place.plot(hours, [each[name] / unit for each in having], label=label, linewidth=1)
        place.set_title(title, loc="left")
        place.set_yscale("symlog" if suffix == ": lag" else "linear")
        place.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
        place.set_ylim(bottom=0)
    places[-1].set_xlabel("hours")
    figure.savefig(picture, metadata={"Date": None})


def main() -> None:
    programs = {"write": write, "read": read, "copy": copy}
    if sys.argv[1:2] and sys.argv[1] in programs:
        name, *given = sys.argv[1:]
        kinds = {
            "write": (str, Path, int, float),
            "read": (str, Path, str),
            "copy": (str, str, Path),
        }[name]
        programs[name](*(kind(each) for kind, each in zip(kinds, given, strict=True)))  # type: ignore[operator]
        return
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    arguments.add_argument("--hours", type=float, default=2.0)
    arguments.add_argument("--rate", type=int, default=500, help="events a second")
    arguments.add_argument("--samples", type=Path, default=Path("soak.jsonl"))
    arguments.add_argument("--plot", type=Path, nargs=2, metavar=("SAMPLES", "PICTURE"))
    given = arguments.parse_args()
    if given.plot:
        source, picture = given.plot
        plot([json.loads(line) for line in source.read_text().splitlines()], picture)
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    print("| what | measured | aim |\n|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="zeh-spark-soak-") as folder:
        for row in run(Path(folder), given.hours, given.rate, given.samples):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
