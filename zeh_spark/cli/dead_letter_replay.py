"""Mended dead letters back onto a feed, each once.

Each letter is a batch of its own, with a name that is made of what its feed stamped on it. So it is
known again, whatever file it comes in, and however often [several letters in one batch: a file that
overlaps with another one would be another batch, and double them]. It is a named batch of the
producer whose row it was.

The name covers the dead-letter feed (`zeh-feed`), so that letters of two feeds with the same stamps
are both published. The three forms of `zeh-feed`:

1. An id: it is part of the name.
2. A URL, because the feed's publisher told no id when the letter was printed: the name leaves it
   out, and is the one that older versions gave.
3. None, because an older version printed the letter. The line does not say whether the feed has an
   id, so the caller has to name the feed; discovery then gives the letter form 1 or 2. Without
   that it is refused. Rejected: to take form 2 for it. A letter that was published under form 1
   would be published again, silently.

Runs in commands.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from zeh_spark.client.feed_client import FeedClient
from zeh_spark.client.publish_client import BatchCall, PublishClient
from zeh_spark.errors import OutcomeUnknownError, PublishError, UnavailableError
from zeh_spark.options import ClientOptions, parse
from zeh_spark.protocol import problems
from zeh_spark.protocol.dead_letters import DeadLetter, DeadLetterId, DeadRow, Unreadable
from zeh_spark.protocol.events import partition_for
from zeh_spark.protocol.feed_identity import HEADER, FeedIdentity
from zeh_spark.protocol.upload_format import Chunker
from zeh_spark.protocol.wire import BATCH_INCARNATION
from zeh_spark.publish import Producer

_OF_ONE = {problems.BATCH_CONFLICT.name, problems.PRODUCER_DELETED.name}
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
    place: DeadLetterId
    row: DeadRow
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


def mended(
    letters: Iterable[DeadLetter], partition_count: int, letters_of: FeedIdentity | None = None
) -> list[Mended]:
    """All that have an event, judged as the sink does. A letter that comes again is there once.

    Args:
        partition_count: of the feed that the letters are published to.
        letters_of: the dead-letter feed of the letters that do not name theirs (`zeh-feed`).

    Raises Unreadable for one that cannot be published, or comes again mended in another way, or
    does not name its feed if there is no `letters_of`.
    """
    found: dict[DeadLetterId, Mended] = {}
    named: dict[DeadLetterId, Mended] = {}
    for letter in letters:
        try:
            row = letter.row
            if row is None:
                continue
            place = _in_feed(letter.place, letters_of)
            each = _mended(letter.line, place, row, partition_count)
        except ValueError as exc:
            raise Unreadable(letter.line, str(exc)) from None
        _check_feed(each, named.setdefault(place.without_feed, each))
        first = found.setdefault(place, each)
        if first.event != each.event:
            raise Unreadable(
                letter.line, f"it is the letter of line {first.line}, mended in another way"
            )
    return list(found.values())


def _in_feed(place: DeadLetterId, letters_of: FeedIdentity | None) -> DeadLetterId:
    """Return the place with its feed: the one that the letter names, else `letters_of`.

    Raises ValueError if there is neither.
    """
    if letters_of:
        return place.in_feed(letters_of)
    if place.feed is None:
        raise ValueError(
            f"it does not say which dead-letter feed it is from (it has no header {HEADER!r}, an "
            f"older version of zeh-spark printed it), so it could be published a second time; "
            f"print it again with zeh-spark dead-letters, and mend it, or name that feed with the "
            f"option --letters-of URL"
        )
    return place


def _check_feed(letter: Mended, other: Mended) -> None:
    """Refuse two letters of which only one names its feed by an id: whether they are the same
    letter cannot be told.
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


def _mended(line: int, place: DeadLetterId, row: DeadRow, partition_count: int) -> Mended:
    data = row.event()
    partition = partition_for(row.key, row.partition, partition_count)
    longest = partition_count - 1 if partition is None else partition
    Chunker().add(longest, row.headers or {}, data)
    return Mended(line, place, row, data)


def partition_count(url: str, **options: str) -> int:
    """Of a feed of our publisher."""
    client = PublishClient(parse(ClientOptions, {"url": url, **options}))
    nobody = BatchCall("replay-dead", BATCH_INCARNATION, uuid.uuid4().hex, 0)
    return client.look_up(nobody).partition_count


def identity_of(url: str, **options: str) -> FeedIdentity:
    """Ask which feed a URL leads to. A feed whose publisher tells no id is named by the URL, as
    `zeh-spark dead-letters` prints it.

    Raises ZeroEventHubError, also for an address at which there is no feed.
    """
    client = FeedClient(parse(ClientOptions, {"url": url, **options}))
    return client.discover().named(client.transport.url.identity)


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


def _name(client: PublishClient, place: DeadLetterId, run: str) -> str:
    """Return the name of the batch that publishes a letter.

    Older versions left the feed out of it. A letter that they have published keeps that name: under
    it the publisher knows the letter, and compares it.
    """
    older = place.without_feed
    if place.name == older.name:
        return place.name
    before = BatchCall(f"{place.base}#{older.name}", BATCH_INCARNATION, run, 0)
    return older.name if client.look_up(before).receipt else place.name


def _reason(letter: Mended, name: str, refusal: PublishError) -> str:
    if refusal.problem == problems.BATCH_CONFLICT.name:
        return (
            f"this letter was published before, mended in another way, as batch "
            f"{letter.place.base}#{name}"
        )
    return (
        f"producer {letter.place.base!r} was deleted on that feed; publish the event under another "
        f"one: zeh-spark publish"
    )
