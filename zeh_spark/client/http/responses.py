"""Judge an answer of a publisher, or that there was none: final, or transient.

A final answer raises the error that the caller gets. A transient one raises TransientError, and the
request is sent again.

Rule for editors: messages carry the publisher's own words, masked, and never the query of an
address. Runs wherever a client runs.
"""

from __future__ import annotations

import email.utils
import http.client
import re
import ssl
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import requests
import urllib3

from zeh_spark import _zlib
from zeh_spark.client.http.credentials import masked
from zeh_spark.client.http.request_ids import REQUEST_ID
from zeh_spark.errors import (
    AccessError,
    CursorGoneError,
    OptionAdvice,
    PublisherError,
    UnavailableError,
    printable,
)
from zeh_spark.wire import problems
from zeh_spark.wire.option_values import FeedUrl

_ELSEWHERE = "X-Accel-Redirect"
_REFUSAL_BYTES = 64 << 10
_PIECE = 16 << 10
_DONE = {200, 201, 203, 204}
_RETRY_TIMEOUT = OptionAdvice("{} says how long to retry", ("retryTimeout",))
_NEVER_REACHED = OptionAdvice("check {}, or set {} to wait longer", ("url", "retryTimeout"))
_CERTIFICATE = OptionAdvice("set {} to one that its owner accepts", ("clientCertFile",))
_TLS = OptionAdvice(
    "check {}, {}, the host name, and whether the address should begin with http:",
    ("caFile", "clientCertFile"),
)
_OF_A_REQUEST = (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError)
"""Errors that requests, which raises an OSError, and what is below it make others of."""

_NO_CONNECTION = (
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
)
_IF_RESTORED = OptionAdvice(
    "{} says how long to retry. If the store was restored, start a stream with a new {} at the "
    "newest cursors that both histories have, which "
    "zeh_spark.shared_cursors(checkpointLocation, url) gives for {}",
    ("retryTimeout", "checkpointLocation", "startingCursors"),
)
_WAITING = {problems.CURSOR_AHEAD.name: _IF_RESTORED}
"""What to do about transient problems, by name, if it is not only to retry."""

_REFUSED: dict[int, tuple[type[PublisherError], OptionAdvice | None, str]] = {
    401: (AccessError, OptionAdvice("check {} or {}", ("token", "tokenFile")), ""),
    403: (AccessError, None, "; this token may not do that"),
    404: (PublisherError, OptionAdvice("check the feed's address in {}", ("url",)), ""),
    410: (CursorGoneError, None, ""),
    **dict.fromkeys(range(200, 300), (PublisherError, None, "; that is no page of a feed")),
}
"""The error of a final refusal, what to do, and what it means if the publisher names no problem."""

_REFUSED_OTHERWISE = PublisherError, None, ""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_NAMED_REQUEST = re.compile(rf" \(request {_REQUEST_ID.pattern}\)")
_TLS_FINAL = re.compile(r"CERTIFICATE|UNKNOWN_CA|WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE")


class TransientError(Exception):
    """A failure that may be gone at the next try. It never leaves the client.

    Args:
        final: the error to raise when there is no time for another try.
        retry_after: the seconds that the publisher asks to wait, if it does.
        reason: what happened, for the log; by default what `final` says, without its advice.
        within: the seconds after which there is no other try, if they are less than usual.
        status: the HTTP status of the answer; None if there was no answer.
    """

    def __init__(
        self,
        final: Exception,
        retry_after: float | None = None,
        reason: str = "",
        *,
        status: int | None = None,
        body: str | None = None,
        within: float | None = None,
    ) -> None:
        super().__init__(printable(reason or getattr(final, "what", None) or str(final)))
        self.within = within
        self.final = final
        self.retry_after = retry_after
        self.status = status
        self.body = body


