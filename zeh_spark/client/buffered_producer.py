"""Publish single events: they wait in a queue, and one thread publishes all that wait as one batch.

A batch is repeated until it is published or refused. After a refusal nothing else is published:
programs continue at `last.events`, and would publish an event twice for each that was refused
before it. Only with `skip_wrong` do events that break the feed's schema fail alone; such a batch
left nothing behind, so the rest is published under its number.

Rule for editors: a future gets a result only from a receipt, and another error than
OutcomeUnknownError only if its event will never be published. Its callbacks may call `send`, so it
is resolved outside the lock. Runs in services.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import msgspec

from zeh_spark.client.batch_line import BatchLine
from zeh_spark.client.http.batch_attempt import BatchAttempt
from zeh_spark.client.http.event_json import AddedBefore, checked_headers, json_of
from zeh_spark.client.http.publish_client import Receipt
from zeh_spark.client.http.responses import TransientError
from zeh_spark.client.http.retry import Retry
from zeh_spark.errors import (
    OutcomeUnknownError,
    PublisherError,
    PublishError,
    RowError,
    UnavailableError,
)
from zeh_spark.wire.partitioning import placed
from zeh_spark.wire.phrases import counted

log = logging.getLogger(__name__)

MOST_BYTES = 16 << 20  # that wait: less than an attempt keeps to send lost uploads again
AT_EXIT = 10.0  # seconds for which a program that ends without `close` still publishes


class PublishedEvent(msgspec.Struct, AddedBefore, frozen=True):
    """Where an event is that a `BufferedProducer` has published, and its batch's receipt."""

    partition: int
    sequence: int
    receipt: Receipt


T = TypeVar("T")

_Sent = tuple[bytes, int | None, "Future[PublishedEvent]"]
"""An event as the rest of its line, its partition (None for any), and what its sender has."""


