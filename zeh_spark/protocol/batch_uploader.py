"""How the events of a batch, or of one task's part of it, become its uploads: they are placed in
partitions, chunked, grouped, and given to `send`. Pure, but for what `send` does.

The sink, `publish.Producer` and `zeh-spark load` publish through this class; they differ in what
`send` does (a request, or a transaction of a store), and in where an event comes from.

Rule for editors: where events without a partition go, and how large chunks and uploads are, must
not change what a batch is compared by. That is its `Content`, which depends on the events alone.

Runs in write tasks, in services that publish, and in commands that write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future

import numpy as np

from zeh_spark.protocol.upload_format import (
    CHUNK_EVENTS,
    OPEN_UPLOADS,
    UPLOAD_BYTES,
    UPLOAD_CHUNKS,
    UPLOAD_UNPACKED,
    Chunker,
    Content,
    StagedChunk,
)
from zeh_spark.protocol.wire import partition_of

UNPACKED = 2
"""Bytes of lines that an upload gets at most, for each byte that its body may have: the publisher
looks at all of them before it answers, and a task waits for its last answer. Measured: 8 is 7 %
slower.
"""

Send = Callable[[int, list[StagedChunk]], bool]
"""Stages upload `number` of these chunks; returns False if the batch turns out to be committed. The
list is its own: it may be emptied once the body is made, so that frames are not held twice.
"""


class BatchUploader:
    """Takes events, and sends them in uploads as they fill up.

    Once `send` says that the batch is committed, events are only counted: the batch is compared by
    its content. What `add` has raised it raises again, and so does `finish`, so that a batch never
    goes on without some of its events.

    Memory: open chunks hold OPEN_UPLOADS uploads together. One more is filled; with an executor
    another one is under way, and `add` blocks while two uploads are not answered.

    Attributes:
        uploads: How many were given to `send`; they are numbered from 0.
        wanted: Whether the batch is not known to be committed.

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
    ) -> None:
        """Args:
        send: Stages one upload.
        partition_count: Of the feed.
        name: The same for each attempt at these events, and another one for other events: it
            chooses the first partition for events that may go anywhere.
        upload_bytes: The size of an upload's frames, about.
        wanted: False if the batch is known to be committed.
        executor: Where uploads are sent while the caller goes on; of one thread. The last upload
            is sent by `finish` itself. Without one, all are sent by the caller.
        """
        self.uploads = 0
        self.wanted = True
        self._send = send
        self._upload_bytes = upload_bytes
        self._executor = executor
        self._spread = Spread(partition_count, partition_of(name, partition_count))
        self._chunker = Chunker(OPEN_UPLOADS * upload_bytes)
        self._group = Group(upload_bytes)
        self._under_way: Future[bool] | None = None
        self._failed: BaseException | None = None
        self._answered(wanted)

    @property
    def content(self) -> Content:
        """The content of all chunks that are full; after `finish`, of all events."""
        return self._chunker.content

    @property
    def size(self) -> int:
        """The bytes of all events as lines of the feed."""
        return self._chunker.bytes

    def add(self, rests: Sequence[bytes], partitions: np.ndarray | int | None = None) -> None:
        """Add events, see `upload_format.checked_rest`.

        Args:
            rests: What follows the partition in each event's line.
            partitions: One for all; or one for each, negative for an event that may go anywhere;
                None if all may.

        Raises:
            BaseException: What `send` raised, now or in an earlier call.
        """
        if self._failed:
            raise self._failed
        try:
            for partition, some in self._spread.parts(rests, partitions):
                if full := self._chunker.extend(partition, some):
                    self._stage(full)
        except BaseException as exc:  # also Ctrl-C: some events may be lost, so all are
            self._failed = exc
            raise

    def finish(self) -> None:
        """Send what is left, and wait for all answers. Raises what `send` raised."""
        if self._failed:  # and the caller has caught that
            raise self._failed
        self._stage(self._chunker.close())
        self._flush(None)

    def settle(self) -> None:
        """Wait for the upload that is under way. Raises what `send` raised."""
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
        if executor:
            self._under_way = executor.submit(self._send, number, chunks)
        else:
            self._answered(self._send(number, chunks))

    def _answered(self, wanted: bool) -> None:
        if not wanted:
            self.wanted = False
            self._chunker.only_count()


class Spread:
    """Where events go: those that may go anywhere fill one chunk after the other, partition by
    partition.

    Rejected: each event to the next partition. A task of few events would make a chunk, which is
    stored and read for itself, in each partition.
    """

    def __init__(self, partition_count: int, begin: int) -> None:
        """`begin`: the first partition for events that may go anywhere."""
        self._count = partition_count
        self._begin = begin
        self._placed = 0

    def parts(
        self, rests: Sequence[bytes], partitions: np.ndarray | int | None
    ) -> Iterable[tuple[int, Sequence[bytes]]]:
        """Events by partition, in their order; `partitions` as of `BatchUploader.add`."""
        if not rests:
            return ()
        if partitions is None:
            return self._filled(rests)
        if isinstance(partitions, int):
            return ((partitions, rests),)
        return self._sorted(rests, partitions)

    def _filled(self, rests: Sequence[bytes]) -> list[tuple[int, Sequence[bytes]]]:
        found = []
        while rests:
            number, before = divmod(self._placed, CHUNK_EVENTS)
            some = rests[: CHUNK_EVENTS - before]
            found.append(((self._begin + number) % self._count, some))
            self._placed += len(some)
            rests = rests[len(some) :]
        return found

    def _sorted(
        self, rests: Sequence[bytes], partitions: np.ndarray
    ) -> Iterator[tuple[int, Sequence[bytes]]]:
        free = partitions < 0
        partitions = partitions.copy()
        partitions[free] = self._next(int(free.sum()))
        order = np.argsort(partitions, kind="stable")
        found, begins = np.unique(partitions[order], return_index=True)
        sorted_rests = [rests[row] for row in order.tolist()]
        for partition, begin, end in zip(
            found.tolist(), begins.tolist(), [*begins[1:].tolist(), len(rests)], strict=True
        ):
            yield partition, sorted_rests[begin:end]

    def _next(self, events: int) -> np.ndarray:
        numbers = np.arange(self._placed, self._placed + events)
        self._placed += events
        return (self._begin + numbers // CHUNK_EVENTS) % self._count


class Group:
    """The chunks of one upload to be, of a body of about `upload_bytes` at most."""

    def __init__(self, upload_bytes: int) -> None:
        self.chunks: list[StagedChunk] = []
        self._packed = upload_bytes
        self._unpacked = min(UNPACKED * upload_bytes, UPLOAD_UNPACKED)

    def takes(self, chunk: StagedChunk) -> bool:
        """Whether there is room; there always is for a first one."""
        fits = len(chunk.frame) <= self._packed and chunk.size <= self._unpacked
        return not self.chunks or (fits and len(self.chunks) < UPLOAD_CHUNKS)

    def add(self, chunk: StagedChunk) -> None:
        self.chunks.append(chunk)
        self._packed -= len(chunk.frame)
        self._unpacked -= chunk.size
