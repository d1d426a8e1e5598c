"""A plan has what its limits and ends say, and neither a plan nor an answer with chunks misses what
retention removes while it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from tests.cases import each_case
from tests.scratch_store import ScratchStore
from tests.store_contract.writers import FEED, chunk, everything, publish, refusal
from zeh_spark.protocol.direct_reads import (
    ChunksRequest,
    Group,
    Plan,
    PlanRequest,
    RangeEnd,
    WantedRange,
    parse_answer,
)
from zeh_spark.publisher import Problem
from zeh_spark.store import direct_plans, direct_reads
from zeh_spark.store.interface import Chunk, FeedState

FIRST = {"0": "_first", "1": "_first"}


def filled(store: ScratchStore, *partitions: int) -> list[Chunk]:
    """Publish a chunk to each of these partitions; return all chunks."""
    store.create(FEED, 2)
    for partition in partitions:
        publish(store, chunk(partition, b'"about 40 bytes with the rest of the line"'))
    return everything(store)


def counts(plan: Plan) -> list[tuple[int, int]]:
    """The chunks of each range, by partition."""
    return [(each.partition, each.chunks) for each in plan.ranges]


class Long(ScratchStore):
    """A feed of 60,000 chunks that are made when they are looked up."""

    def feed(self, name: str) -> FeedState:
        return replace(super().feed(name), head=60_000)

    def scan(self, feed: str, after: int, upto: int, limit: int) -> list[Chunk]:
        numbers = range(after + 1, min(after + limit, upto) + 1)
        return [Chunk(g, 0, 1, 40, 1, "0a1b2c3d", g, "p", 0, g) for g in numbers]


@each_case("asked", [{}, {"max_chunks": 55_000}])
def test_a_plan_has_at_most_50_000_chunks(asked: dict[str, int]) -> None:
    """A publisher's memory is bounded, whatever a reader asks for."""
    store = Long()
    store.create(FEED, 2)
    plan = direct_plans.plan(store, FEED, PlanRequest(2, FIRST, **asked))
    assert (50_000, True) == (sum(each.chunks for each in plan.ranges), plan.more)
    assert "50000.0a1b2c3d" == plan.ends["0"]


def test_a_plan_ends_with_the_chunk_that_exceeds_its_bytes() -> None:
    """My batches have about the size that I set."""
    store = ScratchStore()
    first, second, _ = filled(store, 0, 1, 0)
    request = PlanRequest(2, FIRST, max_bytes=first.size + 1)
    plan = direct_plans.plan(store, FEED, request)
    assert [(0, 1), (1, 1)] == counts(plan)
    assert {"0": first.cursor, "1": second.cursor} == plan.ends
    assert plan.more


def test_chunks_of_a_partition_far_behind_come_first() -> None:
    """Time ascends over all partitions, and none starves."""
    store = ScratchStore()
    chunks = filled(store, 0, 0, 0, 1, 1, 0)
    request = PlanRequest(2, {"0": "_first", "1": chunks[3].cursor}, max_chunks=2)
    plan = direct_plans.plan(store, FEED, request)
    assert [(0, 2)] == counts(plan)
    assert {"0": chunks[1].cursor, "1": chunks[3].cursor} == plan.ends
    request.cursors, request.max_chunks = plan.ends, 3
    assert [(0, 2), (1, 1)] == counts(direct_plans.plan(store, FEED, request))


def test_a_plan_ends_exactly_at_explicit_ends() -> None:
    """What is after a partition's own end is not in it, although others end later."""
    store = ScratchStore()
    chunks = filled(store, 0, 1, 0, 1, 0, 1)
    ends = {"0": chunks[0].cursor, "1": chunks[3].cursor}
    plan = direct_plans.plan(store, FEED, PlanRequest(2, FIRST, ends=ends))
    assert [(0, 1), (1, 2)] == counts(plan)
    assert (ends, False) == (plan.ends, plan.more)


def test_explicit_ends_hold_for_a_partition_that_is_far_behind() -> None:
    """Those that are looked up one by one end where they have to, too."""
    store = ScratchStore()
    chunks = filled(store, 0, 0, 0, 1, 1)
    starts = {"0": "_first", "1": chunks[3].cursor}
    ends = {"0": chunks[1].cursor, "1": chunks[4].cursor}
    plan = direct_plans.plan(store, FEED, PlanRequest(2, starts, ends=ends))
    assert [(0, 2), (1, 1)] == counts(plan)


def test_a_plan_ends_at_the_head_that_it_is_given() -> None:
    """A run reads what the feed held when it began."""
    store = ScratchStore()
    chunks = filled(store, 0, 1, 0)
    request = PlanRequest(2, FIRST, upto=chunks[1].cursor)
    assert [(0, 1), (1, 1)] == counts(direct_plans.plan(store, FEED, request))


