"""The service behind feeds: stores, the read API of ZeroEventHub, and loading of files. Needs the
extra `publisher`.
"""

from __future__ import annotations

from zeh_spark.errors import StoreError
from zeh_spark.publisher.app import create_app
from zeh_spark.publisher.feed import Block, Feed
from zeh_spark.publisher.memory import MemoryStore
from zeh_spark.publisher.problems import Problem
from zeh_spark.publisher.sqlite import open_sqlite
from zeh_spark.publisher.store import Store

__all__ = ["Block", "Feed", "MemoryStore", "Problem", "Store", "create_app", "open_store"]


def open_store(url: str, *, must_exist: bool = False) -> Store:
    """`memory:` or `sqlite:///file` (`sqlite:////dir/file` for an absolute path). Raises
    StoreError.

    A SQLite file is made if it is missing, unless it `must_exist`.
    """
    if url == "memory:":
        return MemoryStore()
    if url.startswith("sqlite:///"):
        return open_sqlite(url.removeprefix("sqlite:///"), must_exist=must_exist)
    if url.startswith(("postgresql:", "postgresql+", "postgres:")):
        raise StoreError("a store in PostgreSQL is not there yet; use sqlite:///file")
    raise StoreError(
        f"unknown store {url!r}: use sqlite:///feeds.db, or sqlite:////dir/feeds.db (a whole path)"
    )
