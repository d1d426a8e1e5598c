"""The cursors at a time: a reader that begins there gets what was committed since, and no more."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scratch_store import ScratchStore
from tests.store_contract.writers import FEED, chunk, everything
from zeh_spark.publisher import Problem
from zeh_spark.service.reads.feed import ChunkFeed
from zeh_spark.wire import problems

COMMITS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=30)
"""The partition of each chunk, and the ms since the one before."""


numbers = itertools.count()


@pytest.fixture(scope="module")
def shared_store() -> Iterator[ScratchStore]:
    with closing(ScratchStore(clock=lambda: 1000)) as store:
        yield store


@given(COMMITS, st.integers(0, 100), st.integers(1, 5), st.integers(0, 30))
def test_a_reader_that_starts_at_a_time_gets_all_since(shared_store, commits, time, n, removed):
    """For each n, wherever retention has come to."""
    times = [10 + later for later in itertools.accumulate(later for _, later in commits)]
    store, feed = shared_store, f"f{next(numbers)}"
    store.create(feed, 3)
    store.append(feed, [chunk(partition, b"1") for partition, _ in commits], times)
    store.remove(feed, min(removed, len(commits)))

    cursors = ChunkFeed(store, feed).cursors_at(n, time)

    wanted = [each for each in everything(store, feed) if each.time >= time]
    parts = ChunkFeed(store, feed).open(cursors, n, 1 << 40, lambda part: part.chunks).parts
    assert wanted == [*itertools.chain(*parts)]
    assert not any(each.startswith("_") for each in cursors.values())


def test_a_time_ahead_of_the_clock_is_refused():
    """An event before that time may still come, and the reader does not want it."""
    store = ScratchStore(clock=lambda: 1000, orders=1)

    with pytest.raises(Problem) as caught:
        ChunkFeed(store, FEED).cursors_at(1, 1001)

    assert (problems.BAD_TIME, 1000) == (caught.value.type, caught.value.members["now"])
