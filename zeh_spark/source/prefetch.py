"""Reading ahead: threads of the driver that follow all partitions and hold what is not in a batch
yet.

Rule for editors: `Fetcher` owns every lock and thread of the source; what it decides about room and
turns is decided under `_changed`. A partition is busy in one thread at most, so its intervals stay
in order.

Memory: at most `maxBytesPerTrigger` are held ready. A thread that would hold more waits inside its
page, as long as a batch can be made without it; where none can, the partition that is furthest goes
on alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from zeh_spark.client.feed_client import FeedClient, Page, PageRequest, Statistics
from zeh_spark.client.transport import Patience
from zeh_spark.errors import CursorGoneError, UnavailableError
from zeh_spark.protocol import wire
from zeh_spark.source import planning
from zeh_spark.source.end_detection import (
    Ending,
    ask_target,
    await_target,
    begin_page,
    end_page,
    not_at_target,
)
from zeh_spark.source.options import SourceOptions

log = logging.getLogger(__name__)

_MOST_SKIPPED = 100
"""Answers in a row that only move the cursor: some publishers do that for ever."""


@dataclass(slots=True)
class Track:
    """How far one partition has been read: `cursor` is the last checkpoint that arrived.

    `answered`: with events, or that there are none; not with one of at first few checkpoints that
    only moved on, behind which there may be events.
    """

    partition: int
    cursor: str
    ready: deque[wire.Interval] = field(default_factory=deque)
    due: float = 0.0
    busy: bool = False
    answered: bool = False
    skipped: int = 0
    held: int = 0
    ending: Ending | None = None
    patience: Patience | None = None

    @property
    def ended(self) -> bool:
        return self.ending is not None and self.ending.ended


class Fetcher:
    """Follows all partitions from their cursors. `finite`: each until its end (`end_detection`)."""

    def __init__(
        self, client: FeedClient, options: SourceOptions, cursors: Sequence[str], *, finite: bool
    ) -> None:
        self.statistics = Statistics()
        self._client = client
        self._options = options
        self._finite = finite
        self._tracks = [Track(partition, cursor) for partition, cursor in enumerate(cursors)]
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._closed = False
        self._ready_bytes = 0
        self._ready_events = 0
        self._turn = 0
        self._long_polling = not finite and len(cursors) <= options.max_concurrent_requests

    def start(self) -> None:
        for number in range(min(len(self._tracks), self._options.max_concurrent_requests)):
            threading.Thread(target=self._work, name=f"zeh-fetch-{number}", daemon=True).start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, *, first: bool) -> None:
        """Wait until it is worth while to make a batch. Raises what a fetching thread raised.

        The first time for one answer from each partition; in a finite read for half a batch, or a
        second with less, or the end; else 50 ms for anything.
        """
        with self._changed:
            if self._finite:
                self._wait_for(lambda: self._plenty or self._all(ended=True), None, 1.0)
            elif first:
                self._wait_for(
                    lambda: self._full or self._stopped or self._all(answered=True), None, 10.0
                )
            else:
                self._wait_for(lambda: self._ready_events > 0, 0.05, 0.0)

    def _wait_for(
        self, enough: Callable[[], bool], without_events: float | None, with_events: float
    ) -> None:
        """Until enough, or so many seconds, depending on whether there are events; None: ever."""
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
        """The next batch, and all advances without events that are due with it; empty: nothing."""
        with self._changed:
            counts = planning.take(
                {track.partition: track.ready for track in self._tracks if track.ready},
                self._options.max_events_per_trigger,
                self._options.max_bytes_per_trigger,
                self._turn,
            )
            self._turn = next(iter(counts), self._turn - 1) + 1
            return self._pop(counts)

    def take_advances(self) -> dict[int, list[wire.Interval]]:
        """At the end of a finite read: the cursors that moved without events."""
        with self._changed:
            if not self._finite or not self._all(ended=True) or self._ready_events:
                return {}
            return self._pop({each.partition: len(each.ready) for each in self._tracks})

    def _pop(self, counts: dict[int, int]) -> dict[int, list[wire.Interval]]:
        taken = {}
        for partition, count in counts.items():
            ready = self._tracks[partition].ready
            taken[partition] = [ready.popleft() for _ in range(count)]
            self._ready_events -= sum(each.events for each in taken[partition])
            self._ready_bytes -= sum(len(each.lines) for each in taken[partition])
        self._changed.notify_all()
        return {partition: intervals for partition, intervals in taken.items() if intervals}

    def held(self) -> tuple[int, int]:
        """Events and bytes that are ready for the next batches."""
        with self._changed:
            return self._ready_events, self._ready_bytes

    @property
    def _full(self) -> bool:
        options = self._options
        return self._ready_events > 0 and (
            self._ready_bytes >= options.max_bytes_per_trigger
            or self._ready_events >= (options.max_events_per_trigger or self._ready_events + 1)
        )

    @property
    def _stopped(self) -> bool:
        """Nobody reads on before there is a batch."""
        held = sum(track.held for track in self._tracks)
        return self._ready_events > 0 and not self._has_room(held)

    @property
    def _plenty(self) -> bool:
        """Half a batch: the rest is fetched while Spark works [waiting for all of it took 1.5 times
        as long].
        """
        half = self._options.max_bytes_per_trigger // 2
        return self._full or self._ready_bytes >= half

    def _all(self, *, ended: bool = False, answered: bool = False) -> bool:
        return all(
            track.ended or (answered and track.answered) or not (ended or answered)
            for track in self._tracks
        )

    # What a thread does.

    def _work(self) -> None:
        while (track := self._next()) is not None:
            try:
                self._fetch(track)
            except BaseException as exc:  # noqa: BLE001 - raised again by wait(), in Spark's thread
                with self._changed:
                    self._error = exc
                    self._changed.notify_all()
                return

    def _next(self) -> Track | None:
        """The partition that is longest due, once there is one; None at the end."""
        with self._changed:
            while not self._closed and not self._error and not self._all(ended=True):
                now = time.monotonic()
                free = [each for each in self._tracks if not each.busy and not each.ended]
                first = min(free, key=lambda each: each.due, default=None)
                if first and first.due <= now and not self._full:
                    first.busy = True
                    return first
                self._changed.wait(first.due - now if first and first.due > now else None)
            self._changed.notify_all()
            return None

    def _fetch(self, track: Track) -> None:
        """One page of one partition."""
        wait = int(self._options.wait) if self._long_polling and track.answered else 0
        request = self._request(track, wait)
        began = time.monotonic()
        try:
            if self._finite:
                track.ending = track.ending or Ending(
                    ask_target(self._client, request), settles=True
                )
                request = begin_page(self._client, request, track.ending)
            page = self._client.page(request, hold=lambda size: self._hold(track, size))
            if not track.ended:
                self._read(track, page)
        except CursorGoneError as exc:
            if self._options.fail_on_data_loss or track.cursor == wire.FIRST:
                raise
            self._go_on_from_first(track, exc)
            return
        waited = wait > 0 and time.monotonic() - began >= wait
        skips = not page.events and page.cursor != request.cursor
        track.skipped = track.skipped + 1 if skips else 0
        if not skips or track.skipped >= _MOST_SKIPPED:
            track.answered = True
        at_once = page.events or waited or (skips and (self._finite or not track.answered))
        at_once |= track.ending is not None and track.ending.target is None
        self._finish(track, page, 0.0 if at_once else self._options.poll_interval)

    def _request(self, track: Track, wait: int) -> PageRequest:
        return PageRequest(
            track.partition,
            track.cursor,
            len(self._tracks),
            min(self._options.page_size_hint, self._options.max_events_per_trigger or 1 << 62),
            self._options.headers,
            wait,
        )

    def _read(self, track: Track, page: Page) -> None:
        for interval in page:
            with self._changed:
                while self._full and not self._closed and not self._error:
                    self._changed.wait()
                self._add(track, interval)
                if track.ending:
                    track.ending.sees(interval)
            if track.ended or self._closed:
                return
        if track.ending:
            end_page(self._client, page, track.ending)
            self._await_target(track, page, track.ending)

    def _await_target(self, track: Track, page: Page, ending: Ending) -> None:
        """A quiet partition that is not where it should be may get there."""
        track.patience = track.patience or self._client.patience()
        try:
            await_target(self._client, page, ending, track.patience, not_at_target)
        except UnavailableError as exc:
            log.warning("%s; this run ends here, the next one goes on", exc)
            ending.ended = True

    def _add(self, track: Track, interval: wire.Interval) -> None:
        """Advances without events do not pile up: only the newest is kept."""
        if track.ready and not track.ready[-1].events and not interval.events:
            track.ready.pop()
        track.ready.append(interval)
        track.cursor = interval.cursor
        self._ready_events += interval.events
        self._ready_bytes += len(interval.lines)
        self._changed.notify_all()

    def _hold(self, track: Track, size: int) -> None:
        """Called before each read of a body: `size` bytes of it wait for their checkpoint."""
        with self._changed:
            track.held = size
            while not self._closed and not self._error and not self._may_read(track):
                self._changed.wait()

    def _may_read(self, track: Track) -> bool:
        if not self._full and self._has_room(sum(each.held for each in self._tracks)):
            return True
        if self._ready_events:
            return False
        return track is max(self._tracks, key=lambda each: each.held)

    def _has_room(self, held: int) -> bool:
        return self._ready_bytes + held < self._options.max_bytes_per_trigger

    def _finish(self, track: Track, page: Page, pause: float) -> None:
        with self._changed:
            self.statistics.add(page.statistics)
            track.busy, track.held = False, 0
            track.due = time.monotonic() + pause
            self._changed.notify_all()

    def _go_on_from_first(self, track: Track, exc: CursorGoneError) -> None:
        log.warning(
            "partition %d: EVENTS ARE LOST: the publisher no longer has what follows cursor %r "
            "(%s); going on with the oldest events left, because failOnDataLoss=false",
            track.partition,
            track.cursor,
            exc,
        )
        with self._changed:
            track.cursor = wire.FIRST
            track.busy, track.held, track.due = False, 0, 0.0
            self._changed.notify_all()


def first_checkpoint(client: FeedClient, request: PageRequest, options: SourceOptions) -> str:
    """What `_last` means now: the first checkpoint of its answer; the events before it are not
    ours.

    Raises UnavailableError after `retryTimeout` without any.
    """
    deadline = time.monotonic() + options.retry_timeout
    while True:
        for interval in client.page(request):
            return interval.cursor
        if time.monotonic() + options.poll_interval > deadline:
            raise UnavailableError(
                f"partition {request.partition}: the publisher of {options.url} answers the cursor "
                f"'_last' without a checkpoint, so there is no place to start from; give explicit "
                f"cursors in 'startingCursors'",
                partition=request.partition,
                cursor=wire.LAST,
            )
        time.sleep(options.poll_interval)
