"""How far consumers are behind, compared with a sum over all chunks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scratch_store import ScratchStore
from tests.store_contract.writers import chunk as staged
from zeh_spark.service.store.cursor_sets import NOBODY, CursorSet
from zeh_spark.service.store.log import Anchor, Chunk
from zeh_spark.service.telemetry.lag import POSITIONS, PRECISION, Backlog, Backlogs, Lag


def chunk(g: int, partition: int = 0, events: int = 1) -> Chunk:
    return Chunk(g, partition, events, 100, 1000 * g, f"{g:08x}", "p", 0, 0, g)


def filled(chunks, partitions=1):
    backlog = Backlog(partitions)
    backlog.add(chunks)
    return backlog


def lag_of(backlog, n, cursors, anchors=()):
    (found,) = backlog.lags(CursorSet("warehouse", NOBODY, {n: cursors}), dict(anchors))
    return found


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 1000)), max_size=50), st.data())
def test_the_lag_is_what_is_after_the_cursors(log, data):
    """Whatever n the reader has, and wherever it is in each partition."""
    chunks = [chunk(g, partition, events) for g, (partition, events) in enumerate(log, 1)]
    n = data.draw(st.integers(1, 6))
    read = {each: data.draw(st.integers(0, len(log))) for each in range(n)}
    left = [each for each in chunks if each.g > read.get(each.partition % n, 0)]
    if n > 4:  # partition 4 and 5 read what no stored partition has, or one of few
        left = [each for each in chunks if each.g > read[each.partition]]

    found = lag_of(filled(chunks, 4), n, {each: f"{g}.00000000" for each, g in read.items()})

    oldest = min((each.time for each in left), default=None)
    assert Lag("warehouse", n, n, sum(each.events for each in left), oldest) == found


def test_what_nobody_waits_for_does_not_count():
    """Two processes may share a cursor set, each with its own partitions; others have no cursor.
    And what retention has removed is gone.
    """
    backlog = filled([chunk(1, 0, 5), chunk(2, 1, 7)], 2)

    assert Lag("warehouse", 2, 1, 7, 2000) == lag_of(backlog, 2, {1: "0.00000000"})

    removed = {0: Anchor(1, "00000001")}.items()
    backlog = filled([chunk(1, 0, 5), chunk(2, 0, 7)])
    assert Lag("warehouse", 1, 1, 7, 2000) == lag_of(backlog, 1, {0: "0.00000000"}, removed)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20))
@settings(max_examples=3)
def test_a_long_feed_takes_little_memory_and_the_lag_stays_near(sizes):
    """Near the head it is exact; far behind it is too high by two percent at most."""
    count = 60_000
    chunks = [chunk(g, 0, sizes[g % len(sizes)]) for g in range(1, count + 1)]
    backlog = filled(chunks)
    for read in (*range(0, count, 997), *range(count - 99, count + 1)):
        left = sum(each.events for each in chunks[read:])

        found = lag_of(backlog, 1, {0: f"{read}.00000000"})

        assert left <= found.events <= (1 + 1 / PRECISION) * left
        if read > count - 64 // 20:
            assert left == found.events
        since = None if read == count else True
        assert since == (found.since and found.since <= 1000 * (read + 1))
    assert len(backlog._partitions[0]._positions) <= POSITIONS


@pytest.mark.parametrize("removed", [0, 3, 130])
def test_the_lag_of_what_is_packed_is_as_near(monkeypatch, removed):
    """Also of a partition with few events, and of one that was written at once and never again, and
    if retention has removed a part of a pack.
    """
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 4)
    store = ScratchStore(orders=3)
    partitions = [0] * 90 + [1] * 20 + [2] + [0] * 90 + [2] + [0] * 400
    store.append("orders", [staged(each, b"1") for each in partitions], range(1, 603))
    while store.seal("orders", before=1 << 62):
        pass
    store.remove("orders", removed)
    state = store.feed("orders")
    with Backlogs(store).up_to_date(state, 60) as backlog:
        for read in range(removed, 603):
            for each in range(3):
                left = [g for g, at in enumerate(partitions, 1) if at == each and g > read]
                found = backlog.after(each, 3, f"{read}.00000000", {})
                assert len(left) <= found.events <= (1 + 1 / PRECISION) * len(left)
                near = left and left[0] - 4 <= found.since <= left[0]
                assert near if left else found.since is None
