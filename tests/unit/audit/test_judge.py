"""Receipts against chunks, without a publisher: what only a wrong publisher could bring about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import msgspec
import pytest

from tests.scratch_store import ScratchStore
from tests.store_contract.writers import FEED, call, chunk, commit, upload
from zeh_spark.service.app.rendering import body
from zeh_spark.service.reads.feed import ChunkFeed
from zeh_spark.service.store.batches import StoredReceipt
from zeh_spark.service.telemetry import exchange
from zeh_spark.tools.audit.findings import Difference, Tally
from zeh_spark.tools.audit.judge import Judge
from zeh_spark.tools.audit.ledger import Ledger, ListedProducer
from zeh_spark.tools.audit.pieces import Cutter, Piece
from zeh_spark.wire.served_lines import with_all_headers


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with closing(Ledger()) as ledger:
        yield ledger


@pytest.fixture
def feed() -> tuple[list[Piece], list[StoredReceipt]]:
    """Positions 1, 2: batch 0 of p; 3: batch 0 of q; 4: batch 1 of p."""
    store = ScratchStore(orders=2)
    made = [
        commit(store, call(0), upload(chunk(0, b"1", b"2"), chunk(1, b"3")))[0],
        commit(store, call(0, producer="q"), upload(chunk(0, b"4")))[0],
        commit(store, call(1), upload(chunk(0, b"5")))[0],
    ]
    blocks = ChunkFeed(store, FEED).page({0: "_first", 1: "_first"}, 2, 100)
    return Cutter().feed(b"".join(body(blocks, 2, with_all_headers, exchange.Tally()))), made


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


def put(items, at, **changes):
    """Pieces or receipts of which one is changed."""
    new = replace if isinstance(items[at], Piece) else msgspec.structs.replace
    return [*items[:at], new(items[at], **changes), *items[at + 1 :]]


WRONG = {
    # positions that two batches claim, and a claim beyond the end: a batch is there whole
    "position 3, batch 1 of producer 'p': positions in the receipt: expected none of batch 0 of "
    "producer 'q', found [3, 4]": lambda p, r: (p, put(r, 2, positions=(3, 4))),
    "position 5, batch 1 of producer 'p': events: expected some, found no such position":
        lambda p, r: (p, put(r, 2, positions=(4, 5))),
    # each partition has what the receipt says, and nothing stands where it was not put
    "position 2, batch 0 of producer 'p': last sequence number in partition 2: expected 1, found "
    "none": lambda p, r: (
        p, put(r, 0, ranges=(*r[0].ranges, *put(r[0].ranges[:1], 0, partition=2)))
    ),
    "position 1, batch 0 of producer 'p': partition: expected one of [1], found 0":
        lambda p, r: (p, put(r, 0, ranges=r[0].ranges[1:])),
    # order, partition, and that a chunk holds something
    "position 2, batch 0 of producer 'p': zeh-partition: expected 0, found 1, on lines of 1":
        lambda p, r: (put(p, 1, partition=0), r),
    "position 1, batch 0 of producer 'p': order of positions: expected one after 1, found 1":
        lambda p, r: (put(p, 1, position=1), r),
    "position 3, batch 0 of producer 'q': events: expected some, found no such position":
        lambda p, r: (put(p, 2, position=9), r),
    "position 3, batch 0 of producer 'q': events: expected some, found none":
        lambda p, r: (put(p, 2, lines=b""), r),
    # a reader would count the numbers of such a line elsewhere
    "position 2, batch 0 of producer 'p': zeh-partition: expected 1, found 1, on lines of 0":
        lambda p, r: (
            put(p, 1, lines=p[1].lines.replace(b'{"partition":1', b'{"partition":0', 1)), r
        ),
}  # fmt: skip


@pytest.mark.parametrize("expected", WRONG)
def test_what_is_not_as_the_receipts_say_is_named(ledger, feed, expected):
    assert expected == judged(ledger, *WRONG[expected](*feed))


@pytest.mark.parametrize("left", range(4))
def test_feed_that_ends_early_is_named(ledger, feed, left):
    pieces, receipts = feed

    found = judged(ledger, pieces[:left], receipts)

    assert f"position {left + 1}, batch " in found
    assert "events: expected some, found no such position" in found


def test_numbers_and_producers_beyond_memory_are_kept(ledger):
    """On disk, and found there."""
    for number in range(10):
        ledger.saw(f"p{number % 5}", number % 2, number)
        ledger.add_producer(f"p{number}", ListedProducer(bool(number % 2), number))

    numbers = {(n % 5, n % 2): ledger.following(f"p{n % 5}", n % 2) for n in range(10)}
    known = [ledger.producer(f"p{number}") for number in range(11)]

    assert {(n % 5, n % 2): n for n in range(10)} == numbers
    assert [*(ListedProducer(bool(n % 2), n) for n in range(10)), None] == known
