"""Removing old events ends, whatever a store does."""

from __future__ import annotations

import pytest

from zeh_spark.publisher import MemoryStore
from zeh_spark.store.interface import Retention
from zeh_spark.store.retention import prune
from zeh_spark.testing.writers import chunk, publish


class Forgetful(MemoryStore):
    """A store that forgets that it removed events."""

    def remove(self, feed: str, upto: int) -> None: ...


@pytest.mark.timeout(20)
def test_pruning_a_store_that_removes_nothing_is_an_error() -> None:
    store = Forgetful()
    store.create("f", 1)
    for _ in range(3):
        publish(store, chunk(0, b"1"), feed="f")
    with pytest.raises(RuntimeError, match="feed 'f': events up to position 3 were removed and"):
        prune(store, "f", Retention(bytes=1))
