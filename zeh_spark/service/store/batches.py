"""Producers, their batches and their receipts, as values; and what a store does with them.

A batch is known by producer, incarnation (the writer's memory, like Spark's checkpoint) and number.
Its content is known by count and sum (`upload_format.Content`). A run is one start of the writer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from zeh_spark.service.store.acts import Actor
from zeh_spark.service.store.token_rights import Maker
from zeh_spark.wire.upload_format import DIGEST_VERSION, Content, StagedChunk

RECEIPTS = 1000
"""Receipts that a store keeps for each producer, unless it is opened with another number.

Batches older than that can be neither confirmed nor denied.
"""

MAX_NUMBER = 2**53 - 1
"""The highest number of a batch and of an event: what every JSON reader can hold."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What an operator allows once, with the values that a refusal printed."""

    accept_gap: str | None = None
    replace_incarnation: str | None = None
    keep_first: str | None = None

    @staticmethod
    def named(given: Mapping[str, str]) -> Overrides:
        """Return the overrides among parameters or options, by the names that refusals print."""
        return Overrides(
            given.get("acceptGap"), given.get("replaceIncarnation"), given.get("keepFirst")
        )


@dataclass(frozen=True, slots=True)
class Call:
    """Who calls, and for which batch.

    Attributes:
        incarnation: The producer's memory, like the id of a Spark checkpoint.
        run: The id of one start of the writer.
        batch: The number of the batch; None takes the next number at the commit.
        starting: (partition, number): with which numbers a new producer begins, if not with 0.
        by: Who calls, for the administrative log; None for who runs this process.
        maker: The client, if it may have only so many producers.
        split_by: The version of a schema whose wrong events are dead letters instead; 0 for none.
    """

    producer: str
    incarnation: str
    run: str
    batch: int | None
    partition_count: int
    overrides: Overrides = Overrides()
    starting: tuple[tuple[int, int], ...] = ()
    by: Actor | None = None
    maker: Maker | None = None
    split_by: int = 0


class Numbers(NamedTuple):
    """A producer's numbers in a stored partition: its first one, and the one of its next event."""

    first: int
    next: int


UPLOAD_BYTES = 512
"""What an upload takes besides its frames: without it, empty uploads could be staged for ever."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A part of a batch.

    Attributes:
        digest: The SHA-256 of its body, which tells it from other uploads.
        schema_version: The version of the feed's schema that its events keep; 0 for none.
        schema_time: When that version was set, in ms since 1970. A failover that lost a version
            lets another document get its number.
    """

    task: int
    attempt: int
    number: int
    digest: bytes
    chunks: tuple[StagedChunk, ...]
    schema_version: int = 0
    schema_time: int = 0

    @property
    def content(self) -> Content:
        """The number of its events, and the sum of their contents."""
        return sum((each.content for each in self.chunks), Content())

    @property
    def bytes(self) -> int:
        """What it counts for a quota: the bytes of its frames, and `UPLOAD_BYTES`."""
        return UPLOAD_BYTES + sum(len(each.frame) for each in self.chunks)


class TaskAttempt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a task says that it uploaded. `attempt` distinguishes attempts at the same task."""

    task: int
    attempt: int
    uploads: int
    events: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a commit found of an attempt.

    `schema_version` is the oldest with which events of it were checked; None without events.
    """

    uploads: int = 0
    content: Content = Content()
    schema_version: int | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """What the caller says its batch holds."""

    content: Content
    attempts: tuple[TaskAttempt, ...]
    digest_version: int = DIGEST_VERSION


class StoredRange(msgspec.Struct, frozen=True):
    """A batch's sequence numbers in one stored partition.

    Attributes:
        last: The last number, included.
        cursor: The feed's cursor after these events.
    """

    partition: int
    first: int
    last: int
    cursor: str


