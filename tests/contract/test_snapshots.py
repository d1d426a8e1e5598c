"""What a page takes of a database, counted where it is asked: round trips and statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.cases import each_case
from tests.contract.conftest import Trace
from tests.contract.sites import PostgresqlSite, SqliteSite
from tests.postgresql import Pooler, Server
from tests.scratch_store import ScratchStore
from tests.store_contract.writers import FEED, chunk, publish
from zeh_spark.publisher import Store, open_store
from zeh_spark.service.reads import pages
from zeh_spark.service.reads.feed import ChunkFeed
from zeh_spark.testing import running_publisher

ALONE, TOGETHER, APART = {0: 0}, {0: 0, 1: 0}, {0: 0, 1: 70}
"""Positions by partition after which a page begins. Those far apart are not found by one scan."""


@pytest.fixture
def postgresql(tmp_path: Path, postgresql_server: Server) -> Iterator[PostgresqlSite]:
    with closing(PostgresqlSite(tmp_path)) as site:
        fill(site.open())
        yield site


def fill(store: Store) -> None:
    """Publish 72 chunks to two partitions in turn."""
    store.create(FEED, 2)
    for number in range(36):
        publish(store, chunk(0, b"%d" % number), chunk(1, b"0"))


def read_page(sent: Trace, store: Store, positions: dict[int, int]) -> None:
    """Read a page after some positions, on connections that are there: `sent` tells no others."""
    with store.snapshot(FEED, positions.values()) as log:
        cursors = {each: f"{g}.{log.tags[g]}" for each, g in positions.items()}
    for _ in range(2):
        sent()
        assert any(each.lines for each in ChunkFeed(store, FEED).page(cursors, 2, 60))


positions = each_case("positions", [ALONE, TOGETHER, APART])


@positions
def test_a_page_takes_four_round_trips(sent, postgresql, positions):
    """With BEGIN and ROLLBACK: my page is quick although the database is in another zone."""
    read_page(sent, postgresql.open(), positions)
    assert 4 == len(sent())


@positions
def test_a_pooler_lends_a_connection_for_a_page(sent, postgresql, pooler: Pooler, positions):
    """PgBouncer, by transaction: all of a page's part is of one moment there, too."""
    with closing(open_store(pooler.url(postgresql.database))) as store:
        read_page(sent, store, positions)
        assert 4 == len(sent())


@positions
def test_a_page_takes_three_statements(sent, tmp_path, positions):
    """Of SQLite, besides those that begin and end the moment that it is of."""
    with closing(SqliteSite(tmp_path)) as site:
        fill(store := site.open())
        read_page(sent, store, positions)
        begin, *statements, end = sent()
    assert ("BEGIN", 3, "ROLLBACK") == (begin, len(statements), end)


class Asked(ScratchStore):
    """A store that counts the calls of its public methods, but those that a publisher repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        repeated = name in ("before_read", "now", "tokens", "version")
        if callable(found) and name[0] != "_" and not repeated:
            self.calls[name] += 1
        return found


PAGES = ["cursor0=_first", "cursor0=_first&cursor1=_last&wait=1", "cursor1=_last"]
PLANS = [{"0": "_first", "1": "_first"}, {"0": "_first", "1": "_last"}]


@each_case("asked", [*PAGES, *PLANS])
def test_a_page_that_is_asked_for_is_all_that_is_read(asked: str | dict[str, str]) -> None:
    """Nothing is looked up before it or after it, but whether a page that was kept is still right.

    A plan is of one moment, too.
    """
    store = Asked()
    fill(store)
    with running_publisher(store) as base:
        for _ in range(2):
            store.calls.clear()
            if isinstance(asked, str):
                answer = requests.get(f"{base}/{FEED}?n=2&{asked}", timeout=60)
            else:
                plan = {"n": 2, "cursors": asked}
                answer = requests.post(f"{base}/{FEED}/plan", json=plan, timeout=60)
            assert answer.ok
        kept = {"lineage": 1} if isinstance(asked, str) else {}
        assert {"snapshot": 1, **kept} == store.calls


def test_no_snapshot_is_open_while_a_part_is_sent(tmp_path, monkeypatch, postgresql):
    """A client that is slow keeps neither database from cleaning up."""
    monkeypatch.setattr(pages, "READ_BYTES", 1)  # each chunk is a part
    with closing(SqliteSite(tmp_path)) as sqlite:
        fill(sqlite.open())
        for site, is_idle in (
            (sqlite, lambda: sqlite.execute("PRAGMA wal_checkpoint(TRUNCATE)") == [(0, 0, 0)]),
            (postgresql, lambda: postgresql.execute(OPEN_TRANSACTIONS) == [(0,)]),
        ):
            blocks = ChunkFeed(site.open(), FEED).page({0: "_first"}, 2, 5)
            assert [True] * 5 == [is_idle() for _ in blocks]


OPEN_TRANSACTIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND state LIKE 'idle in transaction%'"
)
