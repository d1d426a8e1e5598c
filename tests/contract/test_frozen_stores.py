"""Stores that a release has written are opened by this version: see `tests.frozen`."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing

import psycopg
import pytest

from tests.frozen import EVENTS, add, events, trusted, unpacked
from zeh_spark.publisher import Store, migrate_store, open_store
from zeh_spark.service.store.cursor_sets import CursorSet
from zeh_spark.service.store.interface import Retention
from zeh_spark.testing import running_publisher

LOOK = "SELECT g FROM chunks"
"""As a publisher of version 10 reads. It would miss what is packed, and so it has to fail."""


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 1)


def test_a_sqlite_store_of_a_release_goes_on(tmp_path):
    """An upgrade, if one is needed, keeps all of it."""
    file = unpacked(tmp_path) / "feeds.db"
    url = f"sqlite:///{file}"
    migrate_store(url)
    with closing(sqlite3.connect(file)) as older, pytest.raises(sqlite3.Error, match="no such"):
        older.execute(LOOK)
    with closing(trusted(open_store(url, must_exist=True))) as store:
        _goes_on(store)
        assert EVENTS == _events(store, "copies")


def test_a_postgresql_store_of_a_release_goes_on(postgresql_server, tmp_path):
    """An upgrade, if one is needed, keeps all of it."""
    database = postgresql_server.create_database()
    url = postgresql_server.url(database)
    dump = postgresql_server.directory / "feeds.sql"
    shutil.copy(unpacked(tmp_path) / "feeds.sql", dump)
    postgresql_server.run("psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(dump), database)
    migrate_store(url)
    with pytest.raises(psycopg.Error, match="does not exist"):
        postgresql_server.execute(LOOK.replace("chunks", "zeroeventhub.chunks"), database)
    with closing(trusted(open_store(url, must_exist=True))) as store:
        _goes_on(store)


def _goes_on(store: Store) -> None:
    assert EVENTS == _events(store, "orders")
    retention = Retention(bytes=10**9, readers=("mailer",), names_ms=None)
    assert retention == store.retention("orders")
    assert [CursorSet("mailer", "spark:1", {2: {0: "_first"}})] == store.cursor_sets("orders")
    with running_publisher(store) as base:
        add(base, {step for _, step in EVENTS})  # the batch is known, and compared
        add(base, (2,), "second")
        assert sorted([*EVENTS, ("a", 2), ("b", 2)]) == events(f"{base}/orders")
        assert 1 == store.seal("orders", before=1 << 62)
        assert sorted([*EVENTS, ("a", 2), ("b", 2)]) == events(f"{base}/orders")


def _events(store: Store, feed: str) -> list[tuple[str, int]]:
    with running_publisher(store) as base:
        return events(f"{base}/{feed}")
