"""Packs as bytes: what comes back, and how much it is."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.errors import StoreError
from zeh_spark.service.store.log import Anchor, Chunk, Frame, Run, header_records
from zeh_spark.service.store.packs import Totals, block_of, blocks_of, decode, encode, lines_in
from zeh_spark.wire import direct_reads

_NUMBERS = st.integers(0, 2**53 - 1)


@st.composite
def logs(draw: st.DrawFn) -> list[Chunk]:
    """Chunks that follow each other, from any position."""
    first = 1 + draw(_NUMBERS)
    return [
        Chunk(
            first + at,
            draw(st.integers(0, 3)),
            draw(st.integers(1, 1000)),
            draw(st.sampled_from([40, 900, 300_000])),
            draw(_NUMBERS),
            f"{draw(st.integers(0, 2**32 - 1)):08x}",
            draw(st.sampled_from(["p", "q", "till-7 €"])),
            draw(_NUMBERS),
            draw(_NUMBERS),
        )
        for at in range(draw(st.integers(1, 20)))
    ]


def in_blocks(log: list[Chunk]) -> list[tuple[int, int]]:
    return [(100 + number, len(each)) for number, each in enumerate(blocks_of(log))]


def packed(log: list[Chunk]) -> bytes:
    return encode(Run.made(log), in_blocks(log))


@given(logs(), st.data())
def test_a_pack_has_the_chunks_that_were_packed(log: list[Chunk], data: st.DataObject) -> None:
    """Every stamp of every event comes back, from any position to any other."""
    pack = decode(packed(log))
    first, last = log[0].g, log[-1].g
    assert (first, last) == (pack.first, pack.last)
    assert log == pack.run.chunks()
    positions = st.integers(first - 1, last + 1)
    after, upto = data.draw(st.lists(positions, min_size=4, max_size=4)), data.draw(positions)
    wanted = [each for each in log if after[each.partition] < each.g <= upto]
    assert wanted == pack.wanted(np.array(after), upto).chunks()
    for chunk in log:
        assert Anchor(chunk.g, chunk.tag) == pack.place(chunk.g)
        assert Anchor(chunk.g, chunk.tag) == pack.last_of(chunk.partition, chunk.g)


@given(logs())
def test_totals_tell_what_there_was_of_each_partition(log: list[Chunk]) -> None:
    """Sums and last positions of a partition are known without reading the headers of packs."""
    half = header_records(log[: len(log) // 2])
    before = Totals.none(4).after(half)
    totals = Totals.decode(before.after(header_records(log[len(half) :])).encode())
    some = before.since(Totals.none(4)), totals.since(before), totals.since(Totals.none(4))
    for found, chunks in zip(some, (log[: len(half)], log[len(half) :], log), strict=True):
        mine = {p: [each for each in chunks if each.partition == p] for p in range(4)}
        sums = {p: direct_reads.totals(header_records(each)) for p, each in mine.items() if each}
        assert sums == found
    places = {each.partition: Anchor(each.g, each.tag) for each in log}
    assert [places.get(each) for each in range(4)] == [totals.last_of(each) for each in range(4)]
    assert {each.g: each.tag for each in places.values()} == totals.tags()


@given(logs(), st.data())
def test_the_lines_of_a_chunk_are_where_its_pack_says(
    log: list[Chunk], data: st.DataObject
) -> None:
    """A large chunk keeps its frame; the others share some, those of a partition if they can."""
    lines = {each: b"%020d" % each.g + b"x" * (each.size - 21) + b"\n" for each in log}
    blocks = blocks_of(log)
    frames = {100 + at: block_of(lines[each] for each in some) for at, some in enumerate(blocks)}
    pack = decode(packed(log))
    wanted = sorted(data.draw(st.sets(st.sampled_from(log), min_size=1)))
    places = pack.frames([each.g for each in wanted])
    found = [Frame(frames[blob], *place) for blob, *place in places]
    assert [lines[each] for each in wanted] == lines_in([each.size for each in wanted], found)
    for some in blocks:
        assert len(some) == 1 or max(each.size for each in some) < 256 << 10
        assert sum(each.size for each in some[:-1]) < 128 << 10
        assert sum(each.size for each in some if each.partition < some[-1].partition) < 32 << 10


def test_a_small_chunk_costs_few_bytes() -> None:
    """An index entry and a row would be more than a hundred."""
    log = [
        Chunk(
            g,
            g * 7919 % 8,
            1,
            500 + g % 9,
            1_764_000_000_000 + 37 * g,
            f"{g * 2654435761 % 2**32:08x}",
            "till",
            g,
            g // 8,
        )
        for g in range(1, 1025)
    ]
    assert len(packed(log)) < 12 * len(log)


@given(logs(), st.data())
def test_a_row_that_was_changed_is_an_error(log: list[Chunk], data: st.DataObject) -> None:
    """One bit would move all positions and stamps after it."""
    for stored, read in (
        (packed(log), decode.__wrapped__),
        (Totals.none(4).after(header_records(log)).encode(), Totals.decode),
    ):
        at, bit = data.draw(st.integers(4, len(stored) - 1)), data.draw(st.integers(0, 7))
        changed = bytearray(stored)
        changed[at] ^= 1 << bit
        for wrong in (bytes(changed), stored[:at]):
            with suppress(StoreError):
                assert repr(vars(read(stored))) == repr(vars(read(wrong)))


def test_a_reader_of_few_chunks_of_many_packs_takes_little_memory() -> None:
    """One block is unpacked at a time."""
    lines = [b"%020d\n" % at for at in range(32)]
    frames = [Frame(block_of([each, bytes(1 << 20)]), [at], [0]) for at, each in enumerate(lines)]
    tracemalloc.start()
    try:
        assert lines == lines_in([21] * 32, frames)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