def network_failure(
    exc: Exception, url: FeedUrl, request: str, *, reached: bool = True, within: float | None = None
) -> Exception:
    """Return the error for a request without an answer, or whose answer broke off.

    It is transient, unless TLS, the proxy or the address can never work. `reached` says whether
    this address has answered before. If it has not, a connection is tried for `within` seconds;
    None for as long as at any other time.
    """
    reason = innermost(exc)
    if isinstance(reason, ssl.SSLError) and "CERTIFICATE_REQUIRED" in (reason.reason or ""):
        return PublisherError(
            f"{url}: TLS: the publisher asks for a certificate of the client",
            advice=_CERTIFICATE,
            anchor="tls",
        )
    if isinstance(reason, ssl.SSLError) and _TLS_FINAL.search(reason.reason or ""):
        return PublisherError(
            f"{url}: TLS: {reason}",
            advice=_TLS,
            anchor="tls",
        )
    if isinstance(exc, requests.exceptions.InvalidProxyURL) or _is_socks(exc):
        return PublisherError(
            f"{url}: the proxy that the environment names (HTTP_PROXY, HTTPS_PROXY) cannot be "
            f"used. Set it to an http address, or name the publisher's host in NO_PROXY",
            anchor="tls",
        )
    if isinstance(exc, requests.exceptions.InvalidURL | requests.exceptions.InvalidSchema):
        return invalid_redirect(url)
    if not reached and isinstance(_cause(exc), _NO_CONNECTION):
        what = (
            f"the publisher of {url} does not answer: there is no connection "
            f"({type(reason).__name__}: {reason})"
        )
        final = UnavailableError(
            f"{what}. Is the publisher running? Start it, or correct the address",
            advice=_NEVER_REACHED,
            anchor="the-publisher-cannot-be-reached",
        )
        return TransientError(final, reason=what, within=within)
    what = (
        f"the publisher of {url} does not answer, or broke off ({type(reason).__name__}: {reason})"
        f"{request}"
    )
    if isinstance(reason, http.client.RemoteDisconnected) and str(url).startswith("https:"):
        what += ". If it asks for client certificates, look at 'clientCertFile'"
    final = UnavailableError(
        f"{what}. Nothing is lost: start again once it answers", advice=_RETRY_TIMEOUT
    )
    return TransientError(final, reason=what)


def _cause(exc: Exception) -> object:
    """Return the error of urllib3 that requests has wrapped."""
    first = exc.args[0] if exc.args else None
    return getattr(first, "reason", None) or first


def _is_socks(exc: Exception) -> bool:
    """Return whether the proxy is a SOCKS proxy, which we do not support.

    requests has no class for this error: it also raises InvalidSchema for a redirect to an address
    that is not http. Only the text of its error tells the two apart.
    """
    return isinstance(exc, requests.exceptions.InvalidSchema) and "SOCKS" in str(exc)


def invalid_redirect(url: FeedUrl) -> PublisherError:
    """Return the error for a redirect that cannot be followed."""
    return PublisherError(
        f"{url}: a redirect leads to an invalid address. Check the feed's address with its owner"
    )


def innermost(exc: BaseException) -> BaseException:
    """Return the first cause of an error of requests or urllib3.

    The messages that they wrap around it show the whole URL. What was handled when the request was
    made is no cause of it, and may lead back to itself.
    """
    while True:
        inner = getattr(exc, "reason", None) or exc.__cause__
        if not inner and isinstance(exc.__context__, _OF_A_REQUEST):
            inner = exc.__context__
        if not isinstance(inner, BaseException):
            inner = next((arg for arg in exc.args if isinstance(arg, BaseException)), None)
        if inner is None:
            return exc
        exc = inner


def check_status(response: requests.Response, url: FeedUrl, *, proven: bool = False) -> None:
    """Return if an answer is usable; raise if it is not, with its body closed.

    With `proven` a refusal counts only if its framing shows that nothing is missing. Raises
    PublisherError if the answer is final, and TransientError if another try may have another one.
    """
    status = response.status_code
    if status in _DONE:
        _check_head(response, url)
        return
    with response:
        text = masked(_whole_text(response, url))
    document = problem_document(text)
    name = problems.name_in(document)
    said = document.get("detail") or text.strip()[:2000] or response.reason
    message = f"{url} answered {status}{f' {name}' if name else ''}: {said}"
    if problems.is_transient(status, name):
        raise _transient(response, message, text, document)
    refusal = _final(response, message, text, document)
    if proven and not (response.raw.chunked or response.raw.length_remaining is not None):
        raise TransientError(refusal, status=status, body=text)  # it may have been cut
    raise refusal


def _check_head(response: requests.Response, url: FeedUrl) -> None:
    """Raise PublisherError for a web page, or an answer whose body a missing nginx would fetch."""
    if _ELSEWHERE in response.headers:
        response.close()
        raise PublisherError(
            f"{url} answered with the header {_ELSEWHERE}, so the body of its answer is elsewhere: "
            f"only an nginx before the publisher can fetch it. Ask the publisher's owner for the "
            f"address of that nginx",
            status=response.status_code,
        )
    found = response.headers.get("Content-Type", "").lower()
    if found.startswith(("text/html", "application/xhtml")):
        response.close()
        raise PublisherError(
            f"{url} answered with an HTML page instead of a feed, perhaps a login page. Check "
            f"the address",
            status=response.status_code,
            anchor="an-html-page-instead-of-a-feed",
        )


