"""Reading a feed: one request for one partition, read as it arrives, repeated until it was whole.

Rule for editors: what was cut is asked for again from the last checkpoint; nothing after a
checkpoint that did not arrive is ever handed out.

Runs in threads of the driver (stream) and in tasks (batch). A client may be shared between threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from urllib.parse import quote, urlencode

from zeh_spark.client.credentials import masked
from zeh_spark.client.discovery import Discovered, discover
from zeh_spark.client.responses import TransientError
from zeh_spark.client.retry import Retry
from zeh_spark.client.transport import Transport
from zeh_spark.errors import PublisherError
from zeh_spark.options import ClientOptions
from zeh_spark.protocol import wire
from zeh_spark.protocol.page_scanner import PageScanner

_ABOUT_THE_CURSOR = {400, 409, 410}
MAX_HINT = 640_000
_ANEW = (
    "a new checkpointLocation, and with Spark's file sink a new path, because that leaves out "
    "batches whose numbers it has"
)
_MAX_HINT_FACTOR = 64
"""How far the page size hint is raised for a publisher whose pages end before their checkpoint."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What is asked for: the page of one partition after a cursor (spec "Parameters"). `wait` in
    seconds, 0 for none.
    """

    partition: int
    cursor: str
    partition_count: int
    page_size_hint: int
    headers: tuple[str, ...] = ()
    wait: int = 0

    def query(self) -> str:
        """The query string: each parameter once, every reserved character encoded."""
        parameters = {
            "n": str(self.partition_count),
            f"cursor{self.partition}": self.cursor,
            "pagesizehint": str(self.page_size_hint),
        }
        if self.headers:
            parameters["headers"] = ",".join(self.headers)
        if self.wait:
            parameters["wait"] = str(self.wait)
        return urlencode(parameters, quote_via=quote, safe="")


@dataclass(slots=True)
class Statistics:
    """What reading took so far. `seconds` were spent inside requests. Threads may share it."""

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
    """The end of a page, which is the last item of `FeedClient.page`.

    Attributes:
        start: The cursor that the page was requested with.
        cursor: The last checkpoint of the page, or `start` if none came.
        events: How many events the last answer brought, with or without a checkpoint.
        complete: Whether the framing of the answer proves that nothing is missing at its end.
        tail: The event lines that no checkpoint closed. They must not be delivered.
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


PageItems = Generator["wire.Interval | PageEnd", None, None]
"""The intervals of a page in their order, then one `PageEnd`."""


class _NoProgressError(Exception):
    """A whole answer brought events but no checkpoint that lies after them."""


class FeedClient:
    """Asks one feed's publisher. Never hands out what no checkpoint has closed."""

    def __init__(self, options: ClientOptions, *, max_interval: int = 1 << 62) -> None:
        self.transport = Transport(options)
        self.max_interval = max_interval

    def retry(self) -> Retry:
        """Return the retries of one difficulty, which may last as long as `retryTimeout` says."""
        return self.transport.retry()

    def stop(self) -> None:
        """Stop retrying, because nobody waits for answers any more."""
        self.transport.stop()

    def page(
        self,
        request: PageRequest,
        hold: Callable[[int], object] = lambda size: None,
        *,
        any_end: bool = False,
        statistics: Statistics | None = None,
    ) -> PageItems:
        """Read one page of a partition, and continue after interruptions from the last checkpoint.

        Args:
            request: The page.
            hold: Called before each read, with the number of bytes that wait for a checkpoint. It
                may block.
            any_end: Whether a page is whole even if no checkpoint closes its last events.
            statistics: Where pages, retries and seconds are counted.

        Yields:
            The page's intervals, then its `PageEnd`.

        Raises:
            PublisherError: The answer is final.
            UnavailableError: There was no progress for `retryTimeout`.
        """
        return _PageReader(self, request, hold, any_end, statistics or Statistics()).items()

    def discover(
        self, partition_count: int | None = None, *, told: bool | None = None
    ) -> Discovered:
        """Ask how many partitions the feed has, unless that is known, and which feed it is: see
        `discovery.discover`.
        """
        return discover(self.transport, self.retry(), partition_count, told=told)


