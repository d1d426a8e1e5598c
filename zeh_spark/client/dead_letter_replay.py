"""Publish repaired dead letters to a feed, each once. Runs in commands.

Each dead letter is a batch of its own: a named batch of the producer whose row it was. Its name is
made of what its feed stamped on it, so the publisher knows it again in whatever file and however
often it comes. Rejected: several dead letters in one batch. A file that overlaps with another one
would be another batch, and would double them.

The name covers the dead-letter feed (`zeh-feed`), so that dead letters of two feeds with the same
stamps are both published.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from zeh_spark.client.http.publish_client import BatchCall, PublishClient
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.client.options.given import parse
from zeh_spark.client.producer import Producer
from zeh_spark.errors import OutcomeUnknownError, PublishError, UnavailableError
from zeh_spark.wire import problems
from zeh_spark.wire.dead_letters import DeadLetter, DeadLetterId, DeadRow, Unreadable
from zeh_spark.wire.partitioning import placed
from zeh_spark.wire.wire import BATCH_INCARNATION

_OF_ONE = {
    problems.BATCH_CONFLICT.name, problems.BATCH_EXPIRED.name, problems.PRODUCER_DELETED.name,
}  # fmt: skip
"""Refusals that are about one dead letter, or one producer's: the others are published."""


class Outcome(Enum):
    """What became of a dead letter."""

    PUBLISHED = "published"
    REPEATED = "published before"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class RepairedLetter:
    """A repaired dead letter that can be published."""

    line: int
    place: DeadLetterId
    row: DeadRow
    data: bytes

    @property
    def event(self) -> tuple[object, ...]:
        """Return what is published; two repairs of a dead letter are equal if this is equal."""
        return self.data, self.row.key, self.row.partition, self.row.headers or {}


@dataclass(frozen=True, slots=True)
class Replayed:
    """A dead letter and its outcome, with the reason if it was refused."""

    letter: RepairedLetter
    outcome: Outcome
    reason: str = ""


def repaired(
    letters: Iterable[DeadLetter], partition_count: int, *, keep_key: bool = False
) -> list[RepairedLetter]:
    """Return the dead letters that have an event, after the checks that the sink makes.

    A dead letter that comes several times is returned once. Raises Unreadable if one cannot be
    published, or comes again and is repaired in another way.
    """
    found: dict[DeadLetterId, RepairedLetter] = {}
    for letter in letters:
        try:
            if (row := letter.row) is None:
                continue
            data = row.event()
            placed(partition_count, data, row.key, row.partition, row.headers, keep_key)
        except ValueError as exc:
            raise Unreadable(letter.line, str(exc)) from None
        each = RepairedLetter(letter.line, letter.place, row, data)
        first = found.setdefault(letter.place, each)
        if first.event != each.event:
            raise Unreadable(
                letter.line,
                f"it is the dead letter of line {first.line}, repaired in another way; keep one of "
                f"these lines",
            )
    return list(found.values())


def partition_count(url: str, **options: str) -> int:
    """Return the number of partitions of a feed that a publisher of `zeh_spark` serves."""
    client = PublishClient(parse(ClientOptions, {"url": url, **options}))
    # Every batch tells it, also one that is not there. That of a dead letter might be refused.
    unknown = BatchCall("replay-dead", BATCH_INCARNATION, uuid.uuid4().hex, 0)
    return client.look_up(unknown).partition_count


def replay(
    url: str, letters: Sequence[RepairedLetter], *, keep_key: bool = False, **options: Any
) -> Iterator[Replayed]:
    """Publish dead letters one after the other, and continue after those that are refused.

    The same call can be repeated after an error: it publishes those that are left. After
    UnavailableError, the dead letters before this one are published. Raises PublishError if the
    publisher refuses to publish at all.
    """
    producers: dict[str, Producer] = {}
    for each in letters:
        name, row = each.place.base, each.row
        if name not in producers:
            producers[name] = Producer(url, name, **options)
        by = producers[name]
        try:
            with by.batch(each.place.name) as batch:
                batch.add(
                    each.data,
                    key=row.key,
                    partition=row.partition,
                    headers=row.headers,
                    keep_key=keep_key,
                )
        except PublishError as exc:
            if exc.problem not in _OF_ONE:
                raise
            yield Replayed(each, Outcome.REFUSED, _reason(each, exc))
            continue
        except OutcomeUnknownError as exc:
            raise UnavailableError(
                f"it is not known whether the dead letter of line {each.line} was published: its "
                f"commit was not answered. Give the same dead letters again; none is published "
                f"twice.",
            ) from exc
        published = batch.receipt.run == by.run
        yield Replayed(each, Outcome.PUBLISHED if published else Outcome.REPEATED)


def _reason(letter: RepairedLetter, refusal: PublishError) -> str:
    """Return why a dead letter was refused, as one sentence or two without the last full stop."""
    if refusal.problem == problems.BATCH_CONFLICT.name:
        return (
            f"this dead letter was published before, repaired in another way, as batch "
            f"{letter.place.base}#{letter.place.name}"
        )
    if refusal.problem == problems.BATCH_EXPIRED.name:
        return (
            f"this dead letter was published before, as batch {letter.place.base}#"
            f"{letter.place.name}, so long ago that it cannot be compared any more"
        )
    return (
        f"producer {letter.place.base!r} was deleted on that feed. Publish the event under another "
        f"one: zeh-spark publish"
    )
