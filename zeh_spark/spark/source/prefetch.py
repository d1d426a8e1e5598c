"""Read ahead: threads of the driver follow all partitions and hold what is not in a batch yet.

Rule for editors: `Fetcher` owns every lock and thread of the source. It decides about memory and
turns under the lock `_changed` only. A partition is busy in at most one thread, so its intervals
stay in order.

Memory: at most `maxBytesPerTrigger` bytes are held ready. A thread that would hold more waits
inside its page, as long as a batch can be made without it. If none can be made, only the partition
that holds most continues.

Runs on the driver.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial

from zeh_spark.client.http.feed_client import (
    FeedClient,
    PageEnd,
    PageRequest,
    Statistics,
)
from zeh_spark.client.http.lag import Lag
from zeh_spark.client.polling.feed_end import Ending
from zeh_spark.client.polling.feed_end_probes import EndProbes
from zeh_spark.client.polling.finite_read import EndUnknownError, FiniteRead
from zeh_spark.client.polling.track import Track
from zeh_spark.errors import CursorGoneError
from zeh_spark.spark.source.batch_source import Limits
from zeh_spark.spark.source.options import SourceOptions
from zeh_spark.spark.source.segments import take, without_loss_after_events
from zeh_spark.wire import wire
from zeh_spark.wire.feed_identity import Epoch

log = logging.getLogger(__name__)

_ADVANCE_SECONDS = 60.0
"""Seconds after which a batch moves cursors alone, if the events that followed are not selected.

Else the events that follow the checkpoint could be removed before a query starts again.
"""

_TOLD_SECONDS = 5.0
"""Seconds for which the first batch waits until every partition has told its lag."""

_MOST_SKIPPED = 100
"""Answers in a row that only move the cursor before a partition counts as answered.

