"""Feeds and Delta tables: `to_delta` keeps a feed in a table, `from_delta` makes a table a feed.

Spark's side is imported on first use, as in the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeh_spark.lakehouse.delta_reader import from_delta
    from zeh_spark.lakehouse.delta_writer import DeltaFeedWriter, cursors, to_delta
    from zeh_spark.lakehouse.merging import merge, purge, stamped

__all__ = ["DeltaFeedWriter", "cursors", "from_delta", "merge", "purge", "stamped", "to_delta"]

_HOMES = {
    "DeltaFeedWriter": "zeh_spark.lakehouse.delta_writer",
    "cursors": "zeh_spark.lakehouse.delta_writer",
    "from_delta": "zeh_spark.lakehouse.delta_reader",
    "merge": "zeh_spark.lakehouse.merging",
    "purge": "zeh_spark.lakehouse.merging",
    "stamped": "zeh_spark.lakehouse.merging",
    "to_delta": "zeh_spark.lakehouse.delta_writer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
