"""The publisher's thread that removes old events from time to time (`rules` says which).

It also packs what is older than a few minutes (see `store.packs`), and has uploads deleted that
nobody needs any more, as nobody may come to upload again. It writes the clock's sign, and removes
nothing by age, and no uploads, while the clock is not believed (see `clock`), also if the clock
jumps meanwhile. Runs in the publisher.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import partial

from zeh_spark.service.retention.rules import expire_names, expire_producers, prune, seal_next
from zeh_spark.service.sql.execution import logged
from zeh_spark.service.store import clock
from zeh_spark.service.store.interface import Store

EVERY_SECONDS = 60.0
"""Seconds between two rounds."""

NAMES_EVERY_SECONDS = 3600.0
"""Seconds between two searches for old names: they are searched among all receipts."""

HELD_SECONDS = 86_400.0
"""Seconds for which nothing is removed by age after a clock has jumped ahead.

A clock with which nothing may be committed is never believed by itself.
"""

REST, MANY_UNPACKED = 3, 200_000
"""How many times as long as a pack takes nothing is packed, and chunks of a feed that are too many
for that.
"""

log = logging.getLogger("zeh_spark.publisher")


class Pruner:
    """A context manager that prunes all feeds of a store from time to time, in a thread.

    Args:
        every_seconds: Seconds between two rounds; 60 by default.
        held_seconds: Seconds to wait if the clock has jumped ahead; a day by default.
    """

    def __init__(
        self,
        store: Store,
        *,
        every_seconds: float = EVERY_SECONDS,
        held_seconds: float = HELD_SECONDS,
    ) -> None:
        self._store = store
        self._every_seconds = every_seconds
        self._held_seconds = held_seconds
        self._held_since: float | None = None
        self._held_at = 0
        self._believed = 0  # the time when the clock was last believed
        self._believes = False
        self._is_behind = False
        self._names_at = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zeh-retention", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            logged(log, "old events stay for now", self._prune_all)
            logged(log, "old uploads stay for now", self._tidy)
            more = logged(log, "old chunks are not packed for now", self._seal_all)
            if self._ended.wait(0 if more else self._every_seconds):
                return

    def _tidy(self) -> None:
        """Delete uploads that are old or needed no more, while the clock is believed."""
        while self._believes and not self._is_over() and self._store.tidy():
            pass

    def _seal_all(self) -> bool:
        """Pack what is old: a pack of each feed, again and again, for as long as a round may take.

        Commits wait for a pack, so more time is left between two packs than one takes, unless
        so many chunks wait that packing would not keep up. Returns whether more may be left.
        """
        if self._store.replica_lag() is not None:
            return False
        end = time.monotonic() + self._every_seconds
        waiting = max((chunks for chunks, _ in self._store.storage().values()), default=0)
        rest = REST if waiting < MANY_UNPACKED else 1
        left = [each.name for each in self._store.feeds()]
        done: Counter[str] = Counter()
        while left:
            for feed in tuple(left):
                begun = time.monotonic()
                pack = partial(seal_next, self._store, feed)
                packed = logged(log, f"feed {feed!r}: old chunks are not packed for now", pack)
                done[feed] += packed or 0
                if not packed or begun > end:
                    left.remove(feed)
                    if done[feed]:
                        log.info("feed %r: %d chunks were packed", feed, done[feed])
                if self._ended.wait(rest * (time.monotonic() - begun)):
                    return False
        return time.monotonic() > end

    def _prune_all(self) -> None:
        self._believes = False
        self._store.skew()  # reads the clock of a database again
        if self._store.replica_lag() is not None:
            return  # it is a replica: the primary's publisher keeps it tidy
        self._believes = believed = self._look_at_clock()
        names = believed and time.monotonic() >= self._names_at
        if names:
            self._names_at = time.monotonic() + NAMES_EVERY_SECONDS
        feeds = self._store.feeds()
        self._warn_if_behind(max((each.time for each in feeds), default=0))
        for feed in feeds:
            if self._ended.is_set():
                return
            tend = partial(self._tend, feed.name, by_age=believed, names=names)
            logged(log, f"feed {feed.name!r}: old events stay for now", tend)

    def _tend(self, feed: str, *, by_age: bool, names: bool) -> None:
        self._prune(feed, by_age=by_age)
        if names and (count := expire_names(self._store, feed, self._is_over)):
            log.info("feed %r: receipts of %d batches with names are gone", feed, count)
        if names and (count := expire_producers(self._store, feed, self._is_over)):
            log.info("feed %r: %d idle producers have expired", feed, count)

    def _look_at_clock(self) -> bool:
        """Return whether events may be removed by age; if so, write the clock's sign."""
        now, sign = self._store.now(), clock.sign(self._store)
        if clock.is_believed(now, sign):
            self._held_since = None
        elif self._held_since is None or self._has_jumped(now, self._held_since):
            self._held_since, self._held_at = time.monotonic(), now
            hours = f" for {self._held_seconds / 3600:.0f} hours"
            log.warning(
                "nothing is removed by age%s: %s. Set the clock right; or, if it is right, run "
                "zeh-spark clock --accept",
                hours if clock.may_commit(now, sign) else ", and nothing is committed",
                clock.ahead(now, sign),
            )
            return False
        elif not clock.may_commit(now, sign):
            return False
        elif time.monotonic() < self._held_since + self._held_seconds:
            return False
        self._believed = now
        if now > sign or not self._store.clock_seen():
            self._store.see_clock(now)
        return True

    def _has_jumped(self, now: int, since: float) -> bool:
        """Return whether the clock has jumped ahead again since it is not believed."""
        passed = (time.monotonic() - since) * 1000
        return now - self._held_at - passed > clock.AHEAD_MS

    def _is_over(self) -> bool:
        """Return whether to end what goes by the clock: also if that has jumped since the look."""
        return self._ended.is_set() or not clock.is_believed(self._store.now(), self._believed)

    def _warn_if_behind(self, newest: int) -> None:
        """Say once that the clock is behind the newest commit: nothing gets old until then."""
        now = self._store.now()
        if newest - now <= clock.AHEAD_MS:
            self._is_behind = False
        elif not self._is_behind:
            self._is_behind = True
            log.warning(
                "events are removed by age later than they should be: the newest commit is %.1f "
                "days ahead of the clock. Look at zeh-spark clock",
                (newest - now) / clock.DAY_MS,
            )

    def _prune(self, feed: str, *, by_age: bool) -> None:
        began = time.monotonic()
        if by_age:
            removal = prune(self._store, feed, stopped=self._is_over)
        else:
            without = partial(replace, age_ms=None)
            removal = prune(self._store, feed, stopped=self._ended.is_set, narrowed=without)
        if removal.chunks:
            log.info(
                "feed %r: %d events, %d bytes, up to position %d are gone, in %.1f s",
                feed, removal.events, removal.bytes, removal.upto, time.monotonic() - began,
            )  # fmt: skip
