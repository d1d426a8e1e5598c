"""The client of the publish API: uploads, commits, receipts.

Rule for editors: every call can be repeated, and the publisher answers the same. So transient
failures are retried for `retryTimeout`, and an answer that was lost changes nothing.

Runs in write tasks, on the driver, in services that publish, and in the command line.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from zeh_spark.client.http.responses import TransientError, problem_document
from zeh_spark.client.http.retry import Retry
from zeh_spark.client.http.transport import Body, Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.errors import (
    OptionAdvice,
    OutcomeUnknownError,
    PublisherError,
    PublishError,
    ZeroEventHubError,
)
from zeh_spark.wire import problems, wire
from zeh_spark.wire.direct_reads import AwaitedBatch
from zeh_spark.wire.phrases import counted
from zeh_spark.wire.upload_format import DIGEST_VERSION, Content

log = logging.getLogger(__name__)

Document = dict[str, Any]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchCall:
    """The identity of a batch, and who publishes it.

    Args:
        incarnation: the producer's memory, like a Spark checkpoint.
        run: the id of one start of the writer.
        number: the batch's number in its incarnation, from 0.
        repeatable: whether the publisher recognizes the same events if another run publishes them
            again.
        split_by: the version of the feed's schema by which the batch is split for ever: what breaks
            it is taken out of uploads, also if the batch is committed; 0 for none.
    """

    producer: str
    incarnation: str
    run: str
    number: int
    overrides: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    starting: Mapping[int, int] = field(default_factory=dict)
    split_by: int = 0

    @property
    def path(self) -> str:
        """The path of the batch, after the feed's."""
        return f"{producer_path(self.producer)}/batches/{self.number}"

    def query(self, partition_count: int, **more: str) -> str:
        """Return the query string of an upload or a commit."""
        given = ",".join(f"{each}:{self.starting[each]}" for each in sorted(self.starting))
        also = {wire.STARTING: given, wire.SPLIT_BY: f"{self.split_by or ''}"}
        return urlencode(
            {"incarnation": self.incarnation, "n": partition_count, **more, **self.overrides}
            | {name: value for name, value in also.items() if value}
        )


class BatchStatus(NamedTuple):
    """What the publisher knows of a batch and its feed.

    Args:
        receipt: the batch's receipt; None if it is not committed.
        feed_id: the feed's id, the same at each address; None if the batch is committed, or if the
            publisher does not tell it.
        schema_version: the version of the feed's schema; 0 without one, or if it is committed.
    """

    receipt: Receipt | None
    partition_count: int
    feed_id: str | None
    schema_version: int = 0


@dataclass(frozen=True, slots=True)
class TaskDone:
    """What one attempt at a task did for a batch.

    Args:
        attempt: the number of the attempt; each attempt at a task has its own.
        uploads: how many uploads it sent; 0 if the batch was committed before.
        content: the number of its events, and the sum of their contents.
    """

    task: int
    attempt: int
    uploads: int = 0
    content: Content = Content()


class PublishedRange(msgspec.Struct, frozen=True):
    """A batch's events in one partition.

    Args:
        partition: the stored partition.
        first: the first sequence number.
        last: the last sequence number, included.
        cursor: the feed's cursor after these events.
    """

    partition: int
    first: int
    last: int
    cursor: str


class Staged(msgspec.Struct, frozen=True):
    """What became of an upload; `wrong` has chunk, line, path and reason of what was taken out."""

    status: Literal["staged", "already-committed"]
    wrong: tuple[tuple[int, int, str, str], ...] = ()


class Receipt(msgspec.Struct, frozen=True, rename="camel"):
    """The publisher's record of a committed batch.

    Args:
        status: "committed", or "already-committed" if the batch was there before.
        batch: the batch's number.
        events: the number of its events.
        ranges: its sequence numbers in each partition that has some of its events.
        time: when it was committed, in milliseconds since 1970.
        run: the id of the run that committed it.
        digest: the digest of its contents.
        partition_count: the feed's number of partitions.
        schema_version: see `BatchCall.split_by`.
    """

    status: str
    batch: int
    events: int
    ranges: tuple[PublishedRange, ...]
    time: int
    run: str
    digest: str
    partition_count: int
    schema_version: int = 0

    @property
    def cursor(self) -> str | None:
        """The feed's cursor after the batch, which `wait_for` takes; None without events."""
        return self.ranges[-1].cursor if self.ranges else None


class _ProducerAnswer(msgspec.Struct, rename="camel"):
    """What an answer about a producer has at least."""

    producer: str
    last_batch: int
    receipts: int
    deleted: bool
    incarnation: str | None
    time: int | None
    next_sequences: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    first_sequences: dict[str, int] | msgspec.UnsetType = msgspec.UNSET


class _ProducersAnswer(msgspec.Struct):
    producers: list[_ProducerAnswer]


