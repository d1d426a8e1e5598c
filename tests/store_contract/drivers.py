"""The drivers of the small world in `world`: their rows, checkpoints and commits. Values only.

Rule for editors: a checkpoint holds exactly what Spark's holds. What it does not hold is lost when
a driver ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zeh_spark.protocol.upload_format import prefix
from zeh_spark.store.batches import Call, Declared, Upload

PARTITIONS = 2
"""The number of partitions of the world's feed."""


@dataclass(frozen=True, order=True)
class DriverRow:
    """A row of the source.

    Args:
        id: Its number in the source.
        version: Which value a query that is not repeatable has computed for it.
    """

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
    """What a query remembers.

    Args:
        incarnation: The checkpoint's identity.
        start: The first row that it reads.
        plans: The rows of each batch that was begun: the first one, and the one after the last.
        done: The number of the last batch that is done; -1 before the first.
    """

    incarnation: str
    start: int = 0
    plans: list[tuple[int, int]] = field(default_factory=list)
    done: int = -1

    def plan(self, batch: int, length: int) -> tuple[int, int]:
        """Return the rows of a batch, which are chosen at its first run and never change.

        Args:
            batch: The batch's number.
            length: How many rows it gets, if it is planned now.
        """
        while len(self.plans) <= batch:
            begin = self.plans[-1][1] if self.plans else self.start
            self.plans.append((begin, begin + length))
        return self.plans[batch]


@dataclass
class Driver:
    """One start of a query.

    Args:
        checkpoint: The checkpoint that it continues.
        run: Its name.
        batch: The number of the batch that it is at.
        alive: Whether it runs.
    """

    checkpoint: DriverCheckpoint
    run: str
    batch: int
    alive: bool = True


@dataclass(frozen=True)
class TaskLayout:
    """How Spark divides and orders the rows of a batch this time, and where the events go.

    Args:
        tasks: The number of tasks.
        seed: For the order of rows and their partitions; 0 keeps the order.
        length: How many rows the batch gets, if it is planned now.
        version: What a query that is not repeatable makes of the rows.
        partitions: The number of partitions that the driver believes the feed has.
    """

    tasks: int = 1
    seed: int = 0
    length: int = 3
    version: int = 0
    partitions: int = PARTITIONS


@dataclass(frozen=True)
class Execution:
    """What a driver has for its commit, after its tasks have run.

    Args:
        driver: The driver.
        call: The call to commit with.
        uploads: What its tasks have sent.
        declared: What it says that they have sent.
        rows: The rows of the batch.
        lines: The lines that the feed has to get of it, by partition.
        span: The first row of the batch, and the one after the last.
        restores: How many times the store had been restored then.
    """

    driver: Driver
    call: Call
    uploads: tuple[Upload, ...]
    declared: Declared
    rows: tuple[DriverRow, ...]
    lines: dict[int, list[bytes]]
    span: tuple[int, int]
    restores: int
