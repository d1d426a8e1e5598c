"""What an answer of a publisher means, or that there was none: final, or to be tried again.

Rule for editors: messages carry the publisher's own words, masked, and never an address's query.
"""

from __future__ import annotations

import email.utils
import re
import ssl
import time
from typing import Any

import msgspec
import requests
import urllib3

from zeh_spark.client.credentials import masked
from zeh_spark.errors import (
    AccessError,
    CursorGoneError,
    OptionAdvice,
    PublisherError,
    UnavailableError,
)
from zeh_spark.options import FeedUrl
from zeh_spark.protocol import problems

_REFUSAL_BYTES = 64 << 10
_DONE = {200, 201, 203, 204}
_RETRY_TIMEOUT = OptionAdvice("{} says how long to try", ("retryTimeout",))
_ADVICE = {
    401: OptionAdvice("check {} or {}", ("token", "tokenFile")),
    404: OptionAdvice("check the feed's address in {}", ("url",)),
}
_TLS_FINAL = re.compile(r"CERTIFICATE|UNKNOWN_CA|WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE")


class TransientError(Exception):
    """May be gone at the next try. `final` is raised when there is no time for one. `status` and
    `body` are those of the answer, if there was one.
    """

    def __init__(
        self,
        final: Exception,
        retry_after: float | None = None,
        reason: str = "",
        *,
        status: int | None = None,
        body: str | None = None,
    ) -> None:
        super().__init__(reason or str(final))
        self.final = final
        self.retry_after = retry_after
        self.status = status
        self.body = body


def network_failure(exc: Exception, url: FeedUrl) -> Exception:
    """No answer, or one that broke off: transient, unless TLS says that it never will work."""
    reason = innermost(exc)
    if isinstance(reason, ssl.SSLError) and _TLS_FINAL.search(reason.reason or ""):
        return PublisherError(
            f"{url}: TLS: {reason}; check 'caFile', 'clientCertFile', the host name, and whether "
            f"the address should begin with http:"
        )
    if isinstance(exc, requests.exceptions.InvalidProxyURL) or _is_socks(exc):
        return PublisherError(
            f"{url}: the proxy that the environment names (HTTP_PROXY, HTTPS_PROXY) cannot be "
            f"used: it has to be an http address; NO_PROXY goes round it"
        )
    if isinstance(exc, requests.exceptions.InvalidURL | requests.exceptions.InvalidSchema):
        return invalid_redirect(url)
    what = (
        f"the publisher of {url} does not answer, or broke off ({type(reason).__name__}: {reason})"
    )
    final = UnavailableError(
        f"{what}; nothing is lost: start again once it does", advice=_RETRY_TIMEOUT
    )
    return TransientError(final, reason=what)


def _is_socks(exc: Exception) -> bool:
    """Return whether the proxy is one of SOCKS, which we do not support.

    requests has no class for it: InvalidSchema is also raised for a redirect to an address that is
    not http. Only the text of the error tells the two apart.
    """
    return isinstance(exc, requests.exceptions.InvalidSchema) and "SOCKS" in str(exc)


def invalid_redirect(url: FeedUrl) -> PublisherError:
    return PublisherError(f"{url}: a redirect leads to an invalid address")


def innermost(exc: BaseException) -> BaseException:
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


def check_status(response: requests.Response, url: FeedUrl, *, proven: bool = False) -> None:
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
        text = masked(_whole_text(response, url))
    document = problem_document(text)
    said = document.get("detail") or text.strip()[:2000] or response.reason
    name = problems.name_in(document)
    message = f"{url} answered {status}{f' {name}' if name else ''}: {said}"
    has_remedy = bool(document.get(problems.REMEDY))
    anchor = problems.anchor(name)
    if problems.is_transient(status):
        pause = _retry_after(response)
        if pause:
            message += f"; it asks for a pause of {pause:.0f} s (Retry-After)"
        if has_remedy:  # time alone does not help
            final = PublisherError(message, status=status, body=text, anchor=anchor)
            raise TransientError(final, pause, status=status, body=text)
        unavailable = UnavailableError(message, advice=_RETRY_TIMEOUT, anchor=anchor)
        raise TransientError(unavailable, pause, status=status, body=text)
    kind = {401: AccessError, 403: AccessError, 410: CursorGoneError}.get(status, PublisherError)
    if status == 403 and not has_remedy:
        message += "; this token may not do that"
    elif status < 300 and not has_remedy:
        message += "; that is no page of a feed"
    advice = None if has_remedy else _ADVICE.get(status)
    refusal = kind(message, status=status, body=text, advice=advice, anchor=anchor)
    if proven and not (response.raw.chunked or response.raw.length_remaining is not None):
        raise TransientError(refusal)  # headers that are cut leave no length
    raise refusal


def _whole_text(response: requests.Response, url: FeedUrl) -> str:
    """Of a refusal: one that is cut short says neither what nor why, and is asked for again."""
    try:
        return response.raw.read(_REFUSAL_BYTES, decode_content=True).decode(errors="replace")
    except urllib3.exceptions.DecodeError as exc:
        return f"(body not readable: {exc})"
    except (urllib3.exceptions.HTTPError, OSError) as exc:
        raise network_failure(exc, url) from innermost(exc)


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
