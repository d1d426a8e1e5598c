"""Publishing without Spark: batches of events from any Python program, each whole and once.

A producer keeps nothing on disk. How far it is, it asks the publisher once; from then on it counts
by itself, so that a batch of somebody else under the same name is an error, not a number to go
round [asking before each batch: what the program derived from an older answer would be doubled].

What a commit leaves open whose answer is lost, `client.batch_attempt` finds out.

Runs in services and in the command line.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from zeh_spark.client.batch_attempt import BatchAttempt, nothing_published
from zeh_spark.client.publish_client import BatchCall, PublishClient, PublishedRange, Receipt
from zeh_spark.errors import OptionError, OutcomeUnknownError, PublishError
from zeh_spark.options import ClientOptions, parse
from zeh_spark.protocol import problems
from zeh_spark.protocol.wire import BATCH_INCARNATION, NAME, PLAIN_INCARNATION

__all__ = ["OpenBatch", "Producer", "ProducerProgress", "PublishedRange", "Receipt"]


@dataclass(frozen=True, slots=True)
class ProducerProgress:
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
        self._state: ProducerProgress | None = None
        self._count: int | None = None

    @property
    def last(self) -> ProducerProgress:
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

    def _asked(self) -> ProducerProgress:
        known = self._client.producer(self.name)
        if known.get("incarnation") not in (None, PLAIN_INCARNATION):
            raise PublishError(
                f"producer {self.name!r} belongs to incarnation {known['incarnation']!r}, a Spark "
                f"query, whose numbers this would take; publish under another name",
                problem="incarnation-changed",
                facts=known,
                anchor="zeh_sparkpublish-the-producer-belongs-to-a-spark-query",
            )
        last = int(known["lastBatch"])
        asked = BatchCall(self.name, PLAIN_INCARNATION, self.run, max(last, 0))
        receipt, self._count, _ = self._client.look_up(asked)
        return ProducerProgress(
            last, sum(known["nextSequences"].values()), receipt if last >= 0 else None
        )

    # What open batches ask and tell

    def _begin(self, batch: OpenBatch, allow: Mapping[str, str]) -> BatchAttempt:
        """Asks what is not known yet. Raises what stands in its way."""
        self._check_process()
        with self._lock:
            if self._open is not None:
                raise RuntimeError(
                    f"producer {self.name!r} has an open batch; one begins when the other has ended"
                )
            if batch.name is None:
                self._check_numbers()
            with nothing_published():
                which, count = self._identity(batch.name, allow)
            self._open = batch
            self._attempts += 1
            return BatchAttempt(self._client, which, count, self._attempts)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"producer {self.name!r} was made in another process; make one behind the fork"
            )

    def _check_numbers(self) -> None:
        """Whether the next number is known."""
        if self._in_doubt is not None:
            number = self._in_doubt.number
            raise OutcomeUnknownError(
                f"whether batch {number} of producer {self.name!r} was published is not known: "
                f"call its settle() first",
                batch=number,
                run=self.run,
            )
        if (refusal := self._overtaken) is not None:
            raise PublishError(
                f"somebody else used the name {self.name!r}, so this producer does not know its "
                f"next number; make a new Producer, and go on from its last. It heard: {refusal}",
                status=refusal.status,
                body=refusal.body,
                problem=refusal.problem,
                facts=refusal.facts,
                anchor="number-taken",
            )

    def _identity(self, name: str | None, allow: Mapping[str, str]) -> tuple[BatchCall, int]:
        """Which batch that is, and the feed's partition count."""
        if name is None:
            producer, kind, number = self.name, PLAIN_INCARNATION, self.last.batch + 1
        else:
            producer, kind, number = f"{self.name}#{name}", BATCH_INCARNATION, 0
        which = BatchCall(producer, kind, self.run, number, allow, repeatable=False)
        if self._count is None:
            self._count = self._client.look_up(which).partition_count
        return which, self._count

    def _refused(self, batch: OpenBatch, exc: PublishError) -> None:
        if batch.name is None and exc.problem in problems.OVERTAKEN:
            self._overtaken = exc

    def _keep(self, batch: OpenBatch, attempt: BatchAttempt) -> None:
        """What became of a batch without a name says how far its producer is."""
        if batch.name is not None:
            return
        with self._lock:
            if attempt.in_doubt:
                self._in_doubt = batch
            elif self._in_doubt is batch:
                self._in_doubt = None
            receipt = attempt.receipt
            if receipt and receipt.batch > self.last.batch:
                self._state = ProducerProgress(
                    receipt.batch, self.last.events + receipt.events, receipt
                )

    def _ended(self) -> None:
        self._open = None


class OpenBatch:
    """A batch while it is filled: a context whose end publishes it, unless the block raises. Its
    uploads go out as they fill up, so memory does not grow with it. Threads may share it.
    """

    def __init__(self, producer: Producer, name: str | None, allow: Mapping[str, str]) -> None:
        self.name = name
        self._producer = producer
        self._allow = allow
        self._lock = threading.Lock()
        self._begun: BatchAttempt | None = None
        self._filling = False

    @property
    def number(self) -> int:
        """In its producer; 0 for one with a name."""
        return self._attempt.batch.number

    @property
    def receipt(self) -> Receipt:
        """Raises RuntimeError as long as the batch is not known to be published."""
        receipt = self._attempt.receipt
        if receipt is None:
            raise RuntimeError("there is no receipt: the batch is not known to be published")
        return receipt

    @property
    def dropped(self) -> int:
        """How many events of this block were dropped, because the batch was published before with
        others, and the override `keepFirst` keeps those; 0 if the events are what was published.
        """
        given, receipt = self._attempt.content, self.receipt
        same = (receipt.events, receipt.digest) == (given.events, given.digest)
        return 0 if same else given.events

    @property
    def _attempt(self) -> BatchAttempt:
        if self._begun is None:
            raise RuntimeError("the batch has not begun; use it as: with producer.batch() as batch")
        return self._begun

    def __enter__(self) -> OpenBatch:
        if self._begun is not None:
            raise RuntimeError("a batch can be begun once")
        self._begun = self._producer._begin(self, self._allow)
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
            if not self._filling:
                raise RuntimeError("events are added inside the batch's with block")
            self._producer._check_process()
            try:
                self._attempt.add(data, key, partition, headers)
            except PublishError as exc:
                self._producer._refused(self, exc)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        with self._lock:
            self._filling = False
            self._producer._check_process()  # the batch is the parent's
            try:
                if exc is None:
                    self._attempt.commit()
                else:
                    self._attempt.release()
            except PublishError as refusal:
                self._producer._refused(self, refusal)
                raise
            except OutcomeUnknownError as exc:
                said = f"{exc.what}. Here, the batch's settle() finds out"
                raise OutcomeUnknownError(
                    said, batch=exc.batch, run=exc.run, advice=exc.advice
                ) from exc
            finally:
                self._producer._keep(self, self._attempt)
                self._producer._ended()

    def settle(self) -> Receipt | None:
        """The batch's receipt if it was published; None if it was not, and never will be. For a
        batch that ended in OutcomeUnknownError, or whose end was interrupted.

        Raises OutcomeUnknownError while the publisher does not tell.
        """
        with self._lock:
            receipt = self._attempt.settle()
            self._producer._keep(self, self._attempt)
            return receipt


def _checked(what: str, name: Any) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise OptionError(
            f"the {what} is called {name!r}; allowed are 1 to 100 letters, digits and . _ : @ = -",
            option=what,
        )
    return name
