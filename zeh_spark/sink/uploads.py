"""How a task's chunks reach the publisher while the task goes on reading its rows.

One request is on its way and one waits, at most, whatever the size of the task; a task of few rows
sends one request, without a thread. Threads end before the task does: those of a task that has
ended would go on in Spark's reused worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from zeh_spark.protocol.upload_format import Group, StagedChunk, upload_body

Send = Callable[[int, bytes], bool]
"""Sends upload `number`; false if the batch turns out to be committed already."""


class Uploader:
    """Sends chunks as uploads, in the background. Use it as a context.

    `sent` counts them; `wanted` turns false once the publisher says that the batch is committed.
    """

    def __init__(
        self, send: Send, upload_bytes: int, give_up: Callable[[], None], *, wanted: bool = True
    ) -> None:
        """`give_up` ends the tries of a request that is under way."""
        self.sent = 0
        self.wanted = wanted
        self._send = send
        self._upload_bytes = upload_bytes
        self._give_up = give_up
        self._group = Group(upload_bytes)
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: Future[bool] | None = None

    def __enter__(self) -> Uploader:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind:
            self._give_up()
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def add(self, chunks: Sequence[StagedChunk]) -> None:
        """Blocks while two uploads are not answered yet. Raises what sending them raised."""
        for chunk in chunks:
            if not self._group.takes(chunk):
                self._start()
            self._group.add(chunk)

    def finish(self) -> None:
        """Everything is sent and answered. Raises what sending raised."""
        self.settle()
        if self._group.chunks and self.wanted:
            self.wanted = self._send(self.sent, self._body())
            self.sent += 1

    def _start(self) -> None:
        self.settle()
        body = self._body()
        if not self.wanted:
            return
        self._pool = self._pool or ThreadPoolExecutor(1, "zeh-upload")
        self._under_way = self._pool.submit(self._send, self.sent, body)
        self.sent += 1

    def settle(self) -> None:
        """Wait for the upload that is under way. Raises what sending it raised."""
        if self._under_way:
            self.wanted = self._under_way.result() and self.wanted
            self._under_way = None

    def _body(self) -> bytes:
        group, self._group = self._group, Group(self._upload_bytes)
        return upload_body(group.chunks)
