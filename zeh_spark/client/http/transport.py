"""Send requests to a publisher and receive answers.

This holds credentials, redirects, and the check whether a body was whole. Whether the headers were
whole is checked in `connections`, which are those of the process.

Rule for editors: the end of a body counts only if its framing proves it (Content-Length, last
chunk, gzip's end). Credentials go to the feed's own origin only. No message shows them, nor the
URL's query.

Runs wherever a client runs. Threads may share a transport: each has its own session.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast
from urllib.parse import parse_qsl, urljoin, urlsplit

import requests
import urllib3

import zeh_spark
from zeh_spark import _zlib
from zeh_spark.client.http.connections import find_adapter
from zeh_spark.client.http.credentials import masked, read_token
from zeh_spark.client.http.request_ids import REQUEST_ID, RequestIds
from zeh_spark.client.http.responses import (
    TransientError,
    check_status,
    innermost,
    invalid_redirect,
    named,
    naming,
    network_failure,
    paused,
)
from zeh_spark.client.http.retry import PAUSES, Client, Retry
from zeh_spark.client.http.tokens import tokens_for
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.errors import AccessError, OptionAdvice, PublisherError, UnavailableError
from zeh_spark.wire import wire
from zeh_spark.wire.option_values import FeedUrl, Origin, is_loopback, origin, split_address

log = logging.getLogger(__name__)

WHOLE_BYTES = 256 << 20
"""Most bytes of an answer that is kept whole: a plan, or an answer about producers."""

_READ_SIZE = 256 * 1024
_MAX_REDIRECTS = 10
_REDIRECTS = {301, 302, 303, 307, 308}
_LOCATION = re.compile(r"[!-\[\]-~]*")  # printable ASCII without a backslash

_warned: set[Origin] = set()
"""Where credentials were sent as plain text in this process."""


class Transport:
    """Sends requests to one feed's publisher. Its attribute `token` is what is sent now."""

    def __init__(self, options: ClientOptions) -> None:
        self.url = options.url
        self._options = options
        self._local = threading.local()
        self._stopped = threading.Event()
        self._ids = RequestIds(options)
        self._reached = False
        self.adapter = find_adapter(options)
        self._given = options.token
        self.token = options.token
        if options.token_file and not options.token:
            self.token = read_token(options.token_file)
        self._tokens = tokens_for(options)
        masked.add(self.token, *_secrets(options))

    def retry(self) -> Retry:
        """Return the retries of one difficulty, which end when the transport is stopped."""
        return Retry(self._options.retry_timeout, sleep=self._stopped.wait)

    def has_answered(self) -> None:
        """Note that the address answered before, so that it is right: a checkpoint may show it.

        While it does not answer now, it is tried for `retryTimeout`, from the first request on.
        """
        self._reached = True

    def stop(self) -> None:
        """End all retries of this transport, because nobody waits for answers any more."""
        self._stopped.set()

    def body(self, query: str, headers: Mapping[str, str] | None = None) -> Body:
        """Start a GET request, and return its body (errors as in `request`)."""
        return Body(self.request("GET", query=query, headers=headers), self.url)

    def request(
        self,
        method: str,
        path: str = "",
        query: str = "",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        proven: bool = False,
        any_status: bool = False,
    ) -> requests.Response:
        """Send a request, and return its answer, whose body was not read yet.

        Redirects are followed, with credentials for the feed's own origin only. A request with
        another method than GET follows only redirects that keep method and body (307, 308), and a
        body goes to the feed's own origin only. No redirect leads from https to http. After a 401,
        a token file is read again, or the source asked again. After a 429 with Retry-After, no
        request of this process is sent to that origin with this token until the pause is over.
        Each request that is sent has an id of its own (see `request_ids`), which errors and log
        lines name. `path` and `query` are added to those of the feed's URL. With `proven` a refusal
        counts only if its framing shows that nothing is missing. With `any_status` refusals are
        returned, too. Raises PublisherError if the answer is final, and TransientError if there is
        none, or one that may change.
        """
        url = self._address(_below(self.url.full, path, query))
        home = origin(url)
        followed = _REDIRECTS if method == "GET" else _REDIRECTS & {307, 308}
        refreshed = False
        for _ in range(_MAX_REDIRECTS):
            used = self._token_now()
            if left := PAUSES.left((origin(url), used)):
                raise paused(self.url, left)
            response = self._send(method, url, home, used, body, headers)
            if response.status_code in followed and "Location" in response.headers:
                url = self._redirected(url, response.headers["Location"], home, body)
                response.close()
            elif response.status_code == 401 and not refreshed and self._refresh_token(used):
                refreshed = True
                response.close()
            else:
                if not any_status:
                    self._check(response, (origin(url), used), proven=proven)
                return response
        raise PublisherError(
            f"{self.url}: more than {_MAX_REDIRECTS} redirects. Check the feed's address with its "
            f"owner",
            status=302,
        )

    def _check(self, response: requests.Response, client: Client, *, proven: bool) -> None:
        """Return if an answer is usable (errors as in `check_status`). Note the pause of a 429."""
        try:
            check_status(response, self.url, proven=proven)
        except AccessError as exc:
            if exc.status == 401 and exc.advice and self._tokens:
                source = "auth" if self._options.auth else "oauth.tokenUrl"
                advice = OptionAdvice("check {}, which gave the token", (source,))
                raise exc.reworded(exc.what, advice=advice) from None
            raise
        except TransientError as failure:
            if failure.status == 429 and failure.retry_after:
                PAUSES.begin(client, failure.retry_after)
            raise

    def _address(self, url: str, location: str = "") -> str:
        """Return an address as it is sent, or that of a redirect from there.

        What is compared is what requests and urllib3 make of it: they may find another host in a
        text than `urlsplit`. Raises PublisherError for an address that they, or we, refuse.
        """
        try:
            if not _LOCATION.fullmatch(location):
                raise ValueError("no URI of RFC 3986")
            split_address(to := urljoin(url, location) if location else url)
            sent = requests.Request("GET", to).prepare().url or ""
            if "@" in split_address(sent).netloc:
                raise ValueError("a user")
        except ValueError:  # its text shows the address
            raise invalid_redirect(self.url) from None
        return sent

    def _redirected(self, url: str, location: str, home: Origin, body: bytes | None) -> str:
        """Return where a redirect leads. Raises PublisherError if it may not be followed."""
        to = self._address(url, location)
        is_home = origin(to) == home
        problem = None
        if url.startswith("https:") and not to.startswith("https:"):
            problem = "to an address without TLS"
        elif body is not None and not is_home:
            problem = "to another origin, and what is sent is not sent there"
        if problem:
            raise PublisherError(
                f"{self.url}: a redirect leads {problem}. Check the feed's address with its owner, "
                f"and give the address that it leads to as url if that is right",
                status=307,
            )
        return to

    def _send(
        self,
        method: str,
        url: str,
        home: Origin,
        token: str | None,
        body: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> requests.Response:
        ids = self._ids.headers()
        options = self._options
        key = options.client_key_file
        cert = (options.client_cert_file, key) if key else options.client_cert_file
        try:
            response = self._session.request(
                method,
                url,
                data=body,
                headers={**ids, **(headers or {})},
                stream=True,
                allow_redirects=False,
                auth=partial(self._credentials, token, home),
                verify=options.ca_file or True,
                cert=cast("Any", cert) if origin(url) == home else None,
                timeout=(options.connect_timeout, options.read_timeout),
            )
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as exc:
            raise network_failure(
                exc,
                self.url,
                naming(ids[REQUEST_ID]),
                reached=self._reached,
                within=options.first_contact,
            ) from innermost(exc)
        except ValueError:  # raised by urllib, and shows the address
            raise invalid_redirect(self.url) from None
        self._reached = True
        log.debug("%s: %s answered %d%s", self.url, method, response.status_code, named(response))
        return response

    @property
    def _session(self) -> requests.Session:
        if not hasattr(self._local, "session"):
            session = requests.Session()
            for scheme in ("http://", "https://"):
                session.mount(scheme, self.adapter)
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
        self, token: str | None, home: Origin, request: requests.PreparedRequest
    ) -> requests.PreparedRequest:
        """Add the credentials to a request to the feed's own origin, as it will be sent.

        As `auth`, neither a .netrc nor a redirect replaces them.
        """
        if origin(request.url or "") != home:
            return request
        request.headers.update(self._options.http_headers)
        if token or self._options.secret_headers:
            self._warn_of_plain_text(home)
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        return request

    def _warn_of_plain_text(self, home: Origin) -> None:
        """Warn once in a process if credentials are sent without TLS to another machine."""
        scheme, host, _ = home
        if scheme == "https" or is_loopback(host or "") or home in _warned:
            return
        _warned.add(home)
        log.warning(
            "the token or secret headers for %s are sent as plain text, because its address begins "
            "with http: whoever is on the way can read and use them. Use an https address",
            self.url,
        )

    def _token_now(self) -> str | None:
        """Return the token to send; in a task, that of the driver as long as it is valid."""
        if self._tokens and not (self._given and self.token == self._given):
            self.token = self._tokens.token()
        return self.token

    def _refresh_token(self, refused: str | None) -> bool:
        """Get the token anew; return whether it is another one than the refused one.

        Any thread may have done so before.
        """
        if self._tokens:
            self.token = self._tokens.instead_of(refused)
            return self.token != refused
        file = self._options.token_file
        if not file or (self._given and not os.access(file, os.R_OK)):  # in a task elsewhere
            return False
        self.token = read_token(file)
        masked.add(self.token)
        return self.token != refused


