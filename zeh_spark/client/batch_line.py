"""The batches of a producer: whose turn it is, which number the next one has, what became of it.

Rule for editors: a producer keeps nothing on disk. It asks the publisher once how far it is, and
then counts by itself. So a batch of another program under the same name is an error, not a number
to skip. Rejected: to ask before each batch, because what the program derived from an older answer
would be doubled.

Runs in services and in the command line.
"""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from zeh_spark.client.http.batch_attempt import BatchAttempt, nothing_published
from zeh_spark.client.http.publish_client import BatchCall, PublishClient, Receipt
from zeh_spark.errors import OutcomeUnknownError, PublishError
from zeh_spark.wire import problems
from zeh_spark.wire.wire import BATCH_INCARNATION, PLAIN_INCARNATION


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


class Turn:
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
        """Let the next one begin."""
        with self._changed:
            self._line.popleft()
            self._changed.notify_all()


@dataclass(eq=False)
class BatchLine:
    """The batches of one producer, one open at a time. Threads share it; a forked process may not.

    Args:
        name: the producer's name.
        starting: the first sequence number by stored partition, if it is not 0.
    """

    client: PublishClient
    name: str
    starting: Mapping[int, int]
    turn: Turn

    def __post_init__(self) -> None:
        self.run = uuid.uuid4().hex
        self.closed = False
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._attempts = itertools.count(1)
        self._in_doubt: BatchAttempt | None = None
        self._given_up: BatchAttempt | None = None
        self._overtaken: PublishError | None = None
        self._progress: ProducerProgress | None = None
        self._count: int | None = None

    @property
    def progress(self) -> ProducerProgress:
        """The publisher's first answer, and what was published since (see `Producer.last`)."""
        with self._lock:
            if self._progress is None:
                self._progress = self._ask_progress()
            self._settle_given_up()
            return self._progress

    def ask_partition_count(self) -> int:
        """Return the feed's number of partitions. Raises as `progress`, which it asks for."""
        self.check_open()
        _ = self.progress
        return self._count or 0

    def _ask_progress(self) -> ProducerProgress:
        self.check_open()
        known = self.client.producer(self.name)
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
        receipt, self._count, *_ = self.client.look_up(asked)
        events = sum(known["nextSequences"].values()) - sum(known["firstSequences"].values())
        return ProducerProgress(last, events, receipt if last >= 0 else None)

    def begin(self, name: str | None, allow: Mapping[str, str], *, keep: bool) -> BatchAttempt:
        """Wait for a batch's turn, ask what is not known yet, and return the attempt.

        Raises if the batch cannot begin; then it is another batch's turn.
        """
        self.check_process()
        self.turn.take(self.name)
        try:
            with self._lock:
                if name is None:
                    self._check_numbers()
                self.check_open()
                with nothing_published():
                    which, count = self._identify_batch(name, allow)
                return BatchAttempt(self.client, which, count, self._attempts, keep=keep)
        except BaseException:
            self.turn.end()
            raise

    def end(self, attempt: BatchAttempt) -> None:
        """Note what became of a batch, as far as it is known. It is another batch's turn."""
        self.note_outcome(attempt)
        self.turn.end()

    def give_up(self, attempt: BatchAttempt) -> None:
        """End a batch in doubt that no caller can settle: the next use of the numbers does it."""
        self._given_up = attempt
        self.end(attempt)

    def check_process(self) -> None:
        """Raise RuntimeError in another process than that of the producer."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"producer {self.name!r} was made in another process. Make one after the fork"
            )

    def check_open(self) -> None:
        """Raise RuntimeError if the producer is closed."""
        if self.closed:
            raise RuntimeError(f"producer {self.name!r} is closed. Make another one")

    def close(self) -> None:
        """Wait for the open batch to end, and begin no other. Raises as `Turn.take`."""
        self.check_process()
        if not self.closed:
            self.turn.take(self.name)
            self.closed = True
            self.turn.end()
            self.client.close()

    def _settle_given_up(self) -> None:
        """Find out what became of a batch that was given up. Raises OutcomeUnknownError."""
        attempt = self._given_up
        if attempt and attempt.in_doubt:
            attempt.settle()
            self.note_outcome(attempt)

    def _check_numbers(self) -> None:
        """Raise if the next number is not known."""
        self._settle_given_up()
        if self._in_doubt is not None:
            number = self._in_doubt.batch.number
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

    def _identify_batch(self, name: str | None, allow: Mapping[str, str]) -> tuple[BatchCall, int]:
        """Return which batch that is, and the feed's partition count."""
        if name is None:
            producer, kind, number = self.name, PLAIN_INCARNATION, self.progress.batch + 1
        else:
            producer, kind, number = f"{self.name}#{name}", BATCH_INCARNATION, 0
        starting = self.starting if name is None else {}
        which = BatchCall(producer, kind, self.run, number, allow, False, starting)
        if self._count is None:
            self._count = self.client.look_up(which).partition_count
        return which, self._count

    def note_refusal(self, attempt: BatchAttempt, refusal: PublishError) -> None:
        """Note that the next number is not known, if another program used this one."""
        if _counts(attempt) and refusal.problem in problems.OVERTAKEN:
            self._overtaken = refusal

    def note_outcome(self, attempt: BatchAttempt) -> None:
        """Count a batch without a name, according to what became of it."""
        if not _counts(attempt):
            return
        with self._lock:
            if attempt.in_doubt:
                self._in_doubt = attempt
            elif self._in_doubt is attempt:
                self._in_doubt = None
            receipt = attempt.receipt
            if receipt and receipt.batch > self.progress.batch:
                events = self.progress.events + receipt.events
                self._progress = ProducerProgress(receipt.batch, events, receipt)


def _counts(attempt: BatchAttempt) -> bool:
    """Return whether a batch has a number of the producer's own: it has no name."""
    return attempt.batch.incarnation == PLAIN_INCARNATION
