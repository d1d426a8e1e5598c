"""The HTTP side of reading a feed: one request for one partition, read as it arrives, repeated
until it was whole.

Rule for editors: the end of a body counts only if its framing proves it (Content-Length, last
chunk, gzip's end). What was cut is asked for again from the last checkpoint; nothing behind a
checkpoint that did not arrive is ever handed out.

Runs in threads of the driver (stream) and in tasks (batch). A client may be shared between threads:
each has its own session.
"""

from __future__ import annotations

import email.utils
import logging
import os
import random
import re
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import quote, urlencode, urljoin, urlsplit

import msgspec
import requests
import urllib3

import zeh_spark
from zeh_spark import wire
from zeh_spark.errors import (
    AccessError,
    CursorGoneError,
    OptionError,
    PublisherError,
    UnavailableError,
    ZeroEventHubError,
)
from zeh_spark.options import ClientOptions, FeedUrl, parse_token

log = logging.getLogger(__name__)

_READ_SIZE = 256 * 1024
_MAX_REDIRECTS = 10
_REDIRECTS = {301, 302, 303, 307, 308}
_TRANSIENT = {408, 425, 429}
_MISSING_PARAMETER = {400, 422}
_ABOUT_THE_CURSOR = {400, 409, 410}
_TLS_FINAL = re.compile(r"CERTIFICATE|UNKNOWN_CA|WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE")
_MAX_HINT_FACTOR = 64
"""How far the page size hint is raised for a publisher whose pages end before their checkpoint."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What is asked for: the page of one partition behind a cursor (spec "Parameters"). `wait` in
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
    """What reading took so far; `seconds` were spent inside requests."""

    pages: int = 0
    retries: int = 0
    ignored_lines: int = 0
    seconds: float = 0.0

    def add(self, other: Statistics) -> None:
        self.pages += other.pages
        self.retries += other.retries
        self.ignored_lines += other.ignored_lines
        self.seconds += other.seconds


class _TransientError(Exception):
    """May be gone at the next try. `final` is raised when there is no time for one."""

    def __init__(self, final: ZeroEventHubError, retry_after: float | None = None) -> None:
        super().__init__(str(final))
        self.final = final
        self.retry_after = retry_after


class _NoProgressError(Exception):
    """A whole answer brought events but no checkpoint that lies behind them."""


@dataclass(slots=True)
class _Patience:
    """How long one difficulty may last: from its first failure to the next progress.

    `sleep` returns something true where nobody waits for the answer any more.
    """

    timeout: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    random: Callable[[], float] = random.random
    attempts: int = 0
    since: float = 0.0

    def progress(self) -> None:
        self.attempts = 0

    def wait(self, failure: _TransientError) -> None:
        """Sleep before the next try; raises the failure's final error when the time is over."""
        now = self.clock()
        if self.attempts == 0:
            self.since = now
        self.attempts += 1
        pause = max(backoff(self.attempts, self.random()), failure.retry_after or 0.0)
        if now + pause > self.since + self.timeout:
            raise failure.final from failure
        log.warning("%s; trying again in %.1f s", failure.final, pause)
        if self.sleep(pause):
            raise failure.final from failure


def backoff(attempt: int, jitter: float) -> float:
    """Seconds before try number `attempt` + 1: doubling from 0.2 to at most 10, of which half is
    chance.
    """
    return float(min(10.0, 0.1 * 2 ** min(attempt, 10))) * (0.5 + jitter / 2)


