"""What happened in a demo: the batches, as the publisher and Spark's checkpoint have kept them.

Both survive the crashes, so nothing that a killed job printed is needed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import requests

PRODUCER = "flights-job"


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch.

    Attributes:
        number: Its batchId.
        seconds: When it was seen, since the demo began.
        events: How many events it has.
        positions: The feed's positions after it, by partition; {} if it was published.
    """

    number: int
    seconds: float
    events: int
    positions: Mapping[str, int]


@dataclass(slots=True)
class Record:
    """What has happened so far.

    Attributes:
        published: The batches on the feed.
        read: The batches that are in the table.
        crashes: When a job was killed, in seconds since the demo began.
    """

    clock: Callable[[], float] = time.monotonic
    published: list[Batch] = field(default_factory=list)
    read: list[Batch] = field(default_factory=list)
    crashes: list[float] = field(default_factory=list)
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    @property
    def seconds(self) -> float:
        """Seconds since the demo began."""
        return self.clock() - self._began

    def look_at_feed(self, url: str) -> list[Batch]:
        """Add the batches that are new on the feed; return them.

        Args:
            url: The feed's address.
        """
        producer = f"{url}/producers/{PRODUCER}"
        last = int(requests.get(producer, timeout=10).json()["lastBatch"])
        new = []
        for number in range(len(self.published), last + 1):
            receipt = requests.get(f"{producer}/batches/{number}", timeout=10).json()
            new.append(Batch(number, self.seconds, int(receipt["events"]), {}))
        self.published += new
        return new

    def look_at_checkpoint(self, checkpoint: Path) -> list[Batch]:
        """Add the batches that Spark has noted as done; return them.

        Args:
            checkpoint: The folder of the query.
        """
        new: list[Batch] = []
        while (checkpoint / "commits" / str(number := len(self.read) + len(new))).exists():
            offset = json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[-1])
            partitions = offset["partitions"]
            events = sum(each.get("events", 0) for each in partitions.values())
            positions = {
                name: int(each["cursor"].partition(".")[0])
                for name, each in partitions.items()
                if each["cursor"][:1].isdigit()
            }
            new.append(Batch(number, self.seconds, events, positions))
        self.read += new
        return new