def test_a_head_of_another_history_is_refused() -> None:
    """A feed that was restored meanwhile is not read to another end."""
    store = ScratchStore()
    filled(store, 0, 1)
    request = PlanRequest(2, FIRST, upto="1.00000000")
    with pytest.raises(Problem) as caught:
        direct_plans.plan(store, FEED, request)
    assert ("cursor-of-another-history", 409) == refusal(caught.value)


def origin(store: ScratchStore) -> str:
    """The cursor before the first chunk."""
    return f"0.{store.feed(FEED).origin[:4].hex()}"


class Interrupted(ScratchStore):
    """A store in which retention removes chunks when `method` is called the next time."""

    def __init__(self) -> None:
        super().__init__()
        self.method, self.upto = "", 0

    def _comes(self, method: str) -> None:
        if self.method == method:
            self.method = ""
            self.remove(FEED, self.upto)

    def scan(self, feed: str, after: int, upto: int, limit: int) -> list[Chunk]:
        self._comes("scan")
        return super().scan(feed, after, upto, limit)

    def chunks(self, feed: str, positions: Mapping[int, int], upto: int, limit: int) -> list[Chunk]:
        self._comes("chunks")
        return super().chunks(feed, positions, upto, limit)

    def unread(self, feed: str, positions: Mapping[int, int], upto: int) -> set[int]:
        self._comes("unread")
        return super().unread(feed, positions, upto)

    def frames(self, blobs: Sequence[int]) -> list[bytes]:
        self._comes("frames")
        return super().frames(blobs)


def interrupted(method: str, upto: int, read: Callable[[Interrupted, list[Chunk]], object]) -> None:
    """Read while retention removes what is read; see that it is refused."""
    store = Interrupted()
    chunks = filled(store, 0, 0, 1)
    store.method, store.upto = method, upto
    with pytest.raises(Problem) as caught:
        read(store, chunks)
    assert ("cursor-gone", 410) == refusal(caught.value)
    assert "" == store.method


@each_case("upto", [1, 2])
@each_case("method", ["unread", "chunks"])
def test_a_plan_misses_nothing_that_goes_while_a_late_partition_is_looked_up(
    method: str, upto: int
) -> None:
    """I am told that events are gone, and not given a plan without them."""
    interrupted(
        method,
        upto,
        lambda store, chunks: direct_plans.plan(
            store, FEED, PlanRequest(2, {"0": origin(store), "1": chunks[2].cursor})
        ),
    )


@each_case("upto", [1, 2, 3])
def test_a_plan_misses_nothing_that_goes_while_all_partitions_are_scanned(upto: int) -> None:
    """I am told that events are gone, and not given a plan without them."""
    interrupted(
        "scan",
        upto,
        lambda store, chunks: direct_plans.plan(
            store, FEED, PlanRequest(2, dict.fromkeys(FIRST, origin(store)))
        ),
    )


@each_case("method", ["scan", "unread"])
def test_a_plan_from_the_beginning_begins_after_what_goes_meanwhile(method: str) -> None:
    """`_first` is the oldest event that is left, and the plan says where that is."""
    store = Interrupted()
    chunks = filled(store, 0, 0, 1)
    store.method, store.upto = method, 1
    late = {"0": "_first", "1": chunks[2].cursor}
    plan = direct_plans.plan(store, FEED, PlanRequest(2, FIRST if method == "scan" else late))
    assert ("", chunks[0].cursor, 1) == (store.method, plan.ranges[0].from_, plan.ranges[0].chunks)


@each_case("upto", [1, 2])
@each_case(("n", "method"), [(1, "scan"), (2, "chunks"), (2, "frames")])
def test_an_answer_misses_no_chunk_that_goes_meanwhile(n: int, method: str, upto: int) -> None:
    """My task fails by name, and does not get fewer rows."""
    interrupted(method, upto, lambda store, chunks: list(answer(store, chunks, n)))


def test_an_answer_without_any_chunk_left_is_refused() -> None:
    """All chunks of a range may go at a time."""
    interrupted("scan", 3, lambda store, chunks: list(answer(store, chunks, 1)))


def answer(store: ScratchStore, chunks: list[Chunk], n: int) -> Sequence[bytes]:
    wanted = WantedRange(0, origin(store), chunks[1 if n == 2 else 2].cursor)
    return list(direct_reads.requested_chunks(store, FEED, ChunksRequest(n, [wanted])))


def test_what_goes_before_a_range_does_not_disturb_it() -> None:
    """Retention goes on while I read what is newer."""
    store = Interrupted()
    chunks = filled(store, 0, 0, 1)
    store.method, store.upto = "chunks", 1
    wanted = WantedRange(0, chunks[0].cursor, chunks[1].cursor)
    answer = direct_reads.requested_chunks(store, FEED, ChunksRequest(2, [wanted]))
    group, end = parse_answer(answer)
    assert isinstance(group, Group)
    assert isinstance(end, RangeEnd)
    assert ([2], 1, "") == (group.headers["g"].tolist(), end.chunks, store.method)