class FeedClient:
    """Asks one feed's publisher. Never hands out what no checkpoint has closed."""

    def __init__(self, options: ClientOptions, *, max_interval: int = 1 << 62) -> None:
        self.url = options.url
        self.max_interval = max_interval
        self._options = options
        self._local = threading.local()
        self._stopped = threading.Event()
        for name, path in (
            ("caFile", options.ca_file),
            ("clientCertFile", options.client_cert_file),
            ("clientKeyFile", options.client_key_file),
        ):
            if path and not os.access(path, os.R_OK):
                raise OptionError(f"option {name!r}: cannot read the file {path!r}", option=name)
        self._token = _read_token(options.token_file) if options.token_file else options.token

    def page(
        self,
        request: PageRequest,
        hold: Callable[[int], object] = lambda size: None,
        *,
        any_end: bool = False,
    ) -> Page:
        """`hold` is called before each read, with the bytes that wait for a checkpoint; it may
        block. `any_end`: also a page whose events no checkpoint closes is whole.
        """
        return Page(self, request, hold, any_end)

    def patience(self) -> _Patience:
        return _Patience(self._options.retry_timeout, sleep=self._stopped.wait)

    def stop(self) -> None:
        """Nobody waits for answers any more: no more tries."""
        self._stopped.set()

    def partition_count(self) -> int:
        """Ask without parameters; a publisher may tell its partition count in the 400 that it
        answers (RFC 9457).

        Raises OptionError naming `partitionCount` where it does not.
        """
        patience = self.patience()
        while True:
            try:
                with self._get("") as response:
                    count = _problem(_text(response)).get("partitionCount")
            except _TransientError as failure:
                patience.wait(failure)
                continue
            except PublisherError as exc:
                if exc.status not in _MISSING_PARAMETER:
                    raise
                count = _problem(exc.body or "").get("partitionCount")
            if type(count) is int and count > 0:
                return count
            raise OptionError(
                f"option 'partitionCount' is missing, and the publisher of {self.url} does not "
                f"tell it: give the "
                f"number of partitions that its documentation names",
                option="partitionCount",
            )

    def body(self, query: str) -> _Body:
        """Start a request. Raises PublisherError for a final answer, _TransientError otherwise."""
        return _Body(self._get(query), self.url)

    def _get(self, query: str) -> requests.Response:
        """Follow redirects, credentials for the feed's own origin only; a token file is read again
        after a 401.
        """
        url = _with_query(self.url.full, query)
        refreshed = False
        for _ in range(_MAX_REDIRECTS):
            response = self._send(url)
            if response.status_code in _REDIRECTS and "Location" in response.headers:
                url = urljoin(url, response.headers["Location"])
                response.close()
            elif response.status_code == 401 and not refreshed and self._refresh_token():
                refreshed = True
                response.close()
            else:
                _check_status(response, self.url)
                return response
        raise PublisherError(f"{self.url}: more than {_MAX_REDIRECTS} redirects", status=302)

    def _send(self, url: str) -> requests.Response:
        options = self._options
        home = _origin(url) == _origin(self.url.full)
        key = options.client_key_file
        cert = (options.client_cert_file, key) if key else options.client_cert_file
        try:
            return self._session.get(
                url,
                stream=True,
                allow_redirects=False,
                auth=self._credentials if home else _anonymous,
                verify=options.ca_file or True,
                cert=cast("Any", cert) if home else None,
                timeout=(options.connect_timeout, options.read_timeout),
            )
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as exc:
            raise _network_failure(exc, self.url) from _innermost(exc)
        except ValueError:  # urllib's, which shows the address
            raise _invalid_redirect(self.url) from None

    @property
    def _session(self) -> requests.Session:
        if not hasattr(self._local, "session"):
            session = requests.Session()
            session.headers.update(
                {
                    "Accept": wire.CONTENT_TYPE,
                    "Accept-Encoding": "gzip"
                    if self._options.compression == "gzip"
                    else "identity",
                    "User-Agent": f"zeh-spark/{zeh_spark.__version__}",
                }
            )
            self._local.session = session
        return cast("requests.Session", self._local.session)

    def _credentials(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Given as `auth`, so that neither a .netrc nor a redirect decides about them."""
        request.headers.update(self._options.http_headers)
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request

    def _refresh_token(self) -> bool:
        if not self._options.token_file:
            return False
        before, self._token = self._token, _read_token(self._options.token_file)
        return self._token != before


@dataclass(slots=True)
class Page:
    """A page of one partition, as an iterable of intervals that goes on through interruptions.

    After the iteration: `cursor` is the last checkpoint (the request's, if none came), `events`
    tells whether the last answer brought any, `complete` whether its end was proven, `tail` the
    event lines that no checkpoint closed.
    """

    client: FeedClient
    request: PageRequest
    hold: Callable[[int], object]
    any_end: bool = False
    cursor: str = ""
    events: int = 0
    complete: bool = False
    tail: bytes = b""
    statistics: Statistics = field(default_factory=Statistics)

    def __iter__(self) -> Iterator[wire.Interval]:
        """Raises PublisherError for final answers, UnavailableError after `retryTimeout` without
        progress.
        """
        self.cursor = self.request.cursor
        patience = self.client.patience()
        request = self.request
        while True:
            try:
                for interval in self._answer(replace(request, cursor=self.cursor)):
                    patience.progress()
                    yield interval
                return
            except _TransientError as failure:
                self.statistics.retries += 1
                patience.wait(failure)
                request = replace(request, wait=0)
            except _NoProgressError:
                hint = request.page_size_hint * 2
                if hint <= self.request.page_size_hint * _MAX_HINT_FACTOR:
                    # the checkpoint may lie beyond the page
                    request = replace(request, page_size_hint=hint, wait=0)
                else:  # at the head of the feed it comes with the next events
                    patience.wait(_TransientError(self._unclosed(request)))
            except PublisherError as exc:
                if exc.status not in _ABOUT_THE_CURSOR:
                    raise
                raise _located(exc, request.partition, self.cursor) from exc

    def _answer(self, request: PageRequest) -> Iterator[wire.Interval]:
        scanner = wire.PageScanner(request.partition)
        self.events, self.complete = 0, False
        started = time.monotonic()
        body = self.client.body(request.query())
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
            self.statistics.add(Statistics(1, 0, scanner.ignored, time.monotonic() - started))
        self.complete = body.proven
        if self.events and self.cursor == request.cursor and not self.any_end:
            raise _NoProgressError

    def _checked(
        self, intervals: list[wire.Interval], request: PageRequest
    ) -> Iterator[wire.Interval]:
        for interval in intervals:
            self.events += interval.events
            if interval.events and interval.cursor == request.cursor and not self.any_end:
                raise _NoProgressError  # delivering it would bring the same events for ever
            self.cursor = interval.cursor
            yield interval

    def _check_size(self, scanner: wire.PageScanner) -> None:
        if scanner.held_bytes > self.client.max_interval:
            raise PublisherError(
                f"partition {scanner.partition}, cursor {self.cursor!r}: {scanner.held_bytes} "
                f"bytes came without a "
                f"checkpoint, more than 4 × maxBytesPerTrigger; raise 'maxBytesPerTrigger', or ask "
                f"the publisher's "
                f"owner for checkpoints at shorter distances",
                partition=scanner.partition,
                cursor=self.cursor,
            )

    def _unclosed(self, request: PageRequest) -> PublisherError:
        return PublisherError(
            f"partition {request.partition}: behind cursor {self.cursor!r} the publisher sends "
            f"events but no checkpoint "
            f"that moves on (asked for up to {request.page_size_hint} events): nothing can be "
            f"delivered exactly once; "
            f"raise 'pageSizeHint', or tell the publisher's owner",
            partition=request.partition,
            cursor=self.cursor,
        )


def _located(exc: PublisherError, partition: int, cursor: str) -> PublisherError:
    """The same, with the place."""
    message = f"partition {partition}, cursor {cursor!r}: {exc}"
    if exc.status == 410:
        message += (
            "; events were removed before they were read: start anew with 'startingCursors' (a "
            "stream with a new checkpointLocation), or let the stream go on with the oldest events "
            "left: failOnDataLoss=false"
        )
    return type(exc)(message, partition=partition, cursor=cursor, status=exc.status, body=exc.body)


def _closed(scanner: wire.PageScanner) -> list[wire.Interval]:
    try:
        return scanner.close()
    except PublisherError as exc:
        raise _TransientError(exc) from exc


class _Body:
    """The bytes of an answer's body. `proven` tells, at its end, whether the framing shows that
    nothing is missing.
    """

    def __init__(self, response: requests.Response, url: FeedUrl) -> None:
        self._response = response
        self._url = url
        self.proven = (
            "Content-Length" in response.headers
            or "chunked" in response.headers.get("Transfer-Encoding", "").lower()
            or response.status_code == 204
        )

    def __iter__(self) -> Iterator[bytes]:
        encoding = self._response.headers.get("Content-Encoding", "identity").strip().lower()
        pieces = self._pieces()
        if encoding in {"gzip", "x-gzip"}:
            return _gunzip(pieces, self._url)
        if encoding not in {"identity", ""}:
            raise PublisherError(
                f"{self._url}: unknown Content-Encoding {encoding!r}; none was asked for"
            )
        return pieces

    def close(self) -> None:
        """Give the connection back if it is at its end, else drop it."""
        self._response.close()

    def _pieces(self) -> Iterator[bytes]:
        try:
            yield from self._response.raw.stream(_READ_SIZE, decode_content=False)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as exc:
            raise _network_failure(exc, self._url) from _innermost(exc)


def _gunzip(pieces: Iterator[bytes], url: FeedUrl) -> Iterator[bytes]:
    """Unpack gzip, one member behind the other; the last one must have ended [libraries take a cut
    stream for whole].
    """
    unpack = zlib.decompressobj(31)
    started = False
    for piece in pieces:
        while piece:
            if unpack.eof:
                unpack = zlib.decompressobj(31)
            started = True
            try:
                data = unpack.decompress(piece, 4 * _READ_SIZE)
            except zlib.error as exc:
                raise _TransientError(UnavailableError(f"{url}: broken gzip ({exc})")) from exc
            piece = unpack.unconsumed_tail or unpack.unused_data
            if data:
                yield data
    if started and not unpack.eof:
        raise _TransientError(UnavailableError(f"{url}: the answer's gzip ended early"))


def _with_query(url: str, query: str) -> str:
    """Add parameters behind those that the URL has itself."""
    if not query:
        return url
    parts = urlsplit(url)
    return parts._replace(query=f"{parts.query}&{query}" if parts.query else query).geturl()


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _anonymous(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _read_token(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            token = file.read().strip()
    except UnicodeDecodeError:
        token = ""
    except OSError as exc:
        raise OptionError(
            f"option 'tokenFile': cannot read a token from {path!r}: {exc}", option="tokenFile"
        ) from exc
    try:
        return parse_token(token)
    except ValueError as exc:
        raise OptionError(
            f"option 'tokenFile': what {path!r} holds {exc}", option="tokenFile"
        ) from None


def _network_failure(exc: Exception, url: FeedUrl) -> Exception:
    """No answer, or one that broke off: transient, unless TLS says that it never will work."""
    reason = _innermost(exc)
    if isinstance(reason, ssl.SSLError) and _TLS_FINAL.search(str(reason)):
        return PublisherError(
            f"{url}: TLS: {reason}; check 'caFile', 'clientCertFile', the host name, and whether "
            f"the address should begin with http:"
        )
    if isinstance(exc, requests.exceptions.InvalidURL | requests.exceptions.InvalidSchema):
        return _invalid_redirect(url)
    return _TransientError(
        UnavailableError(
            f"the publisher of {url} does not answer, or broke off ({type(reason).__name__}: "
            f"{reason}); the query "
            f"can be started again once it does; 'retryTimeout' says how long to try"
        )
    )


def _invalid_redirect(url: FeedUrl) -> PublisherError:
    return PublisherError(f"{url}: a redirect leads to an invalid address")


def _innermost(exc: BaseException) -> BaseException:
    """The cause at the bottom of what requests and urllib3 wrap around it [their own messages show
    the whole URL].
    """
    while True:
        inner = getattr(exc, "reason", None) or exc.__cause__ or exc.__context__
        if not isinstance(inner, BaseException):
            inner = next((arg for arg in exc.args if isinstance(arg, BaseException)), None)
        if inner is None:
            return exc
        exc = inner


def _check_status(response: requests.Response, url: FeedUrl) -> None:
    """Tell answers that are final from those that may change; 4xx and 5xx carry the body's
    beginning.
    """
    status = response.status_code
    if 200 <= status < 300:
        if (
            response.headers.get("Content-Type", "")
            .lower()
            .startswith(("text/html", "application/xhtml"))
        ):
            response.close()
            raise PublisherError(
                f"{url} answered with an HTML page instead of a feed: a login page, or a wrong "
                f"address?",
                status=status,
            )
        return
    with response:
        text = _text(response)
    said = _problem(text).get("detail") or text.strip() or response.reason
    message = f"{url} answered {status}: {said}"
    if status in _TRANSIENT or status >= 500:
        raise _TransientError(UnavailableError(message), _retry_after(response))
    kind = {401: AccessError, 403: AccessError, 410: CursorGoneError}.get(status, PublisherError)
    remedy = {
        401: "; check 'token' or 'tokenFile'",
        403: "; this token may not read the feed",
        404: "; check the feed's address in 'url'",
    }.get(status, "")
    raise kind(f"{message}{remedy}", status=status, body=text)


def _text(response: requests.Response, limit: int = 2000) -> str:
    """The beginning of a body, for people; never fails."""
    try:
        return response.raw.read(limit, decode_content=True).decode(errors="replace")
    except (urllib3.exceptions.HTTPError, OSError) as exc:
        return f"(body not readable: {exc})"


def _problem(text: str) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _retry_after(response: requests.Response) -> float | None:
    """Seconds from a Retry-After header: a number or a date (RFC 9110, 10.2.3)."""
    value = response.headers.get("Retry-After", "")
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
