"""What a task stages on one feed: the published rows, or the dead letters. Runs in tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from zeh_spark.client.publish_client import BatchCall, PublishClient, TaskDone
from zeh_spark.errors import OptionError, ZeroEventHubError
from zeh_spark.protocol.upload_format import CHUNK_EVENTS, Chunker
from zeh_spark.protocol.wire import partition_of
from zeh_spark.sink.options import SinkOptions
from zeh_spark.sink.rows import Rendered
from zeh_spark.sink.uploads import Uploader

_OPEN_UPLOADS = 4
"""What the open chunks of a task may hold, in sizes of an upload."""


class Outbox:
    """Places events, and sends them in uploads while the task goes on; only counts them, where the
    batch is committed already. Use it as a context.

    Guarantee: after `finish` all events are staged, in their order, or the batch is committed.
    """

    def __init__(
        self, client: PublishClient, options: SinkOptions, batch: BatchCall, task: TaskDone
    ) -> None:
        """Raises OptionError, PublishError, UnavailableError."""
        self._client = client
        self._batch = batch
        self._task = task
        receipt, self.partition_count, self.feed_id = client.look_up(batch)
        _check_partition_count(options, self.partition_count)
        begin = partition_of(f"{batch.producer}/{batch.number}/{task.task}", self.partition_count)
        self._spread = Spread(self.partition_count, begin)
        self._chunker = Chunker(_OPEN_UPLOADS * options.upload_bytes)
        self._uploader = Uploader(
            self._send, options.upload_bytes, client.stop, wanted=receipt is None
        )

    def __enter__(self) -> Outbox:
        self._uploader.__enter__()
        return self

    def __exit__(self, *about: object) -> None:
        self._uploader.__exit__(*about)

    def add(self, rendered: Rendered) -> None:
        if not self._uploader.wanted:
            self._chunker.only_count()
        for partition, rests in self._spread.parts(rendered):
            self._uploader.add(self._chunker.extend(partition, rests))

    def finish(self) -> TaskDone:
        self._uploader.add(self._chunker.close())
        self._uploader.finish()
        return replace(self._task, uploads=self._uploader.sent, content=self._chunker.content)

    def take_back(self) -> None:
        """Drop what was sent: no message of this task will reach `abort`."""
        with suppress(ZeroEventHubError):  # what made the task fail is what to tell
            self._uploader.settle()
        if self._uploader.sent:
            self._client.release(self._batch, self._task)

    def _send(self, number: int, body: bytes) -> bool:
        task = self._task
        return self._client.upload(
            self._batch, self.partition_count, task.task, task.attempt, number, body
        )


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
