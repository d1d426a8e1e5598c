"""Events in the order of their sessions, and dead letters for those that cannot be ordered.

A batch on its way: `ordering` builds the query, `reading` reads what events say, `operator` is
Spark's operator for a bucket of sessions, `bucket` takes the rows of a bucket, `logic` decides for
each session (with the words of `model`), `state` keeps sessions from batch to batch. `steps` gives
names of steps their numbers, `sources` is the clock of several feeds, `routing` gives the result to
two writers, `letters` brings dead letters to a feed and back, `inspecting` looks at sessions from
outside. `processing` calls a handler for each ordered event, and keeps the verdicts in a table,
which `verdicts` reads; `handling` is what its tasks do, and `calling` is one call of a handler.

Rule for editors: what needs Spark is imported on first use, as in the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeh_spark._lazy import names_of

if TYPE_CHECKING:
    from zeh_spark.sessions.calling import Event, Retry
    from zeh_spark.sessions.inspecting import explain, inspect
    from zeh_spark.sessions.letters import replay, to_feed
    from zeh_spark.sessions.logic import SessionLogic
    from zeh_spark.sessions.model import REASONS, RECORDS
    from zeh_spark.sessions.ordering import in_order
    from zeh_spark.sessions.processing import process
    from zeh_spark.sessions.routing import route
    from zeh_spark.sessions.verdicts import unresolved

__all__ = [
    "REASONS",
    "RECORDS",
    "Event",
    "Retry",
    "SessionLogic",
    "explain",
    "in_order",
    "inspect",
    "process",
    "replay",
    "route",
    "to_feed",
    "unresolved",
]

_HOMES = {
    "REASONS": "zeh_spark.sessions.model",
    "RECORDS": "zeh_spark.sessions.model",
    "Event": "zeh_spark.sessions.calling",
    "Retry": "zeh_spark.sessions.calling",
    "SessionLogic": "zeh_spark.sessions.logic",
    "explain": "zeh_spark.sessions.inspecting",
    "in_order": "zeh_spark.sessions.ordering",
    "inspect": "zeh_spark.sessions.inspecting",
    "process": "zeh_spark.sessions.processing",
    "replay": "zeh_spark.sessions.letters",
    "route": "zeh_spark.sessions.routing",
    "to_feed": "zeh_spark.sessions.letters",
    "unresolved": "zeh_spark.sessions.verdicts",
}


__getattr__ = names_of(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
