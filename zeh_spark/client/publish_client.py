"""The publish API, from the side of who publishes: uploads, commits, receipts.

Every call can be repeated: the publisher answers the same. So whatever is transient is tried again
for `retryTimeout`, and an answer that was lost changes nothing.

Runs in write tasks, in the driver, in services that publish, and in the command line.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from zeh_spark.client.responses import TransientError, problem_document
from zeh_spark.client.retry import Retry
from zeh_spark.client.transport import Body, Transport
from zeh_spark.errors import (
    OptionAdvice,
    OutcomeUnknownError,
    PublisherError,
    PublishError,
    ZeroEventHubError,
)
from zeh_spark.options import ClientOptions
from zeh_spark.protocol import problems
from zeh_spark.protocol.upload_format import DIGEST_VERSION, Content

log = logging.getLogger(__name__)

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BatchCall:
    """Which batch, and who publishes it: `run` is one start of the writer, `incarnation` its memory
    (Spark's checkpoint). `overrides`: what an operator allows, by option name. `repeatable`:
    whether the same events, published again by another run, are known to be the same.
    """

    producer: str
    incarnation: str
    run: str
    number: int
    overrides: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True

    @property
    def path(self) -> str:
        return f"{producer_path(self.producer)}/batches/{self.number}"

    def query(self, partition_count: int, **more: str) -> str:
        return urlencode(
            {"incarnation": self.incarnation, "n": partition_count, **more, **self.overrides}
        )


class BatchStatus(NamedTuple):
    """What the publisher knows of a batch: its receipt, if it is committed; and of its feed: the
    partition count, and while the batch is not committed an id, the same under each address.
    """

    receipt: Receipt | None
    partition_count: int
    feed_id: str | None


@dataclass(frozen=True, slots=True)
class TaskDone:
    """What a task did for a batch. `attempt` tells tries of a task apart, `uploads` is how many it
    sent: none where the batch was committed before.
    """

    task: int
    attempt: int
    uploads: int = 0
    content: Content = Content()


class PublishedRange(msgspec.Struct, frozen=True):
    """A batch's sequence numbers in one partition, both ends included, and the feed's cursor behind
    it.
    """

    partition: int
    first: int
    last: int
    cursor: str


class Receipt(msgspec.Struct, frozen=True, rename="camel"):
    """What the publisher says of a batch that is published. `status`: `committed`, or
    `already-committed` if it was there before; `run`: who committed it, and `time` when, in ms
    since 1970.
    """

    status: str
    batch: int
    events: int
    ranges: tuple[PublishedRange, ...]
    time: int
    run: str
    digest: str
    partition_count: int


class PublishClient:
    """Talks to the publisher of one feed.

    Guarantee: what `commit` returns is committed, durable, and has the content that was declared.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._transport = Transport(options)

    def stop(self) -> None:
        """Nobody waits for answers any more: no more tries."""
        self._transport.stop()

    def look_up(self, batch: BatchCall) -> BatchStatus:
        """Raises PublishError for a batch whose receipt is gone."""
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
                f"partition count: is that a publisher of zeh_spark?"
            )
        feed_id = facts.get("feedId")
        return BatchStatus(receipt, count, feed_id if isinstance(feed_id, str) else None)

    def upload(
        self,
        batch: BatchCall,
        partition_count: int,
        task: int,
        attempt: int,
        number: int,
        body: bytes,
    ) -> bool:
        """Stage a part of a batch; false if the batch is committed, and nothing more is needed."""
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        headers = {
            "Content-Type": "application/vnd.zeroeventhub.upload",
            "Content-Digest": f"sha-256=:{digest}:",
        }
        path = f"{batch.path}/uploads/{batch.run}.{task}.{attempt}.{number}"
        answer = self._answer("PUT", path, batch.query(partition_count), body, headers)
        return answer.get("status") != "already-committed"

    def commit(self, batch: BatchCall, partition_count: int, tasks: Sequence[TaskDone]) -> Receipt:
        """Make the batch visible, of these tasks' uploads.

        Raises PublishError, saying what to do: it is not committed. Where that is not known:
        UnavailableError, or OutcomeUnknownError for a batch that cannot be repeated.
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
            # A refusal is about this try; one before it that was not answered may have landed.
            certain = isinstance(exc, PublishError) and not retry.attempts
            if certain or batch.repeatable:
                raise
            raise self._unknown(batch, content) from exc

    def _unknown(self, batch: BatchCall, content: Content) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"whether {content.events} events were published is not known: the publisher of "
            f"{self._transport.url} left a commit of batch {batch.number} without an answer. "
            f"Before you publish them again, see whether it has that batch of run {batch.run}: "
            f"zeh-spark producers {self._transport.url} '{batch.producer}'",
            batch=batch.number,
            run=batch.run,
        )

    def _receipt(self, answer: Document) -> Receipt:
        try:
            found = answer.get("receipt")
            receipt = found if isinstance(found, dict) else {}
            status = answer.get("status", "already-committed")
            return msgspec.convert({**receipt, "status": status}, Receipt)
        except msgspec.ValidationError as exc:
            raise PublisherError(
                f"{self._transport.url}: the answer is no receipt ({exc}): is that a publisher of "
                f"zeh_spark?"
            ) from None

    def release(self, batch: BatchCall, task: TaskDone | None = None) -> None:
        """Drop what this run, or one task of it, has staged for a batch.

        Tried once: the publisher cleans up anyway.
        """
        mine = {"attempt": f"{task.task}.{task.attempt}"} if task else {}
        try:
            query = urlencode({"run": batch.run, **mine})
            self._transport.request("DELETE", f"{batch.path}/uploads", query).close()
        except (TransientError, ZeroEventHubError) as exc:
            log.warning("uploads of batch %d are left to the publisher: %s", batch.number, exc)

    def producer(self, name: str) -> Document:
        return self._answer("GET", producer_path(name))

    def producers(self) -> Iterator[Document]:
        """All that ever published, by name."""
        query = ""
        while found := self._answer("GET", "/producers", query)["producers"]:
            yield from found
            query = urlencode({"after": found[-1]["producer"]})

    def receipts(self, producer: str, limit: int, below: int | None = None) -> list[Document]:
        """The newest ones, newest first; of those with a number less than `below`. Fewer than
        `limit` if there are no more, or at once if they are long.
        """
        path = f"{producer_path(producer)}/batches"
        query = {"limit": limit} if below is None else {"limit": limit, "below": below}
        found: list[Document] = self._answer("GET", path, urlencode(query))["receipts"]
        return found

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
                    text = b"".join(answer).decode(errors="replace")
                if document := problem_document(text):
                    return document
                wrong = PublisherError(
                    f"{self._transport.url}: the answer to {method} {path} is no JSON object: is "
                    f"that a publisher of zeh_spark?",
                    body=text[:2000],
                )
                if answer.proven:
                    raise wrong
                retry.wait(TransientError(wrong))  # perhaps it was cut
            except TransientError as failure:
                if isinstance(failure.final, PublisherError):
                    failure.final = _refusal(failure.final)
                retry.wait(failure)
            except PublisherError as exc:
                refusal = _refusal(exc)
                changed = problems.DIGEST_MISMATCH.name  # on its way
                if not isinstance(refusal, PublishError) or refusal.problem != changed:
                    raise refusal from None
                retry.wait(TransientError(refusal))


def producer_path(name: str) -> str:
    return f"/producers/{quote(name, safe='')}"


def _refusal(exc: PublisherError) -> PublisherError:
    """A problem document of the publish API in our words; other errors as they are."""
    document = problem_document(exc.body or "")
    said, advice = exc.what, exc.advice
    if (name := problems.name_in(document)) is None:
        if exc.status in {404, 405}:
            said, advice = _with(said, advice, "; only a publisher of zeh_spark takes batches")
        return type(exc)(said, status=exc.status, body=exc.body, advice=advice, anchor=exc.anchor)
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
    """A message and its advice, with more words at the end."""
    return (said, advice + more) if advice else (said + more, None)
