"""Laws of a feed's pages: nothing lost, nothing twice, the same every time."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import each_case
from tests.scratch_store import ScratchStore
from tests.store_contract.writers import chunk as chunk_of
from tests.store_contract.writers import refusal
from zeh_spark.service.reads.feed import ChunkFeed
from zeh_spark.service.reads.reading import READ_BYTES, groups, in_order
from zeh_spark.service.store.log import Chunk
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import wire
from zeh_spark.wire.served_lines import Block

Log = list[tuple[int, int]]
"""A feed as the chunks written to it: stored partition and number of events."""

numbers = itertools.count()


shared_store = functools.cache(ScratchStore)


@pytest.fixture(scope="module", autouse=True)
def made_before_the_tests() -> None:
    """A store that a test makes is closed after it."""
    shared_store()


def feed_of(partitions: int, log: Log) -> ChunkFeed:
    """A new feed of a store that all tests share."""
    store, name = shared_store(), f"f{next(numbers)}"
    store.create(name, partitions)
    append(store, log, name)
    return ChunkFeed(store, name)


def append(store: ScratchStore, log: Log, feed: str = "f") -> None:
    made = [
        chunk_of(partition, *(b"%d" % next(numbers) for _ in range(events)))
        for partition, events in log
    ]
    store.append(feed, made)


def read(feed: ChunkFeed, asked: Mapping[int, str], n: int, hints: Iterator[int]) -> list[Block]:
    """All pages from some cursors to the end, as a reader follows them."""
    cursors, blocks = dict(asked), []
    while True:
        page = list(feed.page(cursors, n, next(hints)))
        blocks += [block for block in page if block.lines]
        cursors.update({block.partition % n: block.cursor for block in page})
        if not any(block.lines for block in page):
            return blocks


def ids(blocks: Sequence[Block]) -> list[int]:
    return [int(line.split(b'"data":')[1][:-1]) for b in blocks for line in b.lines.splitlines()]


@st.composite
def feeds(draw: st.DrawFn) -> tuple[ChunkFeed, Log]:
    partitions = draw(st.integers(1, 6))
    chunk = st.tuples(st.integers(0, partitions - 1), st.integers(1, 4))
    log = draw(st.lists(chunk, max_size=30))
    return feed_of(partitions, log), log


@given(feeds(), st.integers(1, 10), st.lists(st.integers(1, 9), min_size=1), st.data())
def test_any_way_of_reading_gives_every_event_once_in_order(given_feed, n, hints, data):
    """With as many workers, in pages as large, and on from whatever checkpoint, as I like."""
    feed, log = given_feed
    whole = ids(read(feed, {0: wire.FIRST}, 1, itertools.repeat(1000)))
    parts = [read(feed, {v: wire.FIRST}, n, itertools.cycle(hints)) for v in range(n)]
    alone = [ids(part) for part in parts]
    assert (sorted(whole), sum(events for _, events in log)) == (
        sorted(itertools.chain(*alone)),
        len(whole),
    )
    assert all(part == sorted(part) for part in [whole, *alone])
    asked = data.draw(st.sets(st.integers(0, n - 1), min_size=1))
    together = ids(read(feed, dict.fromkeys(asked, wire.FIRST), n, itertools.repeat(3)))
    assert sorted(itertools.chain(*(alone[v] for v in asked))) == together
    blocks = parts[v := min(asked)]
    kept = data.draw(st.integers(0, len(blocks)))
    cursor = blocks[kept - 1].cursor if kept else wire.FIRST
    assert blocks[kept:] == read(feed, {v: cursor}, n, itertools.repeat(1000))


@given(feeds(), st.integers(1, 10), st.integers(0, 20))
def test_same_request_brings_the_same_answer(given_feed, n, hint):
    """Checkpoints do not depend on when I ask. I get one of every partition, no special cursor."""
    feed, _ = given_feed
    first, last = (dict.fromkeys(range(n), each) for each in (wire.FIRST, wire.LAST))
    assert list(feed.page(first, n, hint)) == list(feed.page(first, n, hint))
    page = list(feed.page(last, n, hint))
    assert list(range(n)) == [block.partition for block in page]
    assert [] == [block for block in page if block.cursor.startswith("_")]


@each_case(
    ("hint", "expected"), [(0, 0), (1, 3), (3, 3), (4, 5), (5, 5), (6, 6), (None, 6), (999, 6)]
)
def test_page_is_whole_chunks_until_the_hint_is_reached(hint: int | None, expected: int) -> None:
    """I get about as many events as I asked for."""
    feed = feed_of(1, [(0, 3), (0, 2), (0, 1)])
    assert expected == len(ids(list(feed.page({0: wire.FIRST}, 1, hint))))


@each_case(
    ("name", "status", "cursors"),
    [
        # a mangled cursor is named
        ("malformed-cursor", 400,
         ["", "5", "1.xyz", "01.00000000", "1.00000000 ", "-1.00000000", "_middle"]),
        # a restored or swapped feed does not make me skip events in silence
        ("cursor-of-another-history", 409, [f"{g}.00000000" for g in (0, 1, 2, 10**17)]),
    ],
)  # fmt: skip
def test_cursor_of_another_form_or_feed_is_refused(name, status, cursors):
    for cursor in cursors:
        with pytest.raises(Problem) as refused:
            list(feed_of(1, [(0, 1)]).page({0: cursor}, 1, None))
        assert (name, status, 0) == (*refusal(refused.value), refused.value.members["partition"])


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 5))
def test_merged_windows_are_the_whole_log(partitions: list[int], limit: int) -> None:
    """Looking up a few chunks at a time leaves out none."""
    log = [chunk(g, partition) for g, partition in enumerate(partitions, 1)]

    def look_up(at: Mapping[int, int], most: int) -> list[Chunk]:
        behind = [[c for c in log if c.partition == p and c.g > g][:most] for p, g in at.items()]
        return sorted(itertools.chain(*behind), key=lambda each: each.g)

    assert log == list(in_order(look_up, dict.fromkeys(range(4), 0), limit))


@given(st.lists(st.integers(1, 1 << 20), max_size=200))
def test_groups_are_bounded_and_keep_the_order(sizes: list[int]) -> None:
    """Serving takes the memory of one large chunk, or of several small ones."""
    log = [chunk(g, 0, size) for g, size in enumerate(sizes)]
    found = list(groups(log, READ_BYTES, 64))
    assert log == list(itertools.chain(*found))
    assert all(len(g) == 1 or sum(c.size for c in g) <= READ_BYTES for g in found)


@each_case(("partitions", "look_ups"), [(1000, 4 * 1000), (1, 17)])
def test_a_feed_takes_few_look_ups(partitions: int, look_ups: int) -> None:
    """Of 1,000 partitions, not all for each chunk; of one, more and more, and few at first."""
    log = [chunk(g, g % partitions) for g in range(1, 10_001)]
    looked_up, wanted = [], []

    def look_up(at: Mapping[int, int], most: int) -> list[Chunk]:
        looked_up.extend(at)
        wanted.append(most)
        every = partitions
        behind = [log[(g or p or every) - 1 :: every][bool(g) :][:most] for p, g in at.items()]
        return sorted(itertools.chain(*behind), key=lambda each: each.g)

    assert log == list(in_order(look_up, dict.fromkeys(range(partitions), 0)))
    assert (len(looked_up) <= look_ups, wanted[0] <= 8) == (True, True)


def chunk(g: int, partition: int, size: int = 1) -> Chunk:
    return Chunk(g, partition, 1, size, 0, f"{g * 2654435761 % 2**32:08x}", "p", 0, 0, g)
