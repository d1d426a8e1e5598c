"""The readers that retention waits for: which events each of them has passed.

A reader is a cursor set that a feed's retention names. Runs in the publisher and in commands that
remove events.
"""

from __future__ import annotations

from collections.abc import Iterable

from zeh_spark.service.store.interface import Chunk, Store
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.store.reading import parse_cursor


class Readers:
    """The readers that are waited for, and what each has passed by all its kept cursors."""

    def __init__(self, store: Store, feed: str, names: Iterable[str]) -> None:
        self._cursors = {name: _passed(store, feed, name) for name in names}

    def unread_by(self, chunk: Chunk) -> str | None:
        for name, by_n in self._cursors.items():
            if not by_n:
                return name  # it has not kept a cursor yet
            for n, passed in by_n.items():
                if passed.get(chunk.partition % n, 0) < chunk.g:
                    return name
        return None


def _passed(store: Store, feed: str, name: str) -> dict[int, dict[int, int]]:
    """Return by n and partition the position after which a reader is."""
    found: dict[int, dict[int, int]] = {}
    for n, cursors in store.saved_cursors(feed, name).items():
        given = {each: _position(each, cursor) for each, cursor in cursors.items()}
        with store.snapshot(feed, {g for g, _ in given.values()}) as log:
            found[n] = {each: g for each, (g, tag) in given.items() if log.tags.get(g) == tag}
    return found


def _position(partition: int, cursor: str) -> tuple[int, str]:
    try:
        return parse_cursor(partition, cursor) or (0, "")
    except Problem:
        return 0, ""
