"""Publish repaired dead letters to a feed, each once. Runs in commands.

Each dead letter is a batch of its own: a named batch of the producer whose row it was. Its name is
made of what its feed stamped on it, so the publisher knows it again in whatever file and however
often it comes. Rejected: several dead letters in one batch. A file that overlaps with another one
would be another batch, and would double them.

The name covers the dead-letter feed (`zeh-feed`), so that dead letters of two feeds with the same
stamps are both published. The three forms of `zeh-feed`:

1. An id: it is part of the name.
2. A URL, because the feed's publisher told no id when the dead letter was printed: the name leaves
   it out, and is the one that older versions gave.
3. None, because an older version printed the dead letter. The line does not say whether the feed
   has an id, so the caller has to name the feed; discovery then gives the dead letter form 1 or 2.
   Without that it is refused. Rejected: to take form 2 for it. A dead letter that was published
   under form 1 would be published again, without an error.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from zeh_spark.client.discovery import discover
from zeh_spark.client.publish_client import BatchCall, PublishClient
from zeh_spark.client.transport import Transport
from zeh_spark.errors import OutcomeUnknownError, PublishError, UnavailableError
from zeh_spark.options.client_options import ClientOptions
from zeh_spark.options.given import parse
from zeh_spark.protocol import problems
from zeh_spark.protocol.dead_letters import DeadLetter, DeadLetterId, DeadRow, Unreadable
from zeh_spark.protocol.feed_identity import HEADER, FeedIdentity
from zeh_spark.protocol.partitioning import placed
from zeh_spark.protocol.wire import BATCH_INCARNATION
from zeh_spark.publish import Producer

_OF_ONE = {problems.BATCH_CONFLICT.name, problems.PRODUCER_DELETED.name}
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
    letters: Iterable[DeadLetter],
    partition_count: int,
    letters_of: FeedIdentity | None = None,
    *,
    keep_key: bool = False,
) -> list[RepairedLetter]:
    """Return the dead letters that have an event, after the checks that the sink makes.

    A dead letter that comes several times is returned once. `letters_of` is the dead-letter feed of
    those that do not name theirs (`zeh-feed`). Raises Unreadable if one cannot be published, comes
    again and is repaired in another way, or does not name its feed and `letters_of` is None.
    """
    found: dict[DeadLetterId, RepairedLetter] = {}
    named: dict[DeadLetterId, RepairedLetter] = {}
    for letter in letters:
        try:
            row = letter.row
            if row is None:
                continue
            place = _in_feed(letter.place, letters_of)
            each = _repaired(letter.line, place, row, partition_count, keep_key)
        except ValueError as exc:
            raise Unreadable(letter.line, str(exc)) from None
        _check_feed(each, named.setdefault(place.without_feed, each))
        first = found.setdefault(place, each)
        if first.event != each.event:
            raise Unreadable(
                letter.line,
                f"it is the dead letter of line {first.line}, repaired in another way; keep one of "
                f"these lines",
            )
    return list(found.values())


def _in_feed(place: DeadLetterId, letters_of: FeedIdentity | None) -> DeadLetterId:
    """Return the place with its feed: the one that the dead letter names, else `letters_of`.

    Raises ValueError if there is neither.
    """
    if letters_of:
        return place.in_feed(letters_of)
    if place.feed is None:
        raise ValueError(
            f"it does not say which dead-letter feed it is from: it has no header {HEADER!r}, "
            f"because an older version of zeh-spark printed it. It could be published a second "
            f"time. Print it again with zeh-spark dead-letters and repair it, or name that feed "
            f"with the option --letters-of URL"
        )
    return place


def _check_feed(letter: RepairedLetter, other: RepairedLetter) -> None:
    """Refuse two dead letters of which only one names its feed by an id.

    They have the same stamps, and nothing tells whether they are the same dead letter.
    """
    if letter.place.has_feed == other.place.has_feed:
        return
    lacks, has = sorted((letter, other), key=lambda each: each.place.has_feed)
    raise Unreadable(
        letter.line,
        f"the dead letters of lines {lacks.line} and {has.line} may be the same one: only line "
        f"{has.line} has the header {HEADER!r} with a feed's id. Print that of line {lacks.line} "
        f"again with zeh-spark dead-letters, and repair it",
    )


def _repaired(
    line: int, place: DeadLetterId, row: DeadRow, partition_count: int, keep_key: bool
) -> RepairedLetter:
    """Return a dead letter as it is published. Raises ValueError if the sink would refuse it."""
    data = row.event()
    placed(partition_count, data, row.key, row.partition, row.headers, keep_key)
    return RepairedLetter(line, place, row, data)


def partition_count(url: str, **options: str) -> int:
    """Return the number of partitions of a feed that a publisher of `zeh_spark` serves."""
    client = PublishClient(parse(ClientOptions, {"url": url, **options}))
    # Every batch tells it, also one that is not there. That of a dead letter might be refused.
    unknown = BatchCall("replay-dead", BATCH_INCARNATION, uuid.uuid4().hex, 0)
    return client.look_up(unknown).partition_count


def identity_of(url: str, **options: str) -> FeedIdentity:
    """Return the identity of the feed at a URL.

    A feed whose publisher tells no id is named by the URL, as `zeh-spark dead-letters` prints it.
    """
    transport = Transport(parse(ClientOptions, {"url": url, **options}))
    return discover(transport).named(transport.url.identity)


def replay(
    url: str, letters: Sequence[RepairedLetter], *, keep_key: bool = False, **options: Any
) -> Iterator[Replayed]:
    """Publish dead letters one after the other, and continue after those that are refused.

    The same call can be repeated after an error: it publishes those that are left. After
    UnavailableError, the dead letters before this one are published. Raises PublishError if the
    publisher refuses to publish at all.
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
            yield Replayed(each, Outcome.REFUSED, _reason(each, place, exc))
            continue
        except OutcomeUnknownError as exc:
            raise UnavailableError(
                f"it is not known whether the dead letter of line {each.line} was published: its "
                f"commit was not answered. Give the same dead letters again; none is published "
                f"twice.",
                anchor="the-publisher-does-not-answer",
            ) from exc
        published = batch.receipt.run == by.run
        yield Replayed(each, Outcome.PUBLISHED if published else Outcome.REPEATED)


def _name(client: PublishClient, place: DeadLetterId, run: str) -> str:
    """Return the name of the batch that publishes a dead letter.

    Older versions left the feed out of it. A dead letter that they have published keeps that name:
    under it the publisher knows the dead letter, and compares it.
    """
    older = place.without_feed
    if place.name == older.name:
        return place.name
    before = BatchCall(f"{place.base}#{older.name}", BATCH_INCARNATION, run, 0)
    return older.name if client.look_up(before).receipt else place.name


def _reason(letter: RepairedLetter, name: str, refusal: PublishError) -> str:
    """Return why a dead letter was refused, as one sentence or two without the last full stop."""
    if refusal.problem == problems.BATCH_CONFLICT.name:
        return (
            f"this dead letter was published before, repaired in another way, as batch "
            f"{letter.place.base}#{name}"
        )
    return (
        f"producer {letter.place.base!r} was deleted on that feed. Publish the event under another "
        f"one: zeh-spark publish"
    )
