"""Publishing a DataFrame: each micro-batch, or each `df.write`, becomes one batch of a producer.

Tasks stage their rows in uploads that no reader sees; the driver commits them all at once.
Executors assign no numbers: a repeated batch has another layout and order, so the publisher assigns
sequence numbers at the commit. `abort` never undoes a commit: Spark also calls it after a commit
whose answer was lost, and up to seconds before the aborted tasks have ended.

With `deadLetterUrl` a batch is two batches: first that of the rows that cannot be published, on a
feed of their own, with the same producer and number; then its own. Each is committed once.
A row that breaks the feed's schema is a dead letter. The schema's version is chosen for ever by the
commit of the dead letters, whose receipt tells it: a replay gives the same ones.
Rejected: committing both at once, because they may be on publishers that do not know each other.

Runs: writers are made in the driver, a new one for each batch; `write` runs in tasks, `commit` and
`abort` in the driver with nothing but the tasks' messages.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from zeh_spark.client.http.publish_client import BatchCall, PublishClient, Receipt, TaskDone
from zeh_spark.errors import OptionError, RowError, ZeroEventHubError, at_spark_border
from zeh_spark.spark.frames.compat import CASE_SENSITIVE, DataSourceStreamArrowWriter
from zeh_spark.spark.sink.dead_letter_client import DeadLetterClient
from zeh_spark.spark.sink.letters import letters_of
from zeh_spark.spark.sink.options import NO_NAME, OF_STREAM, SinkOptions, same_feed
from zeh_spark.spark.sink.row_layout import RowLayout
from zeh_spark.spark.sink.rows import Renderer
from zeh_spark.spark.sink.task_uploads import TaskUploads, check_partition_count
from zeh_spark.wire.arrow_json import slices
from zeh_spark.wire.phrases import counted
from zeh_spark.wire.upload_format import EMPTY_UPLOAD, Content
from zeh_spark.wire.wire import BATCH_INCARNATION

log = logging.getLogger("zeh_spark.spark.sink")


@dataclass(frozen=True, slots=True)
class StagedLetters:
    """What a task staged on the dead-letter feed."""

    partition_count: int
    done: TaskDone
    rows: int


@dataclass(frozen=True, slots=True)
class StagedTask(WriterCommitMessage):
    """The message of a task to the driver: what it staged."""

    batch: BatchCall
    partition_count: int
    done: TaskDone
    letters: StagedLetters | None = None


class Publishing:
    """What the writers of streams and of single writes have in common. It is pickled for tasks."""

    def __init__(self, options: SinkOptions, layout: RowLayout) -> None:
        self._options = options
        self._layout = layout
        self._run = uuid.uuid4().hex

    @at_spark_border
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        """Stage a task's rows, or only count them if the batch is committed already."""
        context = TaskContext.get()
        assert context is not None
        self._layout.check_case(context.getLocalProperty(CASE_SENSITIVE))
        batch = self._batch(
            context.getLocalProperty("streaming.sql.batchId"),
            context.getLocalProperty("sql.streaming.queryId"),
            context.getLocalProperty("spark.jobGroup.id"),
        )
        done = TaskDone(context.partitionId(), context.taskAttemptId())
        options = replace(self._options, first_contact=None) if batch.number else self._options
        return stage(options, self._layout, batch, done, iterator)

    def _batch(self, number: str | None, query: str | None, run: str | None) -> BatchCall:
        """Return the batch to publish: a named one, or the stream's, also inside foreachBatch."""
        options = self._options
        assert options.producer_id is not None
        name = options.batch_id or OF_STREAM
        if name != OF_STREAM:
            named = name != NO_NAME
            producer = f"{options.producer_id}#{name if named else self._run}"
            return BatchCall(
                producer, BATCH_INCARNATION, self._run, 0, options.overrides, repeatable=named
            )
        if number is None or query is None:
            raise OptionError(
                "option 'batchId' is 'stream', and this write is not in a foreachBatch, or is in a "
                "thread that you started there. Write in the thread in which Spark calls the "
                "function, or give the write a name of its own, like batchId=2026-11-20",
                option="batchId",
                anchor="batchid-is-missing",
            )
        known_run = run if run and _is_random(run) else self._run
        starting = options.starting_sequence or {}
        return BatchCall(
            options.producer_id, query, known_run, int(number), options.overrides, starting=starting
        )

    @at_spark_border
    def commit(
        self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None
    ) -> None:
        """Publish what the tasks staged. Only a stream has a number of its batch."""
        staged = [each for each in messages if isinstance(each, StagedTask)]
        if not staged or len(staged) != len(messages):
            raise ZeroEventHubError(
                "Spark commits an epoch whose rows it has not given to the sink, as it does with "
                "the continuous trigger, which this sink does not support. Nothing was published. "
                "Use the trigger processingTime or availableNow"
            )
        batch = staged[0].batch
        counts = {
            (each.partition_count, each.letters and each.letters.partition_count) for each in staged
        }
        if any(each.batch != batch for each in staged) or len(counts) > 1:
            raise ZeroEventHubError(
                f"tasks of one batch disagree about it: {sorted(map(str, counts))} partitions, "
                f"{batch} and others. Nothing was published. Run the batch again"
            )
        if batchId is not None and batchId != batch.number:
            raise ZeroEventHubError(
                f"Spark commits batch {batchId}, but its tasks wrote batch {batch.number}. Nothing "
                f"was published. Report this, with the version of Spark"
            )
        options = replace(self._options, first_contact=None)  # it answered to tasks
        client = PublishClient(options)
        count = staged[0].partition_count
        done = [each.done for each in staged]
        letters = [each.letters for each in staged if each.letters]
        if any(each.rows for each in letters) and not any(each.uploads for each in done):
            # The feed does not know this batch yet. An empty upload, which the commit does not
            # name, finds out whether the feed refuses it before its dead letters are published.
            client.upload(batch, count, len(done), 0, 0, EMPTY_UPLOAD)
        self._commit_letters(batch, letters)
        receipt, _ = _commit(client, options, "keepFirst", batch, count, done)
        log.info(
            "batch %s of producer %s: %s events %s",
            batch.number, batch.producer, receipt.events, receipt.status,
        )  # fmt: skip

    def _commit_letters(self, batch: BatchCall, staged: Sequence[StagedLetters]) -> None:
        """Commit the dead letters, even if there are none: their numbers must have no gap.

        A missing number shows that a feed was restored. The dead letters are committed before the
        main batch. A crash between the two leaves dead letters of a batch that is repeated, which
        adds no more of them. Rejected: committing them after it, because Spark may take the batch
        for done, and the dead letters would be lost.
        """
        options = self._options.dead_letters
        if options is None:
            return
        client = DeadLetterClient(options)
        done, rows = [each.done for each in staged], sum(each.rows for each in staged)
        named = replace(batch, overrides=options.overrides, starting={})
        count = staged[0].partition_count
        _, dropped = _commit(client, options, "deadLetterKeepFirst", named, count, done)
        if rows and not dropped:
            are = "is a dead letter" if rows == 1 else "are dead letters"
            log.warning(
                "batch %s of producer %s: %s cannot be published and %s in %s",
                batch.number, batch.producer, counted(rows, "row"), are, options.url,
            )  # fmt: skip

    @at_spark_border
    def abort(
        self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None
    ) -> None:
        """Delete what the tasks staged, which is never published."""
        staged = next((each for each in messages if isinstance(each, StagedTask)), None)
        if staged:
            impatient = replace(self._options, retry_timeout=0.0)
            PublishClient(impatient).release(staged.batch)
            if impatient.dead_letters:
                DeadLetterClient(impatient.dead_letters).release(staged.batch)