class Body:
    """The bytes of an answer's body, to be iterated once, and its header fields.

    Its attribute `proven` tells at the end whether the framing shows that nothing is missing.
    """

    def __init__(self, response: requests.Response, url: FeedUrl) -> None:
        self._response = response
        self._url = url
        self.headers = response.headers
        self.proven = response.raw.chunked or response.raw.length_remaining is not None

    def __iter__(self) -> Iterator[bytes]:
        encoding = self._response.headers.get("Content-Encoding", "identity").strip().lower()
        pieces = self._pieces()
        if encoding in {"gzip", "x-gzip"}:
            return _gunzip(pieces, f"{self._url}{named(self._response)}")
        if encoding not in {"identity", ""}:
            raise PublisherError(
                f"{self._url}: unknown Content-Encoding {encoding!r}, which was not asked for. Ask "
                f"the publisher's owner whether a proxy compresses its answers"
            )
        return pieces

    def whole(self) -> bytes:
        """Return all bytes. Raises PublisherError if they are more than `WHOLE_BYTES`."""
        found = bytearray()
        for piece in self:
            found += piece
            if len(found) > WHOLE_BYTES:
                raise PublisherError(
                    f"{self._url}: an answer has more than {WHOLE_BYTES:,} bytes"
                    f"{named(self._response)}. Check that this is the address of a publisher",
                    anchor="bytes-came-without-a-checkpoint",
                )
        return bytes(found)

    def close(self) -> None:
        """Return the connection to its pool if the body was read to its end; else drop it."""
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
            raise network_failure(exc, self._url, named(self._response)) from innermost(exc)