Some publishers move their cursor for ever.
"""


@dataclass(eq=False)
class Fetcher:
    """Reads partitions ahead, in threads.

    Args:
        cursors: where to begin, by partition, for those that are read.
        n: the feed's number of partitions.
        finite: whether to read each partition to its end only, as `feed_end` finds it.
        tell: whether to ask with each page where the feed stands.
    """

    client: FeedClient
    options: SourceOptions
    cursors: Mapping[int, str]
    n: int
    _: KW_ONLY
    finite: bool
    tell: bool = False

    def __post_init__(self) -> None:
        self.statistics = Statistics()
        self._head: str | None = None
        self._epochs: set[Epoch | None] = set()
        self._lag_is_told = self.tell
        self._patience = _TOLD_SECONDS
        self._tracks = {each: Track(each, cursor) for each, cursor in self.cursors.items()}
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._closed = False
        self._ready_bytes = 0
        self._ready_events = 0
        self._turn = 0
        self._taken = time.monotonic()
        few = len(self.cursors) <= self.options.max_concurrent_requests
        self._long_polling = few and not self.finite

    def start(self) -> None:
        """Start the threads: one for each partition, at most `maxConcurrentRequests`."""
        for number in range(min(len(self._tracks), self.options.max_concurrent_requests)):
            threading.Thread(target=self._work, name=f"zeh-fetch-{number}", daemon=True).start()

    def close(self) -> None:
        """End the threads soon. Does not wait for them."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def has_more(self) -> bool:
        """Whether events are in no batch: until the end of a finite read, or while some wait."""
        with self._changed:
            return self._ready_events > 0 or (self.finite and not self._ended)

    @property
    def is_undecided(self) -> bool:
        """Whether a finite read has ended at a place that may not be the end of its partition.

        Its cursor moved too often without an event (see `feed_end`).
        """
        with self._changed:
            endings = [each.ending for each in self._tracks.values() if each.ending]
            return any(each.undecided and not each.met for each in endings)

    def wait(self, limits: Limits) -> bool:
        """Wait until it is worthwhile to make a batch, and return whether one is to be made.

        A finite read waits for half a batch, for less after a second, or for the end; one that is
        larger than usual for as much as the limits allow, or for the end. Any other read waits for
        one answer of each partition if this is the first batch, for at most 10 s once there are
        events; after that 50 ms for any event, or for the least number of them. Raises what a
        fetching thread raised.
        """
        with self._changed:
            if limits.factor > 1:
                self._wait_for(lambda: self._complete, None, None)
            elif self.finite:
                # Measured: to wait for a whole batch took 1.5 times as long as for half of it.
                half = self.options.driver_bytes // 2
                self._wait_for(
                    lambda: self._full or self._ready_bytes >= half or self._ended, None, 1.0
                )
            elif limits.first:
                self._wait_for(lambda: self._complete or self._answered, None, 10.0)
            else:
                least, patience = max(limits.least, 1), 0.05
                self._wait_for(
                    lambda: self._ready_events >= least or self._complete,
                    patience,
                    patience if limits.least else 0.0,
                )
            return self._complete or not limits.left(self._ready_events)

    def wait_until_full(self, wanted: threading.Event) -> bool:
        """Wait for a batch as large as the limits allow, or for all that a finite read has.

        Raises what a fetching thread raised. Once `wanted` is set, there is no time to wait any
        more. Call `wake` after that. It returns whether it came before a batch was wanted, and
        before the fetcher was closed.
        """
        with self._changed:
            self._wait_for(lambda: self._closed or wanted.is_set() or self._complete, None, None)
            return not (self._closed or wanted.is_set())

    def wake(self) -> None:
        """Have `wait_until_full` look at what it waits for."""
        with self._changed:
            self._changed.notify_all()

    def _wait_for(
        self,
        enough: Callable[[], bool],
        without_events: float | None,
        with_events: float | None,
    ) -> None:
        """Wait until `enough`, or for so many seconds without or with events; None: no limit."""
        began = time.monotonic()
        while not self._error and not enough():
            limit = with_events if self._ready_events else without_events
            left = None if limit is None else limit - (time.monotonic() - began)
            if left is not None and left <= 0:
                break
            self._changed.wait(left)
        if self._error:
            raise self._error

    def take(self) -> dict[int, list[wire.Interval]]:
        """Return the intervals of the next batch by partition.

        It is empty if no events are ready, and no loss is. Intervals without events, which only
        move a cursor, also come with it if it is their turn, at the end of a finite read, and each
        minute if the query has selected some events.
        """
        with self._changed:
            now = time.monotonic()
            ready: dict[int, Sequence[wire.Interval]] = {
                each: track.ready for each, track in self._tracks.items() if track.ready
            }
            at_end = self.finite and self._ended
            is_due = at_end or (self.options.only and now - self._taken > _ADVANCE_SECONDS)
            moves = is_due and not self._ready_events
            advances = {partition: len(each) for partition, each in ready.items() if moves}
            losses: dict[int, int] = {}
            if not self.options.fail_on_data_loss:
                for partition, intervals in ready.items():
                    ready[partition] = without_loss_after_events(intervals)
                    if any(isinstance(each, wire.Loss) for each in ready[partition]):
                        losses[partition] = len(ready[partition])
            counts = take(
                ready,
                self.options.max_events_per_trigger,
                self.options.driver_bytes,
                self._turn,
            )
            counts = counts or losses or advances
            self._taken = now if counts else self._taken
            self._turn = next(iter(counts), self._turn - 1) + 1
            return self._pop(counts)

    def _pop(self, counts: dict[int, int]) -> dict[int, list[wire.Interval]]:
        taken = {}
        for partition, count in counts.items():
            taken[partition] = self._tracks[partition].take(count)
            self._ready_events -= sum(each.events for each in taken[partition])
            self._ready_bytes -= sum(len(each.lines) for each in taken[partition])
        self._changed.notify_all()
        return {partition: intervals for partition, intervals in taken.items() if intervals}

    def held(self) -> tuple[int, int]:
        """Return the numbers of events and bytes that are ready for the next batches."""
        with self._changed:
            return self._ready_events, self._ready_bytes

    def lag(self) -> tuple[str | None, Lag | None]:
        """Return the feed's head, and the lag after what was taken, if both are told.

        Each partition counts as of its newest page. The first call waits a few seconds for the
        answers to the first pages.
        """
        with self._changed:
            self._changed.wait_for(self._is_told, self._patience)
            self._patience = 0.0
            lags = {each: track.lag() for each, track in self._tracks.items()}
            known = {each: lag for each, lag in lags.items() if lag is not None}
            if self._head is None or len(known) < len(lags):
                return None, None
            at_least = any(each.at_least for each in self._tracks.values())
            return self._head, Lag(known, at_least)

    def _is_told(self) -> bool:
        """Return whether each partition has told its lag, or no answer under way will tell it."""
        waiting = [each for each in self._tracks.values() if each.lag() is None]
        is_stuck = self._full and not any(each.busy for each in waiting)
        never = self._closed or self._error is not None or not self._lag_is_told
        return not waiting or is_stuck or never

    def epochs(self) -> frozenset[Epoch | None]:
        """Return what pages told as the feed's newest epoch since the last call; None for none."""
        with self._changed:
            told, self._epochs = frozenset(self._epochs), set()
            return told

    @property
    def _complete(self) -> bool:
        """Whether no more comes before a batch is made."""
        return self._full or self._stopped or (self.finite and self._ended)

    @property
    def _full(self) -> bool:
        options = self.options
        return self._ready_events > 0 and (
            self._ready_bytes >= options.driver_bytes
            or self._ready_events >= (options.max_events_per_trigger or self._ready_events + 1)
        )

    @property
    def _stopped(self) -> bool:
        """Whether no thread reads more until a batch is made."""
        held = sum(track.held for track in self._tracks.values())
        return self._ready_events > 0 and not self._has_room(held)

    @property
    def _ended(self) -> bool:
        return all(track.ended for track in self._tracks.values())

    @property
    def _answered(self) -> bool:
        return all(track.ended or track.answered for track in self._tracks.values())

    # Run by the threads.

    def _work(self) -> None:
        try:
            while (track := self._next()) is not None:
                self._fetch(track)
        except BaseException as exc:  # noqa: BLE001 - raised again by wait(), in Spark's thread
            with self._changed:
                self._error = exc
                self._changed.notify_all()

    def _next(self) -> Track | None:
        """Wait for a partition that is due, and return the longest due one; None at the end."""
        with self._changed:
            while not self._closed and not self._error and not self._ended:
                now = time.monotonic()
                every = self._tracks.values()
                free = [each for each in every if not each.busy and not each.ended]
                first = min(free, key=lambda each: each.due, default=None)
                if first and first.due <= now and not self._full:
                    first.busy = True
                    return first
                self._changed.wait(first.due - now if first and first.due > now else None)
            self._changed.notify_all()
            return None

    def _fetch(self, track: Track) -> None:
        wait = int(self.options.wait) if self._long_polling and track.answered else 0
        began = time.monotonic()
        try:
            end = self._read(track, wait)
        except CursorGoneError as exc:
            oldest = exc.oldest or wire.FIRST
            if self.options.fail_on_data_loss or track.cursor == oldest:
                raise
            with self._changed:
                self._add(track, wire.Loss(b"", 0, oldest))
                track.reading = None
            self._finish(track, 0.0)
            return
        except EndUnknownError as exc:
            log.warning("%s; this run ends here, the next one continues", exc)
            end = None
        if end is None:
            self._finish(track, 0.0, ended=not self._closed)
            return
        skips = end.moved and not end.events
        track.skipped = track.skipped + 1 if skips else 0
        track.answered |= not skips or track.skipped >= _MOST_SKIPPED
        waited = wait > 0 and time.monotonic() - began >= wait
        follows = skips and (not track.answered or self.options.only is not None)
        at_once = self.finite or end.events or waited or follows
        self._finish(track, 0.0 if at_once else self.options.poll_interval)

    def _read(self, track: Track, wait: int) -> PageEnd | None:
        """Read a page; None if the partition has ended, or the fetcher was closed."""
        request = PageRequest(
            track.partition,
            track.cursor,
            self.n,
            min(self.options.page_size_hint, self.options.max_events_per_trigger or 1 << 62),
            self.options.requested_headers,
            wait,
            self.tell,
            self.options.selected,
        )
        hold = partial(self._hold, track)
        if self.finite:
            if not isinstance(track.reading, FiniteRead):
                ending = track.ending = track.ending or Ending(
                    EndProbes(self.client, request).target(), settles=True
                )
                track.reading = FiniteRead(
                    self.client, request, ending, hold=hold, statistics=self.statistics
                )
            intervals = track.reading.next_page()
        else:
            track.reading = self.client.page(request, hold, statistics=self.statistics)
            intervals = iter(track.reading)
        for interval in intervals:
            with self._changed:
                self._note(track, interval.events)
                while self._full and not self._closed and not self._error:
                    self._changed.wait()
                self._add(track, interval)
            if self._closed:
                intervals.close()
                return None
        return track.reading.end

    def _note(self, track: Track, coming: int = 0) -> None:
        """Note what a page told of the feed. So many events of it are to be added next."""
        standing = track.hears(coming)
        self._epochs.add(standing.epoch)
        self._head = standing.head
        self._lag_is_told &= track.unread is not None
        self._changed.notify_all()

    def _add(self, track: Track, interval: wire.Interval) -> None:
        track.add(interval)
        self._ready_events += interval.events
        self._ready_bytes += len(interval.lines)
        self._changed.notify_all()

    def _hold(self, track: Track, size: int) -> None:
        """Note that `size` bytes of a page wait for their checkpoint, and wait for room.

        Called before each read of a body.
        """
        with self._changed:
            if size:  # an answer has come
                self._note(track)
            track.held = size
            if self._stopped:
                self._changed.notify_all()  # there will be no more until a batch is made
            while not self._closed and not self._error and not self._may_read(track):
                self._changed.wait()

    def _may_read(self, track: Track) -> bool:
        every = self._tracks.values()
        if not self._full and self._has_room(sum(each.held for each in every)):
            return True
        if self._ready_events:
            return False
        return track is max(every, key=lambda each: each.held)

    def _has_room(self, held: int) -> bool:
        return self._ready_bytes + held < self.options.driver_bytes

    def _finish(self, track: Track, pause: float, *, ended: bool = False) -> None:
        with self._changed:
            track.busy, track.held = False, 0
            track.ended = ended
            track.due = time.monotonic() + pause
            self._changed.notify_all()
