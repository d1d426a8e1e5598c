"""Faults from a seed, for as long as wanted; then all has to arrive, and is counted."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests import postgresql
from tests.faults.disks import Disk, why_no_compiler, why_no_small_disk
from tests.faults.driver import STEPS
from tests.faults.network import Network
from tests.faults.parts import ROOT, Driver, Part, Program, Publisher, Table
from tests.ports import free_port
from zeh_spark.publisher import open_store
from zeh_spark.reading import reader

KILLS = {
    "producer": 44,
    "publisher": 14,
    "worker": 14,
    "executor": 4,
    "driver and executor": 1,
    "driver": 2,
    "power cut": 7,
    "database": 7,
}
OTHERS = {"connections cut": 10, "network stalled": 2, "network slow": 2, "disk full": 2}
DECK = {**KILLS, **OTHERS}
"""How often each fault comes in a round of all: those of cheap processes more often."""

PACE = 0.8
"""Seconds between two faults, on average."""

PATIENCE = 600
"""Seconds in which everything has to arrive once there are no more faults."""

MOST = 20
"""Anomalies after which a run is given up."""

AHEAD, STEP = 2000, 70
"""So far the producer may be ahead of the table; how many numbers a start of it publishes."""


@dataclass
class Outcome:
    """What happened in a run."""

    faults: Counter[str] = field(default_factory=Counter)
    anomalies: list[str] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    starts: dict[str, int] = field(default_factory=dict)
    events: int = 0
    versions: int = 0
    seconds: float = 0.0

    @property
    def kills(self) -> int:
        return sum(self.faults[each] for each in KILLS)


def left_out(store: str) -> dict[str, str]:
    """The faults that do not happen on this machine, or with this kind of store: what they need."""
    if store == "postgresql":
        return dict.fromkeys(("power cut", "disk full"), "a store in SQLite")
    reasons = {
        "database": "a store in PostgreSQL",
        "power cut": why_no_compiler(),
        "disk full": why_no_small_disk(),
    }
    return {name: reason for name, reason in reasons.items() if reason}


class Pipeline:
    """All processes of a run, and what can happen to them."""

    def __init__(self, work: Path, store: str, seed: int) -> None:
        self._work, self._chance = work, random.Random(seed)
        self.outcome = Outcome()
        self._disk = Disk(work)
        self._server = postgresql.Server() if store == "postgresql" else None
        if self._server:
            url = self._server.url(self._server.create_database())
        else:
            url = f"sqlite:///{self._disk.folder / 'feeds.db'}"
        with closing(open_store(url)) as opened:
            opened.create("in", 2)
            opened.create("mid", 2)
        self._disk.sync()
        port = free_port()
        self._base = f"http://127.0.0.1:{port}"
        own = {} if self._server else self._disk.environment
        self._publisher = Publisher(work, url, port, own)
        self._network = Network(port)
        self._producer = Program(work, f"{self._network.address}/in", STEP)
        self._drivers = [Driver(kind, work, self._network.address) for kind in ("relay", "keep")]
        self._parts: list[Part] = [self._publisher, self._producer, *self._drivers]
        self._table = Table(self._drivers[1].folder / "table")
        self._cards: list[str] = []
        self._all_cards = [
            name for name in DECK if name not in left_out(store) for _ in range(DECK[name])
        ]
        self._publishes = True
        self._heal_at = float("inf")

    def close(self) -> None:
        for part in reversed(self._parts):
            part.close()
        self._network.close()
        self._disk.close()
        if self._server:
            self._server.remove()

    # What happens without faults

    def begin(self) -> None:
        """Start all, until the first numbers are in the table."""
        deadline = time.monotonic() + PATIENCE
        while not self._table.look() and time.monotonic() < deadline:
            self.tend(0.5)

    def tend(self, seconds: float) -> None:
        """For some time, start again what has ended, and judge why it has."""
        until = time.monotonic() + seconds
        while True:
            for part in self._parts:
                if not part.runs and self._starts(part):
                    part.start()
            for driver in self._drivers:
                driver.look()
            if sum(len(part.anomalies) for part in self._parts) > MOST:
                raise RuntimeError(
                    "\n".join(each for part in self._parts for each in part.anomalies)
                )
            if time.monotonic() > self._heal_at:
                self._heal()
            if time.monotonic() > until:
                return
            time.sleep(0.05)  # between two looks at the processes

    def _starts(self, part: Part) -> bool:
        if part.process:
            part.judge()
        if part is self._producer and self._producer.done:
            if not self._publishes or self._producer.total - self._table.look() > AHEAD:
                return False
            self._producer.total += STEP
            self._producer.way = self._chance.choice(("counted", "buffered"))
        return True

    def _heal(self) -> None:
        self._heal_at = float("inf")
        self._network.heal()
        self._disk.free()

    # Faults

    def fault(self) -> None:
        """Do what the next card says. It is put back if it is about something that is not there."""
        if not self._cards:
            self._cards = self._chance.sample(self._all_cards, len(self._all_cards))
        name = self._cards.pop()
        if self._do(name):
            self.outcome.faults[name] += 1
            with (self._work / "faults.log").open("a") as log:
                log.write(f"{time.strftime('%T')} {name}\n")
        else:
            self._cards.insert(self._chance.randrange(len(self._cards) + 1), name)

    def _do(self, name: str) -> bool:
        match name:
            case "producer" | "publisher":
                part = self._producer if name == "producer" else self._publisher
                if not part.runs:
                    return False
                part.kill()
            case "power cut":
                self._publisher.kill()
                self._disk.cut_power(self._chance)
            case "database":
                assert self._server
                self._server.kill()
                self.tend(self._chance.random())
                self._server.start()
            case "connections cut":
                self._network.cut(self._chance)
            case "disk full":
                self._publisher.kill()
                self._disk.fill(self._chance.choice((0, 100, 1000)) << 10)
                self._heal_at = time.monotonic() + self._chance.uniform(5, 10)
            case "network stalled" | "network slow":
                stalls = name == "network stalled"
                (self._network.stall if stalls else self._network.slow)()
                self._heal_at = time.monotonic() + self._chance.uniform(1, 5)
            case _:
                return self._kill_of_spark(name)
        return True

    def _kill_of_spark(self, name: str) -> bool:
        """Kill a process of Spark; no driver or executor that had no time to do anything."""
        driver = self._chance.choice(self._drivers)
        found = driver.processes()
        if not found["worker" if name == "worker" else "executor"]:
            return False
        if name != "worker" and not driver.ready:
            return False
        if name == "driver":
            driver.kill_alone()
        elif name == "driver and executor":
            driver.kill()
        else:
            with suppress(psutil.NoSuchProcess):
                self._chance.choice(found[name]).kill()
        if name == "executor":
            driver.begin_again()
        return True

    # The end

    def finish(self) -> None:
        """Wait until all has arrived, and count it."""
        self._heal()
        self._publishes = False
        deadline = time.monotonic() + PATIENCE
        while not self._producer.done or self._table.look() < self._producer.total:
            self.tend(0.5)
            if time.monotonic() > deadline:
                self._say("not all has arrived")
                break
        self._count()
        for part in self._parts:
            self.outcome.anomalies += part.anomalies
            self.outcome.starts[part.name] = part.starts
            for kind, times in part.failures.items():
                self.outcome.failures[f"{part.name}: {kind}"] += times

    def _count(self) -> None:
        self.outcome.events = total = self._producer.total
        self.outcome.versions = len(self._table.rows)
        once = Counter(range(total))
        for feed in ("in", "mid"):
            url = f"{self._base}/{feed}"
            pages = (page for page, _ in reader(url))
            found = Counter(int(event["data"]) for page in pages for event in page.to_pylist())
            self._compare(f"the feed {feed}", once, found)
            command = [sys.executable, "-m", "zeh_spark", "audit", url]
            audit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if audit.returncode:
                self._say(audit.stdout + audit.stderr)
        found = Counter(number for rows in self._table.rows.values() for number in rows)
        self._compare("the table", once, found)
        self._check_order()

    def _compare(self, where: str, once: Counter[int], found: Counter[int]) -> None:
        if once != found:
            self._say(f"{where}: missing {once - found}, too many {found - once}")

    def _check_order(self) -> None:
        """Later versions of the table have later steps of a session."""
        last: dict[int, int] = {}
        for version, numbers in sorted(self._table.rows.items()):
            for number in sorted(numbers):
                if last.get(number // STEPS, -1) >= number:
                    self._say(f"version {version} of the table has {number} too late")
                last[number // STEPS] = number
        letters = (self._drivers[1].folder / "dead").glob("*/*.json")
        if any(each.stat().st_size for each in letters):
            self._say("there are dead letters")

    def _say(self, anomaly: str) -> None:
        ends = "".join(
            f"\n{each.log}:\n{each.log.read_text(errors='replace')[-2000:]}" for each in self._parts
        )
        self.outcome.anomalies.append(anomaly + ends)


def run(work: Path, store: str, seed: int, *, kills: int, seconds: float = 1e9) -> Outcome:
    """Run the pipeline until it had so many kills, or for so many seconds; and then to its end."""
    began = time.monotonic()
    pipeline = Pipeline(work, store, seed)
    chance = random.Random(f"pace {seed}")
    try:
        pipeline.begin()
        while pipeline.outcome.kills < kills and time.monotonic() < began + seconds:
            pipeline.tend(chance.expovariate(1 / PACE))
            pipeline.fault()
        pipeline.finish()
    finally:
        pipeline.close()
    pipeline.outcome.seconds = time.monotonic() - began
    return pipeline.outcome