class BatchWriter(Publishing, DataSourceArrowWriter):
    """The writer of `df.write`.

    Guarantee: after `commit` each row is on the feed once, for ever under its `batchId`.
    """

    def check(self) -> None:
        """Ask the publisher about the batch, so that a mistake is found before tasks write.

        Spark makes a writer after the stages before the last shuffle. A stream does not ask: Spark
        makes two writers for each of its batches. Raises OptionError if the feed has other
        partitions than `partitionCount`, and PublisherError if the publisher refuses the
        credentials or the batch, or is of another kind.
        """
        options = self._options
        assert options.producer_id is not None
        batch = BatchCall(options.producer_id, BATCH_INCARNATION, self._run, 0)
        if (options.batch_id or OF_STREAM) != OF_STREAM:
            batch = self._batch(None, None, None)
        check_partition_count(options, PublishClient(options).look_up(batch).partition_count)
        if options.dead_letters:
            DeadLetterClient(options.dead_letters).look_up(batch)
        self._options = replace(options, first_contact=None)


class StreamWriter(Publishing, DataSourceStreamArrowWriter):
    """The writer of a micro-batch of `df.writeStream`.

    Guarantee: after `commit` each row of the micro-batch is on the feed once, however often Spark
    repeats the batch.
    """


def stage(
    options: SinkOptions,
    layout: RowLayout,
    batch: BatchCall,
    task: TaskDone,
    frames: Iterator[pa.RecordBatch],
) -> StagedTask:
    """Stage a task's rows, and return the task's message.

    Raises RowError if a row cannot be published, and there is no dead-letter feed; what was staged
    is deleted then.
    """
    rows = chain.from_iterable(map(slices, frames))
    letter_options = options.dead_letters
    with ExitStack() as open_uploads:
        client = PublishClient(options)
        known = client.look_up(batch)
        check_partition_count(options, known.partition_count)
        renderer = Renderer(layout, known.partition_count)
        if letter_options is None:
            uploads = open_uploads.enter_context(TaskUploads(client, options, batch, task, known))
            try:
                for some in rows:
                    uploads.add(renderer.render(some))
            except RowError as exc:
                uploads.take_back()
                raise exc.reworded(f"Spark partition {task.task}: {exc}") from None
            return StagedTask(batch, uploads.partition_count, uploads.finish())
        named = replace(batch, overrides=letter_options.overrides, starting={})
        letter_client = DeadLetterClient(letter_options)
        dead = letter_client.look_up(named)
        if dead.feed_id is not None and dead.feed_id == known.feed_id:
            raise same_feed(options)
        before = dead.receipt or known.receipt  # a restored dead-letter feed may have none
        split_by = before.schema_version if before else known.schema_version
        batch = replace(batch, split_by=split_by)
        uploads = open_uploads.enter_context(TaskUploads(client, options, batch, task, known))
        letters = open_uploads.enter_context(
            TaskUploads(letter_client, letter_options, named, task, dead)
        )
        refused = 0

        def refuse(some: pa.RecordBatch, reasons: dict[int, str]) -> int:
            letters.add(letters_of(layout, batch, some, reasons, letters.partition_count))
            return len(reasons)

        for some in rows:
            good, reasons = renderer.sift(some)
            if reasons:
                refused += refuse(some, reasons)
                keeps = [row for row in range(some.num_rows) if row not in reasons]
                some = some.take(pa.array(keeps, pa.int64()))
            uploads.add(good, some)
            refused += sum(refuse(*wrong) for wrong in uploads.wrong_rows())
        done = uploads.finish()
        refused += sum(refuse(*wrong) for wrong in uploads.wrong_rows())
        staged = StagedLetters(letters.partition_count, letters.finish(), refused)
        return StagedTask(batch, uploads.partition_count, done, staged)


def _commit(
    client: PublishClient,
    options: SinkOptions,
    override: str,
    batch: BatchCall,
    partitions: int,
    done: Sequence[TaskDone],
) -> tuple[Receipt, bool]:
    """Commit what tasks staged on a feed.

    Return the receipt, and whether the rows were dropped because of an override, which is logged.
    """
    receipt = client.commit(batch, partitions, done)
    given = sum((each.content for each in done), Content())
    if given.is_in(receipt):
        return receipt, False
    said = given.dropped(override, receipt)
    log.warning(
        "batch %s of producer %s in %s: %s", batch.number, batch.producer, options.url, said
    )
    return receipt, True


def _is_random(text: str) -> bool:
    """Return whether a run's id is random, as Spark's are; a job group set by users may repeat."""
    try:
        return uuid.UUID(text).version == 4
    except ValueError:
        return False
