"""Events in the order of their sessions, and dead letters for those that cannot be ordered.

This module holds the names that users import, from `spark.sessions`. They are imported on first
use: the command line needs some of them without Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeh_spark._lazy import lazily

if TYPE_CHECKING:
    from zeh_spark.spark.sessions.calling import Event as Event
    from zeh_spark.spark.sessions.calling import Retry as Retry
    from zeh_spark.spark.sessions.inspecting import explain as explain
    from zeh_spark.spark.sessions.inspecting import inspect as inspect
    from zeh_spark.spark.sessions.letters import replay as replay
    from zeh_spark.spark.sessions.letters import to_feed as to_feed
    from zeh_spark.spark.sessions.model import REASONS as REASONS
    from zeh_spark.spark.sessions.model import RECORDS as RECORDS
    from zeh_spark.spark.sessions.ordering import in_order as in_order
    from zeh_spark.spark.sessions.processing import process as process
    from zeh_spark.spark.sessions.routing import route as route
    from zeh_spark.spark.sessions.session_decision import SessionLogic as SessionLogic
    from zeh_spark.spark.sessions.verdicts import unresolved as unresolved

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "spark.sessions.calling": "Event Retry",
        "spark.sessions.inspecting": "explain inspect",
        "spark.sessions.letters": "replay to_feed",
        "spark.sessions.session_decision": "SessionLogic",
        "spark.sessions.model": "REASONS RECORDS",
        "spark.sessions.ordering": "in_order",
        "spark.sessions.processing": "process",
        "spark.sessions.routing": "route",
        "spark.sessions.verdicts": "unresolved",
    },
)
