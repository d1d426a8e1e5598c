"""Publishing a DataFrame: each micro-batch, or each `df.write`, as one batch of a producer.

Tasks stage their rows in uploads that nobody sees; the driver commits them all at once. Executors
number nothing: a repeated batch comes in another layout and order, so sequence numbers are given at
the commit, by the publisher. `abort` never undoes: Spark calls it after a commit whose answer was
lost, too, and up to seconds before the tasks that it aborts have ended.

With `deadLetterUrl` a batch is two: that of the rows that cannot be published, on a feed of their
own, of the same producer and number; and then its own. Each is committed once, not both at once
[they may be on publishers that know nothing of each other].

Runs: writers are made in the driver, for each batch anew; `write` runs in tasks, `commit` and
`abort` in the driver with nothing but the tasks' messages.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from zeh_spark._compat import DataSourceStreamArrowWriter
from zeh_spark.client.publish_client import BatchCall, PublishClient, TaskDone
from zeh_spark.errors import OptionError, RowError, ZeroEventHubError, at_spark_border
from zeh_spark.protocol.arrow_json import slices
from zeh_spark.protocol.upload_format import EMPTY_UPLOAD, Content
from zeh_spark.protocol.wire import BATCH_INCARNATION
from zeh_spark.sink.dead_letter_client import DeadLetterClient
from zeh_spark.sink.letters import letters_of
from zeh_spark.sink.options import SinkOptions, same_feed
from zeh_spark.sink.rows import Rendered, Renderer, RowLayout
from zeh_spark.sink.task_uploads import TaskUploads

log = logging.getLogger("zeh_spark.sink")

NO_NAME = "none"
"""The `batchId` of a write that shall add its rows each time."""


@dataclass(frozen=True, slots=True)
class StagedLetters:
    """What a task staged on the dead-letter feed: for so many `rows`, of which long ones take
    several events.
    """

    partition_count: int
    done: TaskDone
    rows: int


@dataclass(frozen=True, slots=True)
class StagedTask(WriterCommitMessage):
    """What a task tells the driver."""

    batch: BatchCall
    partition_count: int
    done: TaskDone
    letters: StagedLetters | None = None


class Publishing:
    """What writers of streams and of single writes share. Pickles."""

    def __init__(self, options: SinkOptions, layout: RowLayout) -> None:
        self._options = options
        self._layout = layout
        self._run = uuid.uuid4().hex

    @at_spark_border
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
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

    def _batch(self, number: str | None, query: str | None, run: str | None) -> BatchCall:
        """Which batch this is: a named one, else the stream's own, also inside foreachBatch."""
        options = self._options
        assert options.producer_id is not None
        if options.batch_id is not None:
            named = options.batch_id.lower() != NO_NAME
            producer = f"{options.producer_id}#{options.batch_id if named else self._run}"
            return BatchCall(
                producer, BATCH_INCARNATION, self._run, 0, options.overrides, repeatable=named
            )
        if number is None or query is None:
            raise OptionError(
                "option 'batchId' is missing: df.write needs a name for what it writes, like "
                "batchId=2026-11-20, so that the same rows written again under it add nothing; "
                "batchId=none adds them each time. (Inside foreachBatch the stream's own batch is "
                "taken, but not in a thread of the user's own.)",
                option="batchId",
                anchor="batchid-is-missing",
            )
        known_run = run if run and _is_random(run) else self._run
        return BatchCall(options.producer_id, query, known_run, int(number), options.overrides)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], number: int | None) -> None:
        staged = [each for each in messages if isinstance(each, StagedTask)]
        if not staged or len(staged) != len(messages):
            raise ZeroEventHubError(
                "Spark commits an epoch whose rows it has not given to the sink, as it does with "
                "the continuous trigger, which this sink cannot serve; use processingTime or "
                "availableNow. Nothing was published"
            )
        batch = staged[0].batch
        counts = {
            (each.partition_count, each.letters and each.letters.partition_count) for each in staged
        }
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
        client, count = PublishClient(self._options), staged[0].partition_count
        done = [each.done for each in staged]
        letters = [each.letters for each in staged if each.letters]
        if any(each.rows for each in letters) and not any(each.uploads for each in done):
            # Of this batch the feed has not heard yet: what stands against it is to be known before
            # its letters are there. The commit does not name this upload.
            client.upload(batch, count, len(done), 0, 0, EMPTY_UPLOAD)
        self._commit_letters(batch, letters)
        receipt = client.commit(batch, count, done)
        log.info(
            "batch %s of producer %s: %s events %s",
            batch.number, batch.producer, receipt.events, receipt.status,
        )  # fmt: skip

    def _commit_letters(self, batch: BatchCall, staged: Sequence[StagedLetters]) -> None:
        """An empty batch is committed too: numbers without gaps are how a restored feed is noticed.

        Before the main batch: a crash between the two leaves letters whose batch comes again, and
        adds no more [after it: Spark may take the batch for done, and the letters are lost].
        """
        options = self._options.dead_letters
        if options is None:
            return
        client = DeadLetterClient(options)
        done, rows = [each.done for each in staged], sum(each.rows for each in staged)
        named = replace(batch, overrides=options.overrides)
        receipt = client.commit(named, staged[0].partition_count, done)
        if receipt.digest != sum((each.content for each in done), Content()).digest:
            log.warning(
                "batch %s of producer %s: %s rows cannot be published and are dropped, for "
                "deadLetterKeepFirst keeps the %s letters that the batch had before in %s",
                batch.number, batch.producer, rows, receipt.events, options.url,
            )  # fmt: skip
        elif rows:
            log.warning(
                "batch %s of producer %s: %s rows cannot be published and are dead letters in %s",
                batch.number, batch.producer, rows, options.url,
            )  # fmt: skip

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = next((each for each in messages if isinstance(each, StagedTask)), None)
        if staged:
            impatient = replace(self._options, retry_timeout=0.0)
            PublishClient(impatient).release(staged.batch)
            if impatient.dead_letters:
                DeadLetterClient(impatient.dead_letters).release(staged.batch)


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
    layout: RowLayout,
    batch: BatchCall,
    task: TaskDone,
    frames: Iterator[pa.RecordBatch],
) -> StagedTask:
    """Stage what a task has. Its message; raises RowError, PublishError, UnavailableError."""
    rows = chain.from_iterable(map(slices, frames))
    letter_options = options.dead_letters
    with ExitStack() as open_uploads:
        client = PublishClient(options)
        uploads = open_uploads.enter_context(TaskUploads(client, options, batch, task))
        renderer = Renderer(layout, uploads.partition_count)
        if letter_options is None:
            _add_all(rows, renderer, uploads, task)
            return StagedTask(batch, uploads.partition_count, uploads.finish())
        named = replace(batch, overrides=letter_options.overrides)
        letters = open_uploads.enter_context(
            TaskUploads(DeadLetterClient(letter_options), letter_options, named, task)
        )
        if letters.feed_id is not None and letters.feed_id == uploads.feed_id:
            raise same_feed(options)
        refused = _sift_all(rows, renderer, uploads, letters, partial(letters_of, layout, batch))
        done = uploads.finish()
        staged = StagedLetters(letters.partition_count, letters.finish(), refused)
        return StagedTask(batch, uploads.partition_count, done, staged)


def _add_all(
    rows: Iterable[pa.RecordBatch], renderer: Renderer, uploads: TaskUploads, task: TaskDone
) -> None:
    """Raises RowError for a row that cannot be published, and leaves nothing behind."""
    try:
        for some in rows:
            uploads.add(renderer.render(some))
    except RowError as exc:
        uploads.take_back()
        where = f"Spark partition {task.task}: {exc}"
        raise RowError(where, row=exc.row, reason=exc.reason) from None


def _sift_all(
    rows: Iterable[pa.RecordBatch],
    renderer: Renderer,
    uploads: TaskUploads,
    letters: TaskUploads,
    written: Callable[[pa.RecordBatch, Mapping[int, str], int], Rendered],
) -> int:
    """How many rows became dead letters, as they are `written`."""
    refused = 0
    for some in rows:
        good, reasons = renderer.sift(some)
        uploads.add(good)
        if reasons:
            letters.add(written(some, reasons, letters.partition_count))
            refused += len(reasons)
    return refused


def _is_random(text: str) -> bool:
    """Spark's run ids are random UUIDs; a job group of the user's own may be the same each time."""
    try:
        return uuid.UUID(text).version == 4
    except ValueError:
        return False
