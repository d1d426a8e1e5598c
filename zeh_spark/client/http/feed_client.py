"""Read a feed: one request for one partition, read as it arrives, repeated until it was whole.

Rule for editors: after an interruption, the client asks again from the last checkpoint. It never
yields events before the checkpoint after them has arrived.

Runs wherever feeds are read. A client may be shared between threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from urllib.parse import quote, urlencode

from zeh_spark.client.http.credentials import masked
from zeh_spark.client.http.discovery import other_protocol
from zeh_spark.client.http.responses import TransientError, problem_document
from zeh_spark.client.http.transport import Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.errors import OptionAdvice, OptionError, PublisherError
from zeh_spark.wire import page_headers, wire
from zeh_spark.wire.direct_reads import PartitionLag
from zeh_spark.wire.page_headers import Standing, parse_fields
from zeh_spark.wire.page_scanner import PageScanner

_TELL = {page_headers.TELL: "1"}
_ABOUT_THE_CURSOR = {400, 409, 410}
MAX_HINT = 640_000
"""The page size hint, in events, up to which the client may raise a smaller one."""

MAX_INTERVAL = 512 << 20
"""Bytes that are held at most until their checkpoint arrives, but in a stream (see `source`)."""

_ANEW = (
    "a new {}, and for Spark's file sink a new path, because the old path leaves out batches whose "
    "numbers it has"
)
_OF_CURSORS = {
    410: OptionAdvice(
        f"start again with {{}} (a stream with {_ANEW}), or set {{}} to 'false', and the stream "
        f"continues with the oldest events left",
        ("startingCursors", "checkpointLocation", "failOnDataLoss"),
    ),
    409: OptionAdvice(
        f"start a stream with {_ANEW}. Let it begin at 'first'; or, if the publisher was restored, "
        f"at the newest cursors that both histories have, which "
        f"zeh_spark.shared_cursors(checkpointLocation, url) gives for {{}}",
        ("checkpointLocation", "startingCursors"),
    ),
}
"""What a query of Spark does about a refused cursor, by the status of the refusal."""
_MAX_HINT_FACTOR = 64
"""The factor by which any hint may be raised, if pages end before their checkpoint."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for the page of one partition after a cursor (spec "Parameters").

    Args:
        page_size_hint: the number of events to ask for; publishers may give more or fewer.
        headers: the names of the event headers to ask for; none if empty.
        wait: the seconds that the publisher may wait for events; 0 for long polling off.
        tell: whether to ask where the feed stands (`wire.page_headers`).
        only: what selects the events (`served_lines.Selection`); all if empty.
    """

    partition: int
    cursor: str
    partition_count: int
    page_size_hint: int
    headers: tuple[str, ...] = ()
    wait: int = 0
    tell: bool = False
    only: str = ""

    def query(self) -> str:
        """Return the query string: each parameter once, every reserved character encoded."""
        parameters = {
            "n": str(self.partition_count),
            f"cursor{self.partition}": self.cursor,
            "pagesizehint": str(self.page_size_hint),
        }
        if self.headers:
            parameters["headers"] = ",".join(self.headers)
        if self.only:
            parameters["only"] = self.only
        if self.wait:
            parameters["wait"] = str(self.wait)
        return urlencode(parameters, quote_via=quote, safe="")


@dataclass(slots=True)
class Statistics:
    """Counts of what reading took so far. Threads may share it.

    Args:
        pages: requests that were answered.
        ignored_lines: lines that were neither events nor checkpoints.
        seconds: the time spent inside requests.
    """

    pages: int = 0
    retries: int = 0
    ignored_lines: int = 0
    seconds: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(
        self, *, pages: int = 0, retries: int = 0, ignored_lines: int = 0, seconds: float = 0.0
    ) -> None:
        """Count more pages, retries, lines or seconds."""
        with self._lock:
            self.pages += pages
            self.retries += retries
            self.ignored_lines += ignored_lines
            self.seconds += seconds


@dataclass(frozen=True, slots=True)
class PageEnd:
    """The end of a page.

    Attributes:
        cursor: the last checkpoint of the page, or `start` if none came.
        events: how many events the last answer brought, with or without a checkpoint.
        complete: whether the framing of the answer proves that nothing is missing at its end.
        tail: the event lines that no checkpoint closed. They must not be delivered.
    """

    start: str
    cursor: str
    events: int
    complete: bool
    tail: bytes

    @property
    def moved(self) -> bool:
        """Whether the page led to another cursor."""
        return self.cursor != self.start


class _NoProgressError(Exception):
    """A whole answer brought events but no checkpoint after them."""


class _DistrustedError(Exception):
    """An answer had whole headers, no body, and no framing that shows that there is none."""


class FeedClient:
    """Reads the pages of one feed.

    Guarantee: yields no event before the checkpoint after it has arrived.
    """

    def __init__(self, options: ClientOptions, *, max_interval: int = MAX_INTERVAL) -> None:
        self.transport = Transport(options)
        self.max_interval = max_interval

    def page(
        self,
        request: PageRequest,
        hold: Callable[[int], object] = lambda size: None,
        *,
        any_end: bool = False,
        statistics: Statistics | None = None,
    ) -> Page:
        """Read one page of a partition, and continue after interruptions from the last checkpoint.

        `hold` is called before each read, with the number of bytes that wait for a checkpoint, and
        may block. With `any_end` a page is whole even if no checkpoint closes its last events. The
        page is read when it is iterated over.
        """
        return Page(self, request, hold, any_end, statistics or Statistics())


@dataclass(eq=False)
class Page:
    """The intervals of one page, in their order. It is read while it is iterated over, once.

    `cursor` is the last checkpoint that arrived. `standing` is what the last answer told of the
    feed; nothing before the first one. `end` is there when all intervals have come.
    `_distrusted` tells whether the last answer had neither a body nor framing.

    Raises:
        PublisherError: the answer is final.
        UnavailableError: there was no progress for `retryTimeout`.
    """

    client: FeedClient
    request: PageRequest
    hold: Callable[[int], object]
    any_end: bool
    statistics: Statistics

    def __post_init__(self) -> None:
        self.cursor = self.request.cursor
        self.standing = Standing()
        self.end: PageEnd
        self._answered = 0.0
        self._delivered = 0
        self._events = 0
        self._complete = False
        self._tail = b""
        self._distrusted = False
        self._intervals = self._read()

    def __iter__(self) -> Generator[wire.Interval, None, None]:
        return self._intervals

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self._intervals.close()

    @property
    def lag(self) -> PartitionLag | None:
        """How far the partition is behind at `cursor`, as of the answer; None if it is not told.

        The age is that of the first event after the cursor with which the answer was asked for,
        because the publisher tells only that.
        """
        lag = (self.standing.lags or {}).get(str(self.request.partition))
        if lag is None:
            return None
        passed = round(1000 * (time.monotonic() - self._answered))
        age = None if lag.ms is None else lag.ms + passed
        return PartitionLag(max(0, lag.events - self._delivered), age, lag.more)

    def _read(self) -> Generator[wire.Interval, None, None]:
        retry = self.client.transport.retry()
        request = self.request
        failed: set[str] = set()  # asked with when a request failed: to come there is no progress
        while True:
            asked = self.cursor
            try:
                for interval in self._answer(replace(request, cursor=asked)):
                    if interval.cursor not in failed:
                        retry.progress()
                    yield interval
                self.end = PageEnd(
                    self.request.cursor, self.cursor, self._events, self._complete, self._tail
                )
                return
            except TransientError as failure:
                self.statistics.add(retries=1)
                self._distrusted = False
                self.hold(0)  # the bytes that came without their checkpoint are dropped
                failed.add(asked)
                retry.wait(failure)
                request = replace(request, wait=0)
            except _DistrustedError:
                request = replace(request, wait=0)
            except _NoProgressError:
                hint = request.page_size_hint * 2
                if hint <= max(MAX_HINT, self.request.page_size_hint * _MAX_HINT_FACTOR):
                    # the checkpoint may come after more events than the page has
                    request = replace(request, page_size_hint=hint, wait=0)
                else:  # at the head of the feed the checkpoint comes with the next events
                    failed.add(asked)
                    retry.wait(TransientError(self._unclosed(request)))
            except PublisherError as exc:
                if exc.status is None:
                    raise _masked(exc) from None
                if exc.status not in _ABOUT_THE_CURSOR:
                    raise
                raise located(exc, request.partition, self.cursor) from exc

    def _answer(self, request: PageRequest) -> Iterator[wire.Interval]:
        scanner = PageScanner(request.partition)
        self._events, self._complete = 0, False
        started = time.monotonic()
        body = self.client.transport.body(request.query(), _TELL if request.tell else None)
        self.standing, self._answered = parse_fields(body.headers), time.monotonic()
        self._delivered = 0
        received = 0
        try:
            if request.only and body.headers.get(page_headers.ONLY) != request.only:
                raise self._selects_nothing(request.only)
            for data in body:
                received += len(data)
                yield from self._checked(scanner.feed(data), request)
                self._check_size(scanner)
                self.hold(scanner.held_bytes)
            yield from self._checked(_closed(scanner), request)
        finally:
            body.close()
            self._events += scanner.tail_events
            self._tail = scanner.tail
            self.statistics.add(
                pages=1, ignored_lines=scanner.ignored, seconds=time.monotonic() - started
            )
        self._complete = body.proven
        self._check_empty(received)
        if scanner.ignored and not self._events and not scanner.checkpoints:
            raise self._nothing_known(scanner)
        if self._events and self.cursor == request.cursor and not self.any_end:
            raise _NoProgressError

    def _checked(
        self, intervals: list[wire.Interval], request: PageRequest
    ) -> Iterator[wire.Interval]:
        for interval in intervals:
            self._events += interval.events
            if interval.events and interval.cursor == request.cursor and not self.any_end:
                raise _NoProgressError  # the next request would bring the same events, for ever
            special = interval.cursor == wire.FIRST and request.cursor != wire.LAST
            if interval.cursor != self.cursor and (special or interval.cursor == request.cursor):
                raise self._leads_back(interval.cursor)
            self.cursor = interval.cursor
            self._delivered += interval.events
            yield interval

    def _check_empty(self, received: int) -> None:
        """Raise _DistrustedError for an empty answer without framing, but not for the second one.

        A connection that breaks after the headers of such an answer looks the same as a server of
        HTTP/1.0 that has nothing to send. The server answers the same again; the fault hardly does.
        """
        doubtful = not received and not self._complete
        again, self._distrusted = self._distrusted, doubtful
        if doubtful and not again:
            self.statistics.add(retries=1)
            raise _DistrustedError

    def _check_size(self, scanner: PageScanner) -> None:
        if scanner.held_bytes > self.client.max_interval:
            raise PublisherError(
                f"partition {scanner.partition}, cursor {self.cursor!r}: {scanner.held_bytes} "
                f"bytes came without a checkpoint, more than the {self.client.max_interval} that "
                f"are held (4 × maxBytesPerTrigger of a stream, 512 MiB in a batch). Set a smaller "
                f"'pageSizeHint', a larger 'maxBytesPerTrigger', or ask the publisher's owner for "
                f"checkpoints at shorter distances",
                partition=scanner.partition,
                cursor=self.cursor,
                anchor="bytes-came-without-a-checkpoint",
            )

    def _nothing_known(self, scanner: PageScanner) -> Exception:
        """Return the error for an answer of unknown lines; another protocol's is final."""
        document = problem_document(bytes(scanner.unknown).decode(errors="replace"))
        if self._complete and (other := other_protocol(document, self.client.transport)):
            return other
        said = masked(wire.excerpt(scanner.unknown))
        unknown = PublisherError(
            f"partition {scanner.partition}, cursor {self.cursor!r}: the publisher of "
            f"{self.client.transport.url} answered with nothing but lines that are neither events "
            f"nor checkpoints: {said}. Check that this is the address of a feed",
            partition=scanner.partition,
            cursor=self.cursor,
            body=said,
            anchor="a-line-of-the-feed-is-not-an-event",
        )
        return TransientError(unknown)

    def _selects_nothing(self, only: str) -> OptionError:
        return OptionError(
            f"option 'only' is {only}, but the publisher of {self.client.transport.url} gives all "
            f"events: its answer lacks the header {page_headers.ONLY}, so it is another publisher "
            f"or an older one. Remove the option, and filter the DataFrame",
            option="only",
        )

    def _leads_back(self, cursor: str) -> PublisherError:
        what = "the special cursor" if cursor == wire.FIRST else "the cursor it was asked for,"
        return PublisherError(
            f"partition {self.request.partition}, cursor {self.cursor!r}: the publisher sent "
            f"{what} {cursor!r} as a later checkpoint. To continue from it would deliver events "
            f"again: tell the publisher's owner",
            partition=self.request.partition,
            cursor=self.cursor,
            anchor="events-but-no-checkpoint-that-moves-on",
        )

    def _unclosed(self, request: PageRequest) -> PublisherError:
        return PublisherError(
            f"partition {request.partition}: after cursor {self.cursor!r} the publisher sends "
            f"events but no checkpoint that moves on (it was asked for {request.page_size_hint} "
            f"events, the last answer had {self._events}), and without one they cannot be "
            f"delivered exactly once. Tell the publisher's owner; if the checkpoint only comes "
            f"later, raise 'retryTimeout', or if it lies more than {request.page_size_hint} events "
            f"on, 'pageSizeHint'",
            partition=request.partition,
            cursor=self.cursor,
            anchor="events-but-no-checkpoint-that-moves-on",
        )


def located(exc: PublisherError, partition: int, cursor: str) -> PublisherError:
    """Return an error about a cursor (400, 409, 410) with its partition, and with what to do."""
    message = f"partition {partition}, cursor {cursor!r}: {exc.what}"
    if exc.status == 410:
        message += ". Events were removed before they were read"
    advice = _OF_CURSORS.get(exc.status or 0, exc.advice)
    return exc.reworded(message, partition=partition, cursor=cursor, advice=advice)


def _closed(scanner: PageScanner) -> list[wire.Interval]:
    try:
        return scanner.close()
    except PublisherError as exc:
        raise TransientError(_masked(exc)) from None


def _masked(exc: PublisherError) -> PublisherError:
    """Return `exc` with secrets masked in it: its text has the publisher's own words."""
    body = None if exc.body is None else masked(exc.body)
    return exc.reworded(masked(str(exc)), body=body, advice=None)
