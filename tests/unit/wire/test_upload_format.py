"""Laws of chunks and uploads: cuts change no content, and no cut or extended body passes."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from zeh_spark.wire import wire
from zeh_spark.wire.upload_format import (
    CHUNK_BYTES,
    CHUNK_EVENTS,
    LINE_BYTES,
    Chunker,
    Content,
    StagedChunk,
    content_of,
    lines_of,
    parse_upload,
    prefix,
    rest_of,
    upload_body,
)

Event = tuple[int, dict[str, str], bytes]

events: st.SearchStrategy[list[Event]] = st.lists(
    st.tuples(
        st.integers(0, 3),
        strategies.headers,
        strategies.json_texts().filter(lambda data: data != b"null"),
    ),
    max_size=20,
)


def chunks_of(given_events: list[Event], chunker: Chunker | None = None) -> list[StagedChunk]:
    chunker = chunker or Chunker()
    return [*chain(*(chunker.add(*each) for each in given_events)), *chunker.close()]


def total(chunks: list[StagedChunk]) -> Content:
    return sum((each.content for each in chunks), Content())


@given(events, st.integers(1, 500), st.data())
def test_any_cut_order_and_routing_has_the_same_content(
    rows: list[Event], held: int, data: st.DataObject
) -> None:
    """Replayed in other tasks, order and partitions it is the same batch (F10, F11)."""
    shuffled = data.draw(st.permutations(rows))
    partitions = data.draw(st.lists(st.integers(0, 7), min_size=len(rows), max_size=len(rows)))
    routed = [(to, *event[1:]) for to, event in zip(partitions, shuffled, strict=True)]
    places = [0, *sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4))), len(rows)]
    tasks = [chunks_of(routed[begin:end]) for begin, end in pairwise(places)]
    expected = content_of([rest_of(*event[1:]) for event in rows])
    assert expected == total(list(chain(*tasks)))
    for chunker in (Chunker(), Chunker(held)):
        assert expected == total(chunks_of(rows, chunker)) == chunker.content


@given(events, events)
def test_other_events_have_another_content(one: list[Event], other: list[Event]) -> None:
    """An event more, less, twice or changed shows (EX-03)."""
    rests = [sorted(rest_of(*event[1:]) for event in rows) for rows in (one, other)]
    assert (rests[0] == rests[1]) == (content_of(rests[0]) == content_of(rests[1]))


@given(strategies.events, st.permutations(["a", "b", "zeh-time", "c"]))
def test_order_of_headers_and_reserved_ones_do_not_count(
    event: tuple[dict[str, str], bytes], names: list[str]
) -> None:
    """Maps have no order, and a relay's stamps are not content (A10)."""
    data = event[1] if event[1] != b"null" else b"1"
    assert rest_of(dict.fromkeys("abc", ""), data) == rest_of(dict.fromkeys(names, ""), data)


@given(st.lists(st.binary(max_size=20), max_size=100))
def test_content_is_what_the_document_says(rests: list[bytes]) -> None:
    """A writer in another language computes it so, in integers of any size: 2^128 is passed by."""
    hashes = [xxhash.xxh3_128_intdigest(rest) for rest in rests]
    assert Content(len(rests), sum(hashes) % 2**128) == content_of(rests)


def test_equal_events_count_each() -> None:
    """Two are not none (a sum, not XOR). Sums add up whoever adds, and stay within 128 bits."""
    rest = rest_of({}, b"1")
    assert content_of([rest]) + content_of([rest]) == content_of([rest, rest]) != Content()
    assert content_of([rest, rest]).sum != content_of([]).sum
    most = Content(1, (1 << 128) - 1)
    assert (Content(2, (1 << 128) - 2), "f" * 31 + "e") == (most + most, (most + most).digest)


@given(events)
def test_chunks_hold_the_lines_that_readers_get(rows: list[Event]) -> None:
    """Every event once, as a line, in the order of its partition; the index says what is there."""
    chunks = chunks_of(rows)
    for each in chunks:
        lines = lines_of(each.frame)
        rests = [line[len(prefix(each.partition)) :] for line in lines.splitlines()]
        assert (len(rests), len(lines)) == (each.events, each.size)
        assert content_of(rests) == each.content
    for partition in range(4):
        found = b"".join(lines_of(each.frame) for each in chunks if each.partition == partition)
        mine = [event for event in rows if event[0] == partition]
        expected = [prefix(partition) + rest_of(*event[1:]) + b"\n" for event in mine]
        assert b"".join(expected) == found


