"""The publish API, from the side of who publishes: uploads, commits, receipts.

Every call can be repeated: the publisher answers the same. So whatever is transient is tried again
for `retryTimeout`, and an answer that was lost changes nothing.

Runs in write tasks, in the driver, and in the command line.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from zeh_spark.answers import PROBLEM, TransientError, problem_document
from zeh_spark.chunks import DIGEST_VERSION, Content, StagedChunk, upload_body, uploads_of
from zeh_spark.errors import PublisherError, PublishError, UnavailableError, ZeroEventHubError
from zeh_spark.options import ClientOptions
from zeh_spark.transport import Body, Transport
from zeh_spark.wire import BATCH_INCARNATION, PLAIN_INCARNATION

UPLOAD_BYTES = 4 << 20

log = logging.getLogger(__name__)

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Which batch, and who publishes it: `run` is one start of the writer, `incarnation` its memory
    (Spark's checkpoint). `remedies`: what an operator allows, by option name. `repeatable`: whether
    the same events, published again by another run, are known to be the same.
    """

    producer: str
    incarnation: str
    run: str
    number: int
    remedies: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True

    @property
    def path(self) -> str:
        return f"{producer_path(self.producer)}/batches/{self.number}"

    def query(self, partition_count: int, **more: str) -> str:
        return urlencode(
            {"incarnation": self.incarnation, "n": partition_count, **more, **self.remedies}
        )


@dataclass(frozen=True, slots=True)
class TaskDone:
    """What a task did for a batch. `attempt` tells tries of a task apart, `uploads` is how many it
    sent: none where the batch was committed before.
    """

    task: int
    attempt: int
    uploads: int = 0
    content: Content = Content()


class PublishClient:
    """Talks to the publisher of one feed.

    Guarantee: what `commit` returns is committed, durable, and has the content that was declared.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._transport = Transport(options)

    def stop(self) -> None:
        """Nobody waits for answers any more: no more tries."""
        self._transport.stop()

    def look_up(self, batch: Batch) -> tuple[bool, int]:
        """Whether the batch is committed; and the feed's partition count."""
        try:
            query = urlencode({"incarnation": batch.incarnation})
            known, facts = True, self._answer("GET", batch.path, query)
        except PublishError as exc:
            if exc.problem != "unknown-batch":
                raise
            known, facts = False, exc.facts
        count = facts.get("partitionCount")
        if type(count) is not int or count < 1:
            raise PublisherError(
                f"{self._transport.url}: the answer about batch {batch.number} does not tell the "
                f"partition count: is that a publisher of zeh_spark?"
            )
        return known, count

    def upload(
        self, batch: Batch, partition_count: int, task: int, attempt: int, number: int, body: bytes
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

    def commit(self, batch: Batch, partition_count: int, tasks: Sequence[TaskDone]) -> Document:
        """Make the batch visible, of these tasks' uploads; its status and receipt.

        Raises PublishError, saying what to do; UnavailableError, where it is not known whether the
        batch is committed.
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
        query = batch.query(partition_count, run=batch.run)
        headers = {"Content-Type": "application/json"}
        try:
            return self._answer(
                "POST", f"{batch.path}/commit", query, msgspec.json.encode(body), headers
            )
        except UnavailableError as exc:
            if batch.repeatable:
                raise
            raise UnavailableError(
                f"whether {content.events} events were published is not known: the publisher of "
                f"{self._transport.url} did not answer to the commit of batch {batch.number}. "
                f"Before you publish them again, see whether it has that batch of run {batch.run}: "
                f"zeh-spark producers {self._transport.url} '{batch.producer}'"
            ) from exc

    def release(self, batch: Batch, task: TaskDone | None = None) -> None:
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
        """The newest ones, newest first; of those with a number less than `below`."""
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
    ) -> Document:
        patience = self._transport.patience()
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
                patience.wait(TransientError(wrong))  # perhaps it was cut
            except TransientError as failure:
                if isinstance(failure.final, PublisherError):
                    failure.final = _refusal(failure.final)
                patience.wait(failure)
            except PublisherError as exc:
                refusal = _refusal(exc)
                if not isinstance(refusal, PublishError) or refusal.problem != "digest-mismatch":
                    raise refusal from None
                patience.wait(TransientError(refusal))  # changed on its way


def plain_batch(client: PublishClient, producer: str) -> Batch:
    """The next batch of a producer that keeps no memory of its own.

    Raises PublishError for one that is used by somebody who does: their numbers would be taken.
    """
    state = client.producer(producer)
    if state.get("incarnation") not in (None, PLAIN_INCARNATION):
        raise PublishError(
            f"producer {producer!r} belongs to incarnation {state['incarnation']!r}, a Spark query "
            f"or a named batch, whose numbers this would take; publish under another name",
            problem="incarnation-changed",
            facts=state,
        )
    number = int(state["lastBatch"]) + 1
    return Batch(producer, PLAIN_INCARNATION, uuid.uuid4().hex, number, repeatable=False)


def named_batch(producer: str, name: str) -> Batch:
    """A batch that may be published again under its name, which adds nothing."""
    return Batch(f"{producer}#{name}", BATCH_INCARNATION, uuid.uuid4().hex, 0)


def publish_chunks(
    client: PublishClient, batch: Batch, make_chunks: Callable[[int], Iterable[StagedChunk]]
) -> Document:
    """Publish a batch as one task; `make_chunks` is told the partition count. Status and receipt.

    Raises PublishError; also if somebody else published a plain producer's batch at the same time.
    """
    committed, count = client.look_up(batch)
    content, uploads = Content(), 0
    try:
        for group in uploads_of(make_chunks(count), UPLOAD_BYTES):
            content = sum((each.content for each in group), content)
            if not committed:
                committed = not client.upload(batch, count, 0, 0, uploads, upload_body(group))
                uploads += 1
        answer = client.commit(batch, count, [TaskDone(0, 0, uploads, content)])
    except BaseException:  # also Ctrl-C; swallows nothing, the uploads are given back first
        client.release(batch)
        raise
    if batch.incarnation == PLAIN_INCARNATION and answer["receipt"]["run"] != batch.run:
        raise PublishError(
            f"somebody else published batch {batch.number} of producer {batch.producer!r}, with "
            f"the same events, at the same time; this call added nothing: publish them again if "
            f"they are wanted twice, and let each one who publishes have a producer of its own",
            problem="number-taken",
            facts=answer,
        )
    return answer


def producer_path(name: str) -> str:
    return f"/producers/{quote(name, safe='')}"


def _refusal(exc: PublisherError) -> PublisherError:
    """A problem document of the publish API in our words; other errors as they are."""
    document = problem_document(exc.body or "")
    kind = str(document.get("type"))
    if not kind.startswith(PROBLEM):
        hint = "; only a publisher of zeh_spark takes batches" if exc.status in {404, 405} else ""
        return type(exc)(f"{exc}{hint}", status=exc.status, body=exc.body)
    hint = ""
    if kind == f"{PROBLEM}unknown-feed":
        hint = ", or make the feed: zeh-spark create FEED"
    return PublishError(
        f"{exc}{hint}",
        status=exc.status,
        body=exc.body,
        problem=kind.removeprefix(PROBLEM),
        facts=document,
    )
