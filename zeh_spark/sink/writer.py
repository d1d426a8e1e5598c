"""Publishing a DataFrame: each micro-batch, or each `df.write`, as one batch of a producer.

Tasks stage their rows in uploads that nobody sees; the driver commits them all at once. Executors
number nothing: a repeated batch comes in another layout and order, so sequence numbers are given at
the commit, by the publisher. `abort` never undoes: Spark calls it after a commit whose answer was
lost, too, and up to seconds before the tasks that it aborts have ended.

Runs: writers are made in the driver, for each batch anew; `write` runs in tasks, `commit` and
`abort` in the driver with nothing but the tasks' messages.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from zeh_spark._compat import DataSourceStreamArrowWriter
from zeh_spark.chunks import CHUNK_EVENTS, Chunker
from zeh_spark.errors import OptionError, RowError, ZeroEventHubError, at_spark_border
from zeh_spark.publish_client import Batch, PublishClient, TaskDone
from zeh_spark.sink.options import SinkOptions
from zeh_spark.sink.rows import Layout, Rendered, Renderer
from zeh_spark.sink.uploads import Uploader
from zeh_spark.wire import BATCH_INCARNATION, partition_of

log = logging.getLogger("zeh_spark.sink")

NO_NAME = "none"
"""The `batchId` of a write that shall add its rows each time."""

_SLICE_BYTES = 1 << 20
_OPEN_UPLOADS = 4
"""What the open chunks of a task may hold, in sizes of an upload."""


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What a task tells the driver."""

    batch: Batch
    partition_count: int
    done: TaskDone


class Publishing:
    """What writers of streams and of single writes share. Pickles."""

    def __init__(self, options: SinkOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self._run = uuid.uuid4().hex

    @at_spark_border
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a task's rows; count them only, where the batch is committed already."""
        context = TaskContext.get()
        assert context is not None
        batch = self._batch(
            context.getLocalProperty("streaming.sql.batchId"),
            context.getLocalProperty("sql.streaming.queryId"),
            context.getLocalProperty("spark.jobGroup.id"),
        )
        done = TaskDone(context.partitionId(), context.taskAttemptId())
        return stage(self._options, self._layout, batch, done, iterator)

    def _batch(self, number: str | None, query: str | None, run: str | None) -> Batch:
        """Which batch this is: a named one, else the stream's own, also inside foreachBatch."""
        options = self._options
        assert options.producer_id is not None
        if options.batch_id is not None:
            named = options.batch_id.lower() != NO_NAME
            producer = f"{options.producer_id}#{options.batch_id if named else self._run}"
            return Batch(
                producer, BATCH_INCARNATION, self._run, 0, options.remedies, repeatable=named
            )
        if number is None or query is None:
            raise OptionError(
                "option 'batchId' is missing: df.write needs a name for what it writes, like "
                "batchId=2026-11-20, so that the same rows written again under it add nothing; "
                "batchId=none adds them each time. (Inside foreachBatch the stream's own batch is "
                "taken, but not in a thread of the user's own.)",
                option="batchId",
            )
        known_run = run if run and _is_random(run) else self._run
        return Batch(options.producer_id, query, known_run, int(number), options.remedies)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], number: int | None) -> None:
        staged = [each for each in messages if isinstance(each, Staged)]
        if not staged or len(staged) != len(messages):
            raise ZeroEventHubError(
                "Spark commits an epoch whose rows it has not given to the sink, as it does with "
                "the continuous trigger, which this sink cannot serve; use processingTime or "
                "availableNow. Nothing was published"
            )
        batch = staged[0].batch
        counts = {each.partition_count for each in staged}
        if any(each.batch != batch for each in staged) or len(counts) > 1:
            raise ZeroEventHubError(
                f"tasks of one batch disagree about it: {sorted(map(str, counts))} partitions, "
                f"{batch} and others; run it again. Nothing was published"
            )
        if number is not None and number != batch.number:
            raise ZeroEventHubError(
                f"Spark commits batch {number}, its tasks wrote batch {batch.number}; tell the "
                f"maintainers which Spark this is. Nothing was published"
            )
        client = PublishClient(self._options)
        receipt = client.commit(batch, counts.pop(), [each.done for each in staged])
        log.info(
            "batch %s of producer %s: %s events %s", batch.number, batch.producer, receipt.events,
            receipt.status,
        )  # fmt: skip

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = next((each for each in messages if isinstance(each, Staged)), None)
        if staged:
            impatient = replace(self._options, retry_timeout=0.0)
            PublishClient(impatient).release(staged.batch)


