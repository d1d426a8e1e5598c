"""Publishing without Spark: batches of events from any Python program, each whole and once.

A producer keeps nothing on disk. How far it is, it asks the publisher once; from then on it counts
by itself, so that a batch of somebody else under the same name is an error, not a number to go
round [asking before each batch: what the program derived from an older answer would be doubled].

A commit whose answer is lost may still be on its way, and land after the publisher has said that
the batch is not there. So `settle` first seals the attempt, then asks: it stages one more upload
than the commit names. A commit that comes later finds too many, is refused as `upload-missing`, and
repeated uploads change nothing in that; one that came before has left a receipt. The next attempt
at the same number has another number of its own [deleting the uploads instead: one of them that
comes late and again would bring back what the commit needs, and an empty batch needs none;
committing an empty batch in its place: the program's numbers would no longer count its batches].

Runs in services and in the command line.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from zeh_spark.chunks import CHUNK_EVENTS, Chunker, Group, StagedChunk, upload_body
from zeh_spark.errors import (
    OptionError,
    OutcomeUnknownError,
    PublishError,
    RowError,
    UnavailableError,
    ZeroEventHubError,
)
from zeh_spark.events import checked_headers, json_of, partition_for
from zeh_spark.options import ClientOptions, parse
from zeh_spark.publish_client import Batch, PublishClient, Range, Receipt, TaskDone
from zeh_spark.wire import BATCH_INCARNATION, NAME, PLAIN_INCARNATION, partition_of

__all__ = ["OpenBatch", "Producer", "Range", "Receipt", "State"]

UPLOAD_BYTES = 4 << 20

_SEAL = upload_body([])

_OVERTAKEN = {
    "batch-expired", "batch-gap", "fenced", "incarnation-changed", "number-taken",
    "producer-deleted",
}  # fmt: skip
"""Refusals which say that the publisher knows more of this producer than it does itself."""


@dataclass(frozen=True, slots=True)
class State:
    """How far a producer is: the number of its last batch, -1 before the first; the `events` of all
    its batches together; the last one's receipt.
    """

    batch: int = -1
    events: int = 0
    receipt: Receipt | None = None


class Producer:
    """Publishes batches to one feed under one name, one after the other, from any thread.

    `options` are those of the format that say how to reach the publisher, like `token` or
    `retryTimeout`. Named batches are apart: neither numbered, nor counted in `last`.

    Guarantee: a batch is published once and whole, or not at all; an OutcomeUnknownError says that
    it is not known which, every other error that it is not.
    """

    def __init__(self, url: str, producer: str, **options: object) -> None:
        """Touches no network. Raises OptionError."""
        given = {name: str(value) for name, value in options.items() if value is not None}
        self._client = PublishClient(parse(ClientOptions, {"url": url, **given}))
        self.name = _checked("producer", producer)
        self.run = uuid.uuid4().hex
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._attempts = 0
        self._open: OpenBatch | None = None
        self._in_doubt: OpenBatch | None = None
        self._overtaken: PublishError | None = None
        self._state: State | None = None
        self._count: int | None = None

    @property
    def last(self) -> State:
        """As the publisher told when it was first asked, and what this object has published since.

        Raises PublishError for the name of a Spark query, whose numbers this would take.
        """
        with self._lock:
            if self._state is None:
                self._state = self._asked()
            return self._state

    def batch(
        self, name: str | None = None, *, allow: Mapping[str, str] | None = None
    ) -> OpenBatch:
        """The next batch, or the one of a name, which adds nothing when it is repeated. To be used
        as a context. `allow`: what a refusal named, by option.
        """
        if name is not None:
            _checked("batch", name)
        return OpenBatch(self, name, dict(allow or {}))

    def _asked(self) -> State:
        known = self._client.producer(self.name)
        if known.get("incarnation") not in (None, PLAIN_INCARNATION):
            raise PublishError(
                f"producer {self.name!r} belongs to incarnation {known['incarnation']!r}, a Spark "
                f"query, whose numbers this would take; publish under another name",
                problem="incarnation-changed",
                facts=known,
            )
        last = int(known["lastBatch"])
        asked = Batch(self.name, PLAIN_INCARNATION, self.run, max(last, 0))
        receipt, self._count = self._client.look_up(asked)
        return State(last, sum(known["nextSequences"].values()), receipt if last >= 0 else None)

    # What open batches ask and tell

    def _begin(self, batch: OpenBatch) -> int:
        """The number of its attempt. Raises what stands in its way."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"producer {self.name!r} was made in another process; make one behind the fork"
            )
        with self._lock:
            if self._open is not None:
                raise RuntimeError(
                    f"producer {self.name!r} has an open batch; one begins when the other has ended"
                )
            if batch.name is None and self._in_doubt is not None:
                number = self._in_doubt.number
                raise OutcomeUnknownError(
                    f"whether batch {number} of producer {self.name!r} was published is not known: "
                    f"call its settle() first",
                    batch=number,
                    run=self.run,
                )
            if batch.name is None and self._overtaken is not None:
                raise self._overtaken.with_traceback(None)
            self._open = batch
            self._attempts += 1
            return self._attempts

    def _identity(self, name: str | None, allow: Mapping[str, str]) -> tuple[Batch, int]:
        """Which batch that is, and the feed's partition count; asks what is not known yet."""
        if name is None:
            producer, kind, number = self.name, PLAIN_INCARNATION, self.last.batch + 1
        else:
            producer, kind, number = f"{self.name}#{name}", BATCH_INCARNATION, 0
        which = Batch(producer, kind, self.run, number, allow, repeatable=False)
        if self._count is None:
            _, self._count = self._client.look_up(which)
        return which, self._count

    def _ended(self) -> None:
        self._open = None

    def _doubt(self, batch: OpenBatch) -> None:
        if batch.name is None:
            self._in_doubt = batch

    def _settled(self, batch: OpenBatch, receipt: Receipt | None) -> None:
        """It is published, or never will be. Said again, nothing changes."""
        with self._lock:
            if self._in_doubt is not batch:
                return
            self._in_doubt = None
            if receipt is not None:
                self._state = State(receipt.batch, self.last.events + receipt.events, receipt)

    def _refused(self, batch: OpenBatch, exc: PublishError) -> None:
        if batch.name is None and exc.problem in _OVERTAKEN:
            self._overtaken = exc


