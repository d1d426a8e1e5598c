"""What a page takes of a database, counted where it is asked: round trips and statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tests.cases import each_case
from tests.contract.sites import PostgresqlSite, SqliteSite
from tests.postgresql import Pooler, Server
from tests.scratch_store import ScratchStore
from tests.store_contract.writers import FEED, chunk, publish
from zeh_spark.publisher import Store, open_store
from zeh_spark.service.store import pages
from zeh_spark.service.store.feed import ChunkFeed
from zeh_spark.testing import running_publisher

ALONE, TOGETHER, APART = {0: 0}, {0: 0, 1: 0}, {0: 0, 1: 70}
"""Positions by partition after which a page begins. Those far apart are not found by one scan."""


@pytest.fixture
def connections() -> Iterator[list[Any]]:
    """The drivers' connections that are opened from now on."""
    found: list[Any] = []

    def connected(connection: Any, _: object) -> None:
        found.append(connection)

    event.listen(Engine, "connect", connected)
    yield found
    event.remove(Engine, "connect", connected)


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


def reader(store: Store, positions: dict[int, int]) -> Callable[[], int]:
    """Return what reads a page after some positions, and returns how many events it has."""
    with store.snapshot(FEED, positions.values()) as log:
        cursors = {each: f"{g}.{log.tags[g]}" for each, g in positions.items()}

    def read() -> int:
        return sum(each.lines.count(b"\n") for each in ChunkFeed(store, FEED).page(cursors, 2, 60))

    assert read() > 0  # connections are there
    return read


def round_trips(connections: list[Any], file: Path, read: Callable[[], int]) -> list[str]:
    """Return where libpq, which traces its messages, heard that the server was ready again."""
    with file.open("wb") as written:
        alive = [each for each in connections if not each.closed]
        for connection in alive:
            connection.pgconn.trace(written.fileno())
        assert read() > 0
        for connection in alive:
            connection.pgconn.untrace()
    return [line for line in file.read_text().splitlines() if "ReadyForQuery" in line]


@each_case("positions", [ALONE, TOGETHER, APART])
def test_a_page_takes_four_round_trips(connections, postgresql, tmp_path, positions):
    """With BEGIN and ROLLBACK: my page is quick although the database is in another zone."""
    read = reader(postgresql.open(), positions)
    assert 4 == len(round_trips(connections, tmp_path / "trace", read))


@each_case("positions", [ALONE, TOGETHER, APART])
def test_a_pooler_lends_a_connection_for_a_page(
    connections, postgresql, pooler: Pooler, tmp_path, positions
):
    """PgBouncer, by transaction: all of a page's part is of one moment there, too."""
    with closing(open_store(pooler.url(postgresql.database))) as store:
        read = reader(store, positions)
        assert 4 == len(round_trips(connections, tmp_path / "trace", read))


@each_case("positions", [ALONE, TOGETHER, APART])
def test_a_page_takes_three_statements(connections, tmp_path, positions):
    """Of SQLite, besides those that begin and end the moment that it is of."""
    connections.clear()
    with closing(SqliteSite(tmp_path)) as site:
        fill(store := site.open())
        read = reader(store, positions)
        found: list[list[str]] = [[] for _ in connections]
        for connection, told in zip(connections, found, strict=True):
            connection.set_trace_callback(told.append)
        assert read() > 0
    (statements,) = [told for told in found if "BEGIN" in told]  # others write
    assert ("BEGIN", 3, "ROLLBACK") == (statements[0], len(statements) - 2, statements[-1])


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


@each_case("query", ["cursor0=_first", "cursor0=_first&cursor1=_last&wait=1", "cursor1=_last"])
def test_a_page_that_is_asked_for_is_all_that_is_read(query: str) -> None:
    """Nothing is looked up before it or after it."""
    store = Asked()
    fill(store)
    with running_publisher(store) as base:
        url = f"{base}/{FEED}?n=2&{query}"
        assert requests.get(url, timeout=60).ok
        store.calls.clear()
        assert requests.get(url, timeout=60).ok
        assert {"snapshot": 1} == store.calls


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