class _ReceiptsAnswer(msgspec.Struct):
    receipts: list[Document]


class PublishClient:
    """Publishes batches to one feed, and asks about its producers.

    Every call retries for `retryTimeout`. It raises PublishError if the publisher refuses,
    PublisherError if the answer is none of the publish API, and UnavailableError if there is no
    answer.

    Guarantee: what `commit` returns is committed, durable, and has the content that was declared.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._transport = Transport(options)

    def stop(self) -> None:
        """Stop retrying, because nobody waits for answers any more."""
        self._transport.stop()

    def close(self) -> None:
        """Close the connections to the publisher that are idle in this process."""
        self._transport.adapter.close_idle()

    def look_up(self, batch: BatchCall) -> BatchStatus:
        """Return what is known of a batch. Raises PublishError if its receipt is gone."""
        facts: Mapping[str, Any]
        try:
            query = urlencode({"incarnation": batch.incarnation})
            facts = self._answer("GET", batch.path, query)
            receipt = self._receipt({"receipt": facts})
        except PublishError as exc:
            if exc.problem != problems.UNKNOWN_BATCH.name:
                raise
            receipt, facts = None, exc.facts
        count = facts.get("partitionCount")
        if type(count) is not int or count < 1:
            raise PublisherError(
                f"{self._transport.url}: the answer about batch {batch.number} does not tell the "
                f"partition count. Check that this is the address of a publisher of zeh_spark"
            )
        feed_id = facts.get("feedId")
        feed_id = feed_id if isinstance(feed_id, str) else None
        return BatchStatus(receipt, count, feed_id, 0 if receipt else facts.get("schemaVersion", 0))

    def upload(
        self,
        batch: BatchCall,
        partition_count: int,
        task: int,
        attempt: int,
        number: int,
        body: bytes,
    ) -> Staged:
        """Stage a part of a batch, without what breaks the schema `BatchCall.split_by`."""
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        headers = {
            "Content-Type": "application/vnd.zeroeventhub.upload",
            "Content-Digest": f"sha-256=:{digest}:",
        }
        path = f"{batch.path}/uploads/{batch.run}.{task}.{attempt}.{number}"
        answer = self._answer("PUT", path, batch.query(partition_count), body, headers)
        return self.converted(answer, Staged, "one to an upload")

    def commit(self, batch: BatchCall, partition_count: int, tasks: Sequence[TaskDone]) -> Receipt:
        """Commit the batch: make the uploads of these tasks visible, all together.

        `tasks` has the one attempt of each task whose uploads count. After PublishError it is not
        committed. After UnavailableError that is not known, and the commit can be repeated; after
        OutcomeUnknownError it cannot.
        """
        content = sum((each.content for each in tasks), Content())
        body = {
            "events": content.events,
            "digest": content.digest,
            "digestVersion": DIGEST_VERSION,
            "attempts": [
                {
                    "task": each.task,
                    "attempt": each.attempt,
                    "uploads": each.uploads,
                    "events": each.content.events,
                }
                for each in tasks
            ],
        }
        path, query = f"{batch.path}/commit", batch.query(partition_count, run=batch.run)
        headers, retry = {"Content-Type": "application/json"}, self._transport.retry()
        try:
            encoded = msgspec.json.encode(body)
            return self._receipt(self._answer("POST", path, query, encoded, headers, retry=retry))
        except ZeroEventHubError as exc:
            # A refusal is about this try. An earlier try without an answer may be committed.
            certain = isinstance(exc, PublishError) and not retry.attempts
            if certain or batch.repeatable:
                raise
            raise self._unknown(batch, content) from exc

    def _unknown(self, batch: BatchCall, content: Content) -> OutcomeUnknownError:
        was = "was" if content.events == 1 else "were"
        return OutcomeUnknownError(
            f"whether {counted(content.events, 'event')} {was} published is not known: the "
            f"publisher of {self._transport.url} left a commit of batch {batch.number} without an "
            f"answer. Before you publish again, see whether it has that batch of run {batch.run}: "
            f"zeh-spark producers {self._transport.url} '{batch.producer}'",
            batch=batch.number,
            run=batch.run,
        )

    def _receipt(self, answer: Document) -> Receipt:
        found = answer.get("receipt")
        receipt = found if isinstance(found, dict) else {}
        status = answer.get("status", "already-committed")
        return self.converted({**receipt, "status": status}, Receipt, "a receipt")

    def converted(self, answer: object, kind: type[T], what: str) -> T:
        """Return an answer as a value. Raises PublisherError if it does not have its form."""
        try:
            return msgspec.convert(answer, kind)
        except msgspec.ValidationError as exc:
            raise PublisherError(
                f"{self._transport.url}: the answer is not {what} ({exc}). Check that this is the "
                f"address of a publisher of zeh_spark"
            ) from None

    def release(self, batch: BatchCall, task: TaskDone | None = None) -> None:
        """Drop what this run, or one attempt at a task of it, has staged for a batch.

        It is tried once and raises nothing: the publisher cleans up in any case.
        """
        mine = {"attempt": f"{task.task}.{task.attempt}"} if task else {}
        try:
            query = urlencode({"run": batch.run, **mine})
            self._transport.request("DELETE", f"{batch.path}/uploads", query).close()
        except (TransientError, ZeroEventHubError) as exc:
            log.warning("uploads of batch %d are left to the publisher: %s", batch.number, exc)

    def awaited(self, cursor: str, cursor_set: str, wait: float, retry: Retry) -> AwaitedBatch:
        """Ask whether a reader has committed a batch; the answer may take `wait` seconds."""
        query = urlencode({"await": cursor, "cursorset": cursor_set, "wait": f"{wait:.3f}"})
        found = self._answer("GET", "/cursors", query, retry=retry)
        return self.converted(found, AwaitedBatch, "one about a reader")

    def producer(self, name: str) -> Document:
        """Return the publisher's state of a producer, as the publish API has it."""
        found = self._answer("GET", producer_path(name))
        answer = self.converted(found, _ProducerAnswer, "the state of a producer")
        numbers = answer.next_sequences or {}, answer.first_sequences or {}
        return {**found, "nextSequences": numbers[0], "firstSequences": numbers[1]}

    def producers(self, receipts: int = 0) -> Iterator[Document]:
        """Yield the states of all producers that ever published, ordered by name.

        With `receipts`, each has its sequence numbers, and up to so many `newestReceipts`.
        """
        query = {"receipts": receipts} if receipts else {}
        while True:
            answer = self._answer("GET", "/producers", urlencode(query))
            self.converted(answer, _ProducersAnswer, "a list of producers")
            if not (found := answer["producers"]):
                return
            yield from found
            before, query = query, {**query, "after": found[-1]["producer"]}
            if query == before:
                raise PublisherError(
                    f"{self._transport.url}: after producer {found[-1]['producer']!r} the list of "
                    f"producers does not go on, and does not end. Tell the publisher's owner"
                )

    def receipts(self, producer: str, limit: int, below: int | None = None) -> list[Document]:
        """Return a producer's newest receipts, the newest first.

        There are fewer than `limit` if there are no more `below` that number, or if they are too
        long for one answer.
        """
        path = f"{producer_path(producer)}/batches"
        query = {"limit": limit} if below is None else {"limit": limit, "below": below}
        answer = self._answer("GET", path, urlencode(query))
        return self.converted(answer, _ReceiptsAnswer, "a list of receipts").receipts

    def _answer(
        self,
        method: str,
        path: str,
        query: str = "",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        retry: Retry | None = None,
    ) -> Document:
        retry = retry or self._transport.retry()
        ask = partial(self._transport.request, proven=True)
        while True:
            try:
                with ask(method, path, query, body, headers) as response:
                    answer = Body(response, self._transport.url)
                    text = answer.whole().decode(errors="replace")
                if document := problem_document(text):
                    return document
                wrong = PublisherError(
                    f"{self._transport.url}: the answer to {method} {path} is no JSON object. "
                    f"Check that this is the address of a publisher of zeh_spark",
                    body=text[:2000],
                )
                if answer.proven:
                    raise wrong
                retry.wait(TransientError(wrong))  # perhaps the answer was cut
            except TransientError as failure:
                if isinstance(failure.final, PublisherError):
                    failure.final = _refusal(failure.final)
                retry.wait(failure)
            except PublisherError as exc:
                refusal = _refusal(exc)
                changed = problems.DIGEST_MISMATCH.name  # the body was changed on its way
                if not isinstance(refusal, PublishError) or refusal.problem != changed:
                    raise refusal from None
                retry.wait(TransientError(refusal))


def producer_path(name: str) -> str:
    """Return the path of a producer, after the feed's."""
    return f"/producers/{quote(name, safe='')}"


def _refusal(exc: PublisherError) -> PublisherError:
    """Return a refusal of the publish API as a PublishError; other errors with their own type."""
    document = problem_document(exc.body or "")
    said, advice = exc.what, exc.advice
    if (name := problems.name_in(document)) is None:
        if exc.status in {404, 405}:
            said, advice = _with(said, advice, "; only a publisher of zeh_spark takes batches")
        return exc.reworded(said, advice=advice)
    if name == problems.UNKNOWN_FEED.name:
        said, advice = _with(said, advice, ", or make the feed: zeh-spark create FEED")
    return PublishError(
        said,
        status=exc.status,
        body=exc.body,
        problem=name,
        facts=document,
        advice=advice,
        anchor=problems.anchor(name),
    )


def _with(said: str, advice: OptionAdvice | None, more: str) -> tuple[str, OptionAdvice | None]:
    """Return a message and its advice, with more words at the end."""
    return (said, advice + more) if advice else (said + more, None)
