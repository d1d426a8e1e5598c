"""Sessions over several feeds, whose clock is that of the slowest.

A gap is old only if every feed that could fill it has been read up to then. So each bucket keeps
the newest time of each declared source, and its clock is the least of them.

Spark's watermark is one value for a query: over one column it follows the fastest source, and over
several it waits for ever for one that is idle. So here it is the time of the batch, which only
wakes buckets, and every bucket is told in each batch what each source has reached. That depends on
the batch's events alone, so it is the same if the batch is repeated.

`with_marks` runs on the driver, the rest in tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from zeh_spark.spark.stateful import requirements

MARK = "source"
"""The control word of rows that tell a bucket what a source has reached."""

OUTPUT = ("bucket", "row")
"""The columns that leave."""


def with_marks(rows: DataFrame, buckets: int) -> DataFrame:
    """Return rows by bucket, with rows that tell each bucket what each source has reached.

    `rows` has the columns `bucket`; `row` (see `state_buckets.joined`); `source`, NULL for a row
    that belongs to none; and CLOCK, NULL for a row without a time. That of the result is the time
    of the batch.
    """
    now = F.current_timestamp()
    times = {"reached": F.unix_millis(requirements.CLOCK), "now": F.unix_millis(now)}
    reached = rows.withColumns(times).drop(requirements.CLOCK)
    marked = reached.mapInArrow(_marks(buckets), "bucket INT, row STRING")
    return marked.withColumn(requirements.CLOCK, now)


def _marks(buckets: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function for `mapInArrow`, which adds the rows of a task at its end."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found: dict[str, int] = {}
        now, kinds = 0, [pa.int32(), pa.string()]
        for batch in batches:
            kinds = [batch.schema.field(name).type for name in OUTPUT]
            for name, reached in _newest(batch):
                found[name] = max(found.get(name, -1), reached)
            now = max([now, *batch.column("now").slice(0, 1).to_pylist()])
            yield batch.select(OUTPUT)
        texts = [Mark(name, reached, now).text() for name, reached in sorted(found.items())]
        rows = [(bucket, text) for bucket in range(buckets) for text in texts]
        if rows:
            numbers, texts = (list(column) for column in zip(*rows, strict=True))
            columns = [pa.array(numbers, kinds[0]), pa.array(texts, kinds[1])]
            yield pa.RecordBatch.from_arrays(columns, names=list(OUTPUT))

    return run


def _newest(batch: pa.RecordBatch) -> Iterator[tuple[str, int]]:
    """Yield each source of a batch with its newest time, or -1."""
    columns = pa.Table.from_batches([batch.select(["source", "reached"])])
    groups = columns.group_by("source").aggregate([("reached", "max")])
    names, times = groups.column("source").to_pylist(), groups.column("reached_max").to_pylist()
    for name, reached in zip(names, times, strict=True):
        if name is not None:
            yield name, -1 if reached is None else reached


class Mark(NamedTuple):
    """What a source has reached in a batch.

    Attributes:
        reached: The newest time of its events, in ms since 1970; -1 if they have none.
        now: The time of the batch, in ms since 1970.
    """

    source: str
    reached: int
    now: int

    def text(self) -> str:
        """Return the mark as a row (see `model.SessionEvent.parted`)."""
        return f"-1 {self.reached} {self.now} 0 0 {len(MARK)} 0 {MARK}{self.source}"


class SourceTime(msgspec.Struct, array_like=True):
    """How far a source is.

    Attributes:
        reached: The newest time of its events, in ms since 1970; -1 if there was none yet.
        seen: The time of the newest batch that had events of it, or of the first batch in which it
            was declared; 0 before that.
    """

    reached: int = -1
    seen: int = 0


class SourceClock(msgspec.Struct, array_like=True):
    """The clock of a bucket whose sessions come from several sources.

    A source is idle if it had no events for a time, by the times of batches. If no batch came for
    that time, the query was stopped, and all sources get the time again.

    Attributes:
        time: What the clock shows, in ms since 1970. It never goes back.
        batch: The time of the last batch, in ms since 1970.
    """

    time: int = 0
    batch: int = 0
    sources: dict[str, SourceTime] = {}

    def declare(self, names: Sequence[str]) -> None:
        """Take these sources: a new one holds the clock, and one that is gone does not any more."""
        self.sources = {name: self.sources.get(name, SourceTime()) for name in names}

    def next(self, idle: int | None) -> int:
        """Return what the clock shows in the next batch.

        A source may have no events for `idle` ms and still hold the clock; None means for ever.
        """
        active = [
            each.reached
            for each in self.sources.values()
            if idle is None or not each.seen or self.batch - each.seen < idle
        ]
        return max(self.time, min(active, default=self.time))

    def note(self, mark: Mark, idle: int | None) -> None:
        """Take what a source has reached in a batch; for `idle` see `next`."""
        stopped = idle is not None and mark.now - self.batch >= idle
        self.batch = max(self.batch, mark.now)
        for each in self.sources.values():
            if stopped or not each.seen:
                each.seen = self.batch
        if known := self.sources.get(mark.source):
            known.reached, known.seen = max(known.reached, mark.reached), self.batch
