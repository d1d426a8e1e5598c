"""One attempt at publishing a batch: its uploads, its commit, and what became of that.

A commit whose answer is lost may still be on its way, and land after the publisher has said that
the batch is not there. So `settle` first seals the attempt, then asks: it stages one upload more
than the commit names. A commit that comes later finds too many and is refused (`upload-missing`),
whatever uploads come again; one that came before has left a receipt. The next attempt at the batch
has uploads of its own [deleting the uploads instead: one that comes late and again would bring back
what the commit needs, and an empty batch needs none. Committing an empty batch in its place: the
program's numbers would no longer count its batches, and a name would be used up].

Runs in services and in the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from zeh_spark.client.publish_client import BatchCall, PublishClient, Receipt, TaskDone
from zeh_spark.errors import (
    OutcomeUnknownError,
    PublishError,
    RowError,
    UnavailableError,
    ZeroEventHubError,
)
from zeh_spark.protocol import problems
from zeh_spark.protocol.batch_uploader import BatchUploader
from zeh_spark.protocol.events import checked_headers, json_of, partition_for
from zeh_spark.protocol.upload_format import (
    EMPTY_UPLOAD,
    Content,
    StagedChunk,
    checked_rest,
    upload_body,
)
from zeh_spark.protocol.wire import PLAIN_INCARNATION


class BatchAttempt:
    """Takes events, sends uploads as they fill up, and commits them, all in the caller's thread.

    `in_doubt`: a commit was sent, and it is not known what became of it.

    Guarantee: what `commit` and `settle` return is published, once; what they say is not published
    never will be by this attempt.
    """

    def __init__(self, client: PublishClient, batch: BatchCall, count: int, number: int) -> None:
        """`count`: the feed's partitions; `number`: no other attempt of the same run has it."""
        self.batch = batch
        self.in_doubt = False
        self.receipt: Receipt | None = None
        self._client = client
        self._count = count
        self._number = number
        self._uploader = BatchUploader(self._send, count, f"{batch.producer}/{batch.number}")
        self._given = 0
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
    ) -> None:
        """Raises RowError, and goes on without that event; or what sending raises, for ever."""
        number, self._given = self._given, self._given + 1
        try:
            where = partition_for(key, partition, self._count)
            longest = self._count - 1 if where is None else where
            rest = checked_rest(longest, checked_headers(headers), json_of(data))
        except ValueError as exc:
            said = f"event {number} of the batch cannot be published: {exc}"
            raise RowError(said, row=number, reason=str(exc)) from None
        self._uploader.add([rest], where)

    def commit(self) -> Receipt:
        """Raises PublishError or UnavailableError: not published. OutcomeUnknownError, or if it is
        interrupted: ask `settle`.
        """
        try:
            self._uploader.finish()
        except BaseException:  # also Ctrl-C
            self.release()
            raise
        self.in_doubt = True
        try:
            done = TaskDone(0, self._number, self._uploader.uploads, self.content)
            receipt = self._mine(self._client.commit(self.batch, self._count, [done]))
            self._end(receipt)
            return receipt
        except PublishError:
            self._end(None)
            self.release()
            raise
        except OutcomeUnknownError as exc:
            # Refused, but not at the first try, and of that one nothing was heard.
            refusal = exc.__cause__
            if not isinstance(refusal, PublishError):
                raise
            if found := self.settle():
                return found
            raise refusal from None

    def settle(self) -> Receipt | None:
        """Of a commit in doubt: its receipt, or None if it is not published, and never will be.

        Raises OutcomeUnknownError while the publisher does not tell.
        """
        if not self.in_doubt:
            return self.receipt
        which = self.batch
        try:
            self._seal()
            receipt = self._client.look_up(which).receipt
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
        """Drop its uploads; the end of an attempt that is not in doubt."""
        if self._uploader.uploads and not self._released:
            self._released = True
            self._client.release(self.batch, TaskDone(0, self._number))

    def _end(self, receipt: Receipt | None) -> None:
        self.in_doubt, self.receipt = False, receipt

    def _seal(self) -> None:
        """A commit of this attempt that has not landed yet will be refused."""
        try:
            self._client.upload(
                self.batch, self._count, 0, self._number, self._uploader.uploads, EMPTY_UPLOAD
            )
        except PublishError as exc:
            if exc.problem not in problems.OVERTAKEN:
                raise
            # So would the commit be, if it came now.

    def _mine(self, receipt: Receipt) -> Receipt:
        """Raises PublishError for one of somebody else, whose events happen to be the same."""
        which = self.batch
        if which.incarnation == PLAIN_INCARNATION and receipt.run != which.run:
            raise PublishError(
                f"somebody else published batch {which.number} of producer {which.producer!r}, "
                f"with the same events; this call added nothing: publish them again if they are "
                f"wanted twice, and let each one who publishes have a producer of its own",
                problem=problems.NUMBER_TAKEN.name,
                facts={"run": receipt.run, "events": receipt.events, "batch": receipt.batch},
                anchor=problems.NUMBER_TAKEN.name,
            )
        return receipt

    def _is_mine(self, receipt: Receipt) -> bool:
        """Whether these events are published; under a name it does not matter by whom."""
        content = self.content
        same = (receipt.events, receipt.digest) == (content.events, content.digest)
        named = self.batch.incarnation != PLAIN_INCARNATION
        return same and (named or receipt.run == self.batch.run)

    def _send(self, number: int, chunks: list[StagedChunk]) -> bool:
        with nothing_published():
            return self._client.upload(
                self.batch, self._count, 0, self._number, number, upload_body(chunks)
            )


@contextmanager
def nothing_published() -> Iterator[None]:
    """Before its commit is sent, a batch is not published for certain."""
    try:
        yield
    except UnavailableError as exc:
        said = f"nothing of the batch was published: {exc.what}"
        raise UnavailableError(said, advice=exc.advice) from exc
