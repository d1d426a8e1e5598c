"""Backups, restores and epochs of stores whose chunks are packed, before it or after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.contract.sites import OurSite, PostgresqlSite, SqliteSite
from tests.store_contract.packs import EVER, answers
from tests.store_contract.writers import FEED, chunk, data, publish, refused
from zeh_spark import reading
from zeh_spark.publisher import Store
from zeh_spark.service.reads.feed import ChunkFeed
from zeh_spark.testing import running_publisher


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 4)


def add(store: Store, numbers: Sequence[int]) -> None:
    for each in numbers:
        publish(store, chunk(each % 2, b"%d" % each))


def seal(store: Store) -> int:
    """Pack all that fills a pack; return how many packs that were."""
    done = 0
    while store.seal(FEED, EVER):
        done += 1
    return done


@pytest.mark.parametrize("sealed", [0, 1, 9])
def test_a_backup_is_the_feed_as_it_was_whatever_was_packed_since(
    site: SqliteSite | PostgresqlSite, store: Store, sealed: int
) -> None:
    """Made before a seal, between two or after it: I get back what readers had then, and may pack
    it, and what is published after it.
    """
    add(store, range(10))
    for _ in range(sealed):
        store.seal(FEED, EVER)
    expected, backup = answers(store, 2), site.copy()
    add(store, range(10, 14))
    seal(store)
    store.remove(FEED, 6)
    site.restore(backup)
    store = site.open()
    assert expected == answers(store, 2)
    assert 2 - min(sealed, 2) == seal(store)
    assert expected == answers(store, 2)
    add(store, range(10, 14))
    assert 1 == seal(store)
    assert [b"%d" % each for each in range(14)] == data(store)


@pytest.mark.parametrize("then", ["seal", "nothing"])
def test_a_reader_of_what_a_restore_undid_is_refused_also_in_a_pack(
    site: SqliteSite | PostgresqlSite, store: Store, then: str
) -> None:
    """My cursor was in a pack that is gone, and another pack has its position now: I never go on as
    if nothing had happened.
    """
    add(store, range(6))
    seal(store)
    backup = site.copy()
    add(store, range(6, 13))
    assert 2 == seal(store)
    undone = page(store, {0: "_first"}, 7)[-1].cursor  # behind one that the backup lacks
    site.restore(backup)
    store = site.open()
    kept = {0: page(store, {0: "_first"}, 100)[-1].cursor}
    add(store, range(20, 31))
    if then == "seal":
        assert 3 == seal(store)
    assert "cursor-of-another-history" == refused(page, store, {0: undone}, 100).name
    found = [each.lines for each in page(store, kept, 100)]
    assert 11 == sum(each.count(b"\n") for each in found)


def page(store: Store, cursors: dict[int, str], hint: int) -> list[Any]:
    return [*ChunkFeed(store, FEED).page(cursors, 1, hint)]


def test_each_event_keeps_its_epoch_when_it_is_packed(site: OurSite, store: Store) -> None:
    """After a restore, events that were undone and those that took their numbers have another
    `zeh-feed`, and that is so for ever.
    """

    def read(base: str) -> list[Any]:
        pages = reading.reader(f"{base}/{FEED}")
        rows = [
            (int(row["data"]), dict(row["headers"]))
            for page, _ in pages
            for row in page.to_pylist()
        ]
        return sorted(rows, key=lambda row: row[0])

    add(store, range(6))
    zero, first = store.feed(FEED).origin[:8].hex(), store.begin_epoch(FEED)
    add(store, range(6, 12))
    second = store.begin_epoch(FEED)
    add(store, range(12, 18))
    with running_publisher(store) as base:
        before = read(base)
        assert 4 == seal(store)
        assert before == read(base)
    began = [zero, *(each.epochs[-1].id for each in (first, second))]
    assert began == [row[1]["zeh-feed"] for row in before[::6]]
