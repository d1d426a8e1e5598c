"""Publish without Spark: batches of events from any Python program, each whole and once.

Rule for editors: a producer keeps nothing on disk. It asks the publisher once how far it is, and
then counts by itself. So a batch of another program under the same name is an error, not a number
to skip. Rejected: to ask before each batch, because what the program derived from an older answer
would be doubled.

`http.batch_attempt` finds out what became of a commit whose answer is lost.

Runs in services and in the command line.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple

from zeh_spark.client.http.batch_attempt import BatchAttempt, nothing_published
from zeh_spark.client.http.publish_client import BatchCall, PublishClient, Receipt
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.errors import OptionError, OutcomeUnknownError, PublishError
from zeh_spark.wire import problems
from zeh_spark.wire.wire import BATCH_INCARNATION, NAME, PLAIN_INCARNATION

log = logging.getLogger(__name__)

_MOST_PARTITION, _MOST_NUMBER = 1023, 2**53 - 1


@dataclass(frozen=True, slots=True)
class ProducerProgress:
    """What a producer has published. Named batches do not count.

    Args:
        batch: the number of its last batch, from 0; -1 before the first.
        events: the number of events of all its batches together.
        receipt: the last batch's receipt; None before the first, or if it is not known.
    """

    batch: int = -1
    events: int = 0
    receipt: Receipt | None = None


class PublishedNumbers(NamedTuple):
    """The sequence numbers of a producer's events in one partition, both ends included."""

    first: int
    last: int


class Producer:
    """Publishes batches to one feed under one name, one after the other, from any thread.

    The constructor sends no request. The attributes `name` and `run` are the producer's name and
    the id of this run, which a receipt shows.

    Args:
        url: the feed's address.
        producer: the name: 1 to 100 letters, digits and `. _ : @ = -`. Two programs that publish at
            the same time need two names.
        max_wait: seconds for which a batch waits for another thread's batch to end.
        starting_sequence: the first sequence number by stored partition, if it is not 0: to
            continue the numbers of another system. It is refused for a partition in which the
            producer began with another number. Batches with names have numbers of their own.
        **options: options of the format that say how to reach the publisher, like `token` or
            `retryTimeout`. A value of None counts as not given.

    Raises:
        OptionError: an option or the name is not valid.

    Guarantee: a batch is published once and completely, or not at all. After an OutcomeUnknownError
    it is not known which of the two; after every other error it is not published.
    """

    def __init__(
        self,
        url: str,
        producer: str,
        *,
        max_wait: float = 60.0,
        starting_sequence: Mapping[int, int] | None = None,
        **options: object,
    ) -> None:
        given = {name: str(value) for name, value in options.items() if value is not None}
        parsed = parse(ClientOptions, {"url": url, **given})
        # A service may start while its publisher is being upgraded.
        self._client = PublishClient(replace(parsed, first_contact=None))
        self.name = _checked("producer", producer)
        self._starting = _checked_numbers(starting_sequence or {})
        self.run = uuid.uuid4().hex
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._turn = _Turn(max_wait)
        self._attempts = itertools.count(1)
        self._in_doubt: OpenBatch | None = None
        self._overtaken: PublishError | None = None
        self._state: ProducerProgress | None = None
        self._count: int | None = None

    @property
    def last(self) -> ProducerProgress:
        """The producer's progress: the publisher's first answer, and what this object added since.

        Raises:
            PublishError: the name belongs to a Spark query, whose numbers this would take.
            UnavailableError: the publisher did not answer within `retryTimeout`.
        """
        with self._lock:
            if self._state is None:
                self._state = self._asked()
            return self._state

    def numbers(self) -> dict[int, PublishedNumbers]:
        """Ask the publisher which sequence numbers the producer's events have, by partition.

        Events of named batches have numbers of their own, which are in the batches' receipts.

        Raises:
            PublishError: the publisher does not have the feed.
            UnavailableError: the publisher did not answer within `retryTimeout`.
        """
        known = self._client.producer(self.name)
        following, firsts = known["nextSequences"], known["firstSequences"]
        return {
            int(each): PublishedNumbers(firsts.get(each, 0), following[each] - 1)
            for each in following
        }

    def batch(
        self,
        name: str | None = None,
        *,
        allow: Mapping[str, str] | None = None,
        keep: bool = False,
    ) -> OpenBatch:
        """Return a batch to fill inside a `with` block, whose end publishes it.

        The block waits for a batch of another thread to end, for up to `max_wait` seconds.

        Args:
            name: the batch's name, of the same characters as a producer's. A batch that is
                published again under its name adds nothing. Without a name, the batch has the
                producer's next number.
            allow: overrides, by name, like `{"keepFirst": "5d41…"}`. A refusal has the ones that it
                accepts in `PublishError.facts["option"]`.
            keep: keep the events in memory, so that `OpenBatch.publish_again` can publish them
                after an error.

        Raises:
            OptionError: the name is not valid.
        """
        if name is not None:
            _checked("batch", name)
        return OpenBatch(self, name, dict(allow or {}), keep=keep)

    def _asked(self) -> ProducerProgress:
        known = self._client.producer(self.name)
        if known.get("incarnation") not in (None, PLAIN_INCARNATION):
            raise PublishError(
                f"producer {self.name!r} belongs to incarnation {known['incarnation']!r}, a Spark "
                f"query, whose numbers this would take. Publish under another name",
                problem="incarnation-changed",
                facts=known,
                anchor="zeh_sparkpublish-the-producer-belongs-to-a-spark-query",
            )
        last = int(known["lastBatch"])
        asked = BatchCall(self.name, PLAIN_INCARNATION, self.run, max(last, 0))
        receipt, self._count, _ = self._client.look_up(asked)
        events = sum(known["nextSequences"].values()) - sum(known["firstSequences"].values())
        return ProducerProgress(last, events, receipt if last >= 0 else None)

    # Called by open batches

    def _begin(self, batch: OpenBatch, allow: Mapping[str, str], *, keep: bool) -> BatchAttempt:
        """Wait for the batch's turn, ask what is not known yet, and return the attempt.

        Raises if the batch cannot begin; then it is another batch's turn.
        """
        self._check_process()
        self._turn.take(self.name)
        try:
            with self._lock:
                if batch.name is None:
                    self._check_numbers()
                with nothing_published():
                    which, count = self._identity(batch.name, allow)
                return BatchAttempt(self._client, which, count, self._attempts, keep=keep)
        except BaseException:
            self._turn.end()
            raise

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"producer {self.name!r} was made in another process. Make one after the fork"
            )

    def _check_numbers(self) -> None:
        """Raise if the next number is not known."""
        if self._in_doubt is not None:
            number = self._in_doubt.number
            raise OutcomeUnknownError(
                f"whether batch {number} of producer {self.name!r} was published is not known. "
                f"Call that batch's settle() first",
                batch=number,
                run=self.run,
            )
        if (refusal := self._overtaken) is not None:
            raise refusal.reworded(
                f"somebody else used the name {self.name!r}, so this producer does not know its "
                f"next number. Make a new Producer, and continue from its `last`. The publisher's "
                f"refusal was: {refusal}",
                advice=None,
                anchor="number-taken",
            )

    def _identity(self, name: str | None, allow: Mapping[str, str]) -> tuple[BatchCall, int]:
        """Return which batch that is, and the feed's partition count."""
        if name is None:
            producer, kind, number = self.name, PLAIN_INCARNATION, self.last.batch + 1
        else:
            producer, kind, number = f"{self.name}#{name}", BATCH_INCARNATION, 0
        starting = self._starting if name is None else {}
        which = BatchCall(producer, kind, self.run, number, allow, False, starting)
        if self._count is None:
            self._count = self._client.look_up(which).partition_count
        return which, self._count

    def _refused(self, batch: OpenBatch, exc: PublishError) -> None:
        if batch.name is None and exc.problem in problems.OVERTAKEN:
            self._overtaken = exc

    def _keep(self, batch: OpenBatch, attempt: BatchAttempt) -> None:
        """Count a batch without a name, according to what became of it."""
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


