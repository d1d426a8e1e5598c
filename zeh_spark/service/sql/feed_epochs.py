"""A feed's id and its epochs, as the store keeps them: the id of the next epoch, and its time.

Each store keeps the later epochs of a feed; the first one is implicit (the feed's id, time 0).
Every store decides with the functions here, which have no side effects, except for the random id of
a copy.

Invariant, which `Administration.begin_epoch` keeps: events committed before an epoch began have a
`zeh-time` below the epoch's time, and events committed after it have one at or above it, even if
the clock goes back. The feed's row therefore gets the epoch's time, and a commit takes the later of
its clock and the feed's time (`commit_plan.published`). An epoch that begins `since` an earlier
time also has the events from then on: those that were published between a restore and the command.

The number of a later epoch is the second in which it began. A restore to a state before an epoch
takes the epoch back, but readers may have read events of it. So the next epoch must not get the
same id, or its events would be taken for those, nor a lower number, or they would be taken for
older ones. Rejected: to count 1, 2, 3, which gives the same id again when a backup is restored for
the second time; random numbers, which may be lower then.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from zeh_spark.errors import StoreError
from zeh_spark.service.store.log import FeedState
from zeh_spark.wire.feed_identity import Epoch, FeedIdentity, feed_of

_NUMBERED_FROM = 1_577_836_800_000
"""2020-01-01, in ms since 1970: numbers of epochs are seconds since then, until 2051."""

_MAX_NUMBER = 999_999_999
"""The highest number with as many digits as `feed_identity.EPOCH` allows."""


def identity_of(feed: FeedState, later: Sequence[Epoch]) -> FeedIdentity:
    """Return the identity of a feed with these later epochs, which are ordered by time."""
    epochs = (Epoch(feed.origin[:8].hex()), *later)
    return FeedIdentity(feed_of(epochs[-1].id), epochs)


def next_epoch(
    feed: FeedState, known: FeedIdentity, now: int, *, copy: bool, since: int | None = None
) -> Epoch:
    """Return the epoch to begin.

    `feed` is locked: nothing is committed to it meanwhile. With `copy` the store is one that is
    used beside the original, and its feed gets a new id. Events belong to the epoch from `since`
    on, in ms since 1970; None: from now on. Raises StoreError if no number is left for a later
    epoch, because the clock is far ahead; or `since` is in the future, or not after the beginning
    of the last epoch.
    """
    last = known.epochs[-1]
    time = max(now, feed.time + 1, last.time + 1)
    if since is not None:
        if not last.time < since <= time:
            raise StoreError(
                f"feed {feed.name!r}: an epoch cannot begin at {since} ms since 1970: the last one "
                f"began at {last.time}, and it is {time} now. Give a time between the two",
                anchor="an-epoch-cannot-begin",
            )
        time = since
    if copy:
        return Epoch(secrets.token_hex(8), time)
    number = max(int(last.id.partition("~")[2] or 0) + 1, (now - _NUMBERED_FROM) // 1000)
    if number > _MAX_NUMBER:
        raise StoreError(
            f"feed {feed.name!r}: an epoch that begins at {now} ms since 1970 would get the number "
            f"{number}; the largest one is {_MAX_NUMBER}. Set the clock right; or give the feed a "
            f"new id: zeh-spark new-history --copy",
            anchor="an-epoch-cannot-begin",
        )
    return Epoch(f"{known.id}~{number}", time)


def over_at(epoch: Epoch) -> int:
    """Return when the second of the epoch's number is over, in ms since 1970; 0 without a number.

    `begin_epoch` waits for it, so that the next epoch gets a higher number, even if a restore has
    taken this one back meanwhile.
    """
    number = epoch.id.partition("~")[2]
    return _NUMBERED_FROM + (int(number) + 1) * 1000 if number else 0
