"""Decide whether a store's clock is trusted, because a wrong one would remove events too early.

A store knows a *sign*: the latest time that was known to be right. A publisher writes it once a
minute. A clock that is far ahead of it has jumped, or nobody has served the store meanwhile; which
of them, only an operator knows.

- More than a day ahead: nothing is removed by age for a day, so that somebody can see the warning.
- More than a year ahead: commits and epochs are refused, and nothing is removed by age either,
  until somebody says that the clock is right. Their times would be kept for ever, because the times
  of a feed never go back, and retention by age would wait until then.

`zeh-spark clock --accept` says that the clock is right. A clock that is behind removes too little,
which is only logged.

Rule for editors: pure, except for what is asked of the store.
"""

from __future__ import annotations

from collections.abc import Callable

from zeh_spark.errors import StoreError
from zeh_spark.service.store.interface import Store, StoreBusyError
from zeh_spark.wire.phrases import moment

DAY_MS = 86_400_000
AHEAD_MS = DAY_MS
"""How far a clock may be ahead of the last sign, in ms, so that events are removed by age."""

FAR_MS = 366 * DAY_MS
"""How far it may be ahead, in ms, so that batches are committed."""

_REMEDY = "Set the clock right; or, if it is right, run zeh-spark clock --accept"


def sign(store: Store) -> int:
    """Return the latest time known to be right, in ms since 1970; 0 if there is none yet.

    It is that of the publisher that served the store last; without one, that of the last commit.
    """
    return store.clock_seen() or max((each.time for each in store.feeds()), default=0)


def is_believed(now: int, sign: int) -> bool:
    """Return whether events may be removed by age, at a time `now` and with the last `sign`."""
    return not sign or now - sign <= AHEAD_MS


def may_commit(now: int, sign: int) -> bool:
    """Return whether batches may be committed, at a time `now` and with the last `sign`."""
    return not sign or now - sign <= FAR_MS


def check_removal(store: Store) -> None:
    """Raise StoreError if events may not be removed by age, because the clock is not believed."""
    now, last = store.now(), sign(store)
    if not is_believed(now, last):
        raise StoreError(
            f"nothing is removed by age: {ahead(now, last)}. {_REMEDY}", anchor="the-clock-is-ahead"
        )


def check_commit(
    now: int,
    last: int,
    sign: Callable[[], int],
    consequence: str = "the publisher commits nothing",
) -> None:
    """Refuse a commit, or an epoch, whose time would be far ahead of all that the store knows.

    `now` and `last`, the time of the feed's last commit, are in ms since 1970. `sign` returns the
    latest time that the store knows of; 0 if there is none. Raises StoreBusyError if the clock is
    more than `FAR_MS` ahead.
    """
    if now - last <= FAR_MS:
        return
    known = sign()
    if not may_commit(now, known):
        raise StoreBusyError(
            f"{consequence}: {ahead(now, known)}. {_REMEDY}",
            anchor="the-clock-is-ahead",
        )


def ahead(now: int, sign: int) -> str:
    return (
        f"the clock says {moment(now)}, {(now - sign) / DAY_MS:,.1f} days after the last time that "
        f"the store knows, {moment(sign)}"
    )
