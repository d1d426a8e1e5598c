"""Ask a publisher, within limits of time and bytes, whatever it answers.

Rule for editors: every request runs in a thread of its own that is left behind when its time is up.
A read timeout alone does not end an answer that comes byte by byte. A refusal for the moment is
retried, as clients do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from zeh_spark.client.http.responses import TransientError, problem_document, retry_after
from zeh_spark.client.http.retry import backoff
from zeh_spark.client.http.transport import Body, Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.errors import AccessError, PublisherError, UnavailableError

TRANSIENT = {408, 409, 425, 429, 502, 503, 504}
"""Statuses that another try may not get."""

_TRIES = 4


class End(Enum):
    """How an answer ended."""

    WHOLE = "whole"
    UNPROVEN = "without framing that shows its end"
    BROKEN = "broken off"
    LEFT = "left at the limit of bytes"
    LATE = "not ended within the limit of time"
    NONE = "no answer"


class LimitError(Exception):
    """The time or the bytes for this publisher are used up."""


@dataclass(slots=True)
class Answer:
    """The answer to one request.

    Args:
        status: the HTTP status; 0 without an answer.
        body: the bytes that came, unpacked.
        problem: why it broke off, or did not come.
        final: whether no later try can have an answer, as for a certificate that is not trusted.
        broke: why an earlier try broke off.
    """

    query: str
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    end: End = End.NONE
    problem: str = ""
    final: bool = False
    seconds: float = 0.0
    address: str = ""
    broke: str = ""

    @property
    def ok(self) -> bool:
        """Whether it is a page, as far as its status says."""
        return 200 <= self.status < 300

    @property
    def ended(self) -> bool:
        """Whether it came to its end, as far as can be told."""
        return self.end in (End.WHOLE, End.UNPROVEN)

    @property
    def document(self) -> dict[str, object]:
        """The JSON object in the body; empty if it is none."""
        return problem_document(self.body.decode(errors="replace"))

    @property
    def told(self) -> str:
        """The status and the beginning of the body of a refusal, in words."""
        if not self.status:
            return self.problem
        text = " ".join(self.body[:200].decode(errors="replace").split())
        return f"{self.status} {text[:100]}".strip()


class Asking:
    """Sends GET requests to one publisher.

    Args:
        seconds: the time for all requests together.
        most_bytes: the bytes of all answers together.
    """

    def __init__(self, options: ClientOptions, seconds: float, most_bytes: int) -> None:
        self.transport = Transport(options)
        self.requests = 0
        self.bytes = 0
        self._end = time.monotonic() + seconds
        self._most_bytes = most_bytes
        self._page_bytes = max(1, most_bytes // 8)
        self._lock = threading.Lock()
        self._lost = 0

    def get(
        self, query: str, headers: Mapping[str, str] | None = None, final: Collection[int] = ()
    ) -> Answer:
        """Send a request with this query, and return what was answered in time.

        A status of `final` is not retried. Raises LimitError if no time or bytes are left.
        """
        broke = ""
        for attempt in range(1, _TRIES + 1):
            answer = self._once(query, headers or {})
            answer.broke = broke
            pause = max(backoff(attempt, 1.0), retry_after(answer.headers) or 0.0)
            again = answer.status in TRANSIENT and answer.status not in final
            if answer.end in (End.BROKEN, End.NONE) and not answer.final:
                again, broke = attempt < 3 and self._lost < 2, answer.problem
                self._lost += not again
            if not again or pause > self._end - time.monotonic():
                break
            time.sleep(pause)
        return answer

    def _once(self, query: str, headers: Mapping[str, str]) -> Answer:
        left = self._end - time.monotonic()
        if left <= 0 or self.bytes >= self._most_bytes:
            raise LimitError("the time is" if left <= 0 else "the bytes are")
        begun = time.monotonic()
        answer = Answer(query)
        pieces: list[bytes] = []
        leave = threading.Event()
        in_time = self.within(lambda: self._receive(answer, pieces, leave, headers))
        leave.set()
        if not in_time:
            answer = Answer(query, answer.status, answer.headers, address=answer.address)
            answer.end = End.LATE
            answer.problem = f"not answered within {left:.0f} s"
        answer.body = b"".join(pieces)
        answer.seconds = time.monotonic() - begun
        with self._lock:
            self.requests += 1
            self.bytes += len(answer.body)
        return answer

    def within(self, work: Callable[[], None]) -> bool:
        """Do some work in a thread of its own, and return whether it ended in time.

        Otherwise the thread is left behind.
        """
        done = threading.Event()

        def run() -> None:
            try:
                work()
            finally:
                done.set()

        threading.Thread(target=run, daemon=True).start()
        return done.wait(max(0.0, self._end - time.monotonic()))

    def _receive(
        self,
        answer: Answer,
        pieces: list[bytes],
        leave: threading.Event,
        headers: Mapping[str, str],
    ) -> None:
        try:
            response = self.transport.request(
                "GET",
                query=answer.query,
                headers={"Accept-Encoding": "identity", **headers},
                any_status=True,
            )
            with response:
                answer.address = str(response.url)
                answer.headers = response.headers
                answer.status = response.status_code
                answer.end = End.BROKEN
                body = Body(response, self.transport.url)
                size = 0
                for piece in body:
                    pieces.append(piece)
                    size += len(piece)
                    if size > self._page_bytes or leave.is_set():
                        answer.end = End.LEFT
                        return
                answer.end = End.WHOLE if body.proven else End.UNPROVEN
        except TransientError as failure:
            answer.problem = str(failure)
        except PublisherError as exc:
            answer.problem, answer.final = exc.what, True


def refuse(answer: Answer, options: ClientOptions) -> None:
    """Raise the error for an address where there is no feed to judge."""
    url = options.url
    if not answer.status:
        kind = PublisherError if answer.final else UnavailableError
        raise kind(f"{answer.problem}. Check the address, and whether the publisher runs")
    if answer.status in (429, 502, 503, 504):
        raise UnavailableError(f"{url} answered {answer.told}. Try again later")
    if answer.status in (401, 403):
        given = "the token" if options.token or options.token_file else "no token"
        raise AccessError(
            f"{url} answered {answer.told}, with {given}. Give a valid one with --token-file or "
            f"ZEH_TOKEN",
            status=answer.status,
        )
    if answer.status == 404:
        raise PublisherError(f"{url} answered {answer.told}. Check the feed's address", status=404)
    if "html" in answer.headers.get("Content-Type", "").lower() and answer.ok:
        raise PublisherError(
            f"{url} answered with an HTML page instead of a feed, perhaps a login page. Check the "
            f"address",
            status=answer.status,
            anchor="an-html-page-instead-of-a-feed",
        )
