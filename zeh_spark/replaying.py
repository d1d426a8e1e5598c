"""Mended dead letters back onto a feed, each once.

Each letter is a batch of its own, with a name that is made of what its feed stamped on it. So it is
known again, whatever file it comes in, and however often [several letters in one batch: a file that
overlaps with another one would be another batch, and double them]. It is a named batch of the
producer whose row it was.

Runs in commands.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from zeh_spark.chunks import Chunker
from zeh_spark.dead_letters import Letter, Place, Row, Unreadable
from zeh_spark.errors import OutcomeUnknownError, PublishError, UnavailableError
from zeh_spark.events import partition_for
from zeh_spark.identity import HEADER
from zeh_spark.options import ClientOptions, parse
from zeh_spark.publish import Producer
from zeh_spark.publish_client import Batch, PublishClient
from zeh_spark.wire import BATCH_INCARNATION

_OF_ONE = {"batch-conflict", "producer-deleted"}
"""Refusals that are about one letter, or one producer's: the others are published."""


class Outcome(Enum):
    """What became of a letter."""

    PUBLISHED = "published"
    REPEATED = "published before"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Mended:
    """A letter that can be published."""

    line: int
    place: Place
    row: Row
    data: bytes

    @property
    def event(self) -> tuple[object, ...]:
        return self.data, self.row.key, self.row.partition, self.row.headers or {}


@dataclass(frozen=True, slots=True)
class Replayed:
    """`reason`: why it was refused."""

    letter: Mended
    outcome: Outcome
    reason: str = ""


def mended(letters: Iterable[Letter], partition_count: int) -> list[Mended]:
    """All that have an event, judged as the sink does. A letter that comes again is there once.

    Raises Unreadable for one that cannot be published, or comes again mended in another way.
    """
    found: dict[Place, Mended] = {}
    named: dict[Place, Mended] = {}
    for letter in letters:
        try:
            row = letter.row
            if row is None:
                continue
            each = _mended(letter, row, partition_count)
        except ValueError as exc:
            raise Unreadable(letter.line, str(exc)) from None
        _check_feed(each, named.setdefault(letter.place.without_feed, each))
        first = found.setdefault(letter.place, each)
        if first.event != each.event:
            raise Unreadable(
                letter.line, f"it is the letter of line {first.line}, mended in another way"
            )
    return list(found.values())


def _check_feed(letter: Mended, other: Mended) -> None:
    """Refuse two letters of which only one says from which feed it was read: whether they are the
    same letter cannot be told.
    """
    if letter.place.has_feed == other.place.has_feed:
        return
    lacks, has = sorted((letter, other), key=lambda each: each.place.has_feed)
    raise Unreadable(
        letter.line,
        f"the letters of lines {lacks.line} and {has.line} may be the same one: only line "
        f"{has.line} has the header {HEADER!r} with a feed's id; print that of line {lacks.line} "
        f"again with zeh-spark dead-letters, and mend it",
    )


def _mended(letter: Letter, row: Row, partition_count: int) -> Mended:
    data = row.event()
    partition = partition_for(row.key, row.partition, partition_count)
    longest = partition_count - 1 if partition is None else partition
    Chunker().add(longest, row.headers or {}, data)
    return Mended(letter.line, letter.place, row, data)


def partition_count(url: str, **options: str) -> int:
    """Of a feed of our publisher."""
    client = PublishClient(parse(ClientOptions, {"url": url, **options}))
    nobody = Batch("replay-dead", BATCH_INCARNATION, uuid.uuid4().hex, 0)
    return client.look_up(nobody).partition_count


def replay(url: str, letters: Sequence[Mended], **options: str) -> Iterator[Replayed]:
    """Publish letters, one after the other; round those that are refused.

    Raises what publishing raises; those before are published, and the same call goes on there.
    """
    client = PublishClient(parse(ClientOptions, {"url": url, **options}))
    producers: dict[str, Producer] = {}
    for each in letters:
        name, row, place = each.place.base, each.row, each.place.name
        if name not in producers:
            producers[name] = Producer(url, name, **options)
        by = producers[name]
        try:
            place = _name(client, each.place, by.run)
            with by.batch(place) as batch:
                batch.add(each.data, key=row.key, partition=row.partition, headers=row.headers)
        except PublishError as exc:
            if exc.problem not in _OF_ONE:
                raise
            yield Replayed(each, Outcome.REFUSED, _reason(each, place, exc))
            continue
        except OutcomeUnknownError as exc:
            raise UnavailableError(
                f"whether the letter of line {each.line} was published is not known: its commit "
                f"was not answered; give the same letters again, none is published twice"
            ) from exc
        published = batch.receipt.run == by.run
        yield Replayed(each, Outcome.PUBLISHED if published else Outcome.REPEATED)


def _name(client: PublishClient, place: Place, run: str) -> str:
    """Return the name of the batch that publishes a letter.

    Older versions left the feed out of it. A letter that they have published keeps that name: under
    it the publisher knows the letter, and compares it.
    """
    older = place.without_feed
    if place.name == older.name:
        return place.name
    before = Batch(f"{place.base}#{older.name}", BATCH_INCARNATION, run, 0)
    return older.name if client.look_up(before).receipt else place.name


def _reason(letter: Mended, name: str, refusal: PublishError) -> str:
    if refusal.problem == "batch-conflict":
        return (
            f"this letter was published before, mended in another way, as batch "
            f"{letter.place.base}#{name}"
        )
    return (
        f"producer {letter.place.base!r} was deleted on that feed; publish the event under another "
        f"one: zeh-spark publish"
    )