class StoredReceipt(msgspec.Struct, frozen=True, rename="camel"):
    """The record of a committed batch.

    Attributes:
        number: The number among the producer's receipts, from 1.
        level: The owner level of that run.
        ranges: The sequence numbers in each partition that has some of the events.
        positions: The first and the last position g; None without events.
        time: The time of the commit, in ms since 1970.
        previous: The hash of the producer's receipt before this one.
        hash: The hash of this receipt (see `chained`).
        schema_version: See `Call.split_by`.
    """

    number: int
    producer: str
    incarnation: str
    batch: int
    run: str
    level: int
    events: int
    digest: str
    digest_version: int
    partition_count: int
    ranges: tuple[StoredRange, ...]
    positions: tuple[int, int] | None
    time: int
    previous: str
    hash: str = ""
    schema_version: int | UnsetType = UNSET

    @property
    def identity(self) -> str:
        """Its content in short, as overrides name it."""
        return self.digest[:8]


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer of a feed, as of now; all zero while it is unknown.

    Attributes:
        level: The owner level of the current run.
        run: The run that committed last.
        last: The number of the last batch in `incarnation`; -1 before the first.
        receipts: How many batches it has committed.
        time: The time of its last commit, in ms since 1970.
        deleted: Whether it was deleted, which stays so for ever.
    """

    name: str
    incarnation: str = ""
    level: int = 0
    run: str = ""
    last: int = -1
    receipts: int = 0
    chain: str = ""
    time: int = 0
    deleted: bool = False


class Account(NamedTuple):
    """A producer with its numbers by stored partition, and its newest receipts, newest first."""

    state: ProducerState
    numbers: Mapping[int, Numbers]
    receipts: Sequence[StoredReceipt]


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """All facts by which `commit_decision.decide` decides.

    Attributes:
        last: The last batch in the caller's own incarnation; -1 before the first.
        run_known: Whether the caller's run has committed in its incarnation.
        sequences: The producer's numbers by stored partition; needed if the call says with which
            numbers it begins.
        made: How many producers the caller's client has begun; needed if this one is new.
        schema_version: The version of the feed's schema; 0 if it has none.
        schema_time: When it was set, in ms since 1970; needed for an upload.
        schema_since: The oldest version whose checked events keep that one.
    """

    producer: ProducerState
    partition_count: int
    last: int = -1
    run_known: bool = False
    receipt: StoredReceipt | None = None
    sequences: Mapping[int, Numbers] = field(default_factory=dict)
    made: int = 0
    schema_version: int = 0
    schema_time: int = 0
    schema_since: int = 0

    def number_of(self, call: Call) -> int:
        """Return the number of the call's batch, which is the next one if the call has none."""
        return self.last + 1 if call.batch is None else call.batch


def base(producer: str) -> str:
    """Return P of a named batch P#K, which is deleted with P and shares its quota."""
    return producer.partition("#")[0]


def receipt_for(
    known: CommitFacts, call: Call, declared: Declared, ranges: Iterable[StoredRange],
    heads: tuple[int, int], time: int,
) -> StoredReceipt:  # fmt: skip
    """Return the receipt of a batch that is to be published.

    A run gets the next owner level with the first batch that it commits. `heads` are the feed's
    head before and after the batch, `time` is in ms since 1970.
    """
    producer = known.producer
    same_run = (producer.run, producer.incarnation) == (call.run, call.incarnation)
    receipt = StoredReceipt(
        number=producer.receipts + 1,
        producer=call.producer,
        incarnation=call.incarnation,
        batch=known.number_of(call),
        run=call.run,
        level=producer.level + (not same_run),
        events=declared.content.events,
        digest=declared.content.digest,
        digest_version=declared.digest_version,
        partition_count=known.partition_count,
        ranges=tuple(ranges),
        positions=(heads[0] + 1, heads[1]) if heads[1] > heads[0] else None,
        time=time,
        previous=producer.chain,
        schema_version=call.split_by or UNSET,
    )
    return msgspec.structs.replace(receipt, hash=chained(receipt))


def chained(receipt: StoredReceipt) -> str:
    """Return the hash that a receipt must have.

    It is the SHA-256 of its JSON, without spaces, with sorted keys, and with an empty `hash`.
    """
    bare = msgspec.structs.replace(receipt, hash="")
    return hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()


