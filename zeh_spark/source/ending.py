"""When a read that has to end has read a partition to its end.

A feed has no end, and the protocol no call that tells its head. A finite read (`spark.read`, the
triggers AvailableNow and Once) asks `_last` once when it begins; the *last* checkpoint of that
answer is its target T [the reference server's `_last` serves one event before it]. The partition
has ended at the first of

(a) an answer without news, asked without `wait`: no events and the same cursor C or none. It only
    counts if the way from T leads to C [it may be a hiccup, or a replica that lags]; without a T,
    or at `_first`, three whole ones in a row. Or many in a row without events, though the cursor
    moves [a publisher may skip over what it filters, and some move their cursor for ever]: for a
    stream, whose next run goes on there; in a batch that is an error;
(b) the checkpoint T; a start at T has ended, and one to which the way from T leads;
(c) the end of the page in which T was passed without being sent [a feed that grows may set its
    checkpoints elsewhere this time, and one that never goes quiet never gives (a)]. Where T may
    have been passed is told by an event with the same bytes as the first one behind T. That it was
    is told by the publisher: asked again for exactly the events before that one, it ends with T
    [bytes alone prove nothing: heartbeats are all alike]. Where those events still wait for their
    checkpoint, the next page is asked for so, and (b) follows.

How long a page is says nothing.

Rule for editors: `Ending` decides, pure; the functions below it ask. Never too early: an end that
is not proven is looked for further on [for ever, on a feed that never goes quiet, ignores
`pagesizehint` and sets its checkpoints by where a page began].
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from zeh_spark import wire
from zeh_spark.client import FeedClient, Page, PageRequest
from zeh_spark.errors import CursorGoneError, UnavailableError

QUIET_ANSWERS = 3
_MOST_PAGES = 1000
"""On the way from the target to where a quiet feed ends: what was published meanwhile."""
_MOST_CANDIDATES = 8
"""Equal events of a page that are asked about; behind them (a) and (b) remain."""


class Place(NamedTuple):
    """So many events behind a checkpoint."""

    cursor: str
    events: int


@dataclass(slots=True)
class Ending:
    """The end of one partition.

    `line` is the first event behind the target, once there is one. `candidates` are the places in
    this page where an equal one came; `place` is the one that is the target's, if that was passed.
    `quiet_answers`: so many in a row had nothing new. `met`: the target came. `undecided`: ended
    only because the cursor moved too often without events.
    """

    target: str | None
    most_without_events: int = 100
    line: bytes | None = None
    ended: bool = False
    met: bool = False
    undecided: bool = False
    candidates: list[Place] = field(default_factory=list)
    place: Place | None = None
    quiet_answers: int = 0
    _cursor: str = ""
    _pages: int = 0
    _answers_without_events: int = 0

    @property
    def first_page(self) -> bool:
        return self._pages == 0

    @property
    def wants_line(self) -> bool:
        """At pages 0, 1, 2, 4, 8, …: a feed too busy for (a) has grown at the first of them."""
        powers_of_two = self._pages & (self._pages - 1) == 0
        return self.target is not None and self.line is None and powers_of_two

    def page_begins(self, cursor: str) -> None:
        """Case (b), at the start."""
        self.met |= cursor == self.target
        self.ended |= self.met
        self.candidates, self.place = [], None
        self._cursor = cursor

    def sees(self, interval: wire.Interval) -> None:
        """An interval was read. Case (b), and what (c) looks for."""
        self.met |= interval.cursor == self.target
        self.ended |= self.met
        self._look_for_line(interval.lines)
        self._cursor = interval.cursor

    def page_ended(self, page: Page) -> None:
        """A page was read to its end. Case (a), and what (c) looks for."""
        self._look_for_line(page.tail)
        self._pages += 1
        self._answers_without_events = 0 if page.events else self._answers_without_events + 1
        still = page.cursor == page.request.cursor and not page.events
        counts = still and (page.complete or self.target is not None)
        self.quiet_answers = self.quiet_answers + 1 if counts else 0
        self.undecided = self._answers_without_events >= self.most_without_events
        nowhere = self.target is None or page.cursor == wire.FIRST
        proven = nowhere and self.quiet_answers >= QUIET_ANSWERS
        self.ended |= self.undecided or proven

    def passed(self, place: Place | None, page: Page) -> None:
        """The target is at this place. Case (c), unless events before it were not handed out."""
        self.place = place
        self.ended |= place is not None and (place.cursor != page.cursor or not place.events)

    def _look_for_line(self, lines: bytes) -> None:
        if self.line is None:
            return
        for events in events_before(lines, self.line, _MOST_CANDIDATES - len(self.candidates)):
            self.candidates.append(Place(self._cursor, events))


def events_before(lines: bytes, line: bytes, most: int) -> list[int]:
    """How many of the lines are in front of each one that equals `line`, for the first few."""
    found: list[int] = []
    whole = line + b"\n"
    at = -1
    while len(found) < most and (at := lines.find(whole, at + 1)) >= 0:
        if at == 0 or lines[at - 1 : at] == b"\n":
            found.append(lines.count(b"\n", 0, at))
    return found


def begin_page(client: FeedClient, request: PageRequest, ending: Ending) -> PageRequest:
    """Before a page is read: how to ask for it."""
    if ending.place:  # the events before the target, which ends them
        request = replace(request, page_size_hint=ending.place.events)
    ending.page_begins(request.cursor)
    if not ending.ended and ending.target is not None and ending.wants_line:
        behind = replace(request, cursor=ending.target, wait=0)
        if ending.first_page and request.cursor != wire.FIRST:
            with suppress(CursorGoneError):
                ending.ended = _leads_to(client, behind, request.cursor, most_pages=1)
        ending.line = _ask_line(client, behind)
    return request


def end_page(client: FeedClient, page: Page, ending: Ending) -> None:
    """After a page was read to its end."""
    ending.page_ended(page)
    if ending.quiet_answers and ending.target is not None:
        behind = replace(page.request, cursor=ending.target, wait=0)
        try:
            ending.ended |= _leads_to(client, behind, page.cursor)
        except CursorGoneError:  # this partition's cursor is not gone: it lies behind
            ending.ended = True
    for candidate in ending.candidates:
        if ending.ended or ending.place:
            return
        if candidate.events:
            request = replace(
                page.request, cursor=candidate.cursor, page_size_hint=candidate.events
            )
            ending.passed(_where(client, request, ending.target), page)


def ask_target(client: FeedClient, request: PageRequest) -> str | None:
    """The last checkpoint of the answer to `_last`; None where there is none."""
    page = client.page(replace(request, cursor=wire.LAST, wait=0), any_end=True)
    for _ in page:
        pass
    return None if page.cursor == wire.LAST else page.cursor


def not_at_target(request: PageRequest, ending: Ending) -> UnavailableError:
    """Nothing comes, though there has to be more."""
    return UnavailableError(
        f"partition {request.partition}: the publisher gives nothing behind cursor "
        f"{request.cursor!r}, though the feed was at {ending.target!r} when the query began (does "
        f"a replica of it lag?); 'retryTimeout' says how long to wait",
        partition=request.partition,
        cursor=request.cursor,
    )


def _ask_line(client: FeedClient, request: PageRequest) -> bytes | None:
    """The first event line behind the target; None while there is none, or where it was removed
    [this reader may be behind it already, and the target's loss is not its own].
    """
    page = client.page(replace(request, page_size_hint=1), any_end=True)
    try:
        for interval in page:
            if interval.lines:
                return interval.lines.partition(b"\n")[0]
    except CursorGoneError:
        return None
    return page.tail.partition(b"\n")[0] or None


def _leads_to(
    client: FeedClient, request: PageRequest, cursor: str, most_pages: int = _MOST_PAGES
) -> bool:
    """Whether who goes on from the request's cursor comes to the other one. Raises
    CursorGoneError.
    """
    for _ in range(most_pages):
        page = client.page(request, any_end=True)
        if any(interval.cursor == cursor for interval in page):
            return True
        if page.cursor == request.cursor:
            return False
        request = replace(request, cursor=page.cursor)
    return False


def _where(client: FeedClient, request: PageRequest, target: str | None) -> Place | None:
    """The target's place, if it comes behind at most as many events as are asked for."""
    events = 0
    try:
        for interval in client.page(replace(request, wait=0), any_end=True):
            events += interval.events
            if events > request.page_size_hint:
                return None
            if interval.cursor == target:
                return Place(request.cursor, events)
    except CursorGoneError:
        pass
    return None
