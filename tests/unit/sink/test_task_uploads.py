"""What a task leaves behind when it ends."""

import threading

import pytest

from zeh_spark.client.http.publish_client import BatchCall, BatchStatus, Staged, TaskDone
from zeh_spark.spark.sink.options import sink_options
from zeh_spark.spark.sink.rows import Rendered
from zeh_spark.spark.sink.task_uploads import TaskUploads
from zeh_spark.wire.upload_format import CHUNK_EVENTS

CHUNK = [b'"headers":{},"data":"%0200d"}' % each for each in range(CHUNK_EVENTS)]
"""Of such lines no two chunks go into one of the smallest uploads."""


class Client:
    """Answers as the publisher does; `begun` is set by an upload, which waits for `stopped`."""

    def __init__(self):
        self.begun, self.stopped = threading.Event(), threading.Event()

    def upload(self, batch, partition_count, task, attempt, number, body):
        self.begun.set()
        assert self.stopped.wait(10)
        return Staged("staged")

    def stop(self):
        self.stopped.set()


def test_a_task_that_fails_leaves_no_thread_behind():
    """Spark reuses the process for other tasks: a request under way is given up first."""
    client, before = Client(), threading.active_count()
    given = {"url": "http://127.0.0.1/f", "producerId": "p", "uploadBytes": "64k"}
    task = sink_options(given, streaming=True), BatchCall("p", "i", "r", 0), TaskDone(3, 7)
    known = BatchStatus(None, 1, None)

    with pytest.raises(ValueError, match="a bad row"), TaskUploads(client, *task, known) as uploads:
        for _ in range(2):
            uploads.add(Rendered(None, CHUNK))
        assert client.begun.wait(10)
        raise ValueError("a bad row")

    assert client.stopped.is_set()
    assert threading.active_count() == before
