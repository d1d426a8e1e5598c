"""Packs as bytes: what comes back, and how much it is."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from zeh_spark.errors import StoreError
from zeh_spark.service.store.interface import Anchor, Chunk, Frame
from zeh_spark.service.store.packs import Totals, block_of, blocks_of, decode, encode, lines_in

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


@given(logs())
def test_a_pack_has_the_chunks_that_were_packed(log: list[Chunk]) -> None:
    """Every stamp of every event comes back, from any position to any other."""
    pack = decode(encode(log, in_blocks(log)))
    first, last = log[0].g, log[-1].g
    assert (first, last) == (pack.first, pack.last)
    assert log == pack.chunks(0, last)
    totals = Totals.decode(Totals.none(4).after(log).encode())
    for chunk in log:
        g = chunk.g
        assert chunk.tag == pack.tag(g)
        assert [each for each in log if each.g > g] == pack.chunks(g, last + 9)
        assert [each for each in log if each.g <= g] == pack.chunks(first - 1, g)
        mine = [each for each in log if each.partition == chunk.partition]
        assert mine[:2] == pack.chunks_of(chunk.partition, 0, last, 2)
        assert Anchor(g, chunk.tag) == pack.last_of(chunk.partition, g)
        assert Anchor(mine[-1].g, mine[-1].tag) == totals.last_of(chunk.partition)
        assert totals.table[chunk.partition].tolist()[2:] == (
            len(mine), sum(each.events for each in mine), sum(each.size for each in mine),
        )  # fmt: skip
    assert totals.tags().items() <= {(each.g, each.tag) for each in log}


@given(logs())
def test_the_lines_of_a_chunk_are_where_its_pack_says(log: list[Chunk]) -> None:
    """A large chunk keeps its frame; the others are in frames of about a MiB."""
    lines = {each: b"%020d" % each.g + b"x" * (each.size - 21) + b"\n" for each in log}
    blocks = blocks_of(log)
    frames = {100 + at: block_of(lines[each] for each in some) for at, some in enumerate(blocks)}
    pack = decode(encode(log, in_blocks(log)))
    places = [pack.place(each.g) for each in log]
    found = [Frame(frames[blob], offset) for blob, offset in places]
    assert [lines[each] for each in log] == lines_in(log, found)
    for some in blocks:
        assert len(some) == 1 or max(each.size for each in some) < 256 << 10
        assert sum(each.size for each in some) < 2 << 20


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
    assert len(encode(log, in_blocks(log))) < 12 * len(log)


@given(logs(), st.data())
def test_a_row_that_was_changed_is_an_error(log: list[Chunk], data: st.DataObject) -> None:
    """One bit would move all positions and stamps after it."""
    for stored, read in (
        (encode(log, in_blocks(log)), decode),
        (Totals.none(4).after(log).encode(), Totals.decode),
    ):
        at, bit = data.draw(st.integers(4, len(stored) - 1)), data.draw(st.integers(0, 7))
        changed = bytearray(stored)
        changed[at] ^= 1 << bit
        for wrong in (bytes(changed), stored[:at]):
            with suppress(StoreError):
                assert repr(vars(read(stored))) == repr(vars(read(wrong)))


def test_a_reader_of_few_chunks_of_many_packs_takes_little_memory() -> None:
    """One block is unpacked at a time."""
    log = [Chunk(g, 0, 1, 21, 0, "00000000", "p", g, g) for g in range(1, 33)]
    frames = [Frame(block_of([b"%020d\n" % each.g, bytes(1 << 20)]), 0) for each in log]
    tracemalloc.start()
    try:
        assert [b"%020d\n" % each.g for each in log] == lines_in(log, frames)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