@given(events, st.integers(1, 400))
def test_upload_comes_back_as_it_was_made(rows: list[Event], held: int) -> None:
    """A PUT's body is its chunks, in order, byte for byte."""
    chunks = chunks_of(rows, Chunker(held))
    found = [
        (index.partition, index.events, index.size, frame)
        for index, frame in parse_upload(upload_body(chunks))
    ]
    assert [(c.partition, c.events, c.size, c.frame) for c in chunks] == found


@given(events.filter(bool), st.data())
def test_body_that_was_cut_or_extended_is_no_upload(rows: list[Event], data: st.DataObject) -> None:
    """Nothing of a torn request is taken for a whole one (F14)."""
    body = upload_body(chunks_of(rows))
    cut = data.draw(st.integers(0, len(body) - 1))
    more = data.draw(st.binary(min_size=1, max_size=5))
    for torn in (body[:cut], body[cut + 1 :], body + more):
        with pytest.raises(ValueError, match="its first line"):
            parse_upload(torn)


@given(strategies.almost_lines)
def test_any_bytes_are_an_upload_or_a_value_error(body: bytes) -> None:
    """No request makes the publisher fall over."""
    try:
        parse_upload(body)
    except ValueError as exc:
        assert str(exc).startswith("its first line")


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 1500)), max_size=6))
def test_chunks_have_at_most_so_many_events(runs: list[tuple[int, int]]) -> None:
    """A chunk is full at 1,000 events, and only the last of a partition is not."""
    chunker = Chunker()
    rest = rest_of({}, b"1")
    chunks = [each for p, count in runs for each in chunker.extend(p, [rest] * count)]
    chunks += chunker.close()
    for partition in range(3):
        counts = [each.events for each in chunks if each.partition == partition]
        assert sum(counts) == sum(count for p, count in runs if p == partition)
        assert [CHUNK_EVENTS] * len(counts[:-1]) == counts[:-1]
        assert all(0 < count <= CHUNK_EVENTS for count in counts[-1:])


@given(st.lists(st.integers(1, 60_000), max_size=60), st.booleans())
def test_chunks_have_at_most_so_many_bytes(sizes: list[int], together: bool) -> None:
    """A reader takes the memory of one chunk, whatever the events' sizes; few are small."""
    chunker = Chunker()
    rests = [rest_of({}, b'"%s"' % (b"x" * size)) for size in sizes]
    cuts = [rests] if together else [[rest] for rest in rests]
    chunks = [*chain(*(chunker.extend(0, cut) for cut in cuts)), *chunker.close()]
    assert b"".join(prefix(0) + rest + b"\n" for rest in rests) == b"".join(
        lines_of(each.frame) for each in chunks
    )
    assert all(each.size <= CHUNK_BYTES for each in chunks)
    assert all(each.size >= CHUNK_BYTES // 4 for each in chunks[:-1])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 300)), max_size=40))
def test_open_chunks_hold_at_most_what_they_may(rows: list[tuple[int, int]]) -> None:
    """A task with many partitions does not run out of memory: the largest goes first."""
    most, held, chunker = 1000, dict.fromkeys(range(6), 0), Chunker(1000)
    for partition, size in rows:
        held[partition] += len(wire.event_line(partition, {}, b'"%s"' % (b"x" * size))) + 1
        for each in chunker.add(partition, {}, b'"%s"' % (b"x" * size)):
            assert held[each.partition] == max(held.values()) == each.size
            held[each.partition] = 0
        assert sum(held.values()) <= most
    assert sum(held.values()) == sum(each.size for each in chunker.close())


@given(events, events)
def test_counting_continues_where_packing_ended(packed: list[Event], counted: list[Event]) -> None:
    """A task that learns half way that its batch is committed has the same content (F2, F4)."""
    chunker = Chunker(200)
    for each in packed:
        chunker.add(*each)
    chunker.only_count()
    assert [] == chunks_of(counted, chunker)
    assert total(chunks_of(packed + counted)) == chunker.content


def test_what_no_chunk_takes() -> None:
    """What fits reaches every client; a longer one is refused by size, null is no event."""
    room = LINE_BYTES - len(wire.event_line(0, {}, b'""'))
    Chunker().add(0, {}, b'"%s"' % (b"x" * room))
    with pytest.raises(ValueError, match=f"{LINE_BYTES + 1:,} bytes"):
        Chunker().add(0, {}, b'"%s"' % (b"x" * (room + 1)))
    with pytest.raises(ValueError, match="null cannot be an event's data"):
        Chunker().add(0, {}, b"null")