def _transient(
    response: requests.Response, message: str, text: str, document: dict[str, Any]
) -> TransientError:
    """Return the error for a refusal that another try may not get."""
    status, name = response.status_code, problems.name_in(document)
    pause, anchor = retry_after(response.headers), problems.anchor(name)
    if pause:
        message += f"; it asks for a pause of {pause:.0f} s (Retry-After)"
    final: Exception
    if document.get(problems.REMEDY):  # time alone does not help
        final = PublisherError(message, status=status, body=text, anchor=anchor)
    else:
        advice = _WAITING.get(name or "", _RETRY_TIMEOUT)
        final = UnavailableError(message + named(response), advice=advice, anchor=anchor)
    return TransientError(final, pause, status=status, body=text)


def _final(
    response: requests.Response, message: str, text: str, document: dict[str, Any]
) -> PublisherError:
    """Return the error for a refusal that every try gets."""
    status, name = response.status_code, problems.name_in(document)
    error, advice, meaning = _REFUSED.get(status, _REFUSED_OTHERWISE)
    has_remedy = bool(document.get(problems.REMEDY)) or name == problems.NO_SCHEMA.name
    if "requestId" not in document:  # the error tells one of the document (see `errors`)
        message += named(response)
    if name is None and not has_remedy:
        message += meaning
    return error(
        message,
        status=status,
        body=text,
        advice=None if has_remedy else advice,
        anchor=problems.anchor(name),
    )


def paused(url: FeedUrl, left: float) -> TransientError:
    """Return the error for a request that is not sent, because of the 429 to another request.

    `left` are the seconds that the pause still lasts.
    """
    final = UnavailableError(
        f"{url} answered 429 to another request of this process; the pause that it asked for "
        f"(Retry-After) ends in {left:.1f} s",
        advice=_RETRY_TIMEOUT,
    )
    return TransientError(final, left, status=429)


def named(response: requests.Response) -> str:
    """Return the words that name the request of an answer to the publisher's operator.

    The id of the answer counts, because it is what the publisher's log has; without one, the id
    that was sent.
    """
    found = response.headers.get(REQUEST_ID, "")
    return naming(found) or naming(str(response.request.headers.get(REQUEST_ID, "")))


def naming(request_id: str) -> str:
    """Return the words that name a request; none if the id is secret, or not valid."""
    return f" (request {request_id})" if _REQUEST_ID.fullmatch(masked(request_id)) else ""


def without_request_id(message: str) -> str:
    """Return a message about an answer as it is for every request that is answered so."""
    return _NAMED_REQUEST.sub("", message)


def _whole_text(response: requests.Response, url: FeedUrl) -> str:
    """Return the text of a refusal. Raises TransientError if it is cut, so that it comes again."""
    try:
        return _beginning(response, _REFUSAL_BYTES)
    except _zlib.library.error as exc:
        return f"(body not readable: {exc})"
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as exc:
        raise network_failure(exc, url, named(response)) from innermost(exc)


def body_text(response: requests.Response, limit: int = 64 << 10) -> str:
    """Return the beginning of a body, for people: at most `limit` bytes. Never fails."""
    try:
        return _beginning(response, limit)
    except (_zlib.library.error, urllib3.exceptions.HTTPError, OSError, ValueError) as exc:
        return f"(body not readable: {exc})"


def _beginning(response: requests.Response, limit: int) -> str:
    """Return the text of at most `limit` bytes of a body, of which no more are unpacked.

    Rejected: `read(decode_content=True)`, which unpacks all that it has read in most versions.
    """
    packed = response.headers.get("Content-Encoding", "").strip().lower() in {"gzip", "x-gzip"}
    unpack = _zlib.library.decompressobj(31)
    found = bytearray()
    for piece in response.raw.stream(_PIECE, decode_content=False):
        found += unpack.decompress(piece, limit - len(found)) if packed else piece
        if len(found) >= limit:
            break
    return found[:limit].decode(errors="replace")


def problem_document(text: str) -> dict[str, Any]:
    """Return a body's JSON object; an empty dict if it is none."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header: a number or a date (RFC 9110, 10.2.3)."""
    value = headers.get("Retry-After", "")
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
