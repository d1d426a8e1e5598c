"""One attempt at publishing a batch: its uploads, its commit, and what became of the commit.

A commit whose answer is lost may still be on its way. It may arrive after the publisher has said
that the batch is not there. So `settle` first seals the attempt and then asks: it stages one more
upload than the commit names. A commit that arrives later finds too many uploads and is refused
(`upload-missing`), whatever uploads arrive again. A commit that arrived before has left a receipt.
The next attempt at the batch has uploads of its own.

A publisher may lose uploads that it has acknowledged: a crash of PostgreSQL loses those of its last
second. The commit is then refused (`upload-missing`), and the uploads are sent again, under another
number, while they are kept. Rejected: uploads that are durable. Each would wait for a disk.

Rejected: to delete the uploads instead. An upload that arrives late and again would restore what
the commit needs, and an empty batch needs no uploads. Rejected: to commit an empty batch in its
place. The program's numbers would no longer count its batches, and a name would be used up.

Rule for editors: say "not published" only if the commit can no longer succeed. Runs in services and
in the command line.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from zeh_spark.client.http.event_json import checked_headers, json_of
from zeh_spark.client.http.publish_client import BatchCall, PublishClient, Receipt, TaskDone
from zeh_spark.errors import (
    OutcomeUnknownError,
    PublishError,
    RowError,
    UnavailableError,
    ZeroEventHubError,
)
from zeh_spark.wire import problems
from zeh_spark.wire.batch_uploader import KEPT_BYTES, STAGINGS, BatchUploader
from zeh_spark.wire.partitioning import placed
from zeh_spark.wire.upload_format import (
    EMPTY_UPLOAD,
    Content,
    StagedChunk,
    upload_body,
)
from zeh_spark.wire.wire import PLAIN_INCARNATION

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(eq=False)
class BatchAttempt:
    """Takes events, sends uploads as they fill up, and commits them, all in the caller's thread.

    Its attribute `in_doubt` is true if a commit was sent and it is not known what became of it;
    `torn` is true if an event may be missing, because `add` raised an error other than RowError;
    `wrong` tells why events that a refusal named break the feed's schema, by their places.

    Args:
        numbers: yields numbers that no other attempt of the same run has.
        keep: whether to keep the events in memory, for `add_all_of` of another attempt.

    Guarantee: a batch for which `commit` or `settle` returns a receipt is published, once. A batch
    that they call not published never will be published by this attempt.
    """

    client: PublishClient
    batch: BatchCall
    count: int
    numbers: Iterator[int]
    keep: bool = field(kw_only=True)

    def __post_init__(self) -> None:
        self.in_doubt = self.torn = False
        self.receipt: Receipt | None = None
        self._number = next(self.numbers)
        kept_bytes = math.inf if self.keep else KEPT_BYTES
        name = f"{self.batch.producer}/{self.batch.number}"
        self._uploader = BatchUploader(self._send, self.count, name, kept_bytes=kept_bytes)
        self._kept: list[tuple[bytes, int]] | None = [] if self.keep else None
        self._given = 0
        self._sent: Counter[int] = Counter()
        self.wrong: dict[tuple[int, int], str] = {}
        self._released = False

    @property
    def content(self) -> Content:
        """The number of events that were added so far, and the sum of their contents."""
        return self._uploader.content

    def add(
        self,
        data: object,
        key: str | int | None,
        partition: int | None,
        headers: Mapping[str, str] | None,
        keep_key: bool = False,
    ) -> tuple[int, int]:
        """Add an event (arguments as in `OpenBatch.add`).

        It returns the event's partition, and its index among the batch's events there. After
        RowError the batch continues without the event. After any other error each later call raises
        again.
        """
        number, self._given = self._given, self._given + 1
        try:
            own = checked_headers(headers)
            where, rest = placed(self.count, json_of(data), key, partition, own, keep_key)
        except ValueError as exc:
            said = f"event {number} of the batch cannot be published: {exc}"
            raise RowError(said, row=number, reason=str(exc)) from None
        try:
            place = self._place(rest, where)
        except BaseException:  # also Ctrl-C
            self.torn = True
            raise
        if self._kept is not None:  # with its partition, so that another attempt has the same
            self._kept.append((rest, place[0]))
        return place

    def add_all_of(self, other: BatchAttempt) -> None:
        """Add the events of another attempt, which has ended. Raises as `add`."""
        self._kept = other._kept
        self.add_checked(other._kept or (), [])

    def add_checked(
        self, events: Iterable[tuple[bytes, int | None]], places: list[tuple[int, int]]
    ) -> None:
        """Add rests of lines with their partitions, and note their places up to an error.

        An error drops what is staged.
        """
        self._or_release(lambda: places.extend(self._place(rest, at) for rest, at in events))

    def sequence(self, partition: int, index: int) -> int | None:
        """Return an event's sequence number; None if the receipt does not tell it.

        A receipt tells it if this attempt committed the batch. If the batch was committed before
        under its name, its events may have had another order.
        """
        receipt = self.receipt
        plain = self.batch.incarnation == PLAIN_INCARNATION  # its receipt is of this attempt
        if receipt is None or not (plain or receipt.status == "committed"):
            return None
        first = {each.partition: each.first for each in receipt.ranges}
        return first[partition] + index

    def _place(self, rest: bytes, where: int | None) -> tuple[int, int]:
        ((partition, index, _),) = self._uploader.add([rest], where)
        return partition, index

    def commit(self) -> Receipt:
        """Publish the events that were added. After an interruption, call `settle`.

        After PublishError and UnavailableError the batch is not published.
        """
        try:
            self._or_release(self._uploader.finish)
            for left in reversed(range(STAGINGS)):
                try:
                    return self._commit_once()
                except PublishError as exc:
                    lost = exc.problem == problems.UPLOAD_MISSING.name
                    if not lost or not left or not self._stage_again():
                        raise
                    log.warning("the uploads were sent again, because they were lost: %s", exc.what)
        finally:
            self._uploader.forget()
        raise AssertionError("unreachable")

    def _stage_again(self) -> bool:
        """Send the uploads again, under another number; return False if they are not kept."""
        self._number, self._released = next(self.numbers), False
        self._sent.clear()
        return self._or_release(self._uploader.send_again)

    def _or_release(self, stage: Callable[[], T]) -> T:
        """Return what `stage` returns; if it fails, drop what it has staged."""
        try:
            return stage()
        except BaseException:  # also Ctrl-C
            self.release()
            raise

    def _commit_once(self) -> Receipt:
        """Commit what is staged, and ask if the publisher does not tell. Raises as `commit`."""
        self.in_doubt = True
        try:
            done = TaskDone(0, self._number, self._uploader.uploads, self.content)
            receipt = self._mine(self.client.commit(self.batch, self.count, [done]))
            self._end(receipt)
            return receipt
        except PublishError:
            self._end(None)
            self.release()
            raise
        except OutcomeUnknownError as exc:
            # The commit was refused at a later try, and the first try had no answer.
            refusal = exc.__cause__
            if not isinstance(refusal, PublishError):
                raise
            if found := self.settle():
                return found
            raise refusal from None

    def settle(self) -> Receipt | None:
        """Find out what became of a commit in doubt.

        It returns None if the batch is not published, and never will be by this attempt. After
        OutcomeUnknownError, call `settle` again later.
        """
        if not self.in_doubt:
            return self.receipt
        which = self.batch
        try:
            self._seal()
            receipt = self.client.look_up(which).receipt
        except ZeroEventHubError as exc:
            raise OutcomeUnknownError(
                f"whether batch {which.number} of producer {which.producer!r} was published is "
                f"still not known: {exc.what}",
                batch=which.number,
                run=which.run,
                advice=exc.advice,
            ) from exc
        self._end(receipt if receipt and self._is_mine(receipt) else None)
        return self.receipt

    def release(self) -> None:
        """Drop the attempt's uploads. Call it only for an attempt that is not in doubt."""
        if self._uploader.uploads and not self._released:
            self._released = True
            self.client.release(self.batch, TaskDone(0, self._number))

    def _end(self, receipt: Receipt | None) -> None:
        self.in_doubt, self.receipt = False, receipt

    def _seal(self) -> None:
        """Make the publisher refuse a commit of this attempt that has not arrived yet."""
        try:
            self.client.upload(
                self.batch, self.count, 0, self._number, self._uploader.uploads, EMPTY_UPLOAD
            )
        except PublishError as exc:
            if exc.problem not in problems.OVERTAKEN:
                raise
            # The commit would be refused as well if it arrived now.

    def _mine(self, receipt: Receipt) -> Receipt:
        """Return the receipt. Raises PublishError if another program published the same events."""
        which = self.batch
        if which.incarnation == PLAIN_INCARNATION and receipt.run != which.run:
            raise PublishError(
                f"another program published batch {which.number} of producer {which.producer!r}, "
                f"with the same events. This call added nothing: publish them again if they are "
                f"wanted twice, and give each program a producer name of its own",
                problem=problems.NUMBER_TAKEN.name,
                facts={"run": receipt.run, "events": receipt.events, "batch": receipt.batch},
                anchor=problems.NUMBER_TAKEN.name,
            )
        return receipt

    def _is_mine(self, receipt: Receipt) -> bool:
        """Return whether the receipt is of these events; under a name any program's counts."""
        same = self.content.is_in(receipt)
        named = self.batch.incarnation != PLAIN_INCARNATION
        return same and (named or receipt.run == self.batch.run)

    def _send(self, number: int, chunks: list[StagedChunk]) -> bool:
        begins = []
        for chunk in chunks:
            begins.append(self._sent[chunk.partition])
            self._sent[chunk.partition] += chunk.events
        try:
            with nothing_published():
                where = self.batch, self.count, 0, self._number, number
                return self.client.upload(*where, upload_body(chunks)).status == "staged"
        except PublishError as exc:
            if exc.problem == problems.WRONG_EVENTS.name:
                for each in exc.facts["events"]:
                    place = each["partition"], begins[each["chunk"]] + each["line"]
                    self.wrong[place] = f"{each['path'] or 'the event'}: {each['reason']}"
            raise


@contextmanager
def nothing_published() -> Iterator[None]:
    """Say in an UnavailableError that nothing was published: no commit was sent yet."""
    try:
        yield
    except UnavailableError as exc:
        raise exc.reworded(f"nothing of the batch was published: {exc.what}") from exc
