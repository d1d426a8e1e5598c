"""The cursors at a time: a reader that begins there gets what was committed since, and no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store_contract.writers import FEED, chunk, everything, publish
from zeh_spark.protocol import problems
from zeh_spark.publisher import MemoryStore, Problem
from zeh_spark.store.feed import ChunkFeed
from zeh_spark.store.interface import Chunk

COMMITS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=30)
"""The partition of each chunk, and the ms since the one before."""


def chunks_after(store: MemoryStore, n: int, cursors: dict[int, str]) -> list[Chunk]:
    """What a reader of n gets that begins at these cursors."""
    feed = ChunkFeed(store, FEED)
    parts = feed.outline(cursors, n, 1 << 40).parts
    return [each for part in parts for each in part.chunks]


@given(COMMITS, st.integers(0, 100), st.integers(1, 5), st.integers(0, 30))
def test_a_reader_that_starts_at_a_time_gets_what_was_committed_since(commits, time, n, removed):
    """For each n, wherever retention has come to."""
    now = [10]
    store = MemoryStore(clock=lambda: now[0])
    store.create(FEED, 3)
    for partition, later in commits:
        now[0] += later
        publish(store, chunk(partition, b"1"))
    now[0] = max(now[0], time)
    store.remove(FEED, min(removed, len(commits)))

    cursors = ChunkFeed(store, FEED).cursors_at(n, time)

    wanted = [each for each in everything(store) if each.time >= time]
    assert wanted == chunks_after(store, n, cursors)
    assert not any(each.startswith("_") for each in cursors.values())


def test_a_time_ahead_of_the_clock_is_refused():
    """An event before that time may still come, and the reader does not want it."""
    store = MemoryStore(clock=lambda: 1000)
    store.create(FEED, 1)

    with pytest.raises(Problem) as caught:
        ChunkFeed(store, FEED).cursors_at(1, 1001)

    assert (problems.BAD_TIME, 1000) == (caught.value.type, caught.value.members["now"])
