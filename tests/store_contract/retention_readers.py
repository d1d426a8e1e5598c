"""The contract for readers of a feed whose events are removed: they are waited for, or refused."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from tests.store_contract.retention import NOTHING, three
from tests.store_contract.writers import (
    FEED,
    chunk,
    data,
    everything,
    large,
    publish,
    refusal,
    refused,
)
from zeh_spark.publisher import Problem, Store
from zeh_spark.service.reads import pages
from zeh_spark.service.reads.feed import ChunkFeed
from zeh_spark.service.retention import rules as retention
from zeh_spark.service.retention.rules import Removal, plan, prune
from zeh_spark.service.store.acts import Actor
from zeh_spark.service.store.interface import Retention


def cursor(store: Store, g: int) -> str:
    """Return the cursor after the chunk at position `g`."""
    return next(each.cursor for each in everything(store) if each.g == g)


def read(store: Store, asked: Mapping[int, str], n: int = 2, hint: int = 1000) -> list[bytes]:
    """Return the data of the events after some cursors."""
    blocks = ChunkFeed(store, FEED).page(asked, n, hint)
    lines = [line for each in blocks for line in each.lines.splitlines()]
    return [line.split(b'"data":')[1][:-1] for line in lines]


# Readers that retention waits for


def test_events_stay_until_a_reader_has_passed_them(store):
    """A consumer that was down for a week finds everything."""
    three(store)
    cursors = {0: cursor(store, 1), 1: cursor(store, 2)}
    rule = Retention(bytes=1, readers=("warehouse",))
    assert Removal(held_by="warehouse") == prune(store, FEED, rule)
    store.save_cursors(FEED, "warehouse", 2, cursors)
    removed = prune(store, FEED, rule)
    assert (2, "warehouse") == (removed.upto, removed.held_by)
    assert [b"3"] == data(store)
    store.save_cursors(FEED, "warehouse", 2, {0: cursor(store, 3)})
    assert (3, None) == ((last := prune(store, FEED, rule)).upto, last.held_by)


@pytest.mark.parametrize(
    "saved",
    [
        {0: "_first", 1: "_first"},
        {0: "2.00000000", 1: "2.00000000"},  # of a history that a restore undid
        {1: "1.x"},
    ],
)
def test_reader_whose_cursors_prove_nothing_is_waited_for(store, saved):
    """In doubt nothing is removed."""
    three(store)
    store.save_cursors(FEED, "warehouse", 2, saved)
    rule = Retention(bytes=1, readers=("warehouse",))
    assert Removal(held_by="warehouse") == prune(store, FEED, rule)


def test_reader_that_changes_n_is_waited_for(store):
    """A reader that changes its number of partitions loses nothing meanwhile."""
    three(store)
    rule = Retention(bytes=1, readers=("warehouse",))
    store.save_cursors(FEED, "warehouse", 1, {0: cursor(store, 3)}, "a")
    store.save_cursors(FEED, "warehouse", 2, {1: cursor(store, 2)}, "a")
    assert (0, "warehouse") == (plan(store, FEED, rule).chunks, plan(store, FEED, rule).held_by)
    store.save_cursors(FEED, "warehouse", 2, {0: cursor(store, 1)}, "a")
    assert 2 == prune(store, FEED, rule).upto


def test_reader_at_an_anchor_has_passed_it(store):
    """What it has read is removed; what comes next can be, too, after it has read that."""
    three(store)
    last = {0: cursor(store, 3), 1: cursor(store, 2)}
    prune(store, FEED, NOTHING)
    publish(store, chunk(0, b"4"))
    store.save_cursors(FEED, "warehouse", 2, {**last, 0: cursor(store, 4)})
    assert 4 == prune(store, FEED, Retention(bytes=1, readers=("warehouse",))).upto


def test_retention_that_is_switched_off_ends_what_is_under_way(store, monkeypatch):
    """Nothing is removed after I switched it off, nor what a reader has returned to."""
    monkeypatch.setattr(retention, "STEP_CHUNKS", 1)
    three(store)
    publish(store, chunk(0, b"4"))
    store.save_cursors(FEED, "warehouse", 1, {0: cursor(store, 4)})
    store.set_retention(FEED, Retention(bytes=1, readers=("warehouse",)))
    back, remove = cursor(store, 2), store.remove

    def changed(feed: str, upto: int, by: Actor | None) -> None:
        remove(feed, upto, by=by)
        if upto == 2:
            store.save_cursors(FEED, "warehouse", 1, {0: back})

    monkeypatch.setattr(store, "remove", changed)
    assert (2, "warehouse") == ((done := prune(store, FEED)).upto, done.held_by)
    store.set_retention(FEED, Retention(bytes=1))

    def switched_off(feed: str, upto: int, by: Actor | None) -> None:
        remove(feed, upto, by=by)
        store.set_retention(FEED, Retention())

    monkeypatch.setattr(store, "remove", switched_off)
    assert 3 == prune(store, FEED).upto
    assert [b"4"] == data(store)


@pytest.mark.parametrize("look", range(1, 6))
def test_two_that_remove_at_once_leave_what_one_leaves(store, opened, monkeypatch, look):
    """What the other one removes between two looks of mine is not removed once more."""
    monkeypatch.setattr(retention, "STEP_CHUNKS", 2)
    for each in range(12):
        publish(store, large(0, b"%d" % each))
    rule = Retention(bytes=sum(each.size for each in everything(store)[-6:]))
    other, snapshot, looks = opened(), store.snapshot, itertools.count(1)

    def looked(feed: str, **options: Any) -> Any:
        if next(looks) == look:
            prune(other, FEED, rule)
        return snapshot(feed, **options)

    monkeypatch.setattr(store, "snapshot", looked)
    prune(store, FEED, rule)
    assert 6 == len(everything(other))


# Readers of what was removed


def test_who_has_not_read_what_is_gone_is_told_so(store):
    """I get 410 with the oldest cursor that is left; nothing is skipped without an error."""
    three(store)
    first, anchor = cursor(store, 1), cursor(store, 3)
    prune(store, FEED, NOTHING)
    publish(store, chunk(0, b"4"))
    problem = refused(read, store, {0: first})
    assert "events after it were removed" in str(problem)
    assert (("cursor-gone", 410), anchor) == (refusal(problem), problem.members["oldest"])
    assert [b"4"] == read(store, {0: anchor}) == read(store, {0: "_first"})


def test_caught_up_reader_of_an_idle_partition_notices_nothing(store):
    """Its last event was removed long ago, and there was none since."""
    publish(store, chunk(1, b"0"))
    idle = cursor(store, 1)
    never = next(ChunkFeed(store, FEED).page({0: "_first"}, 2, 0)).cursor
    three(store)
    caught_up = cursor(store, 3)
    prune(store, FEED, NOTHING)
    assert [] == read(store, {1: caught_up})
    for asked in ({1: idle}, {0: never}):  # in partition 1, chunk 3 came after it
        assert "were removed" in str(refused(read, store, asked))


def test_reader_of_a_partition_that_never_had_events_notices_nothing(store):
    """The cursor that an empty feed gave it stays valid."""
    never = next(ChunkFeed(store, FEED).page({1: "_first"}, 2, 0)).cursor
    publish(store, chunk(0, b"1"))
    publish(store, chunk(0, b"2"))
    prune(store, FEED, NOTHING)
    assert [] == read(store, {1: never})
    publish(store, chunk(1, b"3"))
    assert [b"3"] == read(store, {1: never})


@pytest.mark.parametrize("n", [1, 2, 3])
def test_special_cursors_of_an_emptied_feed_lead_on(store, n):
    """`_first` and `_last` are answered with cursors that stay valid."""
    three(store)
    prune(store, FEED, NOTHING)
    for special in ("_first", "_last"):
        asked = {v: next(ChunkFeed(store, FEED).page({v: special}, n, 0)).cursor for v in range(n)}
        assert [] == read(store, asked, n)
    publish(store, chunk(0, b"4"), chunk(1, b"5"))
    firsts = dict.fromkeys(range(n), "_first")
    assert [b"4", b"5"] == read(store, asked, n) == read(store, firsts, n)


def test_cursor_at_an_anchor_is_held_against_its_tag(store):
    """A cursor of a history that a restore undid is not taken for a valid one."""
    three(store)
    anchor = cursor(store, 3)
    prune(store, FEED, NOTHING)
    assert [] == read(store, {0: anchor})
    assert "cursor-of-another-history" == refused(read, store, {0: "3.00000000"}).name


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("read_before", [1, 7, 8, 20])
def test_page_under_way_does_not_skip_what_goes_meanwhile(store, monkeypatch, n, read_before):
    """I get all of it, or my connection ends and the next answer says why."""
    monkeypatch.setattr(pages, "READ_BYTES", 1)  # each chunk has a snapshot of its own
    publish(store, *[large(each % 2 * (n == 1), b"%d" % each) for each in range(60)])
    page = ChunkFeed(store, FEED).page({0: "_first"}, n, 1_000_000)
    seen = [next(page) for _ in range(read_before)]
    prune(store, FEED, NOTHING)
    publish(store, large(0, b"60"))
    with pytest.raises(Problem, match="were removed"):
        seen.extend(page)
    found = [int(each.cursor.partition(".")[0]) for each in seen]
    assert list(range(1, len(seen) + 1)) == found
