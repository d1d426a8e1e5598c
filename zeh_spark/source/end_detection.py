"""When a read that has to end has read a partition to its end.

A feed has no end, and the protocol no call that tells its head. A finite read (`spark.read`, the
triggers AvailableNow and Once) asks `_last` once when it begins; the *last* checkpoint of that
answer is its target T [the reference server's `_last` serves one event before it]. The partition
has ended at the first of

(a) an answer without news, asked without `wait`: no events and the same cursor C or none, if the
    way from T leads to C [it may be a hiccup, or a replica that lags]; without a T one such answer
    in a stream, two in a batch; at `_first` three. A stream, whose next run goes on there, also
    ends if it stays so for some seconds, with nothing behind T either [some publishers' `_last`
    lies beyond the partition's last event], or after many answers without events, though the cursor
    moves [a publisher may skip over what it filters, and some move their cursor for ever]; in a
    batch both are errors;
(b) the checkpoint T; a start at T has ended, and one to which the way from T leads;
(c) the end of the page in which T was passed without being sent [a feed that grows may set its
    checkpoints elsewhere this time, and one that never goes quiet never gives (a)]. Where T may
    have been passed is told by an event with the same bytes as the first one behind T [bytes alone
    prove nothing: heartbeats are all alike]. That it was is told by the publisher: asked again for
    exactly the events before that one, it ends with T; or the way from T leads to the page's end.
    Where these events were not handed out yet, they are asked for so, and (b) follows. Pages that
    were read while nothing was behind T are looked through again once there is something;
(d) T is gone for some seconds (410), while what is read is not.

How long a page is says nothing.

Rule for editors: `Ending` decides, pure; the functions below it ask. Never too early: an end that
is not proven is looked for further on [for ever, on a feed that never goes quiet, ignores
`pagesizehint` and sets its checkpoints by where a page began].
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from zeh_spark.client.feed_client import MAX_HINT, FeedClient, Page, PageRequest
from zeh_spark.client.responses import TransientError
from zeh_spark.client.transport import Patience
from zeh_spark.errors import PublisherError, UnavailableError, ZeroEventHubError
from zeh_spark.protocol import wire

log = logging.getLogger(__name__)

_QUIET_AT_FIRST = 3
_SETTLED = 5.0
"""Seconds for which what is no proof has to stay as it is."""
_LINE_EVERY = 8
_LONG_WITHOUT_TARGET = 100
_MOST_PAGES = 1000
_MOST_CANDIDATES = 8
"""Equal events of a page that are asked about."""
_REFUSED = {400, 404, 409, 422}
"""The target is unknown: to a replica that lags, for instance."""
_GONE = 410


class Tail(NamedTuple):
    """So many events behind a checkpoint."""

    cursor: str
    events: int


@dataclass(slots=True)
class Ending:
    """The end of one partition. `settles`: silence for some seconds is enough.

    `line` is the first event behind the target, once there is one. `candidates` are places where an
    equal one came and that were not asked about yet; `place` is the target's, if that was passed.
    `quiet_answers`: so many in a row had nothing new. `met`: the target came, or lies where this
    read is. `quiet_behind`: where this read was when nothing was behind the target, `events_since`
    so many ago. `undecided`: ended only because the cursor moved too often without events.
    `doubtful`: the target may have been passed, without proof.
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
    quiet_behind: str | None = None
    events_since: int = 0
    pages: int = 0
    _cursor: str = ""
    _skipping_answers: int = 0

    @property
    def wants_line(self) -> bool:
        """At pages 0, 1, 2, 4, 8, 16, 24, …: a feed too busy for (a) has grown at the first."""
        due = self.pages % _LINE_EVERY == 0 or self.pages in {1, 2, 4}
        return self.target is not None and self.line is None and due

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
        self.events_since += interval.events

    def page_ended(self, page: Page) -> None:
        """A page was read to its end. Case (a), as far as no target proves it."""
        self._look_for_line(page.tail)
        self.pages += 1
        moved = page.cursor != page.request.cursor
        self.quiet_answers = 0 if moved or page.events else self.quiet_answers + 1
        if page.events or moved:
            self._skipping_answers = 0 if page.events else self._skipping_answers + 1
        self.undecided = self._skipping_answers >= self.most_without_events
        self.ended |= self.undecided or self.quiet_answers >= self._enough(page)

    def _enough(self, page: Page) -> float:
        """So many answers without news prove the end by themselves."""
        if self.target is None:
            return 1 if self.settles and page.complete else 2
        return _QUIET_AT_FIRST if page.cursor == wire.FIRST else math.inf

    def passed(self, place: Tail) -> None:
        """The target is at this place. At the checkpoint itself, if no events lie between."""
        self.place = place
        self.met |= not place.events
        self.ended |= self.met

    def _look_for_line(self, lines: bytes) -> None:
        if self.line is None:
            return
        for events in events_before(lines, self.line, _MOST_CANDIDATES - len(self.candidates)):
            self.candidates.append(Tail(self._cursor, events))


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
        request = replace(request, cursor=ending.place.cursor, page_size_hint=ending.place.events)
    ending.page_begins(request.cursor)
    if ending.wants_line and not ending.ended:
        _look_behind(client, request, ending)
    return request


