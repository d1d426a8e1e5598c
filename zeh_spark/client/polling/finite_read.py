"""Read a partition to its end: page after page, until `feed_end` says that it has ended.

Every read that has to end uses this: a batch read, a reader without Spark, a stream's run with the
trigger AvailableNow or Once, and a batch that Spark repeats.

Rule for editors: an end that cannot be proven is an EndUnknownError, never a silent end. Each of
these reads handles it in its own way.

Runs wherever feeds are read.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum

from zeh_spark.client.http.feed_client import FeedClient, Page, PageEnd, PageRequest, Statistics
from zeh_spark.client.http.responses import TransientError
from zeh_spark.client.options.reading_options import Cursors
from zeh_spark.client.polling.cursor_loops import CursorRounds
from zeh_spark.client.polling.feed_end import MOST_WITHOUT_EVENTS, SETTLED, Ending
from zeh_spark.client.polling.feed_end_probes import GONE, UNKNOWN, EndProbes, beginning
from zeh_spark.errors import OptionAdvice, PublisherError, UnavailableError, ZeroEventHubError
from zeh_spark.wire import wire

log = logging.getLogger(__name__)

_LONG_WITHOUT_TARGET = 100
_JOINED_BYTES = 1 << 20


class Doubt(Enum):
    """Why it is not known where a partition ends. The value is the message, and what to do."""

    SILENT = (
        "the publisher gives nothing after cursor {cursor!r}, though the feed was at {target!r} "
        "when this read began (perhaps a replica of it lags)",
        OptionAdvice(
            "read again later, or wait longer with {}. If this publisher's '_last' always lies "
            "beyond its last event, set {} to 'quiet'",
            ("retryTimeout", "endingCursors"),
        ),
    )
    SKIPPING = (
        "{skipped} answers in a row moved the cursor without an event, up to {cursor!r}, and the "
        "cursor {target!r}, where the feed was when this read began, did not come, so it is not "
        "known whether this is the end",
        OptionAdvice(
            "set {}, or continue from that cursor in another read, as the next run of a stream "
            "with the trigger availableNow does",
            ("endingCursors",),
        ),
    )
    MISSED = (
        "up to cursor {cursor!r} the checkpoint {target!r} of 'endingCursors' did not come",
        OptionAdvice(
            "check that it is of this feed and partition, that it is not before {}, and that the "
            "publisher sends the same checkpoints each time",
            ("startingCursors",),
        ),
    )
    REMOVED = (
        "the publisher removed what is after {target!r}, the cursor of 'endingCursors', while the "
        "read was at {cursor!r}, so the place where it has to end cannot be found",
        OptionAdvice(
            "read again with new cursors in {} (in Spark, zeh_spark.last_cursors(url) gives them)",
            ("endingCursors",),
        ),
    )


class EndUnknownError(Exception):
    """The end of a partition cannot be proven. This error never leaves the source."""

    def __init__(self, doubt: Doubt, request: PageRequest, ending: Ending) -> None:
        said, self.advice = doubt.value
        said = said.format(
            cursor=request.cursor, target=ending.target, skipped=ending.most_without_events
        )
        super().__init__(f"partition {request.partition}: {said}")
        self.doubt = doubt
        self.request = request
        self.target = ending.target

    def as_error(self) -> PublisherError | UnavailableError:
        """Return the error that a batch query ends with."""
        kind = UnavailableError if self.doubt is Doubt.SILENT else PublisherError
        about_target = self.doubt in {Doubt.MISSED, Doubt.REMOVED}
        cursor = self.target if about_target else self.request.cursor
        anchors = {
            Doubt.MISSED: "the-checkpoint-of-endingcursors-did-not-come",
            Doubt.REMOVED: "the-cursor-of-endingcursors-was-removed",
        }
        return kind(
            str(self),
            partition=self.request.partition,
            cursor=cursor,
            advice=self.advice,
            anchor=anchors.get(self.doubt, "it-is-not-known-where-a-batch-read-ends"),
        )


def joined(intervals: Iterable[wire.Interval]) -> Iterator[wire.Interval]:
    """Yield intervals joined until they have 1 MiB of lines, and then the rest.

    The rest also comes before an error: otherwise, a line that is always wrong would keep back the
    events before it for ever. Of an interval without events only the cursor is held: a publisher
    may send such without end.
    """
    lines: list[bytes] = []
    size = events = 0
    cursor = failure = None
    try:
        for interval in intervals:
            cursor = interval.cursor
            if interval.events:
                lines.append(interval.lines)
                size += len(interval.lines)
                events += interval.events
            if size >= _JOINED_BYTES:
                yield wire.Interval(b"".join(lines), events, cursor)
                lines, size, events, cursor = [], 0, 0, None
    except (ZeroEventHubError, EndUnknownError) as exc:
        failure = exc
    if cursor is not None:
        yield wire.Interval(b"".join(lines), events, cursor)
    if failure:
        raise failure


@dataclass(eq=False)
class FiniteRead:
    """Reads a partition from `request.cursor` to its end.

    `request` is the next page, or the one that is being read. `gone_since` is when a target that
    the user named was found to be gone, in seconds of the clock of `retry`. `page` is the page that
    is being read. After `next_page`, `end` is its end; None if the whole read has ended.

    After an error, another read may continue with its `ending`. If it is `exact`, the target has to
    come, and nothing after it is yielded. Probes are not counted in `statistics`. Raises
    EndUnknownError if the end cannot be proven, as `Doubt` says.
    """

    client: FeedClient
    request: PageRequest
    ending: Ending
    _: KW_ONLY
    exact: bool = False
    hold: Callable[[int], object] = lambda size: None
    statistics: Statistics | None = None

    def __post_init__(self) -> None:
        self.retry = self.client.transport.retry()
        self.page: Page
        self.end: PageEnd | None = None
        self.gone_since: float | None = None
        self._page_size_hint = self.request.page_size_hint
        if self.request.only:  # many answers may have none of the selected events
            self.ending.most_without_events = sys.maxsize
        self._rounds = CursorRounds(self.request.partition, self.request.cursor)

    def __iter__(self) -> Generator[wire.Interval, None, None]:
        """Yield all intervals in their order. It may pause if nothing new comes."""
        yield from self.next_page()
        while self.end is not None:
            yield from self.next_page()

    def next_page(self) -> Generator[wire.Interval, None, None]:
        """Yield the intervals of the next page."""
        self.end = None
        while self.end is None and not self._ends_before_page():
            yield from self._read_page()
        if self.end is None and self.exact and not self.ending.met:
            raise EndUnknownError(Doubt.MISSED, self.request, self.ending)

    def _read_page(self) -> Generator[wire.Interval, None, None]:
        ending, cursor = self.ending, self.request.cursor
        self.page = self.client.page(self.request, self.hold, statistics=self.statistics)
        with self.page as page:
            for interval in page:
                ending.sees(interval)
                if self.exact and not ending.met and self._passes_target():
                    break  # ask again for this interval, up to the target inside it
                self._rounds.follow(interval.cursor, interval.events)
                yield interval
                cursor = interval.cursor
                if ending.ended:
                    break
            else:
                self._page_ended(page.end)
                if not ending.ended:
                    self.end, cursor = page.end, page.end.cursor
        hint = self._page_size_hint
        self.request = replace(self.request, cursor=cursor, page_size_hint=hint)

    def _ends_before_page(self) -> bool:
        """Return whether the read has ended; if not, prepare the request for the next page."""
        ending = self.ending
        if ending.ended:
            return True
        if ending.place:  # the events before the target, with which the read ends
            cursor, events = ending.place
            self.request = replace(self.request, cursor=cursor, page_size_hint=events)
        ending.page_begins(self.request.cursor)
        if ending.wants_line and not ending.ended:
            self._ask_for_line()
        return ending.ended

    def _ask_for_line(self) -> None:
        """Ask for the first event after the target, and at first whether this read starts there."""
        ending, probes, cursor = self.ending, self._probes, self.request.cursor
        assert ending.target is not None
        try:
            if ending.pages == 0 and cursor != wire.FIRST:
                ending.ended = probes.leads_to(ending.target, cursor)[0]
            line = probes.first_line(ending.target)
            self.gone_since = None
            ending.line_is(line, cursor)
            if line is not None and ending.quiet_at is not None:
                ending.ended |= probes.was_passed(ending, line)
        except PublisherError as exc:
            if exc.status not in UNKNOWN:
                raise
            if exc.status == GONE:
                self._target_is_gone()

    def _target_is_gone(self) -> None:
        """Ask `_last` for another target, after a 410 for the one that it told before.

        Raises EndUnknownError if the user has named the target, and it stays gone.
        """
        if not self.exact:
            self.ending.target_is_gone(self._probes.target())
            return
        now = self.retry.clock()
        self.gone_since = now if self.gone_since is None else self.gone_since
        if now - self.gone_since >= SETTLED:
            raise EndUnknownError(Doubt.REMOVED, self.request, self.ending)

    def _passes_target(self) -> bool:
        """Return whether the target was passed at one of the candidates. Case (c)."""
        ending = self.ending
        candidates, ending.candidates = ending.candidates, []
        for candidate in candidates:
            if candidate.events and not ending.place:
                place = self._probes.place(candidate, ending.target)
                if place:
                    ending.passed(place)
        return ending.place is not None

    def _page_ended(self, end: PageEnd) -> None:
        """Decide after a page, whose intervals were all yielded, whether to continue.

        Pauses if the partition is quiet before it came to where it should be.
        """
        ending = self.ending
        ending.page_ended(end)
        if ending.undecided and not ending.settles:
            raise EndUnknownError(Doubt.SKIPPING, replace(self.request, cursor=end.cursor), ending)
        if ending.undecided and not ending.met:
            log.warning(
                "partition %d: the cursor moved %d times in a row without an event, and events "
                "after %r may be unread; this run ends here, the next one continues",
                self.request.partition,
                ending.most_without_events,
                end.cursor,
            )
        asked_about = bool(ending.candidates)
        if ending.ended:
            return
        if ending.target is None:
            if ending.pages == _LONG_WITHOUT_TARGET:
                log.warning(
                    "partition %d: the publisher answers '_last' without a checkpoint, so this "
                    "read continues until the feed is quiet for a moment",
                    self.request.partition,
                )
            return  # the next answer decides; during a pause more events would come
        if self._passes_target():
            assert ending.place
            ending.ended |= ending.place.cursor != end.cursor
        elif ending.quiet_answers:
            if self._probes.is_gone(ending.target):
                self._target_is_gone()
            ending.ended = self._probes.leads_on(ending, end.cursor)
        elif asked_about:
            ending.ended = self._probes.leads_to(ending.target, end.cursor)[0]
            self._warn_of_doubt()
        if not ending.quiet_answers:
            self.retry.progress()
        elif not ending.ended and ending.target is not None:
            self._await_target(ending.target, end)

    def _await_target(self, target: str, end: PageEnd) -> None:
        """Wait for what has to come before the target, or accept the silence as the end."""
        request = replace(self.request, cursor=end.cursor)
        may_settle = self.ending.settles or end.cursor == wire.FIRST
        is_settled = self.retry.lasted >= min(SETTLED, self.retry.timeout / 4)
        if may_settle and is_settled and self._probes.is_empty_after(target):
            log.warning(
                "partition %d: cursor %r is taken for the end, because nothing is after it, nor "
                "after %r, where the feed was when the query began",
                request.partition,
                end.cursor,
                target,
            )
            self.ending.ended = True
        else:
            doubt = Doubt.MISSED if self.exact else Doubt.SILENT
            self.retry.wait(TransientError(EndUnknownError(doubt, request, self.ending)))

    @property
    def _probes(self) -> EndProbes:
        return EndProbes(self.client, self.request)

    def _warn_of_doubt(self) -> None:
        if not self.ending.ended and not self.ending.doubtful:
            self.ending.doubtful = True
            log.warning(
                "partition %d: this read may have passed %r, where the feed was when it began, but "
                "the publisher gives no proof; it continues until the feed is quiet",
                self.request.partition,
                self.ending.target,
            )


def find_target(client: FeedClient, request: PageRequest, ends: Cursors) -> tuple[str | None, bool]:
    """Return the cursor at which a partition ends by `endingCursors`, and whether it has to come.

    The cursor is None if it is not known. `request` says what the pages ask for.
    """
    if isinstance(ends, dict):
        return ends[request.partition], True
    return (None if ends == "quiet" else EndProbes(client, request).target()), False


def find_end(client: FeedClient, request: PageRequest, ends: Cursors) -> FiniteRead:
    """Return the read of a partition to its end as it is now, by `endingCursors`."""
    target, exact = find_target(client, request, ends)
    if exact and request.tell and request.cursor == wire.FIRST:
        request = replace(request, cursor=beginning(client, request, 0) or wire.FIRST)
    ending = Ending(target, most_without_events=MOST_WITHOUT_EVENTS)
    return FiniteRead(client, request, ending, exact=exact)
