"""What a producer, its batches and their receipts are. Values, no decisions.

A batch is known by producer, incarnation (the writer's memory: Spark's checkpoint) and number; its
content by count and sum (`upload_format.Content`). A run is one start of the writer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from zeh_spark.protocol.upload_format import DIGEST_VERSION, Content, StagedChunk

RECEIPTS = 1000
"""Receipts that a store keeps for each producer, unless it is opened with another number: batches
older than that can be neither confirmed nor denied.
"""

MAX_NUMBER = 2**53 - 1
"""Of batches and sequence numbers: what every JSON reader can hold."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What an operator allows once, in the words of the error that asked for it."""

    accept_gap: str | None = None
    replace_incarnation: str | None = None
    keep_first: str | None = None

    @staticmethod
    def named(given: Mapping[str, str]) -> Overrides:
        """Out of parameters or options, by the names that refusals print."""
        return Overrides(
            given.get("acceptGap"), given.get("replaceIncarnation"), given.get("keepFirst")
        )


@dataclass(frozen=True, slots=True)
class Call:
    """Who calls, and for which batch. `batch` None takes the next number when it is committed.

    `partition_count` is the feed's as the caller knows it.
    """

    producer: str
    incarnation: str
    run: str
    batch: int | None
    partition_count: int
    overrides: Overrides = Overrides()


@dataclass(frozen=True, slots=True)
class Upload:
    """A part of a batch, by task, attempt and number within it. `digest` tells it from others: the
    SHA-256 of its body.
    """

    task: int
    attempt: int
    number: int
    digest: bytes
    chunks: tuple[StagedChunk, ...]

    @property
    def content(self) -> Content:
        return sum((each.content for each in self.chunks), Content())

    @property
    def bytes(self) -> int:
        return sum(len(each.frame) for each in self.chunks)


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """What a task says that it uploaded. `attempt` tells tries of the same task apart."""

    task: int
    attempt: int
    uploads: int
    events: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a commit found of an attempt."""

    uploads: int = 0
    content: Content = Content()


@dataclass(frozen=True, slots=True)
class Declared:
    """What the caller says its batch holds."""

    content: Content
    attempts: tuple[TaskAttempt, ...]
    digest_version: int = DIGEST_VERSION


class StoredRange(msgspec.Struct, frozen=True):
    """A batch's sequence numbers in one stored partition, both ends included, and the feed's cursor
    behind it.
    """

    partition: int
    first: int
    last: int
    cursor: str


class StoredReceipt(msgspec.Struct, frozen=True, rename="camel"):
    """That a batch was committed, and how. `number` counts a producer's receipts from 1; `previous`
    is the hash of the one before; `hash` is that of this one, see `chained`.
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

    @property
    def identity(self) -> str:
        """Its content, short, as overrides name it."""
        return self.digest[:8]


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer of a feed, as of now; all zero while it is unknown.

    `last` is the last batch of `incarnation`; `time`, in ms since 1970, and `chain`, the hash of
    its receipt, are those of the last commit. A deleted producer leaves this behind, for ever.
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


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """All that `decide` goes by. `last`: the last batch of the caller's own incarnation, -1 if it
    never committed one; `run_known`: whether the caller's run has committed in it; `receipt`: that
    of the caller's batch.
    """

    producer: ProducerState
    partition_count: int
    last: int = -1
    run_known: bool = False
    receipt: StoredReceipt | None = None


def base(producer: str) -> str:
    """P of the named batch P#K, which is deleted with P and shares its quota."""
    return producer.partition("#")[0]


def receipt_for(
    known: CommitFacts, call: Call, declared: Declared, ranges: Iterable[StoredRange],
    heads: tuple[int, int], time: int,
) -> StoredReceipt:  # fmt: skip
    """The receipt of a batch that `decide` says to publish; `heads`: the feed's before and behind.

    A run takes the next owner level with the first batch that it commits.
    """
    producer = known.producer
    same_run = (producer.run, producer.incarnation) == (call.run, call.incarnation)
    receipt = StoredReceipt(
        number=producer.receipts + 1,
        producer=call.producer,
        incarnation=call.incarnation,
        batch=known.last + 1 if call.batch is None else call.batch,
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
    )
    return msgspec.structs.replace(receipt, hash=chained(receipt))


def chained(receipt: StoredReceipt) -> str:
    """The hash that a receipt has to have: the SHA-256 of its JSON, without spaces, keys sorted,
    `hash` empty.
    """
    bare = msgspec.structs.replace(receipt, hash="")
    return hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()


def after(receipt: StoredReceipt) -> ProducerState:
    """The producer behind its newest receipt."""
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