def find_target(client: FeedClient, request: PageRequest, ending: Ending) -> bool:
    """Whether the target was passed at one of the candidates. Case (c)."""
    candidates, ending.candidates = ending.candidates, []
    for cursor, events in candidates:
        if events and not ending.place:
            asked = replace(request, cursor=cursor, page_size_hint=events)
            if place := _where(client, asked, ending.target):
                ending.passed(place)
    return ending.place is not None


def end_page(client: FeedClient, page: Page, ending: Ending) -> None:
    """After a page was read to its end, and its intervals were handed out."""
    ending.page_ended(page)
    asked_about = bool(ending.candidates)
    if ending.ended or ending.target is None:
        return
    if find_target(client, page.request, ending):
        assert ending.place
        ending.ended |= ending.place.cursor != page.cursor
    elif ending.quiet_answers:
        ending.ended = _leads_on(client, page, ending)
    elif asked_about:
        behind = replace(page.request, cursor=ending.target)
        ending.ended = _leads_to(client, behind, page.cursor)[0]
        if not ending.ended and not ending.doubtful:
            ending.doubtful = True
            log.warning(
                "partition %d: this read may have passed %r, where the feed was when it began, but "
                "the publisher gives no proof; it goes on until the feed is quiet",
                page.request.partition,
                ending.target,
            )


def await_target(
    client: FeedClient,
    page: Page,
    ending: Ending,
    patience: Patience,
    short: Callable[[PageRequest, Ending], ZeroEventHubError],
) -> None:
    """Pause where a partition is quiet and not where it should be.

    Raises what `short` makes after `retryTimeout`.
    """
    if ending.target is None and ending.pages == _LONG_WITHOUT_TARGET:
        log.warning(
            "partition %d: the publisher answers '_last' without a checkpoint, so this read goes "
            "on until the feed is quiet for a moment",
            page.request.partition,
        )
    if not ending.quiet_answers:
        patience.progress()
    elif ending.ended:
        pass
    elif ending.target is None:
        pass  # the next answer tells; a pause would bring more events
    elif ending.settles and _is_settled(patience) and _is_empty_behind(client, page, ending.target):
        log.warning(
            "partition %d: cursor %r is taken for the end, because nothing is behind it, nor "
            "behind %r, where the feed was when the query began",
            page.request.partition,
            page.cursor,
            ending.target,
        )
        ending.ended = True
    else:
        request = replace(page.request, cursor=page.cursor)
        patience.wait(TransientError(short(request, ending)))


def _is_settled(patience: Patience) -> bool:
    return patience.lasted >= min(_SETTLED, patience.timeout / 4)


def not_at_target(request: PageRequest, ending: Ending) -> UnavailableError:
    """Nothing comes, though there has to be more."""
    return UnavailableError(
        f"partition {request.partition}: the publisher gives nothing behind cursor "
        f"{request.cursor!r}, though the feed was at {ending.target!r} when the query began (does "
        f"a replica of it lag?); 'retryTimeout' says how long to wait. If this publisher's '_last' "
        f"always lies beyond its last event, read with endingCursors=quiet",
        partition=request.partition,
        cursor=request.cursor,
    )


def ask_target(client: FeedClient, request: PageRequest) -> str | None:
    """The last checkpoint of the answer to `_last`; None where there is none."""
    page = client.page(replace(request, cursor=wire.LAST, wait=0), any_end=True)
    for _ in page:
        pass
    return None if page.cursor == wire.LAST else page.cursor


