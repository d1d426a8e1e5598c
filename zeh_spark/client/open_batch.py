"""A batch that a program fills, and its events.

`http.batch_attempt` finds out what became of a commit whose answer is lost. Runs in services and in
the command line.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from zeh_spark.client.batch_line import BatchLine
from zeh_spark.client.http.batch_attempt import BatchAttempt
from zeh_spark.client.http.event_json import AddedBefore
from zeh_spark.client.http.publish_client import Receipt
from zeh_spark.errors import OutcomeUnknownError, PublishError

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, repr=False)
class AddedEvent(AddedBefore):
    """An event of a batch. After the batch is published, it has its partition and number."""

    _batch: OpenBatch
    _partition: int
    _index: int

    @property
    def partition(self) -> int:
        """The stored partition of the event. Raises as `sequence`."""
        return self._place()[0]

    @property
    def sequence(self) -> int:
        """The event's sequence number, which its header `zeh-sequence` shows.

        Raises:
            RuntimeError: the batch is not known to be published; or it was published before under
                its name, so that the events may have another order there.
        """
        return self._place()[1]

    def _place(self) -> tuple[int, int]:
        self._batch.receipt  # noqa: B018 - raises if there is none
        number = self._batch._attempt.sequence(self._partition, self._index)
        if number is None:
            raise RuntimeError(
                f"batch {self._batch.name!r} was published before, and its events may have another "
                f"order there. The batch's receipt has the numbers of all of them"
            )
        return self._partition, number


class OpenBatch:
    """A batch while it is filled, made by `Producer.batch`.

    It is a context manager: the end of its `with` block publishes it, unless the block raises. Then
    nothing of it is published. Uploads are sent as they fill up, and up to 32 MiB of them are kept
    until the commit is answered, so memory does not grow with the batch. Threads may share it.

    The end of the block raises PublishError (refused) or UnavailableError (no answer) if nothing
    was published, and OutcomeUnknownError if that is not known: then call `settle`, or
    `publish_again` if the batch keeps its events.
    """

    def __init__(
        self, line: BatchLine, name: str | None, allow: Mapping[str, str], *, keep: bool
    ) -> None:
        self.name = name
        self._line = line
        self._allow = allow
        self._keep = keep
        self._complete = False
        self._lock = threading.Lock()
        self._begun: BatchAttempt | None = None
        self._filling = False

    @property
    def number(self) -> int:
        """The batch's number in its producer, from 0; 0 for a batch with a name."""
        return self._attempt.batch.number

    @property
    def receipt(self) -> Receipt:
        """The publisher's record of the batch.

        Raises:
            RuntimeError: the batch is not known to be published.
        """
        receipt = self._attempt.receipt
        if receipt is None:
            raise RuntimeError(
                "there is no receipt: the batch is not known to be published. Read it after the "
                "with block, or call settle()"
            )
        return receipt

    @property
    def in_doubt(self) -> bool:
        """Whether its commit has begun, and it is not known what became of it: call `settle`."""
        return self._begun is not None and self._begun.in_doubt

    @property
    def dropped(self) -> int:
        """The number of this block's events that were dropped by the override `keepFirst`.

        The override keeps the events with which the batch was published before, and a warning is
        logged. 0 if the events of this block are those that are published.
        """
        given = self._attempt.content
        return 0 if given.is_in(self.receipt) else given.events

    @property
    def drops(self) -> str:
        """What `dropped` counts, in words: which events stay, and which were dropped."""
        return self._attempt.content.dropped("keepFirst", self.receipt)

    @property
    def _attempt(self) -> BatchAttempt:
        if self._begun is None:
            raise RuntimeError("the batch has not begun. Use it as: with producer.batch() as batch")
        return self._begun

    def __enter__(self) -> OpenBatch:
        if self._begun is not None:
            raise RuntimeError("a batch can be begun once. Call producer.batch() for another one")
        self._begun = self._line.begin(self.name, self._allow, keep=self._keep)
        self._filling = True
        return self

    def add(
        self,
        data: object,
        *,
        key: str | int | None = None,
        partition: int | None = None,
        headers: Mapping[str, str] | None = None,
        keep_key: bool = False,
    ) -> AddedEvent:
        """Add an event to the batch.

        Args:
            data: the event: a text or bytes that are JSON, or an object to be rendered as JSON.
            key: the event goes to its key's partition, so that events of one key stay in order.
            partition: the partition, from 0, instead of a key. Without both, the event goes to any
                partition.
            headers: the event's own headers.
            keep_key: keep the key's text in the event's header `zeh-key`, which readers get as the
                column `key`. It has at most 1,024 bytes in UTF-8. Without a key, nothing is kept.

        Returns:
            The event, whose `partition` and `sequence` are known once the batch is published.

        Raises:
            RowError: this event cannot be published. It is a ValueError. If you catch it inside the
                block, the batch continues without the event.
            PublishError: the publisher refused an upload, and the batch has failed.
            UnavailableError: an upload could not be sent, and the batch has failed.
            RuntimeError: this is not inside the batch's `with` block, or in another process.
        """
        with self._lock:
            if not self._filling:
                raise RuntimeError(
                    "the batch is not open for events. Add them inside the batch's with block"
                )
            self._line.check_process()
            try:
                placed = self._attempt.add(data, key, partition, headers, keep_key)
                return AddedEvent(self, *placed)
            except PublishError as exc:
                self._line.note_refusal(self._attempt, exc)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        with self._lock:
            self._filling = False
            self._line.check_process()  # a fork must not end its parent's batch
            self._complete = exc is None
            self._finish()

    def publish_again(self) -> Receipt:
        """Publish the batch's events again after an error, as a batch of the same name.

        If it is not known whether the batch was published, that is found out first, and nothing is
        published a second time. A batch without a name gets the producer's next number. It may be
        called until it succeeds.

        Returns:
            The receipt.

        Raises:
            RuntimeError: the batch does not keep its events, or its block raised an error.
            PublishError: the publisher refuses the batch, and nothing is published.
            UnavailableError: the publisher does not answer, and nothing is published.
            OutcomeUnknownError: it is not known whether the batch is published.
        """
        with self._lock:
            if not (self._keep and self._complete) or self._attempt.torn:
                raise RuntimeError(
                    "the batch cannot be published again: its block and each add have to end "
                    "without an error, and it has to keep its events, as in "
                    "producer.batch(keep=True)"
                )
            if found := self._settled():
                return found
            before = self._attempt
            self._begun = self._line.begin(self.name, self._allow, keep=True)
            self._finish(before)
            return self.receipt

    def _finish(self, before: BatchAttempt | None = None) -> None:
        """End the block: commit the batch, with the events of an attempt `before`, or release it.

        Raises what `commit` raises.
        """
        try:
            if before:
                self._attempt.add_all_of(before)
            if self._complete:
                self._attempt.commit()
                if self.dropped:
                    which = self._attempt.batch
                    log.warning(
                        "batch %s of producer %s: %s", which.number, which.producer, self.drops
                    )
            else:
                self._attempt.release()
        except PublishError as refusal:
            self._line.note_refusal(self._attempt, refusal)
            raise
        except OutcomeUnknownError as exc:
            said = f"{exc.what}. In this program, call the batch's settle() to find out"
            raise exc.reworded(said) from exc
        finally:
            self._line.end(self._attempt)

    def settle(self) -> Receipt | None:
        """Find out whether the batch was published.

        Call it after an OutcomeUnknownError, or after an interruption at the end of the block.

        Returns:
            The receipt if the batch was published. None if it was not, and never will be: then its
            events can be published again.

        Raises:
            OutcomeUnknownError: the publisher does not answer. Call `settle` again later.
        """
        with self._lock:
            return self._settled()

    def _settled(self) -> Receipt | None:
        receipt = self._attempt.settle()
        self._line.note_outcome(self._attempt)
        return receipt
