"""When a read that has to end has read a partition to its end.

A feed has no end, and the protocol no call that tells its head. A finite read (`spark.read`, the
triggers AvailableNow and Once) asks `_last` once when it begins; the *last* checkpoint of that
answer is its target T [the reference server's `_last` serves one event before it]. The partition
has ended at the first of

(a) an answer without news, asked without `wait`: no events and the same cursor C or none, if the
    way from T leads to C [it may be a hiccup, or a replica that lags]; without a T one such answer
    in a stream, two in a batch; at `_first` three. A stream, whose next run continues there, also
    ends if it stays so for some seconds, with nothing after T either [some publishers' `_last`
    lies beyond the partition's last event], or after many answers without events, though the cursor
    moves [a publisher may skip over what it filters, and some move their cursor for ever]; in a
    batch both are errors;
(b) the checkpoint T; a start at T has ended, and one to which the way from T leads;
(c) the end of the page in which T was passed without being sent [a feed that grows may set its
    checkpoints elsewhere this time, and one that never goes quiet never gives (a)]. Where T may
    have been passed is told by an event with the same bytes as the first one after T [bytes alone
    prove nothing: heartbeats are all alike]. That it was is told by the publisher: asked again for
    exactly the events before that one, it ends with T; or the way from T leads to the page's end.
    Where these events were not handed out yet, they are asked for so, and (b) follows. Pages that
    were read while nothing was after T are looked through again once there is something;
(d) T is gone for some seconds (410), while what is read is not.

How long a page is says nothing.

Rule for editors: `Ending` decides and is pure; `end_probes` asks the publisher, and `finite_read`
reads. Never too early: where an end is not proven, the reading continues [for ever, on a feed that
never goes quiet, ignores `pagesizehint` and sets its checkpoints by where a page began].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from zeh_spark.client.feed_client import PageEnd
from zeh_spark.protocol import wire

SETTLED = 5.0
"""Seconds for which an observation that proves nothing has to last before it is accepted."""
MOST_CANDIDATES = 8
"""Equal events of a page that are asked about."""
_QUIET_AT_FIRST = 3
_LINE_EVERY = 8


class Tail(NamedTuple):
    """So many events after a checkpoint."""

    cursor: str
    events: int


@dataclass(slots=True)
class Ending:
    """Decides when one partition has been read to its end.

    Attributes:
        target: The last checkpoint of the feed when the read began; None if it told none.
        most_without_events: How many answers in a row may move the cursor without an event.
        settles: Whether silence for some seconds is enough.
        line: The first event after the target, once there is one.
        ended: Whether the partition has been read to its end.
        met: Whether the target came, or lies where this read is.
        doubtful: Whether the target may have been passed, without proof.
        undecided: Whether it ended only because the cursor moved too often without events.
        candidates: Places where an event equal to `line` came, which were not asked about yet.
        place: The target's place, if the target was passed.
        quiet_answers: How many answers in a row had nothing new.
        way: How far the way from the target was followed.
        gone_since: When the target was found to be gone, in seconds of a monotonic clock.
        quiet_at: Where this read was when nothing was after the target.
        events_since: How many events came since then.
        pages: How many pages were read.
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
    gone_since: float | None = None
    quiet_at: str | None = None
    events_since: int = 0
    pages: int = 0
    _cursor: str = ""
    _skipping_answers: int = 0

    @property
    def wants_line(self) -> bool:
        """Whether the first event after the target is to be asked for before the next page: at
        pages 0, 1, 2, 4, 8, 16, 24, …, because a feed too busy for (a) has grown at the first.
        """
        due = self.pages % _LINE_EVERY == 0 or self.pages in {1, 2, 4}
        return self.target is not None and self.line is None and due

    def page_begins(self, cursor: str) -> None:
        """Take note of the cursor that a page is asked for with. Case (b), at the start."""
        self.met |= cursor == self.target
        self.ended |= self.met
        self.candidates, self.place = [], None
        self._cursor = cursor

    def sees(self, interval: wire.Interval) -> None:
        """Take note of an interval. Case (b), and what (c) looks for."""
        self.met |= interval.cursor == self.target
        self.ended |= self.met
        self._look_for_line(interval.lines)
        self._cursor = interval.cursor
        self.events_since += interval.events

    def page_ended(self, end: PageEnd) -> None:
        """Take note of the end of a page. Case (a), as far as no target proves it."""
        self._look_for_line(end.tail)
        self.pages += 1
        self.quiet_answers = 0 if end.moved or end.events else self.quiet_answers + 1
        if end.events or end.moved:
            self._skipping_answers = 0 if end.events else self._skipping_answers + 1
        self.undecided = self._skipping_answers >= self.most_without_events
        self.ended |= self.undecided or self.quiet_answers >= self._enough(end)

    def _enough(self, end: PageEnd) -> float:
        """Return how many answers without news prove the end by themselves."""
        if self.target is None:
            return 1 if self.settles and end.complete else 2
        return _QUIET_AT_FIRST if end.cursor == wire.FIRST else math.inf

    def line_is(self, line: bytes | None, cursor: str) -> None:
        """Take note of the first event after the target, asked for at `cursor`; None: there is
        none yet.
        """
        self.line, self.gone_since = line, None
        if line is None:
            self.quiet_at, self.events_since = cursor, 0

    def target_is_gone(self, now: float) -> None:
        """Take note of a 410 for the target, at `now` (seconds). Case (d)."""
        self.gone_since = now if self.gone_since is None else self.gone_since
        self.ended |= now - self.gone_since >= SETTLED

    def passed(self, place: Tail) -> None:
        """Take note of the target's place: at the checkpoint itself if no events lie between."""
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
