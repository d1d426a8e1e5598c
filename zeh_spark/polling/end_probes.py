"""Requests by which a finite read finds out where a partition ends.

Each probe is one small request, or a few. The cases are those of `end_detection`.

Rule for editors: a probe never fails because the publisher does not know a cursor any more, or does
not know it yet. It then answers that nothing is known. Runs in threads of the driver and in tasks.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from zeh_spark.client.feed_client import MAX_HINT, FeedClient, PageEnd, PageItems, PageRequest
from zeh_spark.client.responses import TransientError
from zeh_spark.errors import PublisherError, UnavailableError
from zeh_spark.polling.end_detection import MOST_CANDIDATES, Ending, Tail, events_before
from zeh_spark.protocol import wire

GONE = 410
_REFUSED = {400, 404, 409, 422}
"""The cursor is unknown: to a replica that lags, for instance."""
UNKNOWN = {GONE, *_REFUSED}
_MOST_PAGES = 1000


class EndProbes:
    """The probes of one partition. `request` gives the partition and the usual page size."""

    def __init__(self, client: FeedClient, request: PageRequest) -> None:
        self._client = client
        self._request = replace(request, wait=0)

    def target(self) -> str | None:
        """Return the last checkpoint of the answer to `_last`; None if it has none."""
        cursor = wire.LAST
        for item in self._page(wire.LAST):
            cursor = item.cursor
        return None if cursor == wire.LAST else cursor

    def first_line(self, cursor: str) -> bytes | None:
        """Return the first event after a cursor, as its line; None if there is none."""
        with closing(self._page(cursor, 1)) as page:
            for item in page:
                lines = item.tail if isinstance(item, PageEnd) else item.lines
                if lines:
                    return lines.partition(b"\n")[0]
        return None

    def is_empty_after(self, cursor: str) -> bool:
        """Return whether nothing is after a cursor, or the cursor is gone.

        False if the publisher refuses the cursor.
        """
        try:
            return self.first_line(cursor) is None
        except PublisherError as exc:
            if exc.status not in UNKNOWN:
                raise
            return exc.status == GONE

    def is_gone(self, cursor: str) -> bool:
        """Return whether the publisher removed what is after a cursor (410)."""
        try:
            self.first_line(cursor)
        except PublisherError as exc:
            if exc.status not in UNKNOWN:
                raise
            return exc.status == GONE
        return False

    def place(self, tail: Tail, target: str | None) -> Tail | None:
        """Return the target's place if it comes after at most the tail's events."""
        events = 0
        try:
            with closing(self._page(tail.cursor, tail.events)) as page:
                for item in page:
                    events += item.events if isinstance(item, wire.Interval) else 0
                    if events > tail.events or isinstance(item, PageEnd):
                        break
                    if item.cursor == target:
                        return Tail(tail.cursor, events)
        except PublisherError as exc:
            if exc.status not in UNKNOWN:
                raise
        return None

    def leads_to(self, start: str, cursor: str) -> tuple[bool, str]:
        """Return whether the page after `start` comes to `cursor`, and where the page ends.

        It ends at `start` if the publisher refuses that cursor.
        """
        hint = self._request.page_size_hint
        while True:
            at, came, events = start, False, 0
            try:
                for item in self._page(start, hint):
                    at, events = item.cursor, item.events
                    came |= isinstance(item, wire.Interval) and at == cursor
            except PublisherError as exc:
                if exc.status not in UNKNOWN:
                    raise
                return False, at
            if not (events and at == start) or hint > MAX_HINT:
                return came, at
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
        start, events, candidates = ending.quiet_at, 0, 0
        while events < ending.events_since:
            before = start
            with closing(self._page(start)) as page:
                for item in page:
                    if isinstance(item, PageEnd):
                        break
                    for number in events_before(item.lines, line, MOST_CANDIDATES):
                        if events + number > ending.events_since or candidates >= MOST_CANDIDATES:
                            return False
                        if number and self.place(Tail(before, number), ending.target):
                            return True
                        candidates += bool(number)
                    events += item.events
                    before = item.cursor
                    if before == ending.target and events <= ending.events_since:
                        return True
            if before == start:
                return False
            start = before
        return False

    def _page(self, cursor: str, hint: int | None = None) -> PageItems:
        hint = self._request.page_size_hint if hint is None else hint
        request = replace(self._request, cursor=cursor, page_size_hint=hint)
        return self._client.page(request, any_end=True)


def first_checkpoint(client: FeedClient, request: PageRequest) -> str:
    """Return what `_last` means now: the first checkpoint of its answer.

    The events before that checkpoint do not belong to the read. Raises UnavailableError if no
    checkpoint came within `retryTimeout`.
    """

    def ask() -> str:
        with closing(client.page(request)) as page:
            for item in page:
                if isinstance(item, wire.Interval):
                    return item.cursor
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

    return client.retry().call(ask)
