"""How requests reach a publisher and answers come back: connections, credentials, redirects, TLS,
retries, and whether a body was whole.

Rule for editors: the end of a body counts only if its framing proves it (Content-Length, last
chunk, gzip's end). Credentials go to the feed's own origin only, and no message shows them, nor the
URL's query.

Runs in threads of the driver and in tasks. May be shared between threads: each has its own session.
"""

from __future__ import annotations

import email.utils
import logging
import random
import re
import ssl
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from urllib.parse import parse_qsl, urljoin, urlsplit

import msgspec
import requests
import urllib3

import zeh_spark
from zeh_spark import wire
from zeh_spark.credentials import check_tls_files, masked, read_token
from zeh_spark.errors import (
    AccessError,
    CursorGoneError,
    PublisherError,
    UnavailableError,
    ZeroEventHubError,
)
from zeh_spark.options import ClientOptions, FeedUrl

log = logging.getLogger(__name__)

_READ_SIZE = 256 * 1024
_MAX_REDIRECTS = 10
_REDIRECTS = {301, 302, 303, 307, 308}
_DONE = {200, 201, 203, 204}
PROBLEM = "urn:zeroeventhub:problem:"
"""What the types of our publisher's problem documents begin with."""

_TRANSIENT = {408, 425, 429}
_TLS_FINAL = re.compile(r"CERTIFICATE|UNKNOWN_CA|WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE")


class TransientError(Exception):
    """May be gone at the next try. `final` is raised when there is no time for one."""

    def __init__(self, final: ZeroEventHubError, retry_after: float | None = None) -> None:
        super().__init__(str(final))
        self.final = final
        self.retry_after = retry_after


@dataclass(slots=True)
class Patience:
    """How long one difficulty may last: from its first failure to the next progress.

    `sleep` returns something true where nobody waits for the answer any more.
    """

    timeout: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    random: Callable[[], float] = random.random
    attempts: int = 0
    since: float = 0.0

    @property
    def lasted(self) -> float:
        """Seconds since the first failure."""
        return self.clock() - self.since if self.attempts else 0.0

    def progress(self) -> None:
        self.attempts = 0

    def wait(self, failure: TransientError) -> None:
        """Sleep before the next try; raises the failure's final error when the time is over."""
        now = self.clock()
        if self.attempts == 0:
            self.since = now
        self.attempts += 1
        pause = max(backoff(self.attempts, self.random()), failure.retry_after or 0.0)
        if now + pause > self.since + self.timeout:
            raise failure.final from failure
        level = logging.DEBUG if self.attempts & (self.attempts - 1) else logging.WARNING
        log.log(level, "%s; trying again in %.1f s", failure.final, pause)  # at 1, 2, 4, 8, …
        if self.sleep(pause):
            raise failure.final from failure


def backoff(attempt: int, jitter: float) -> float:
    """Seconds before try number `attempt` + 1: doubling from 0.2 to at most 10, of which half is
    chance.
    """
    return float(min(10.0, 0.1 * 2 ** min(attempt, 10))) * (0.5 + jitter / 2)


