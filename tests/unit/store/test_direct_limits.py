"""A plan has what its limits and ends say, and answers miss nothing that retention removes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cases import each_case
from tests.scratch_store import ScratchStore
from tests.store_contract.writers import FEED, chunk, everything, publish, refusal
from zeh_spark.publisher import Problem
from zeh_spark.service.reads import direct_plans, direct_reads
from zeh_spark.service.store.log import Chunk
from zeh_spark.wire.direct_reads import (
    ChunksRequest,
    PlanRequest,
    RangeEnd,
    WantedRange,
    parse_answer,
)

FIRST = {"0": "_first", "1": "_first"}


def filled(store: ScratchStore, *partitions: int) -> list[Chunk]:
    """Publish a chunk to each of these partitions; return all chunks."""
    store.create(FEED, 2)
    for partition in partitions:
        publish(store, chunk(partition, b'"about 40 bytes with the rest of the line"'))
    return everything(store)


class Long(ScratchStore):
    """A feed of 60,000 chunks that are made when they are looked up."""

    @contextmanager
    def snapshot(self, feed: str, positions: Iterable[int] = ()) -> Iterator[Any]:
        with super().snapshot(feed, positions) as log:
            state = replace(log.state, head=60_000)
            yield SimpleNamespace(
                state=state,
                sealed=0,
                packed=lambda *_: None,
                packs=lambda *_: (),
                identity=log.identity,
                anchors={},
                tags=log.tags,
                unread=log.unread,
                scan=self._scan,
            )

    def _scan(self, after: int, upto: int, limit: int) -> list[Chunk]:
        numbers = range(after + 1, min(after + limit, upto) + 1)
        return [Chunk(g, 0, 1, 40, 1, "0a1b2c3d", "p", 0, g, g) for g in numbers]


def test_a_plan_has_at_most_50_000_chunks() -> None:
    """A publisher's memory is bounded, whatever a reader asks for."""
    store = Long(orders=2)
    plan = direct_plans.plan(store, FEED, PlanRequest(2, FIRST))[1]
    assert (50_000, True) == (sum(each.chunks for each in plan.ranges), plan.more)
    assert "50000.0a1b2c3d" == plan.ends["0"]


@each_case(
    ("partitions", "starts", "limits", "expected", "ends", "more"),
    [
        # with the chunk that exceeds its bytes: my batches have about the size that I set
        ([0, 1, 0], [0, 0], {"max_bytes": 1}, [(0, 1), (1, 1)], [1, 2], True),
        # chunks of a partition far behind come first: time ascends over all, and none starves
        ([0, 0, 0, 1, 1, 0], [0, 4], {"max_events": 2}, [(0, 2)], [2, 4], True),
        ([0, 0, 0, 1, 1, 0], [2, 4], {"max_events": 3}, [(0, 2), (1, 1)], [6, 5], False),
        # what is after a partition's own end is not in it, although others end later
        ([0, 1, 0, 1, 0, 1], [0, 0], {"ends": [1, 4]}, [(0, 1), (1, 2)], [1, 4], False),
        # also where a partition is far behind, and looked up by itself
        ([0, 0, 0, 1, 1], [0, 4], {"ends": [2, 5]}, [(0, 2), (1, 1)], [2, 5], False),
        # a run reads what the feed held when it began
        ([0, 1, 0], [0, 0], {"upto": 2}, [(0, 1), (1, 1)], [1, 2], False),
    ],
)
def test_a_plan_ends_where_it_is_limited(partitions, starts, limits, expected, ends, more):
    """Starts and ends are positions of chunks; `max_bytes` is what goes beyond the first chunk."""
    store = ScratchStore()
    chunks = filled(store, *partitions)
    cursors = ["_first", *(each.cursor for each in chunks)]

    def at(positions: list[int]) -> dict[str, str]:
        return {str(partition): cursors[g] for partition, g in enumerate(positions)}

    request = PlanRequest(2, at(starts))
    for name, each in limits.items():
        values = {"ends": at, "upto": cursors.__getitem__, "max_bytes": chunks[0].size.__add__}
        setattr(request, name, values[name](each) if name in values else each)

    plan = direct_plans.plan(store, FEED, request)[1]

    found = [(each.partition, each.chunks) for each in plan.ranges]
    assert (expected, at(ends), more) == (found, plan.ends, plan.more)


def test_a_head_of_another_history_is_refused() -> None:
    """A feed that was restored meanwhile is not read to another end."""
    store = ScratchStore()
    filled(store, 0, 1)
    request = PlanRequest(2, FIRST, upto="1.00000000")
    with pytest.raises(Problem) as caught:
        direct_plans.plan(store, FEED, request)[1]
    assert ("cursor-of-another-history", 409) == refusal(caught.value)


def origin(store: ScratchStore) -> str:
    """The cursor before the first chunk."""
    return f"0.{store.feed(FEED).origin[:4].hex()}"


class Interrupted(ScratchStore):
    """A store in which retention removes chunks when it is asked for `method` the next time."""

    def __init__(self) -> None:
        super().__init__()
        self.method, self.upto = "", 0

    def before_read(self, what: str, feed: str) -> None:
        if self.method == what:
            self.method = ""
            self.remove(FEED, self.upto)


def interrupted(method: str, upto: int) -> tuple[Interrupted, list[Chunk]]:
    """A store in which retention removes what is being read, and its chunks before that."""
    store = Interrupted()
    chunks = filled(store, 0, 0, 1)
    store.method, store.upto = method, upto
    return store, chunks


@each_case(
    ("n", "method", "upto"),
    [*product([1], ["scan"], [1, 2, 3]), *product([2], ["chunks", "frames"], [1, 2])],
)
def test_an_answer_misses_no_chunk_that_goes_meanwhile(
    n: int, method: str, upto: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """My task fails by name, and does not get fewer rows, also if all chunks of a range go."""
    monkeypatch.setattr(direct_reads, "_GROUP_BYTES", 1)  # each chunk has a snapshot of its own
    store, chunks = interrupted(method, upto)
    wanted = WantedRange(0, origin(store), chunks[1 if n == 2 else 2].cursor)
    answer = direct_reads.requested_chunks(store, FEED, ChunksRequest(n, [wanted]))
    if upto == 1:  # it was read already
        *groups, end = parse_answer(answer)
        assert isinstance(end, RangeEnd)
        assert (len(groups), "") == (end.chunks, store.method)
        return
    with pytest.raises(Problem) as caught:
        list(answer)
    assert ("cursor-gone", 410, "") == (*refusal(caught.value), store.method)
