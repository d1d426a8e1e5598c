"""Deduplicate a stream by sequence numbers, with state that grows with producers, not with events.

This module holds the names that users import, from `spark.stateful.dedup`.
"""

from __future__ import annotations

from zeh_spark.spark.stateful.dedup import FLAGS, drop_seen

__all__ = ["FLAGS", "drop_seen"]
