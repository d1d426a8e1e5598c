"""Ask a publisher, within limits of time and bytes, whatever it answers.

Rule for editors: every request runs in a thread of its own that is left behind when its time is up.
A read timeout alone does not end an answer that comes byte by byte. A refusal for the moment is
retried, as clients do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from zeh_spark.client.http.responses import (
    TransientError,
    check_status,
    problem_document,
    retry_after,
)
from zeh_spark.client.http.retry import backoff
from zeh_spark.client.http.transport import Body, Transport
from zeh_spark.client.options.client_options import ClientOptions
from zeh_spark.errors import PublisherError, UnavailableError
from zeh_spark.wire import problems

TRANSIENT = {408, 409, 425, 429, 502, 503, 504}
"""Statuses that another try may not get."""

_NO_FEED = {0, 401, 403, 404, 429, 502, 503, 504}
"""Statuses of an address, without parameters, where there is no feed to judge."""

_TRIES = 4


class LimitError(UnavailableError):
    """The time or the bytes for this publisher are used up."""


class LateError(LimitError):
    """An answer did not come before the time was used up."""


@dataclass(slots=True)
class Answer:
    """The answer to one request.

    Args:
        status: the HTTP status; 0 without an answer.
        body: the bytes that came, unpacked.
        problem: why it broke off, or did not come.
        error: what a client raises for it; None for a whole page.
        proven: whether its framing shows its end.
        left: whether it was left at the limit of bytes.
        broke: why an earlier try broke off.
    """

    query: str
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    problem: str = ""
    error: Exception | None = None
    proven: bool = True
    left: bool = False
    seconds: float = 0.0
    address: str = ""
    broke: str = ""

    @property
    def ok(self) -> bool:
        """Whether it is a page, as far as its status says."""
        return 200 <= self.status < 300

    @property
    def lost(self) -> bool:
        """Whether a page broke off, or no answer came."""
        return self.error is not None and (self.ok or not self.status)

    @property
    def document(self) -> dict[str, object]:
        """The JSON object in the body; empty if it is none."""
        return problem_document(self.body.decode(errors="replace"))

    @property
    def told(self) -> str:
        """The status of a refusal, and its detail or the beginning of its body."""
        if not self.status:
            return self.problem
        document, text = self.document, self.body[:200].decode(errors="replace")
        name, said = problems.name_in(document), str(document.get("detail") or text)
        head = f"{self.status} {name}:" if name else f"{self.status}"
        return f"{head} {' '.join(said.split())[:100]}".strip()

    @property
    def refusal(self) -> str:
        """The request, and what was answered."""
        return f"{shown(self.query)} answered {self.told}"

    def refuse(self) -> None:
        """Raise the client's error if there is no feed to judge at an address that answers so."""
        is_no_page = self.ok and isinstance(self.error, PublisherError)
        if self.error and (self.status in _NO_FEED or is_no_page):
            raise self.error


class Asking:
    """Sends GET requests to one publisher.

    Args:
        seconds: the time for all requests together.
        most_bytes: the bytes of all answers together.

    Attributes:
        sizes: the bytes of each answer.
    """

    def __init__(self, options: ClientOptions, seconds: float, most_bytes: int) -> None:
        self.transport = Transport(options)
        self.sizes: list[int] = []
        self._end = time.monotonic() + seconds
        self.most_bytes = most_bytes
        self._lost = 0

    def get(
        self, query: str, headers: Mapping[str, str] | None = None, final: Set[int] = frozenset()
    ) -> Answer:
        """Send a request with this query, and return what was answered in time.

        A status of `final` is not retried. Raises LimitError if no time or bytes are left.
        """
        broke = ""
        for attempt in range(1, _TRIES + 1):
            answer = self._once(query, headers or {})
            answer.broke = broke
            pause = max(backoff(attempt, 1.0), retry_after(answer.headers) or 0.0)
            again = answer.status in TRANSIENT - final
            if answer.lost and not isinstance(answer.error, PublisherError):  # may come later
                again, broke = attempt < 3 and self._lost < 2, answer.problem
                self._lost += not again
            if not again or pause > self._end - time.monotonic():
                break
            time.sleep(pause)
        return answer

    def _once(self, query: str, headers: Mapping[str, str]) -> Answer:
        begun = time.monotonic()
        left = self._end - begun
        if left <= 0 or sum(self.sizes) >= self.most_bytes:
            raise LimitError(f"{'the time is' if left <= 0 else 'the bytes are'} used up")
        answer = Answer(query)
        if not self.within(lambda: self._receive(answer, headers)):
            self.sizes.append(0)
            raise LateError(f"{shown(query)} was not answered within {left:.0f} s")
        answer.seconds = time.monotonic() - begun
        self.sizes.append(len(answer.body))
        return answer

    def within(self, work: Callable[[], None]) -> bool:
        """Do some work in a thread of its own, and return whether it ended in time.

        Otherwise the thread is left behind.
        """
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(max(0.0, self._end - time.monotonic()))
        return not thread.is_alive()

    def _receive(self, answer: Answer, headers: Mapping[str, str]) -> None:
        pieces: list[bytes] = []
        try:
            with self.transport.request(
                "GET",
                query=answer.query,
                headers={"Accept-Encoding": "identity", **headers},
                any_status=True,
            ) as response:
                answer.address = str(response.url)
                answer.headers = response.headers
                answer.status = response.status_code
                if not answer.ok or not answer.query:
                    check_status(response, self.transport.url)
                body, left = Body(response, self.transport.url), self.most_bytes // 8
                answer.proven = body.proven
                for piece in body:
                    pieces.append(piece)
                    left -= len(piece)
                    if left < 0 or time.monotonic() > self._end:
                        answer.left = True
                        break
        except (TransientError, PublisherError) as exc:
            answer.problem = getattr(exc, "what", str(exc))
            answer.error = getattr(exc, "final", exc)
            if exc.body is not None:  # a refusal
                pieces = [exc.body.encode()]
        answer.body = b"".join(pieces)


def shown(query: str) -> str:
    """Return a query as messages show it."""
    return f"?{query[:120]}" if query else "the request without parameters"
