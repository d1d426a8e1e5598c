"""A feed's id and its epochs, as the store keeps them: which id the next epoch gets, and from when.

Each store keeps the later epochs of a feed; the first one is implicit (the feed's id, time 0).
Every store decides with the functions here. Pure but for the random digits.

Invariant, which `Store.begin_epoch` keeps: events committed before an epoch began have a `zeh-time`
below the epoch's time, events committed after it have one at or above it, also if the clock goes
back. The feed's row therefore gets the epoch's time, and a commit takes the later of its clock and
the feed's time (`publication.published`).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from zeh_spark.identity import Epoch, FeedIdentity, feed_of
from zeh_spark.publisher.store import FeedState

_MAX_NUMBER = 999_999_999
_SHARE = 100
"""A new number is drawn from the next hundredth of those that are left."""


def identity_of(feed: FeedState, later: Sequence[Epoch]) -> FeedIdentity:
    """Return the identity of a feed whose later epochs are these, by time."""
    epochs = (Epoch(feed.origin[:8].hex()), *later)
    return FeedIdentity(feed_of(epochs[-1].id), epochs)


def next_epoch(feed: FeedState, known: FeedIdentity, now: int, *, copy: bool) -> Epoch:
    """Return the epoch to begin.

    Args:
        feed: the feed as of now, locked: nothing is committed to it meanwhile.
        known: its identity so far.
        now: the clock, in ms since 1970.
        copy: the store is a copy that goes on beside the original; its feed gets a new id.
    """
    last = known.epochs[-1]
    time = max(now, feed.time + 1, last.time + 1)
    return Epoch(secrets.token_hex(8) if copy else _later_id(known.id, last.id), time)


def _later_id(feed: str, last: str) -> str:
    """Return the id of an epoch: its number is above the last one's, by a random amount.

    A restore to a state before an epoch takes the epoch back, and events that were published in it
    have been read. The next epoch must not get the same id: its events would be taken for those.
    Rejected: the last number + 1, which gives that id again after the second restore of a backup.
    """
    number = int(last.partition("~")[2] or 0)
    more = secrets.randbelow(max(1, (_MAX_NUMBER - number) // _SHARE))
    return f"{feed}~{number + 1 + more}"