class BatchWriter(Publishing, DataSourceArrowWriter):
    """`df.write`.

    Guarantee: after `commit` each row is on the feed once, for ever under its `batchId`.
    """

    @at_spark_border
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, None)

    @at_spark_border
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class StreamWriter(Publishing, DataSourceStreamArrowWriter):
    """`df.writeStream`.

    Guarantee: after `commit` each row of the micro-batch is on the feed once, however often Spark
    repeats the batch.
    """

    @at_spark_border
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages, batchId)

    @at_spark_border
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)


def stage(
    options: SinkOptions,
    layout: Layout,
    batch: Batch,
    task: TaskDone,
    frames: Iterator[pa.RecordBatch],
) -> Staged:
    """Stage what a task has. Its message; raises RowError, PublishError, UnavailableError."""
    client = PublishClient(options)
    receipt, count = client.look_up(batch)
    _check_partition_count(options, count)
    renderer = Renderer(layout, count)
    chunker = Chunker(_OPEN_UPLOADS * options.upload_bytes)
    begin = partition_of(f"{batch.producer}/{batch.number}/{task.task}", count)
    spread = Spread(count, begin)

    def send(number: int, body: bytes) -> bool:
        return client.upload(batch, count, task.task, task.attempt, number, body)

    with Uploader(send, options.upload_bytes, client.stop, wanted=receipt is None) as uploader:
        try:
            for rows in chain.from_iterable(map(slices, frames)):
                if not uploader.wanted:
                    chunker.only_count()
                for partition, rests in spread.parts(_rendered(renderer, rows, task.task)):
                    uploader.add(chunker.extend(partition, rests))
        except RowError:  # no message of this task will reach `abort`
            with suppress(ZeroEventHubError):  # the row is what to tell
                uploader.settle()
            if uploader.sent:
                client.release(batch, task)
            raise
        uploader.add(chunker.close())
        uploader.finish()
    done = replace(task, uploads=uploader.sent, content=chunker.content)
    return Staged(batch, count, done)


def slices(frame: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows of about 1 MiB: rendered together, so that what they become fits the cache, and memory
    that was freed is used again [a fifth faster than Spark's 10,000 rows].
    """
    rows = max(1, frame.num_rows * _SLICE_BYTES // max(1, frame.nbytes))
    for begin in range(0, frame.num_rows, rows):
        yield frame.slice(begin, rows)


def _rendered(renderer: Renderer, rows: pa.RecordBatch, task: int) -> Rendered:
    try:
        return renderer.render(rows)
    except RowError as exc:
        where = f"Spark partition {task}: {exc}"
        raise RowError(where, row=exc.row, reason=exc.reason) from None


class Spread:
    """Where rows go: those that may go anywhere fill one chunk after the other, partition by
    partition, beginning with another one in each task and batch, as it comes.
    """

    def __init__(self, partition_count: int, begin: int) -> None:
        self._count = partition_count
        self._begin = begin
        self._spread = 0

    def parts(self, rendered: Rendered) -> Iterator[tuple[int, Sequence[bytes]]]:
        """Rows by partition, in their order."""
        rests = rendered.rests
        if not rests:
            return
        if rendered.partitions is None:
            while rests:
                some = rests[: CHUNK_EVENTS - self._spread % CHUNK_EVENTS]
                yield int(self._next(len(some))[0]), some
                rests = rests[len(some) :]
            return
        partitions = rendered.partitions.copy()
        free = partitions < 0
        partitions[free] = self._next(int(free.sum()))
        order = np.argsort(partitions, kind="stable")
        found, begins = np.unique(partitions[order], return_index=True)
        sorted_rests = [rests[row] for row in order.tolist()]
        for partition, begin, end in zip(
            found.tolist(), begins.tolist(), [*begins[1:].tolist(), len(rests)], strict=True
        ):
            yield partition, sorted_rests[begin:end]

    def _next(self, rows: int) -> np.ndarray:
        numbers = np.arange(self._spread, self._spread + rows)
        self._spread += rows
        return (self._begin + numbers // CHUNK_EVENTS) % self._count


def _check_partition_count(options: SinkOptions, count: int) -> None:
    if options.partition_count not in (None, count):
        raise OptionError(
            f"option 'partitionCount' is {options.partition_count}, but the feed {options.url} has "
            f"{count} partitions: a feed's number never changes; correct the option, or create "
            f"another feed",
            option="partitionCount",
        )


def _is_random(text: str) -> bool:
    """Spark's run ids are random UUIDs; a job group of the user's own may be the same each time."""
    try:
        return uuid.UUID(text).version == 4
    except ValueError:
        return False