@dataclass(slots=True)
class _PageReader:
    """Reads one page. `cursor` is the last checkpoint that arrived; `events`, `complete` and `tail`
    are those of the last answer.
    """

    client: FeedClient
    request: PageRequest
    hold: Callable[[int], object]
    any_end: bool
    statistics: Statistics
    cursor: str = ""
    events: int = 0
    complete: bool = False
    tail: bytes = b""

    def items(self) -> PageItems:
        self.cursor = self.request.cursor
        retry = self.client.retry()
        request = self.request
        while True:
            try:
                for interval in self._answer(replace(request, cursor=self.cursor)):
                    retry.progress()
                    yield interval
                yield PageEnd(
                    self.request.cursor, self.cursor, self.events, self.complete, self.tail
                )
                return
            except TransientError as failure:
                self.statistics.add(retries=1)
                self.hold(0)  # what came without its checkpoint is dropped
                retry.wait(failure)
                request = replace(request, wait=0)
            except _NoProgressError:
                hint = request.page_size_hint * 2
                if hint <= max(MAX_HINT, self.request.page_size_hint * _MAX_HINT_FACTOR):
                    # the checkpoint may lie beyond the page
                    request = replace(request, page_size_hint=hint, wait=0)
                else:  # at the head of the feed it comes with the next events
                    retry.wait(TransientError(self._unclosed(request)))
            except PublisherError as exc:
                if exc.status is None:
                    raise _masked(exc) from None
                if exc.status not in _ABOUT_THE_CURSOR:
                    raise
                raise _located(exc, request.partition, self.cursor) from exc

    def _answer(self, request: PageRequest) -> Iterator[wire.Interval]:
        scanner = PageScanner(request.partition)
        self.events, self.complete = 0, False
        started = time.monotonic()
        body = self.client.transport.body(request.query())
        try:
            for data in body:
                yield from self._checked(scanner.feed(data), request)
                self._check_size(scanner)
                self.hold(scanner.held_bytes)
            yield from self._checked(_closed(scanner), request)
        finally:
            body.close()
            self.events += scanner.tail_events
            self.tail = scanner.tail
            self.statistics.add(
                pages=1, ignored_lines=scanner.ignored, seconds=time.monotonic() - started
            )
        self.complete = body.proven
        if scanner.ignored and not self.events and not scanner.checkpoints:
            raise TransientError(self._nothing_known(scanner))
        if self.events and self.cursor == request.cursor and not self.any_end:
            raise _NoProgressError

    def _checked(
        self, intervals: list[wire.Interval], request: PageRequest
    ) -> Iterator[wire.Interval]:
        for interval in intervals:
            self.events += interval.events
            if interval.events and interval.cursor == request.cursor and not self.any_end:
                raise _NoProgressError  # delivering it would bring the same events for ever
            special = interval.cursor == wire.FIRST and request.cursor != wire.LAST
            if interval.cursor != self.cursor and (special or interval.cursor == request.cursor):
                raise self._leads_back(interval.cursor)
            self.cursor = interval.cursor
            yield interval

    def _check_size(self, scanner: PageScanner) -> None:
        if scanner.held_bytes > self.client.max_interval:
            raise PublisherError(
                f"partition {scanner.partition}, cursor {self.cursor!r}: {scanner.held_bytes} "
                f"bytes came without a checkpoint, more than the {self.client.max_interval} that "
                f"are held (4 × maxBytesPerTrigger of a stream, 512 MiB in a batch); set a smaller "
                f"'pageSizeHint', a larger 'maxBytesPerTrigger', or ask the publisher's owner for "
                f"checkpoints at shorter distances",
                partition=scanner.partition,
                cursor=self.cursor,
            )

    def _nothing_known(self, scanner: PageScanner) -> PublisherError:
        said = masked(wire.excerpt(scanner.unknown))
        return PublisherError(
            f"partition {scanner.partition}, cursor {self.cursor!r}: the publisher of "
            f"{self.client.transport.url} answered with nothing but lines that are neither events "
            f"nor checkpoints: {said}",
            partition=scanner.partition,
            cursor=self.cursor,
            body=said,
        )

    def _leads_back(self, cursor: str) -> PublisherError:
        what = "the special cursor" if cursor == wire.FIRST else "the cursor it was asked for,"
        return PublisherError(
            f"partition {self.request.partition}, cursor {self.cursor!r}: the publisher sent "
            f"{what} {cursor!r} as a later checkpoint; continuing from it would bring events again",
            partition=self.request.partition,
            cursor=self.cursor,
        )

    def _unclosed(self, request: PageRequest) -> PublisherError:
        return PublisherError(
            f"partition {request.partition}: after cursor {self.cursor!r} the publisher sends "
            f"events but no checkpoint that moves on (it was asked for {request.page_size_hint} "
            f"events, the last answer had {self.events}), and without one they cannot be delivered "
            f"exactly once. Tell the publisher's owner; if the checkpoint only comes later, raise "
            f"'retryTimeout', or if it lies more than {request.page_size_hint} events on, "
            f"'pageSizeHint'",
            partition=request.partition,
            cursor=self.cursor,
        )


def _located(exc: PublisherError, partition: int, cursor: str) -> PublisherError:
    """The same, with the place."""
    message = f"partition {partition}, cursor {cursor!r}: {exc}"
    if exc.status == 410:
        message += (
            f"; events were removed before they were read: start anew with 'startingCursors' (a "
            f"stream with {_ANEW}), or let the stream continue with the oldest events left: "
            f"failOnDataLoss=false"
        )
    if exc.status == 409:
        message += (
            f"; a stream starts with {_ANEW}: from 'first', or, where the publisher was restored, "
            f"from what both histories share, as "
            f"zeh_spark.shared_cursors(checkpointLocation, url) gives it for 'startingCursors'"
        )
    return type(exc)(message, partition=partition, cursor=cursor, status=exc.status, body=exc.body)


def _closed(scanner: PageScanner) -> list[wire.Interval]:
    try:
        return scanner.close()
    except PublisherError as exc:
        raise TransientError(_masked(exc)) from None


def _masked(exc: PublisherError) -> PublisherError:
    """What the publisher's own words are in."""
    body = None if exc.body is None else masked(exc.body)
    return type(exc)(masked(str(exc)), partition=exc.partition, cursor=exc.cursor, body=body)