def after(receipt: StoredReceipt) -> ProducerState:
    """Return the producer's state after its newest receipt."""
    return ProducerState(
        name=receipt.producer,
        incarnation=receipt.incarnation,
        level=receipt.level,
        run=receipt.run,
        last=receipt.batch,
        receipts=receipt.number,
        chain=receipt.hash,
        time=receipt.time,
    )


class StagingResult(Enum):
    """What became of an upload.

    It is NEW, or the SAME as one that was there already; or it is UNCHECKED and was not kept,
    because its events were not checked with the version that the feed's schema has.
    """

    NEW = auto()
    SAME = auto()
    UNCHECKED = auto()


class Batches(Protocol):
    """The batches of a store's feeds, their producers and receipts (see `Store`).

    Guarantee: a committed batch is durable as far as the store is, and visible as a whole, in all
    partitions at once. A reader that sees position g sees all positions before it.
    """

    def staged(self) -> dict[str, int]:
        """Return the bytes that are staged and not committed, by feed, for feeds that have any."""

    def admit(self, feed: str, call: Call) -> StoredReceipt | None:
        """Return None if an upload is wanted, as of now; the receipt if its batch is committed.

        Raises:
            Problem: The call is refused.
        """

    def stage(
        self, feed: str, call: Call, upload: Upload, quota: int | None = None
    ) -> StagingResult | StoredReceipt:
        """Keep an upload until `commit`, invisible to readers.

        Args:
            call: The producer and the batch.
            quota: Bytes that the producer may have staged; None for any number.

        Returns:
            Whether the upload is new; the receipt if its batch is committed.

        Raises:
            Problem: The call is refused.
        """

    def staged_chunks(self, feed: str, call: Call, attempts: Sequence[TaskAttempt]) -> int:
        """Return how many chunks these attempts have staged for the call's batch."""

    def commit(self, feed: str, call: Call, declared: Declared) -> tuple[StoredReceipt, bool]:
        """Publish a batch of exactly the attempts that `declared` names.

        Its events are ordered by partition, task, number of the upload, and order in the upload.

        Returns:
            The receipt, and whether the batch is new; False if it was committed before.

        Raises:
            Problem: The call is refused, and nothing is published.
        """

    def release(
        self,
        feed: str,
        producer: str,
        batch: int | None,
        run: str,
        attempt: tuple[int, int] | None = None,
    ) -> int:
        """Delete what a run, or one attempt (task, attempt) of it, has staged for a batch.

        Nothing that is committed is deleted. Returns the number of uploads.
        """

    def tidy(self) -> bool:
        """Delete some of what is staged and needed no more: old, overtaken or committed.

        Returns:
            Whether there was any. Callers repeat it until there is none.
        """

    def producers(self, feed: str, after: str = "", limit: int = 1 << 31) -> list[ProducerState]:
        """Return all producers that ever published, sorted by name, after the name `after`."""

    def accounts(self, feed: str, after: str, limit: int, receipts: int) -> list[Account]:
        """Return such producers, each with its numbers and so many of its newest receipts."""

    def producer(self, feed: str, name: str) -> ProducerState:
        """Return a producer's state, after commits under way; all zero if it never published."""

    def sequences(self, feed: str, name: str) -> dict[int, Numbers]:
        """Return a producer's numbers by stored partition, for those that have events of it."""

    def receipt(
        self, feed: str, name: str, batch: int, incarnation: str | None
    ) -> StoredReceipt | None:
        """Return the receipt of a batch, after commits under way; None if it is not committed.

        Args:
            name: The producer.
            batch: The number of the batch.
            incarnation: The incarnation; None for the current one.

        Raises:
            Problem: The batch is so old that its receipt is gone.
        """

    def receipts(self, feed: str, name: str, below: int, limit: int) -> list[StoredReceipt]:
        """Return the newest receipts whose number is less than `below`, the newest first."""