class BufferedProducer:
    """Publishes single events of any thread in batches, made by `Producer.buffered`.

    It is a context manager, whose end closes it; `closed` tells that. In each partition, events
    have their numbers in the order in which `send` took them. While the publisher does not answer,
    futures stay pending. If it refuses a batch, all events that wait fail with its refusal, which
    `send`, `flush` and `close` raise from then on.

    Guarantee: an event whose future has a result is published, once. One whose future has an error
    is not, and never will be, except after OutcomeUnknownError, which comes only if this is closed
    before the publisher answers.
    """

    def __init__(
        self, line: BatchLine, linger: float, max_events: int, max_wait: float, *, skip_wrong: bool
    ) -> None:
        self.closed, self._skip_wrong = False, skip_wrong
        self._line, self._partitions = line, line.ask_partition_count()
        self._linger, self._max_events, self._max_wait = float(linger), max_events, max_wait
        self._changed = threading.Condition(threading.Lock())
        self._queue: list[_Sent] = []
        self._on_their_way: list[_Sent] = []
        self._bytes, self._settled, self._since = 0, 0, 0.0
        self._hurry = False  # somebody waits for room or for the end, so there is no lingering
        self._ended: BaseException | None = None
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zeh-publish", daemon=True)
        self._thread.start()
        atexit.register(self._at_exit)

    def __enter__(self) -> BufferedProducer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            self.close()
        except Exception:  # raised again, unless the block has raised: its error is the one to see
            if kind is None:
                raise

    def send(
        self,
        data: object,
        *,
        key: str | int | None = None,
        partition: int | None = None,
        headers: Mapping[str, str] | None = None,
        keep_key: bool = False,
    ) -> Future[PublishedEvent]:
        """Take an event, to be published after those that were taken before.

        Args:
            data: the event, like the other arguments as in `OpenBatch.add`.

        Returns:
            A future of the PublishedEvent. It cannot be cancelled. Its callbacks run in the thread
            that publishes, which waits for them.

        Raises:
            RowError: this event cannot be published, and was not taken. It is a ValueError.
            TimeoutError: for `max_wait` seconds there was no room, and the event was not taken. In
                a callback it is raised at once.
            RuntimeError: this is closed, or in another process.
            ZeroEventHubError: the publisher has refused a batch.
        """
        self._line.check_process()
        try:
            own = checked_headers(headers)
            where, rest = placed(self._partitions, json_of(data), key, partition, own, keep_key)
        except ValueError as exc:
            raise RowError(f"the event cannot be published: {exc}", reason=str(exc)) from None
        future: Future[PublishedEvent] = Future()
        future.set_running_or_notify_cancel()
        with self._changed:
            self._wait_for_room(len(rest))
            if not self._queue:
                self._since = time.monotonic()
                self._changed.notify_all()
            self._queue.append((rest, where, future))
            self._bytes += len(rest)
        return future

    def flush(self, timeout: float | None = None) -> None:
        """Publish all events that were taken so far, without lingering, and wait for that.

        Raises:
            TimeoutError: it takes more than `timeout` seconds. The events are still published.
            RuntimeError: this is in a future's callback, or in another process.
            ZeroEventHubError: the publisher has refused a batch.
        """
        self._check_thread()
        with self._changed:
            target = self._settled + self._left
            self._hasten()
            if not self._changed.wait_for(lambda: self._settled >= target, timeout):
                raise self._too_late(timeout)
            self._check_end()

    def close(self, timeout: float | None = None) -> None:
        """Take no more events, publish those that were taken, and wait for that.

        Raises as `flush`. After TimeoutError the events that wait fail with UnavailableError. A
        batch that is on its way is given up after `retryTimeout`, and its futures tell its outcome.
        If that is not known, `Producer.last` and the producer's next batch find it out.
        """
        self._check_thread()
        with self._changed:
            self.closed = True
            self._hasten()
        self._thread.join(timeout)
        atexit.unregister(self._at_exit)
        if self._thread.is_alive():
            self._given_up.set()
            raise self._too_late(timeout)
        self._check_end()

    def _wait_for_room(self, size: int) -> None:
        """Wait until an event of so many bytes may join the queue. Raises as `send`."""
        patience = 0.0 if threading.current_thread() is self._thread else self._max_wait
        end = time.monotonic() + patience
        while True:
            self._check_end()
            if self.closed:
                raise RuntimeError(f"the buffered producer of {self._line.name!r} is closed")
            full = len(self._queue) >= self._max_events or self._bytes + size > MOST_BYTES
            if not self._queue or not full:
                return
            self._hasten()
            if not self._changed.wait(max(0.0, end - time.monotonic())):
                raise TimeoutError(
                    f"producer {self._line.name!r} had no room for {patience:g} s, and the event "
                    f"was not taken: {counted(len(self._queue), 'event')} wait for the publisher. "
                    f"Send it later, or set a larger max_events or max_wait"
                )

    def _hasten(self) -> None:
        if not self._hurry:
            self._hurry = True
            self._changed.notify_all()

    def _check_end(self) -> None:
        if self._ended:
            raise self._ended.with_traceback(None)

    def _check_thread(self) -> None:
        self._line.check_process()
        if threading.current_thread() is self._thread:
            raise RuntimeError("a future's callback cannot call flush or close: it would not end")

    @property
    def _left(self) -> int:
        return len(self._on_their_way) + len(self._queue)

    def _too_late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(
            f"producer {self._line.name!r}: after {timeout} s the outcome of "
            f"{counted(self._left, 'event')} is not known. The futures of `send` will tell it"
        )

    def _run(self) -> None:
        try:
            while events := self._take():
                self._publish(events)
        except BaseException as exc:  # noqa: BLE001 - the futures have it
            self._end(exc)

    def _take(self) -> list[_Sent]:
        """Wait for the events of the next batch. Without any, this is closed and has no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self.closed)
            lingers = self._since + self._linger - time.monotonic()
            self._changed.wait_for(lambda: self._hurry, lingers)
            if self._queue and self._given_up.is_set():
                raise UnavailableError("it was closed before it could be sent")
            self._on_their_way, self._queue = self._queue, []
            self._bytes, self._hurry = 0, self.closed
            self._changed.notify_all()
            return self._on_their_way

    def _publish(self, events: list[_Sent]) -> None:
        """Publish a batch. Raises its refusal, or the last failure if the producer is given up."""
        retry = Retry(math.inf, sleep=self._given_up.wait)
        receipt = None
        places: list[tuple[int, int]] = []
        while receipt is None:
            try:
                receipt, places, wrong = self._publish_once(events, retry)
                if wrong and not (events := self._fail(events, wrong)):
                    return
            except (UnavailableError, OutcomeUnknownError, TimeoutError) as exc:
                retry.wait(TransientError(exc))
        first = {each.partition: each.first for each in receipt.ranges}
        for (*_, future), (partition, index) in zip(events, places, strict=True):
            _tell(future.set_result, PublishedEvent(partition, first[partition] + index, receipt))
        with self._changed:
            self._settled += len(events)
            self._on_their_way = []
            self._changed.notify_all()

    def _fail(self, events: list[_Sent], wrong: Mapping[int, str]) -> list[_Sent]:
        """Fail the events at some places in the list, and return the others."""
        for at, why in wrong.items():
            said = f"the event breaks the feed's schema, and was not published: {why}"
            _tell(events[at][2].set_exception, RowError(said, reason=why))
        left = [each for each in events if not each[2].done()]
        with self._changed:
            self._settled += len(wrong)
            self._on_their_way = left
            self._changed.notify_all()
        return left

    def _publish_once(
        self, events: list[_Sent], retry: Retry
    ) -> tuple[Receipt | None, list[tuple[int, int]], Mapping[int, str]]:
        """Return the receipt, None if nothing was published, and where the events are.

        With `skip_wrong`, also which of them break the feed's schema, and why.
        """
        attempt = self._line.begin(None, {}, keep=False)
        places: list[tuple[int, int]] = []
        try:
            attempt.add_checked(((rest, where) for rest, where, _ in events), places)
            try:
                return attempt.commit(), places, {}
            except Exception:  # raised again, unless the outcome is not known: then it is asked for
                if not attempt.in_doubt:
                    raise
                return retry.call(partial(_settle, attempt)), places, {}
        except PublishError as refusal:
            if self._skip_wrong and attempt.wrong and not attempt.in_doubt:
                at = {place: number for number, place in enumerate(places)}
                wrong = {at[each]: why for each, why in attempt.wrong.items()}
                return None, places, wrong
            self._line.note_refusal(attempt, refusal)
            raise
        finally:
            (self._line.give_up if attempt.in_doubt else self._line.end)(attempt)

    def _end(self, cause: BaseException) -> None:
        """Fail all events that are left."""
        with self._changed:
            self._ended = cause  # from now on, no event is taken
        left = counted(self._left, "event")
        log.error("producer %s has ended, and %s failed: %s", self._line.name, left, cause)
        unsent = cause
        if not isinstance(cause, PublisherError):
            unsent = UnavailableError(f"the event was not published, and never will be: {cause}")
        for events, error in ((self._on_their_way, cause), (self._queue, unsent)):
            for *_, future in events:
                if not future.done():
                    _tell(future.set_exception, error)
        with self._changed:
            self._settled += self._left
            self._on_their_way, self._queue = [], []
            self._changed.notify_all()

    def _at_exit(self) -> None:
        if self._left and self._thread.is_alive():  # it is not in a forked process
            left = counted(self._left, "event")
            log.warning("producer %s was not closed, with %s to publish", self._line.name, left)
            self.close(AT_EXIT)  # Python prints its error


def _tell(resolve: Callable[[T], None], outcome: T) -> None:
    """Resolve a future. What its callbacks raise, like SystemExit, is no matter of other events."""
    try:
        resolve(outcome)
    except BaseException:  # of the user's code: raised here, it would end the publishing thread
        log.exception("a callback of a future of BufferedProducer.send has raised an error")


def _settle(attempt: BatchAttempt) -> Receipt | None:
    try:
        return attempt.settle()
    except OutcomeUnknownError as exc:
        raise TransientError(exc) from None
