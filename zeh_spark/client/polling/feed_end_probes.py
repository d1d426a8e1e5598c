"""Requests by which a finite read finds out where a partition ends.

Each probe is one small request, or a few. The cases are those of `feed_end`.

Rule for editors: a probe never fails because the publisher does not know a cursor any more, or does
not know it yet. It then answers that nothing is known. Runs in threads of the driver and in tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zeh_spark.client.http.feed_client import MAX_HINT, FeedClient, Page, PageRequest
from zeh_spark.client.http.responses import TransientError
from zeh_spark.client.polling.feed_end import MOST_CANDIDATES, Ending, Tail, events_before
from zeh_spark.errors import PublisherError, UnavailableError
from zeh_spark.wire import wire

GONE = 410
_REFUSED = {400, 404, 409, 422}
"""The cursor is unknown: to a replica that lags, for instance."""
UNKNOWN = {GONE, *_REFUSED}
_MOST_PAGES = 1000


class EndProbes:
    """The probes of one partition. `request` gives the partition and the usual page size."""

    def __init__(self, client: FeedClient, request: PageRequest) -> None:
        self._client = client
        self._request = replace(request, wait=0, tell=False)

    def target(self) -> str | None:
        """Return the last checkpoint of the answer to `_last`; None if it has none."""
        page = self._page(wire.LAST)
        for _ in page:
            pass
        return None if page.cursor == wire.LAST else page.cursor

    def first_line(self, cursor: str) -> bytes | None:
        """Return the first event after a cursor, as its line; None if there is none."""
        with self._page(cursor, 1) as page:
            lines = next((each.lines for each in page if each.lines), None) or page.end.tail
        return lines.partition(b"\n")[0] or None

    def is_empty_after(self, cursor: str) -> bool:
        """Return whether nothing is after a cursor, or the cursor is gone.

        False if the publisher refuses the cursor.
        """
        with _Refusal() as refusal:
            return self.first_line(cursor) is None
        return refusal.status == GONE

    def is_gone(self, cursor: str) -> bool:
        """Return whether the publisher removed what is after a cursor (410)."""
        with _Refusal() as refusal:
            self.first_line(cursor)
        return refusal.status == GONE

    def place(self, tail: Tail, target: str | None) -> Tail | None:
        """Return the target's place if it comes after at most the tail's events."""
        events = 0
        with _Refusal(), self._page(tail.cursor, tail.events) as page:
            for interval in page:
                events += interval.events
                if events > tail.events:
                    break
                if interval.cursor == target:
                    return Tail(tail.cursor, events)
        return None

    def leads_to(self, start: str, cursor: str) -> tuple[bool, str]:
        """Return whether the page after `start` comes to `cursor`, and where the page ends.

        It ends at `start` if the publisher refuses that cursor.
        """
        hint = self._request.page_size_hint
        while True:
            page = self._page(start, hint)
            with _Refusal() as refusal:
                came = cursor in [each.cursor for each in page]
            if refusal.status:
                return False, page.cursor
            if not (page.end.events and page.cursor == start) or hint > MAX_HINT:
                return came, page.cursor
            hint *= 4

    def leads_on(self, ending: Ending, cursor: str) -> bool:
        """Return whether the way from the target leads to `cursor`, where a page was quiet.

        The way is followed once, however long it is. Without a target, nothing leads there.
        """
        for _ in range(_MOST_PAGES):
            before = ending.way or ending.target
            if before is None:
                return False
            if before == cursor:  # the feed had grown when the way was followed
                return True
            came, ending.way = self.leads_to(before, cursor)
            if came or ending.way == before:
                return came
        return False

    def was_passed(self, ending: Ending, line: bytes) -> bool:
        """Return whether the target lies in what was read while nothing was after it.

        This is case (c) for pages that were read before.
        """
        assert ending.quiet_at is not None
        before, events, asked = ending.quiet_at, 0, 0
        for interval in self._read_on(before) if ending.events_since else ():
            for number in filter(None, events_before(interval.lines, line, MOST_CANDIDATES)):
                if events + number > ending.events_since or asked == MOST_CANDIDATES:
                    return False
                if self.place(Tail(before, number), ending.target):
                    return True
                asked += 1
            before, events = interval.cursor, events + interval.events
            if events > ending.events_since or before == ending.target:
                return events <= ending.events_since
        return False

    def _read_on(self, cursor: str) -> Iterator[wire.Interval]:
        """Yield what follows a cursor, page by page, until a page leads no further."""
        for _ in range(_MOST_PAGES):
            with self._page(cursor) as page:
                yield from page
            if page.cursor == cursor:
                return
            cursor = page.cursor

    def _page(self, cursor: str, hint: int | None = None) -> Page:
        hint = self._request.page_size_hint if hint is None else hint
        request = replace(self._request, cursor=cursor, page_size_hint=hint)
        return self._client.page(request, any_end=True)


class _Refusal:
    """Ends its block without an error if the publisher does not know a cursor: with `status`."""

    status: int | None = None

    def __enter__(self) -> _Refusal:
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> bool:
        if isinstance(error, PublisherError) and error.status in UNKNOWN:
            self.status = error.status
        return self.status is not None


def beginning(client: FeedClient, request: PageRequest, page_size_hint: int) -> str | None:
    """Return the cursor before a partition's first event; None if the answer has events.

    The end of a partition that had no events is there. With a hint of 0, our publisher tells it
    whatever events there are.
    """
    request = replace(request, cursor=wire.FIRST, page_size_hint=page_size_hint)
    with client.page(request, any_end=True) as page:
        has_events = any(each.events for each in page) or page.end.events > 0
    return None if has_events else page.cursor


def first_checkpoint(client: FeedClient, request: PageRequest) -> str:
    """Return what `_last` means now: the first checkpoint of its answer.

    The events before that checkpoint do not belong to the read. Raises UnavailableError if no
    checkpoint came within `retryTimeout`.
    """

    def ask() -> str:
        with client.page(request) as page:
            for interval in page:
                return interval.cursor
        raise TransientError(
            UnavailableError(
                f"partition {request.partition}: the publisher of {client.transport.url} answers "
                f"the cursor '_last' without a checkpoint, so there is no place to start from. "
                f"Give explicit cursors in 'startingCursors'",
                partition=request.partition,
                cursor=wire.LAST,
                anchor="_last-is-answered-without-a-checkpoint",
            )
        )

    return client.transport.retry().call(ask)
