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

from zeh_spark._lazy import lazily

if TYPE_CHECKING:
    from zeh_spark.sessions.calling import Event as Event
    from zeh_spark.sessions.calling import Retry as Retry
    from zeh_spark.sessions.inspecting import explain as explain
    from zeh_spark.sessions.inspecting import inspect as inspect
    from zeh_spark.sessions.letters import replay as replay
    from zeh_spark.sessions.letters import to_feed as to_feed
    from zeh_spark.sessions.logic import SessionLogic as SessionLogic
    from zeh_spark.sessions.model import REASONS as REASONS
    from zeh_spark.sessions.model import RECORDS as RECORDS
    from zeh_spark.sessions.ordering import in_order as in_order
    from zeh_spark.sessions.processing import process as process
    from zeh_spark.sessions.routing import route as route
    from zeh_spark.sessions.verdicts import unresolved as unresolved

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "calling": "Event Retry",
        "inspecting": "explain inspect",
        "letters": "replay to_feed",
        "logic": "SessionLogic",
        "model": "REASONS RECORDS",
        "ordering": "in_order",
        "processing": "process",
        "routing": "route",
        "verdicts": "unresolved",
    },
)
