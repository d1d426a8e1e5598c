"""What is known of one request and its answer, for metrics and for the log.

The middleware `Observer` makes it. Whoever handles the request adds what it learns: the gate the
route and the token, the APIs the events, the handlers of errors the problem.

Belongs to the publisher's event loop; a `Tally` is written by one worker thread at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

_KEY = "zeh_spark.exchange"


class HasScope(Protocol):
    """A request of Starlette."""

    @property
    def scope(self) -> Any:
        """The ASGI scope."""


@dataclass(slots=True)
class Tally:
    """Counts the events of an answer while it is made.

    Attributes:
        events: How many events the parts have that were made so far.
    """

    events: int = 0

    def add(self, events: int) -> None:
        """Count more events."""
        self.events += events


@dataclass(slots=True)
class Exchange:
    """A request, and its answer as far as it is sent.

    Attributes:
        route: The path of its route, like "/{feed}"; empty if there is no such route.
        problem: The name of the problem that it was answered with; empty if there was none.
        is_decided: Whether the problem shows that the feed exists.
        status: The status of the answer; 0 if there was none.
        received: The bytes of the body of the request.
        sent: The bytes of the body of the answer.
        served: The events in the answer.
        published: The events that it has published.
        commit_seconds: How long the store took to commit; None if it did not.
    """

    route: str = ""
    problem: str = ""
    is_decided: bool = False
    status: int = 0
    received: int = 0
    sent: int = 0
    served: Tally = field(default_factory=Tally)
    published: int = 0
    commit_seconds: float | None = None


def begin(scope: Any) -> Exchange:
    """Return the exchange of a new request, which `exchange_of` finds from now on."""
    found: Exchange = Exchange()
    scope[_KEY] = found
    return found


def exchange_of(request: HasScope) -> Exchange:
    """Return the exchange of a request; one that nobody looks at if the request is not observed."""
    found: Exchange | None = request.scope.get(_KEY)
    return found or Exchange()