class OpenBatch:
    """A batch while it is filled: a context whose end publishes it, unless the block raises. Its
    uploads go out as they fill up, so memory does not grow with it. Threads may share it.
    """

    def __init__(self, producer: Producer, name: str | None, allow: Mapping[str, str]) -> None:
        self.name = name
        self._producer = producer
        self._client = producer._client
        self._allow = allow
        self._lock = threading.Lock()
        self._chunker, self._group = Chunker(), Group(UPLOAD_BYTES)
        self._which: Batch | None = None
        self._attempt = self._count = self._first = self._given = self._spread = self._uploads = 0
        self._filling = self._in_doubt = False
        self._wanted = True
        self._failed: BaseException | None = None
        self._receipt: Receipt | None = None

    @property
    def number(self) -> int:
        """In its producer; 0 for one with a name. Raises RuntimeError before it has begun."""
        return self._identity.number

    @property
    def receipt(self) -> Receipt:
        """Raises RuntimeError as long as the batch is not known to be published."""
        if self._receipt is None:
            raise RuntimeError("there is no receipt: the batch is not known to be published")
        return self._receipt

    @property
    def _identity(self) -> Batch:
        if self._which is None:
            raise RuntimeError("the batch was not begun; use it as: with producer.batch() as batch")
        return self._which

    def __enter__(self) -> OpenBatch:
        if self._attempt:
            raise RuntimeError("a batch can be begun once")
        self._attempt = self._producer._begin(self)
        try:
            with _nothing_published():
                self._which, self._count = self._producer._identity(self.name, self._allow)
        except BaseException:
            self._producer._ended()
            raise
        which = f"{self._which.producer}/{self._which.number}"
        self._first = partition_of(which, self._count)
        self._filling = True
        return self

    def add(
        self,
        data: object,
        *,
        key: str | int | None = None,
        partition: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """An event. Data is text or bytes that are JSON, or an object to be rendered; it goes to
        its key's partition, to `partition`, or anywhere.

        Raises RowError, a ValueError, for one that cannot be published; who catches it inside the
        block goes on without that event. Also what sending raises; then the batch has failed.
        """
        with self._lock:
            self._check_filling()
            number, self._given = self._given, self._given + 1
            try:
                where = partition_for(key, partition, self._count)
                place = self._anywhere() if where is None else where
                full = self._chunker.add(place, checked_headers(headers), json_of(data))
            except ValueError as exc:
                said = f"event {number} of the batch cannot be published: {exc}"
                raise RowError(said, row=number, reason=str(exc)) from None
            self._spread += where is None
            self._stage(full)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        with self._lock:
            self._filling = False
            try:
                if exc is None:
                    self._publish()
                elif self._uploads and not self._failed:
                    self._client.release(self._identity, TaskDone(0, self._attempt))
            finally:
                self._producer._ended()

    def settle(self) -> Receipt | None:
        """The batch's receipt if it was published; None if it was not, and never will be.

        Raises OutcomeUnknownError while the publisher does not tell.
        """
        if not self._in_doubt:
            return self._receipt
        which = self._identity
        try:
            self._seal(which)
            receipt, _ = self._client.look_up(which)
        except ZeroEventHubError as exc:
            raise OutcomeUnknownError(
                f"whether batch {which.number} of producer {which.producer!r} was published is "
                f"still not known: {exc}",
                batch=which.number,
                run=which.run,
            ) from exc
        self._end(receipt if receipt and self._is_mine(receipt) else None)
        return self._receipt

    def _is_mine(self, receipt: Receipt) -> bool:
        """Whether these events are published; under a name it does not matter by whom."""
        content = self._chunker.content
        same = (receipt.events, receipt.digest) == (content.events, content.digest)
        return same and (self.name is not None or receipt.run == self._identity.run)

    def _seal(self, which: Batch) -> None:
        """A commit of this attempt that has not landed yet will be refused."""
        try:
            self._client.upload(which, self._count, 0, self._attempt, self._uploads, _SEAL)
        except PublishError as exc:
            if exc.problem not in _OVERTAKEN:
                raise
            self._producer._refused(self, exc)  # as the commit would be, if it came now

    def _publish(self) -> None:
        if self._failed:  # and who filled it has caught that
            raise self._failed
        self._stage(self._chunker.close())
        self._send()
        done = TaskDone(0, self._attempt, self._uploads, self._chunker.content)
        self._in_doubt = True
        self._producer._doubt(self)
        try:
            receipt = self._client.commit(self._identity, self._count, [done])
            self._check_mine(receipt)
        except PublishError as exc:
            self._end(None)
            self._producer._refused(self, exc)
            self._client.release(self._identity, done)
            raise
        except OutcomeUnknownError as exc:
            # Refused, but not at the first try, and of that one nothing was heard.
            refusal = exc.__cause__
            if not isinstance(refusal, PublishError):
                raise
            if self.settle() is None:
                self._producer._refused(self, refusal)
                raise refusal from None
        else:
            self._end(receipt)

    def _end(self, receipt: Receipt | None) -> None:
        self._in_doubt, self._receipt = False, receipt
        self._producer._settled(self, receipt)

    def _check_mine(self, receipt: Receipt) -> None:
        which = self._identity
        if self.name is None and receipt.run != which.run:
            raise PublishError(
                f"somebody else published batch {which.number} of producer {which.producer!r}, "
                f"with the same events; this call added nothing: publish them again if they are "
                f"wanted twice, and let each one who publishes have a producer of its own",
                problem="number-taken",
                facts={"run": receipt.run, "events": receipt.events, "batch": receipt.batch},
            )

    def _anywhere(self) -> int:
        """One partition is filled after the other, beginning with another one in each batch."""
        return (self._first + self._spread // CHUNK_EVENTS) % self._count

    def _stage(self, chunks: Iterable[StagedChunk]) -> None:
        for chunk in chunks:
            if not self._group.takes(chunk):
                self._send()
            self._group.add(chunk)

    def _send(self) -> None:
        """Nothing, where the batch turned out to be committed already: it is only compared."""
        group, self._group = self._group, Group(UPLOAD_BYTES)
        if not group.chunks or not self._wanted:
            return
        number, self._uploads = self._uploads, self._uploads + 1
        body, which = upload_body(group.chunks), self._identity
        try:
            with _nothing_published():
                self._wanted = self._client.upload(
                    which, self._count, 0, self._attempt, number, body
                )
        except BaseException as exc:  # also Ctrl-C
            self._failed = exc
            if isinstance(exc, PublishError):
                self._producer._refused(self, exc)
            self._client.release(which, TaskDone(0, self._attempt))
            raise
        if not self._wanted:
            self._chunker.only_count()

    def _check_filling(self) -> None:
        if not self._filling:
            raise RuntimeError("events are added inside the batch's with block")
        if self._failed:
            raise self._failed


@contextmanager
def _nothing_published() -> Iterator[None]:
    """Before its commit is sent, a batch is not published for certain."""
    try:
        yield
    except UnavailableError as exc:
        raise UnavailableError(f"nothing of the batch was published: {exc}") from exc


def _checked(what: str, name: Any) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise OptionError(
            f"the {what} is called {name!r}; allowed are 1 to 100 letters, digits and . _ : @ = -",
            option=what,
        )
    return name