def _gunzip(pieces: Iterator[bytes], what: str) -> Iterator[bytes]:
    """Unpack gzip, one member after the other. `what` names the answer in errors.

    Raises TransientError if the last one did not end: libraries accept a cut stream as whole.
    """
    zlib, limit = _zlib.library, 4 * _READ_SIZE
    unpack = zlib.decompressobj(31)
    started = more = False
    for piece in pieces:
        while piece or more:
            if unpack.eof:
                unpack = zlib.decompressobj(31)
            started = True
            try:
                data = unpack.decompress(piece, limit)
            except zlib.error as exc:
                raise TransientError(UnavailableError(f"{what}: broken gzip ({exc})")) from exc
            piece = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
            more = len(data) == limit and not unpack.eof
            if data:
                yield data
    if started and not unpack.eof:
        raise TransientError(UnavailableError(f"{what}: the answer's gzip ended early"))


def _secrets(options: ClientOptions) -> Iterator[str]:
    """Yield secret header values, with and without scheme; the URL's query, and its values."""
    for name in options.secret_headers:
        value = options.http_headers[name]
        yield from (value, value.rpartition(" ")[2])
    query = options.url.parts.query
    yield from (query, *(value for _, value in parse_qsl(query)))


def _below(url: str, path: str, query: str) -> str:
    """Return a URL with more of a path, and with parameters after those that it has itself."""
    parts = urlsplit(url)
    whole = f"{parts.path.rstrip('/')}{path}" if path else parts.path
    return parts._replace(path=whole, query="&".join(filter(None, (parts.query, query)))).geturl()