class Transport:
    """Sends requests to one feed's publisher."""

    def __init__(self, options: ClientOptions) -> None:
        self.url = options.url
        self._options = options
        self._local = threading.local()
        self._stopped = threading.Event()
        check_tls_files(options)
        self._token = read_token(options.token_file) if options.token_file else options.token
        masked.add(self._token, *_secrets(options))

    def patience(self) -> Patience:
        return Patience(self._options.retry_timeout, sleep=self._stopped.wait)

    def stop(self) -> None:
        self._stopped.set()

    def body(self, query: str) -> Body:
        """Start a request. Raises PublisherError for a final answer, TransientError otherwise."""
        return Body(self.request("GET", query=query), self.url)

    def request(
        self,
        method: str,
        path: str = "",
        query: str = "",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Follow redirects, credentials for the feed's own origin only; a token file is read again
        after a 401. `path` stands behind the feed's own. Only a redirect that keeps method and body
        (307, 308) is followed with a body.

        Raises PublisherError for a final answer, TransientError otherwise.
        """
        url = _with_query(_with_path(self.url.full, path), query)
        followed = _REDIRECTS if method == "GET" else _REDIRECTS & {307, 308}
        refreshed = False
        for _ in range(_MAX_REDIRECTS):
            used = self._token
            response = self._send(method, url, used, body, headers)
            if response.status_code in followed and "Location" in response.headers:
                url = urljoin(url, response.headers["Location"])
                response.close()
            elif response.status_code == 401 and not refreshed and self._refresh_token(used):
                refreshed = True
                response.close()
            else:
                _check_status(response, self.url)
                return response
        raise PublisherError(f"{self.url}: more than {_MAX_REDIRECTS} redirects", status=302)

    def _send(
        self,
        method: str,
        url: str,
        token: str | None,
        body: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> requests.Response:
        options = self._options
        key = options.client_key_file
        cert = (options.client_cert_file, key) if key else options.client_cert_file
        try:
            home = _origin(url) == _origin(self.url.full)
            return self._session.request(
                method,
                url,
                data=body,
                headers=headers,
                stream=True,
                allow_redirects=False,
                auth=partial(self._credentials, token) if home else _anonymous,
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

    def _credentials(
        self, token: str | None, request: requests.PreparedRequest
    ) -> requests.PreparedRequest:
        """Given as `auth`, so that neither a .netrc nor a redirect decides about them."""
        request.headers.update(self._options.http_headers)
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        return request

    def _refresh_token(self, refused: str | None) -> bool:
        """Whether there is another token than the one that was refused; any thread may find it."""
        if not self._options.token_file:
            return False
        self._token = read_token(self._options.token_file)
        masked.add(self._token)
        return self._token != refused


class Body:
    """The bytes of an answer's body. `proven` tells, at its end, whether the framing shows that
    nothing is missing.
    """

    def __init__(self, response: requests.Response, url: FeedUrl) -> None:
        self._response = response
        self._url = url
        self.proven = response.raw.chunked or response.raw.length_remaining is not None

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
        except (
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
            ValueError,  # a chunk of negative size
        ) as exc:
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
                raise TransientError(UnavailableError(f"{url}: broken gzip ({exc})")) from exc
            piece = unpack.unconsumed_tail or unpack.unused_data
            if data:
                yield data
    if started and not unpack.eof:
        raise TransientError(UnavailableError(f"{url}: the answer's gzip ended early"))


def _secrets(options: ClientOptions) -> Iterator[str]:
    """Header values, with and without their scheme; the URL's query, and what it says."""
    for name in options.secret_headers:
        value = options.http_headers[name]
        yield from (value, value.rpartition(" ")[2])
    query = options.url.parts.query
    yield from (query, *(value for _, value in parse_qsl(query)))


def _with_path(url: str, path: str) -> str:
    """Add a path behind the URL's own."""
    if not path:
        return url
    parts = urlsplit(url)
    return parts._replace(path=parts.path.rstrip("/") + path).geturl()


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


def _network_failure(exc: Exception, url: FeedUrl) -> Exception:
    """No answer, or one that broke off: transient, unless TLS says that it never will work."""
    reason = _innermost(exc)
    if isinstance(reason, ssl.SSLError) and _TLS_FINAL.search(str(reason)):
        return PublisherError(
            f"{url}: TLS: {reason}; check 'caFile', 'clientCertFile', the host name, and whether "
            f"the address should begin with http:"
        )
    if isinstance(exc, requests.exceptions.InvalidProxyURL) or "SOCKS" in str(exc):
        return PublisherError(
            f"{url}: the proxy that the environment names (HTTP_PROXY, HTTPS_PROXY) cannot be "
            f"used: it has to be an http address; NO_PROXY goes round it"
        )
    if isinstance(exc, requests.exceptions.InvalidURL | requests.exceptions.InvalidSchema):
        return _invalid_redirect(url)
    return TransientError(
        UnavailableError(
            f"the publisher of {url} does not answer, or broke off ({type(reason).__name__}: "
            f"{reason}); nothing is lost: start again once it does; 'retryTimeout' says how "
            f"long to try"
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
    if status in _DONE:
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
        text = masked(body_text(response))
    document = problem_document(text)
    said = document.get("detail") or text.strip()[:2000] or response.reason
    message = f"{url} answered {status}: {said}"
    if status in _TRANSIENT or status >= 500:
        pause = _retry_after(response)
        if pause:
            message += f"; it asks for a pause of {pause:.0f} s (Retry-After)"
        message += "; 'retryTimeout' says how long to try"
        raise TransientError(UnavailableError(message), pause)
    kind = {401: AccessError, 403: AccessError, 410: CursorGoneError}.get(status, PublisherError)
    remedy = {
        401: "; check 'token' or 'tokenFile'",
        403: "; this token may not read the feed",
        404: "; check the feed's address in 'url'",
    }.get(status, "; that is no page of a feed" if status < 300 else "")
    if str(document.get("type")).startswith(PROBLEM):
        remedy = ""  # it says itself what to do
    raise kind(f"{message}{remedy}", status=status, body=text)


def body_text(response: requests.Response, limit: int = 64 << 10) -> str:
    """The beginning of a body, for people; never fails."""
    try:
        return response.raw.read(limit, decode_content=True).decode(errors="replace")
    except (urllib3.exceptions.HTTPError, OSError) as exc:
        return f"(body not readable: {exc})"


def problem_document(text: str) -> dict[str, Any]:
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
    except (ValueError, TypeError, OverflowError):
        return None
