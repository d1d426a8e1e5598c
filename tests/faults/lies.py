"""Disks that lose power, also one that says yes to a sync and does not do it.

In each round, a program publishes numbers and another one reads them; the disk loses power, and
both continue. If the disk has lied before, they get named errors, and follow
docs/operate/recover.md. If it has not, nothing is lost, and there are no errors. At the end of
every run, the feed has each number exactly once.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.disks import Disk
from tests.faults.parts import Publisher
from tests.patience import eventually
from tests.ports import free_port
from zeh_spark.errors import PublisherError, PublishError
from zeh_spark.publish import Producer
from zeh_spark.publisher import open_store
from zeh_spark.reading import reader


@dataclass
class Writer:
    """A program that knows how many numbers it has published, until it is told otherwise."""

    url: str
    told: Counter[str]
    published: int = 0

    def __post_init__(self) -> None:
        self._producer = Producer(self.url, "till-7")

    def restart(self) -> None:
        """As after a crash: the publisher says how far it is."""
        self._producer = Producer(self.url, "till-7")
        self.published = self._producer.last.events

    def publish(self, total: int) -> None:
        while self.published < total:
            numbers = range(self.published, min(self.published + 5, total))
            try:
                with self._producer.batch() as batch:
                    for number in numbers:
                        batch.add(number, key=number)
            except PublishError as exc:
                self.told[f"writer: {exc.problem}"] += 1
                self.restart()
            else:
                self.published = numbers.stop


@dataclass
class Reader:
    """A program that keeps numbers and cursors."""

    url: str
    told: Counter[str]
    numbers: Counter[int] = field(default_factory=Counter)
    cursors: str | None = None

    def read(self) -> None:
        """Read to the end. From the beginning, into nothing, if the feed has another history."""
        try:
            for page, cursors in reader(self.url, self.cursors):
                self.cursors = cursors
                self.numbers.update(int(event["data"]) for event in page.to_pylist())
        except PublisherError as exc:
            self.told[f"reader: {exc.code}"] += 1
            self.numbers, self.cursors = Counter(), None
            self.read()


def run(work: Path, seed: int, rounds: int, *, lies: bool) -> tuple[Counter[str], list[str]]:
    """Return what reader and writer were told, and the anomalies."""
    chance, told, anomalies = random.Random(seed), Counter[str](), []
    disk = Disk(work)
    store, port = f"sqlite:///{disk.folder / 'feeds.db'}", free_port()
    publisher = Publisher(work, store, port, disk.environment)
    url = f"http://127.0.0.1:{port}/numbers"
    with closing(open_store(store)) as opened:
        opened.create("numbers", 2)
    disk.sync()
    writer, reading = Writer(url, told), Reader(url, told)
    total = 0
    try:
        publisher.start()
        for number in range(rounds):
            for lying in (False, True):
                if lying and lies:
                    disk.lie()
                for _ in range(chance.randrange(4)):
                    total += chance.randrange(1, 12)
                    writer.publish(total)
                    if chance.random() < 0.5:
                        reading.read()
            publisher.kill()
            disk.cut_power(None if lies else chance)
            publisher.start()
            eventually(lambda: "Console" in publisher.new_text())
            if chance.random() < 0.5:
                writer.restart()
            total += 1
            writer.publish(total)
            reading.read()
            if (once := Counter(range(total))) != reading.numbers:
                missing, more = once - reading.numbers, reading.numbers - once
                anomalies.append(f"round {number}: missing {missing}, too many {more}")
                break
    finally:
        publisher.close()
        disk.close()
    return told, anomalies
