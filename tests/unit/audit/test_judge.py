"""Receipts against chunks, without a publisher: what only a wrong publisher could bring about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from tests.scratch_store import ScratchStore
from tests.store_contract.writers import FEED, call, chunk, commit, upload
from zeh_spark.audit.findings import Difference, Tally
from zeh_spark.audit.judge import Judge
from zeh_spark.audit.ledger import Ledger, ListedProducer
from zeh_spark.audit.pieces import Cutter, Piece
from zeh_spark.protocol.served_lines import with_all_headers
from zeh_spark.publisher.rendering import body
from zeh_spark.store.batches import StoredReceipt
from zeh_spark.store.feed import ChunkFeed


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger() as ledger:
        yield ledger


@pytest.fixture
def feed() -> tuple[list[Piece], list[StoredReceipt]]:
    """Positions 1, 2: batch 0 of p; 3: batch 0 of q; 4: batch 1 of p."""
    store = ScratchStore()
    store.create(FEED, 2)
    made = [
        commit(store, call(0), upload(chunk(0, b"1", b"2"), chunk(1, b"3")))[0],
        commit(store, call(0, producer="q"), upload(chunk(0, b"4")))[0],
        commit(store, call(1), upload(chunk(0, b"5")))[0],
    ]
    blocks = ChunkFeed(store, FEED).page({0: "_first", 1: "_first"}, 2, 100)
    return Cutter().feed(b"".join(body(blocks, 2, with_all_headers))), made


def judged(
    ledger: Ledger, pieces: list[Piece], receipts: list[StoredReceipt], head: int = 4
) -> str | Tally:
    for each in receipts:
        ledger.add_receipt(each)
    for name in ("p", "q"):
        ledger.add_producer(name, ListedProducer(False, 1))
    tally = Tally()
    judge = Judge(ledger, 0, head, tally)
    found: list[Difference | None] = [judge.chunk(each) for each in pieces]
    return str(next(filter(None, [*found, judge.end()]), "")) or tally


def test_feed_that_is_right_is_tallied(ledger, feed):
    """All of it."""
    pieces, receipts = feed
    expected = Tally(batches=3, events=5, first=1, last=4)

    assert expected == judged(ledger, pieces, receipts)


def test_position_that_two_batches_claim_is_named(ledger, feed):
    """Whoever they are."""
    pieces, (first, second, third) = feed
    wide = msgspec.structs.replace(third, positions=(3, 4))

    found = judged(ledger, pieces, [first, second, wide])

    assert (
        "position 3, batch 1 of producer 'p': positions in the receipt: expected none of batch 0 "
        "of producer 'q', found [3, 4]"
    ) == found


def test_claim_beyond_the_end_is_named(ledger, feed):
    """A batch is there whole."""
    pieces, (first, second, third) = feed
    wide = msgspec.structs.replace(third, positions=(4, 5))

    found = judged(ledger, pieces, [first, second, wide])

    assert (
        "position 5, batch 1 of producer 'p': events: expected some, found no such position"
    ) == found


@pytest.mark.parametrize("left", range(4))
def test_feed_that_ends_early_is_named(ledger, feed, left):
    """Its head was told."""
    pieces, receipts = feed

    found = judged(ledger, pieces[:left], receipts)

    assert f"position {left + 1}, batch " in found
    assert "events: expected some, found no such position" in found


def test_range_that_no_chunk_fills_is_named(ledger, feed):
    """Each partition has what the receipt says."""
    pieces, (first, *others) = feed
    more = (*first.ranges, msgspec.structs.replace(first.ranges[0], partition=2))
    wider = msgspec.structs.replace(first, ranges=more)

    found = judged(ledger, pieces, [wider, *others])

    assert (
        "position 2, batch 0 of producer 'p': last sequence number in partition 2: expected 1, "
        "found none"
    ) == found


def test_partition_that_the_receipt_does_not_name_is_named(ledger, feed):
    """Nothing stands where it was not put."""
    pieces, (first, *others) = feed
    narrower = msgspec.structs.replace(first, ranges=first.ranges[1:])

    found = judged(ledger, pieces, [narrower, *others])

    assert "position 1, batch 0 of producer 'p': partition: expected one of [1], found 0" == found


@pytest.mark.parametrize(
    ("at", "changes", "expected"),
    [
        (1, {"partition": 0}, "position 2, batch 0 of producer 'p': zeh-partition: expected 0, "
         "found 1, on lines of 1"),
        (1, {"position": 1}, "position 1, batch 0 of producer 'p': order of positions: expected "
         "one after 1, found 1"),
        (2, {"position": 9}, "position 3, batch 0 of producer 'q': events: expected some, found no "
         "such position"),
        (2, {"lines": b""}, "position 3, batch 0 of producer 'q': events: expected some, found "
         "none"),
    ],
)  # fmt: skip
def test_chunk_out_of_place_is_named(ledger, feed, at, changes, expected):
    """Order, partition, and that it holds something."""
    pieces, receipts = feed
    pieces[at] = replace(pieces[at], **changes)

    assert expected == judged(ledger, pieces, receipts)


def test_line_of_the_wrong_partition_is_named(ledger, feed):
    """A reader would count its numbers elsewhere."""
    pieces, receipts = feed
    lines = pieces[1].lines.replace(b'{"partition":1', b'{"partition":0', 1)
    pieces[1] = replace(pieces[1], lines=lines)

    found = judged(ledger, pieces, receipts)

    assert "zeh-partition: expected 1, found 1, on lines of 0" in found


def test_numbers_and_producers_beyond_memory_are_kept(ledger, monkeypatch):
    """On disk, and found there."""
    monkeypatch.setattr("zeh_spark.audit.ledger._IN_MEMORY", 3)
    for number in range(10):
        ledger.saw(f"p{number % 5}", number % 2, number)
        ledger.add_producer(f"p{number}", ListedProducer(bool(number % 2), number))

    numbers = {(n % 5, n % 2): ledger.following(f"p{n % 5}", n % 2) for n in range(10)}
    known = [ledger.producer(f"p{number}") for number in range(11)]

    assert {(n % 5, n % 2): n for n in range(10)} == numbers
    assert [*(ListedProducer(bool(n % 2), n) for n in range(10)), None] == known
