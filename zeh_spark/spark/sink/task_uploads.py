"""What a task stages on one feed: the published rows, or the dead letters. Runs in tasks.

Uploads are sent while the task reads its rows: at most one request is under way and one waits,
whatever the size of the task. A task of few rows sends one request, without a thread. The thread
ends before the task does: the thread of a task that has ended would continue in Spark's reused
worker.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from zeh_spark.client.http.publish_client import BatchCall, PublishClient, TaskDone
from zeh_spark.errors import OptionError, ZeroEventHubError
from zeh_spark.spark.sink.options import SinkOptions
from zeh_spark.spark.sink.rows import Rendered
from zeh_spark.wire.batch_uploader import BatchUploader
from zeh_spark.wire.phrases import counted
from zeh_spark.wire.upload_format import StagedChunk, upload_body


class TaskUploads:
    """Sends events in uploads while the task continues, or only counts them. Use it as a context.

    It only counts if the batch is committed already.

    Raises OptionError if the feed has other partitions than `partitionCount`, and PublishError if
    the publisher refuses the batch.

    Guarantee: after `finish` all events are staged, in their order, or the batch is committed.
    """

    def __init__(
        self, client: PublishClient, options: SinkOptions, batch: BatchCall, task: TaskDone
    ) -> None:
        self._client = client
        self._batch = batch
        self._task = task
        receipt, self.partition_count, self.feed_id = client.look_up(batch)
        check_partition_count(options, self.partition_count)
        self._executor = ThreadPoolExecutor(1, "zeh-upload")
        self._uploader = BatchUploader(
            self._send,
            self.partition_count,
            f"{batch.producer}/{batch.number}/{task.task}",
            upload_bytes=options.upload_bytes,
            wanted=receipt is None,
            executor=self._executor,
        )

    def __enter__(self) -> TaskUploads:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind:
            self._client.stop()  # otherwise a request that is under way would be tried again
        self._executor.shutdown(cancel_futures=True)

    def add(self, rendered: Rendered) -> None:
        """Add events. Raises what sending an upload raised."""
        self._uploader.add(rendered.rests, rendered.partitions)

    def finish(self) -> TaskDone:
        """Send the rest, and return what the task staged. Raises what sending an upload raised."""
        self._uploader.finish()
        return replace(self._task, uploads=self._uploader.uploads, content=self._uploader.content)

    def take_back(self) -> None:
        """Delete what was sent, because no message of this task will reach `abort`."""
        with suppress(ZeroEventHubError):  # the error that made the task fail is raised instead
            self._uploader.settle()
        if self._uploader.uploads:
            self._client.release(self._batch, self._task)

    def _send(self, number: int, chunks: list[StagedChunk]) -> bool:
        body = upload_body(chunks)
        chunks.clear()
        task = self._task
        return self._client.upload(
            self._batch, self.partition_count, task.task, task.attempt, number, body
        )


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
