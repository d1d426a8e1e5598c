"""Events in the order of their sessions, and dead letters where there is none.

Spark's side is imported on first use, as in the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeh_spark.sessions.logic import SessionLogic
    from zeh_spark.sessions.ordering import in_order
    from zeh_spark.sessions.routing import route

__all__ = ["SessionLogic", "in_order", "route"]

_HOMES = {
    "SessionLogic": "zeh_spark.sessions.logic",
    "in_order": "zeh_spark.sessions.ordering",
    "route": "zeh_spark.sessions.routing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
