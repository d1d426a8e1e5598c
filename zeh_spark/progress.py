"""What a query's progress says about its feeds, and a run until everything is read.

This module holds the names that users import, from `spark.progress`.
"""

from __future__ import annotations

from zeh_spark.spark.progress import FeedProgress, ProgressListener, drain, feed_progress

__all__ = ["FeedProgress", "ProgressListener", "drain", "feed_progress"]
