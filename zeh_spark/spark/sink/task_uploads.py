"""What a task stages on one feed: the published rows, or the dead letters. Runs in tasks.

Uploads are sent while the task reads its rows: at most one request is under way and one waits,
whatever the size of the task. A task of few rows sends one request, without a thread. The thread
ends before the task does: the thread of a task that has ended would continue in Spark's reused
worker.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa

from zeh_spark.client.http.publish_client import BatchCall, BatchStatus, PublishClient, TaskDone
from zeh_spark.errors import OptionError, ZeroEventHubError
from zeh_spark.spark.sink.options import SinkOptions
from zeh_spark.spark.sink.rows import Rendered
from zeh_spark.wire import upload_format
from zeh_spark.wire.batch_uploader import BatchUploader
from zeh_spark.wire.partitioning import Spread, partition_of
from zeh_spark.wire.phrases import counted
from zeh_spark.wire.upload_format import Content, StagedChunk, upload_body


class TaskUploads:
    """Sends events in uploads while the task continues, or only counts them. Use it as a context.

    It only counts if the batch is committed already. If the batch is split by a schema, it sends
    all nevertheless, to learn which rows the publisher takes out. A row is kept until then.

    Raises PublishError if the publisher refuses the batch.

    Guarantee: after `finish` all events are staged, in their order, or the batch is committed.
    """

    def __init__(
        self,
        client: PublishClient,
        options: SinkOptions,
        batch: BatchCall,
        task: TaskDone,
        known: BatchStatus,
    ) -> None:
        self._client = client
        self._batch = batch
        self._task = task
        self.partition_count = known.partition_count
        name = f"{batch.producer}/{batch.number}/{task.task}"
        self._executor = ThreadPoolExecutor(1, "zeh-upload")
        self._uploader = BatchUploader(
            self._send,
            self.partition_count,
            name,
            upload_bytes=options.upload_bytes,
            wanted=known.receipt is None or batch.split_by > 0,
            executor=self._executor,
        )
        self._spread = Spread(self.partition_count, partition_of(name, self.partition_count))
        self._rows: dict[int, deque[pa.RecordBatch]] = defaultdict(deque)
        self._answers: deque[list[tuple[int, int, dict[int, str]]]] = deque()  # crosses threads
        self._taken_out = Content()

    def __enter__(self) -> TaskUploads:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind:
            self._client.stop()  # otherwise a request that is under way would be tried again
        self._executor.shutdown(cancel_futures=True)

    def add(self, rendered: Rendered, rows: pa.RecordBatch | None = None) -> None:
        """Add events, of these `rows` if the batch is split. Raises what an upload raised."""
        partitions = rendered.partitions
        if rows is not None and self._batch.split_by:
            count = rows.num_rows
            partitions = np.full(count, -1) if partitions is None else partitions.copy()
            free = partitions < 0
            partitions[free] = self._spread.places(int(free.sum()))
            for each in np.unique(partitions).tolist():
                mine = rows.take(pa.array(np.flatnonzero(partitions == each)))  # copied
                self._rows[each].append(mine)
        self._uploader.add(rendered.rests, partitions)

    def wrong_rows(self) -> Iterator[tuple[pa.RecordBatch, dict[int, str]]]:
        """Yield rows of which some were taken out, with the reasons by row, when it is known."""
        while self._answers:
            for partition, events, wrong in self._answers.popleft():
                while events:
                    rows = self._rows[partition].popleft()
                    if rows.num_rows > events:
                        self._rows[partition].appendleft(rows.slice(events))
                    here = min(rows.num_rows, events)
                    if reasons := {row: wrong[row] for row in range(here) if row in wrong}:
                        yield rows, reasons
                    events -= here
                    wrong = {line - here: why for line, why in wrong.items()}

    def finish(self) -> TaskDone:
        """Send the rest, and return what the task staged. Raises what sending an upload raised."""
        self._uploader.finish()
        content = self._uploader.content - self._taken_out
        return replace(self._task, uploads=self._uploader.uploads, content=content)

    def take_back(self) -> None:
        """Delete what was sent, because no message of this task will reach `abort`."""
        with suppress(ZeroEventHubError):  # the error that made the task fail is raised instead
            self._uploader.settle()
        if self._uploader.uploads:
            self._client.release(self._batch, self._task)

    def _send(self, number: int, chunks: list[StagedChunk]) -> bool:
        body = upload_body(chunks)
        where = self._batch, self.partition_count, self._task.task, self._task.attempt, number
        if not self._batch.split_by:
            chunks.clear()
            return self._client.upload(*where, body).status == "staged"
        wrong: list[dict[int, str]] = [{} for _ in chunks]
        for at, line, path, reason in self._client.upload(*where, body).wrong:
            wrong[at][line] = f"the feed's schema: {path or 'the event'}: {reason}"
        for chunk, found in zip(chunks, wrong, strict=True):
            if found:
                lines = upload_format.lines_of(chunk.frame).split(b"\n")
                begin = len(upload_format.prefix(chunk.partition))
                rests = [lines[line][begin:] for line in found]
                self._taken_out += upload_format.content_of(rests)
        self._answers.append(
            [(each.partition, each.events, some) for each, some in zip(chunks, wrong, strict=True)]
        )
        return True  # the rest of a committed batch is judged, too


def check_partition_count(options: SinkOptions, count: int) -> None:
    """Raise OptionError if the feed has other partitions than the option says."""
    if options.partition_count not in (None, count):
        raise OptionError(
            f"option 'partitionCount' is {options.partition_count}, but the feed {options.url} "
            f"has {counted(count, 'partition')}. A feed's number never changes: correct the "
            f"option, or create another feed",
            option="partitionCount",
            anchor="partitioncount-is-8-but-the-feed-has-4-partitions",
        )
