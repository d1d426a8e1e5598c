"""Make uploads of the events of a batch, or of one task's part of it.

The events are placed in partitions, chunked, grouped, and given to `send`. The sink,
`producer.Producer` and `zeh-spark load` publish through this class. They differ in what `send` does
(a request, or a transaction of a store), and in where an event comes from.

Rule for editors: a batch is compared by its `Content`, which depends on the events alone. It must
not depend on the partition of an event without one, nor on the size of chunks and uploads.

Pure, except for what `send` does. Runs in write tasks, in services that publish, and in commands
that write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future

import numpy as np

from zeh_spark.wire.partitioning import Spread, partition_of
from zeh_spark.wire.upload_format import (
    OPEN_UPLOADS,
    UPLOAD_BYTES,
    UPLOAD_CHUNKS,
    UPLOAD_UNPACKED,
    Chunker,
    Content,
    StagedChunk,
)

KEPT_BYTES = 8 * UPLOAD_BYTES
"""Bytes of frames that a caller may keep, so that it can send again what a store has lost."""

STAGINGS = 3
"""How often a caller sends the uploads of a batch before it gives up."""

UNPACKED = 2
"""Maximum bytes of lines in an upload, for each byte that its body may have.

The publisher reads all of them before it answers, and a task waits for its last answer. Measured: 8
is 7 % slower.
"""

Placed = tuple[int, int, int]
"""Where events were placed: partition, index of the first one there in the batch, how many."""

Send = Callable[[int, list[StagedChunk]], bool]
"""Stages upload `number` of these chunks; returns False if the batch turns out to be committed.

It owns the list, and may empty it once the body is made, so that frames are not held twice.
"""


class BatchUploader:
    """Takes events, and sends them in uploads as they fill up.

    Once `send` says that the batch is committed, events are only counted, because the batch is
    compared by its content. After `add` has raised an error, each later `add` and `finish` raise it
    again, so that a batch never continues without some of its events.

    Memory: open chunks hold at most OPEN_UPLOADS uploads together. Another upload is filled. With
    an executor yet another one is being sent, and `add` blocks while two uploads are not answered.
    What was sent takes `kept_bytes` at most.

    Args:
        name: the same for each attempt at these events, and another one for other events. It
            chooses the first partition for events that may go anywhere.
        upload_bytes: the approximate size of an upload's frames, in bytes.
        wanted: false if the batch is known to be committed.
        executor: sends uploads while the caller continues; it has one thread. `finish` itself sends
            the last upload. Without an executor, the caller sends all.
        kept_bytes: keep what was sent for `send_again`, until its frames have more bytes.

    Attributes:
        uploads: how many uploads were given to `send`; they are numbered from 0.

    Guarantee: after `finish` all events are staged, those of a partition in their order, or the
    batch is committed; `content` is that of all events.
    """

    def __init__(
        self,
        send: Send,
        partition_count: int,
        name: str,
        *,
        upload_bytes: int = UPLOAD_BYTES,
        wanted: bool = True,
        executor: Executor | None = None,
        kept_bytes: float = 0,
    ) -> None:
        self.uploads = 0
        self.wanted = True
        self._send = send
        self._upload_bytes = upload_bytes
        self._executor = executor
        self._spread = Spread(partition_count, partition_of(name, partition_count))
        self._chunker = Chunker(OPEN_UPLOADS * upload_bytes)
        self._added: dict[int, int] = {}
        self._group = Group(upload_bytes)
        self._under_way: Future[bool] | None = None
        self._failed: BaseException | None = None
        self._kept: list[list[StagedChunk]] | None = []
        self._room = kept_bytes
        self._answered(wanted)

    @property
    def content(self) -> Content:
        """The content of all chunks that are full; after `finish`, of all events."""
        return self._chunker.content

    @property
    def size(self) -> int:
        """The bytes of all events as lines of the feed."""
        return self._chunker.bytes

    def add(
        self, rests: Sequence[bytes], partitions: np.ndarray | int | None = None
    ) -> list[Placed]:
        """Add events, and return where they were placed, in runs.

        `rests` are what follows the partition in each line (see `upload_format.checked_rest`).
        `partitions` is one for all; or one for each, negative for an event that may go anywhere;
        None if all may go anywhere. It raises what `send` raised, now or in an earlier call.
        """
        if self._failed:
            raise self._failed
        placed = []
        try:
            for partition, some in self._spread.parts(rests, partitions):
                before = self._added.get(partition, 0)
                placed.append((partition, before, len(some)))
                self._added[partition] = before + len(some)
                if full := self._chunker.extend(partition, some):
                    self._stage(full)
        except BaseException as exc:  # also Ctrl-C: events may be missing, so the batch has failed
            self._failed = exc
            raise
        return placed

    def finish(self) -> None:
        """Send the rest, and wait for all answers. Raises what `send` raised."""
        if self._failed:  # the caller has caught the error of `add`, or of another `finish`
            raise self._failed
        try:
            self._stage(self._chunker.close())
            self._flush(None)
        except BaseException as exc:
            self._failed = exc
            raise

    def send_again(self) -> bool:
        """After `finish`, send all uploads again, with the same numbers. Raises what `send` raises.

        It returns False if they are not kept.
        """
        for number, chunks in enumerate(self._kept or ()):
            self._answered(self._send(number, list(chunks)))
        return self._kept is not None

    def forget(self) -> None:
        """Give up what is kept for `send_again`."""
        self._kept = None

    def settle(self) -> None:
        """Wait for the upload that is being sent. Raises what `send` raised."""
        if self._under_way:
            self._answered(self._under_way.result())
            self._under_way = None

    def _stage(self, chunks: Iterable[StagedChunk]) -> None:
        for chunk in chunks:
            if not self._group.takes(chunk):
                self._flush(self._executor)
            self._group.add(chunk)

    def _flush(self, executor: Executor | None) -> None:
        self.settle()
        chunks, self._group = self._group.chunks, Group(self._upload_bytes)
        if not chunks or not self.wanted:
            return
        number, self.uploads = self.uploads, self.uploads + 1
        self._keep(chunks)
        if executor:
            self._under_way = executor.submit(self._send, number, chunks)
        else:
            self._answered(self._send(number, chunks))

    def _keep(self, chunks: list[StagedChunk]) -> None:
        self._room -= sum(len(each.frame) for each in chunks)
        if self._room < 0:
            self._kept = None
        elif self._kept is not None:
            self._kept.append(list(chunks))

    def _answered(self, wanted: bool) -> None:
        if not wanted:
            self.wanted = False
            self._chunker.only_count()


class Group:
    """The chunks of a future upload, whose body has about `upload_bytes` at most."""

    def __init__(self, upload_bytes: int) -> None:
        self.chunks: list[StagedChunk] = []
        self._packed = upload_bytes
        self._unpacked = min(UNPACKED * upload_bytes, UPLOAD_UNPACKED)

    def takes(self, chunk: StagedChunk) -> bool:
        """Return whether there is room for a chunk. There always is for the first one."""
        fits = len(chunk.frame) <= self._packed and chunk.size <= self._unpacked
        return not self.chunks or (fits and len(self.chunks) < UPLOAD_CHUNKS)

    def add(self, chunk: StagedChunk) -> None:
        self.chunks.append(chunk)
        self._packed -= len(chunk.frame)
        self._unpacked -= chunk.size
