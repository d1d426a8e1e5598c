"""End detection for finite reads: decide when a partition has been read to its end.

A feed has no end, and the protocol has no call that tells its head. A finite read (`spark.read`,
the triggers AvailableNow and Once) asks `_last` once when it begins. The *last* checkpoint of that
answer is its target T, because the reference server's `_last` serves one event before it. The
partition has ended at the first of these cases:

(a) An answer without news: no events and the same cursor C or none, for a request without `wait`.
    The way from T has to lead to C, because the silence may be a fault, or a replica that lags.
    - Without a T, one such answer is enough in a stream, and two in a batch.
    - The next run of a stream continues where this one ends. So a stream also ends after some
      seconds of silence with nothing after T either: the `_last` of some publishers lies beyond the
      partition's last event. It also ends after many answers without events that move the cursor: a
      publisher may skip what it filters, and some move their cursor for ever. In a batch both are
      errors.
    - At `_first`, such seconds are enough in a batch, too: the partition is empty, and its
      publisher gives a checkpoint only for `_last`.
(b) The checkpoint T. A read that starts at T has ended, and so has one that starts at a cursor to
    which the way from T leads.
(c) The end of the page in which T was passed without being sent. A growing feed may set its
    checkpoints elsewhere this time, and a feed that never goes quiet never gives (a).
    - A candidate for the place of T is before an event with the same bytes as the first event after
      T. Bytes alone prove nothing: heartbeats are all alike.
    - The publisher proves it. Asked again for exactly the events before that candidate, it ends
      with T; or the way from T leads to the page's end.
    - If these events were not yielded yet, they are asked for in this way, and (b) follows.
    - Pages that were read while nothing was after T are searched again once there is something.

If T is gone (410), nothing is proven: where single events are removed, a cursor of an event that is
left stays valid before T and after it. Then `_last` is asked anew, and its answer is the new T.
Rejected: to end after some seconds, because what is read is after T; a read of a table with
deletions ended at any place.

The length of a page says nothing.

Rule for editors: `Ending` decides and is pure; `feed_end_probes` asks the publisher, and
`finite_read` reads. Never end too early: reading continues as long as an end is not proven. It
continues for ever on a feed that never goes quiet, ignores `pagesizehint` and sets its checkpoints
by where a page began. Runs on the driver and in tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from zeh_spark.client.http.feed_client import PageEnd
from zeh_spark.wire import wire

SETTLED = 5.0
"""Seconds for which an observation that proves nothing has to last before it is accepted."""
MOST_CANDIDATES = 8
"""The largest number of equal events of a page that the publisher is asked about."""
MOST_WITHOUT_EVENTS = 1000
"""How many answers in a row may only move the cursor, where no next run continues after them.

Some publishers filter; some move their cursor for ever.
"""
_LINE_EVERY = 8


class Tail(NamedTuple):
    """A place in a partition: a checkpoint's cursor, and a number of events after it."""

    cursor: str
    events: int


@dataclass(slots=True)
class Ending:
    """Decides when one partition has been read to its end.

    Attributes:
        target: the last checkpoint of the feed when the read began; None if it told none.
        most_without_events: how many answers in a row may move the cursor without an event.
        settles: whether silence for some seconds is enough.
        met: whether the target came, or lies where this read is.
        doubtful: whether the target may have been passed, without proof.
        undecided: whether it ended only because the cursor moved too often without events.
        candidates: places where an event equal to `line` came, which were not asked about yet.
        way: the cursor up to which the way from the target was followed.
        quiet_at: the cursor of this read when nothing was after the target.
        events_since: how many events came since then.
    """

    target: str | None
    most_without_events: int = 100
    settles: bool = False
    line: bytes | None = None
    ended: bool = False
    met: bool = False
    doubtful: bool = False
    undecided: bool = False
    candidates: list[Tail] = field(default_factory=list)
    place: Tail | None = None
    quiet_answers: int = 0
    way: str | None = None
    quiet_at: str | None = None
    events_since: int = 0
    pages: int = 0
    _cursor: str = ""
    _skipping_answers: int = 0

    @property
    def wants_line(self) -> bool:
        """Whether to ask for the first event after the target before the next page.

        That is at pages 0, 1, 2, 4, 8, 16, 24, …: a feed that is too busy for (a) has grown at the
        first of them.
        """
        due = self.pages % _LINE_EVERY == 0 or self.pages in {1, 2, 4}
        return self.target is not None and self.line is None and due

    def page_begins(self, cursor: str) -> None:
        """Note the cursor that a page is asked for with. Case (b), at the start."""
        self.met |= cursor == self.target
        self.ended |= self.met
        self.candidates, self.place = [], None
        self._cursor = cursor

    def sees(self, interval: wire.Interval) -> None:
        """Note an interval. Case (b), and the candidates of (c)."""
        self.met |= interval.cursor == self.target
        self.ended |= self.met
        self._look_for_line(interval.lines)
        self._cursor = interval.cursor
        self.events_since += interval.events

    def page_ended(self, end: PageEnd) -> None:
        """Note the end of a page. Case (a), as far as no target proves it."""
        self._look_for_line(end.tail)
        self.pages += 1
        self.quiet_answers = 0 if end.moved or end.events else self.quiet_answers + 1
        if end.events or end.moved:
            self._skipping_answers = 0 if end.events else self._skipping_answers + 1
        self.undecided = self._skipping_answers >= self.most_without_events
        enough = 1 if self.settles and end.complete else 2  # if there is no target to reach
        is_quiet = self.target is None and self.quiet_answers >= enough
        self.ended |= self.undecided or is_quiet

    def line_is(self, line: bytes | None, cursor: str) -> None:
        """Note the first event after the target, None if there is none yet.

        `cursor` is where this read was when it asked.
        """
        self.line = line
        if line is None:
            self.quiet_at, self.events_since = cursor, 0

    def target_is_gone(self, target: str | None) -> None:
        """Take another target, which `_last` told after the old one was found to be gone (410)."""
        if target != self.target:
            self.target, self.line, self.way = target, None, None
            self.quiet_at, self.events_since = None, 0
            self.candidates, self.place = [], None

    def passed(self, place: Tail) -> None:
        """Note the target's place, which is the checkpoint itself if no events lie between."""
        self.place = place
        self.met |= not place.events
        self.ended |= self.met

    def _look_for_line(self, lines: bytes) -> None:
        if self.line is None:
            return
        for events in events_before(lines, self.line, MOST_CANDIDATES - len(self.candidates)):
            self.candidates.append(Tail(self._cursor, events))


def events_before(lines: bytes, line: bytes, most: int) -> list[int]:
    """Return how many of the lines are before each one that equals `line`, for the first `most`."""
    found: list[int] = []
    whole = line + b"\n"
    at = -1
    while len(found) < most and (at := lines.find(whole, at + 1)) >= 0:
        if at == 0 or lines[at - 1 : at] == b"\n":
            found.append(lines.count(b"\n", 0, at))
    return found
