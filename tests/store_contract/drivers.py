"""The drivers of the small world in `world`: their rows, checkpoints and commits. Values only.

Rule for editors: a checkpoint holds exactly what Spark's holds. What it does not hold is lost when
a driver ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zeh_spark.service.store.batches import Call, Declared, Upload
from zeh_spark.wire.upload_format import prefix

PARTITIONS = 2
"""The number of partitions of the world's feed."""


@dataclass(frozen=True, order=True)
class DriverRow:
    """A row of the source; a query that is not repeatable computes another version of it."""

    id: int
    version: int = 0

    @property
    def data(self) -> bytes:
        """Return the data of the row's event, as JSON."""
        return b'{"row":%d,"version":%d}' % (self.id, self.version)

    def line(self, partition: int) -> bytes:
        """Return the line of the row's event as a store keeps it, without its newline."""
        return prefix(partition) + b'"headers":{},"data":%b}' % self.data


@dataclass
class DriverCheckpoint:
    """What a query remembers. It reads from the row `start`."""

    incarnation: str
    start: int = 0
    plans: list[tuple[int, int]] = field(default_factory=list)  # begin and end of each batch begun
    done: int = -1  # the last batch that is done

    def plan(self, batch: int, length: int) -> tuple[int, int]:
        """Return the rows of a batch, which are chosen at its first run and never change."""
        while len(self.plans) <= batch:
            begin = self.plans[-1][1] if self.plans else self.start
            self.plans.append((begin, begin + length))
        return self.plans[batch]


@dataclass
class Driver:
    """One start of a query, and the number of the batch that it is at."""

    checkpoint: DriverCheckpoint
    run: str
    batch: int


@dataclass(frozen=True)
class TaskLayout:
    """How Spark divides and orders the rows of a batch this time, and where the events go."""

    tasks: int = 1
    seed: int = 0  # for the order of rows and their partitions; 0 keeps the order
    length: int = 3  # rows that the batch gets, if it is planned now
    version: int = 0
    partitions: int = PARTITIONS  # that the driver believes the feed has


@dataclass(frozen=True)
class Execution:
    """What a driver has for its commit, after its tasks have run."""

    driver: Driver
    call: Call
    uploads: tuple[Upload, ...]
    declared: Declared
    rows: tuple[DriverRow, ...]
    lines: dict[int, list[bytes]]  # that the feed has to get of it, by partition
    span: tuple[int, int]  # the first row, and the one after the last
    restores: int  # how many times the store had been restored then