class _Turn:
    """Lets one batch at a time be open; the others wait in the order in which they came.

    Args:
        max_wait: seconds that a batch waits.
    """

    def __init__(self, max_wait: float) -> None:
        self._max_wait = max_wait
        self._changed = threading.Condition()
        self._line: deque[int] = deque()
        """The threads of the open batch and of those that wait."""

    def take(self, name: str) -> None:
        """Wait for the turn.

        Raises:
            RuntimeError: this thread has an open batch, so that it would wait for itself.
            TimeoutError: other batches were open for `max_wait` seconds.
        """
        mine = threading.get_ident()
        with self._changed:
            if mine in self._line:
                raise RuntimeError(
                    f"producer {name!r} has an open batch in this thread. Begin one after the "
                    f"other has ended"
                )
            self._line.append(mine)
            try:
                if not self._changed.wait_for(lambda: self._line[0] == mine, self._max_wait):
                    raise TimeoutError(
                        f"producer {name!r}: other batches were open for {self._max_wait:g} s. "
                        f"Nothing of this one was published: publish it later, use a producer for "
                        f"each thread, or set a larger max_wait"
                    )
            except BaseException:  # also Ctrl-C
                self._line.remove(mine)
                self._changed.notify_all()
                raise

    def end(self) -> None:
        with self._changed:
            self._line.popleft()
            self._changed.notify_all()


class AddedEvent:
    """An event of a batch. After the batch is published, it has its partition and number."""

    __slots__ = ("_batch", "_index", "_partition")

    def __init__(self, batch: OpenBatch, partition: int, index: int) -> None:
        self._batch = batch
        self._partition = partition
        self._index = index

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
        self, producer: Producer, name: str | None, allow: Mapping[str, str], *, keep: bool
    ) -> None:
        self.name = name
        self._producer = producer
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
        self._begun = self._producer._begin(self, self._allow, keep=self._keep)
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
            self._producer._check_process()
            try:
                placed = self._attempt.add(data, key, partition, headers, keep_key)
                return AddedEvent(self, *placed)
            except PublishError as exc:
                self._producer._refused(self, exc)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        with self._lock:
            self._filling = False
            self._producer._check_process()  # a fork must not end its parent's batch
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
            attempt = self._producer._begin(self, self._allow, keep=True)
            self._begun = attempt
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
            self._producer._refused(self, refusal)
            raise
        except OutcomeUnknownError as exc:
            said = f"{exc.what}. In this program, call the batch's settle() to find out"
            raise exc.reworded(said) from exc
        finally:
            self._producer._keep(self, self._attempt)
            self._producer._turn.end()

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
        self._producer._keep(self, self._attempt)
        return receipt


def _checked_numbers(given: Mapping[int, int]) -> dict[int, int]:
    """Return numbers by partition. Raises OptionError if they are not valid."""
    for partition, number in given.items():
        for value, most in ((partition, _MOST_PARTITION), (number, _MOST_NUMBER)):
            if type(value) is not int or not 0 <= value <= most:
                raise OptionError(
                    f"starting_sequence={dict(given)!r} must have partitions and numbers from 0, "
                    f"like {{0: 1000}}; got {value!r}",
                    option="starting_sequence",
                )
    return dict(given)


def _checked(what: str, name: Any) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise OptionError(
            f"the {what} is called {name!r}. Use 1 to 100 letters, digits and . _ : @ = -",
            option=what,
        )
    return name