def _look_behind(client: FeedClient, request: PageRequest, ending: Ending) -> None:
    """Ask for the first event behind the target, and at first whether this read starts there.

    A target that is gone is none of this reader's losses, which may be behind it already: case (d).
    """
    assert ending.target is not None
    behind = replace(request, cursor=ending.target, wait=0)
    try:
        if ending.pages == 0 and request.cursor != wire.FIRST:
            ending.ended = _leads_to(client, behind, request.cursor)[0]
        ending.line = _first_line(client, replace(behind, page_size_hint=1))
        ending.gone_since = None
        if ending.line is None:
            ending.quiet_behind, ending.events_since = request.cursor, 0
        elif ending.quiet_behind is not None:
            ending.ended |= _was_passed(client, request, ending, ending.line)
    except PublisherError as exc:
        if exc.status == _GONE:
            ending.gone_since = ending.gone_since or time.monotonic()
            ending.ended |= time.monotonic() - ending.gone_since >= _SETTLED
        elif exc.status not in _REFUSED:
            raise


def _was_passed(client: FeedClient, request: PageRequest, ending: Ending, line: bytes) -> bool:
    """Whether the target lies in what was read while nothing was behind it. Case (c), later."""
    assert ending.quiet_behind is not None
    asked = replace(request, cursor=ending.quiet_behind, wait=0)
    events = candidates = 0
    while events < ending.events_since:
        page = client.page(asked, any_end=True)
        before = asked.cursor
        for interval in page:
            for number in events_before(interval.lines, line, _MOST_CANDIDATES):
                if events + number > ending.events_since or candidates >= _MOST_CANDIDATES:
                    return False
                place = replace(asked, cursor=before, page_size_hint=number)
                if number and _where(client, place, ending.target):
                    return True
                candidates += bool(number)
            events += interval.events
            before = interval.cursor
            if before == ending.target and events <= ending.events_since:
                return True
        if page.cursor == asked.cursor:
            return False
        asked = replace(asked, cursor=page.cursor)
    return False


def _first_line(client: FeedClient, request: PageRequest) -> bytes | None:
    page = client.page(request, any_end=True)
    for interval in page:
        if interval.lines:
            return interval.lines.partition(b"\n")[0]
    return page.tail.partition(b"\n")[0] or None


def _is_empty_behind(client: FeedClient, page: Page, cursor: str) -> bool:
    """Whether a cursor has nothing behind it, or is gone; not where the publisher refuses it."""
    try:
        asked = replace(page.request, cursor=cursor, page_size_hint=1, wait=0)
        return _first_line(client, asked) is None
    except PublisherError as exc:
        if exc.status not in {_GONE, *_REFUSED}:
            raise
        return exc.status == _GONE


def _leads_on(client: FeedClient, page: Page, ending: Ending) -> bool:
    """Whether the way from the target leads to a quiet page's end: gone once, however long."""
    for _ in range(_MOST_PAGES):
        before = ending.way or ending.target
        assert before is not None
        asked = replace(page.request, cursor=before, wait=0)
        there, ending.way = _leads_to(client, asked, page.cursor)
        if there or ending.way == before:
            return there
    return False


def _leads_to(client: FeedClient, request: PageRequest, cursor: str) -> tuple[bool, str]:
    """Whether a page comes to this cursor, and where it ends; the same where it is refused."""
    while True:
        page = client.page(request, any_end=True)
        try:
            there = any([interval.cursor == cursor for interval in page])
        except PublisherError as exc:
            if exc.status not in {_GONE, *_REFUSED}:
                raise
            there = False
        stuck = page.events and page.cursor == request.cursor
        if not stuck or request.page_size_hint > MAX_HINT:
            return there, page.cursor
        request = replace(request, page_size_hint=4 * request.page_size_hint)


def _where(client: FeedClient, request: PageRequest, target: str | None) -> Tail | None:
    """The target's place, if it comes behind at most as many events as are asked for."""
    events = 0
    try:
        for interval in client.page(replace(request, wait=0), any_end=True):
            events += interval.events
            if events > request.page_size_hint:
                break
            if interval.cursor == target:
                return Tail(request.cursor, events)
    except PublisherError as exc:
        if exc.status not in {_GONE, *_REFUSED}:
            raise
    return None
