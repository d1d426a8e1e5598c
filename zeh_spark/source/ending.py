"""When a read that has to end has read a partition to its end.

A feed has no end, and the protocol no call that tells its head. A finite read (`spark.read`, the
triggers AvailableNow and Once) asks `_last` once when it begins; the *last* checkpoint of that
answer is its target T [the reference server's `_last` serves one event before it]. The partition
has ended at the first of

(a) a whole answer, asked without `wait`, without events and with the same cursor or none; or
    several in a row without events [a publisher may skip over what it filters, and some move their
    cursor for ever]: two for a stream, whose next run goes on there, many for a batch;
(b) the checkpoint T [a start at T has ended];
(c) the end of the page that holds the first event behind T [T itself may never come again, and a
    feed that never goes quiet never gives (a)].

Stopping early only leaves events for the next read. How long a page is says nothing.

Rule for editors: `Ending` decides, pure; the functions below it ask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from zeh_spark import wire
from zeh_spark.client import FeedClient, Page, PageRequest
from zeh_spark.errors import CursorGoneError


@dataclass(slots=True)
class Ending:
    """The end of one partition. `line` is the first event behind the target, once there is one."""

    target: str | None
    line: bytes | None = None
    ended: bool = False
    most_without_events: int = 2
    _passed: bool = False
    _answers_without_events: int = 0

    def starts_at(self, cursor: str) -> None:
        self.ended = cursor == self.target

    def sees(self, interval: wire.Interval) -> None:
        """An interval was read. Cases (b) and the first half of (c)."""
        if interval.cursor == self.target:
            self.ended = True
        self._look_for_line(interval.lines)

    def page_ended(self, page: Page) -> None:
        """A page was read to its end. Cases (a) and (c)."""
        self._look_for_line(page.tail)
        if page.events:
            self._answers_without_events = 0
        else:
            self._answers_without_events += 1
        quiet = page.complete and not page.events and page.cursor == page.request.cursor
        idle = self._answers_without_events >= self.most_without_events
        self.ended |= quiet or idle or self._passed

    def _look_for_line(self, lines: bytes) -> None:
        if self.line is not None and not self._passed:
            self._passed = has_line(lines, self.line)


def has_line(lines: bytes, line: bytes) -> bool:
    """Whether `line`, without its newline, is one of the whole lines."""
    return lines.startswith(line + b"\n") or b"\n" + line + b"\n" in lines


def ask_target(client: FeedClient, request: PageRequest) -> str | None:
    """The last checkpoint of the answer to `_last`; None where there is none."""
    page = client.page(replace(request, cursor=wire.LAST, wait=0), any_end=True)
    for _ in page:
        pass
    return None if page.cursor == wire.LAST else page.cursor


def ask_line(client: FeedClient, request: PageRequest, target: str) -> bytes | None:
    """The first event line behind the target; None while there is none, or where it was removed
    [this reader may be behind it already, and the target's loss is not its own].
    """
    page = client.page(replace(request, cursor=target, page_size_hint=1, wait=0), any_end=True)
    try:
        for interval in page:
            if interval.lines:
                return interval.lines.partition(b"\n")[0]
    except CursorGoneError:
        return None
    return page.tail.partition(b"\n")[0] or None
