"""What drivers have and make, in the small world of `world`: values."""

from __future__ import annotations

from dataclasses import dataclass, field

from zeh_spark.protocol.upload_format import prefix
from zeh_spark.store.batches import Call, Declared, Upload

PARTITIONS = 2


@dataclass(frozen=True, order=True)
class DriverRow:
    """A row of the source. `version`: what a query that is not repeatable made of it."""

    id: int
    version: int = 0

    @property
    def data(self) -> bytes:
        return b'{"row":%d,"version":%d}' % (self.id, self.version)

    def line(self, partition: int) -> bytes:
        return prefix(partition) + b'"headers":{},"data":%b}' % self.data


@dataclass
class DriverCheckpoint:
    """What a query remembers: the rows of each batch that it began, and the last that is done."""

    incarnation: str
    start: int = 0
    plans: list[tuple[int, int]] = field(default_factory=list)
    done: int = -1

    def plan(self, batch: int, length: int) -> tuple[int, int]:
        """The rows of a batch; made at its first run, the same ever after."""
        while len(self.plans) <= batch:
            begin = self.plans[-1][1] if self.plans else self.start
            self.plans.append((begin, begin + length))
        return self.plans[batch]


@dataclass
class Driver:
    """One start of a query."""

    checkpoint: DriverCheckpoint
    run: str
    batch: int
    alive: bool = True


@dataclass(frozen=True)
class TaskLayout:
    """How Spark cuts and orders the rows of a batch this time, and where the events go."""

    tasks: int = 1
    seed: int = 0
    length: int = 3
    version: int = 0
    partitions: int = PARTITIONS


@dataclass(frozen=True)
class Execution:
    """What a driver has for its commit. `lines`: what the feed shall get of it, by partition."""

    driver: Driver
    call: Call
    uploads: tuple[Upload, ...]
    declared: Declared
    rows: tuple[DriverRow, ...]
    lines: dict[int, list[bytes]]
    span: tuple[int, int]
    restores: int
