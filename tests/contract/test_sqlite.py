"""What only the store in a SQLite file does."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from tests.faults.disks import Disk, why_no_small_disk
from tests.patience import eventually
from tests.store_contract import writers as contract
from tests.store_contract.packs import EVER
from tests.store_contract.writers import FEED
from zeh_spark.errors import StoreError
from zeh_spark.publisher import Store, open_store
from zeh_spark.service.sql import store as sql_store
from zeh_spark.service.sqlite.copies import backup
from zeh_spark.testing import publish


@pytest.fixture
def store(store_file: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:///{store_file}")) as store:
        yield store


def test_commits_are_on_disk_and_uploads_need_not_be(store):
    """An acknowledged batch survives a power cut: WAL with full synchronisation, in large pages."""
    assert isinstance(store, sql_store.SqlStore)
    pragmas = ("journal_mode", "synchronous", "page_size")

    def ask(connection: Connection) -> list[object]:
        return [connection.exec_driver_sql(f"PRAGMA {each}").scalar_one() for each in pragmas]

    modes = [store._database.writes.write(ask, durable=durable) for durable in (True, False)]
    assert [["wal", 2, 16384], ["wal", 1, 16384]] == modes


@pytest.mark.skipif(why_no_small_disk() is not None, reason=f"no {why_no_small_disk()}")
def test_a_store_on_a_full_disk_says_so(tmp_path):
    """SQLite calls it an I/O error, if there is no room for the index of its log."""
    with closing(Disk(tmp_path)) as disk:
        url = f"sqlite:///{disk.folder / 'feeds.db'}"
        open_store(url).close()
        disk.fill(0)
        with pytest.raises(StoreError, match=r"Its disk is full: make room on it"):
            open_store(url)
        disk.free()
        open_store(url).close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://u:geheim@127.0.0.1:1/db", r"://u:\*\*\*@127.0.0.1:1/db cannot be used"),
        ("mysql://host/db", "unknown store .mysql."),
        ("feeds.db", "unknown store 'feeds.db'"),
        ("sqlite:///", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:////nowhere/at/all/feeds.db", "there is no /nowhere/at/all"),
        ("sqlite:////tmp", "is a directory"),
    ],
)
def test_store_that_cannot_be_opened_says_why(url, reason):
    """A wrong --store tells me what to write."""
    with pytest.raises(StoreError, match=reason):
        open_store(url)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not a database, but long enough to be read as one" * 50, "not a database"),
        (None, "another program's"),
    ],
)
def test_foreign_file_is_left_alone(tmp_path, content, reason):
    """Pointing at the wrong file does not change it."""
    file = tmp_path / "other.db"
    if content is None:
        with sqlite3.connect(file) as other:
            other.execute("CREATE TABLE theirs (id)")
    else:
        file.write_bytes(content)
    with pytest.raises(StoreError, match=reason):
        open_store(f"sqlite:///{file}")


def test_missing_file_is_not_made_where_it_must_exist(tmp_path):
    """A typing error in --store does not serve an empty store."""
    file = tmp_path / "feeds.db"
    with pytest.raises(StoreError, match="zeh-spark create"):
        open_store(f"sqlite:///{file}", must_exist=True)
    assert not file.exists()


@pytest.mark.parametrize("replaced", [True, False])
def test_nothing_is_published_to_a_file_that_is_not_there_any_more(store, store_file, replaced):
    """Who replaces the file under its publisher learns it, and loses no acknowledged event."""
    copy = store_file.with_name("copy.db")
    backup(str(store_file), copy)
    if replaced:
        copy.replace(store_file)
    else:
        store_file.unlink()
    for use in (lambda: publish(store, "orders", [2]), store.feeds, store.tidy):
        with pytest.raises(StoreError, match="replaced by another file"):
            use()
    assert replaced == store_file.exists()


def test_keeping_many_cursors_takes_few_statements(store):
    """Other writers do not wait for one statement after the other."""
    statements: list[str] = []

    def note(*given: Any) -> None:
        statements.append(given[2])

    cursors = {each: f"a{each}" for each in range(1000)}
    later = {**cursors, **{each: f"b{each}" for each in range(0, 1024, 2)}}
    event.listen(Engine, "before_cursor_execute", note)
    try:
        store.save_cursors("orders", "w", 1024, cursors)
        store.save_cursors("orders", "w", 1024, later)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert later == store.load_cursors("orders", "w", 1024)
    assert len(statements) < 20


def one_by_one(store: Store, rounds: int) -> None:
    """Publish so many times 1,024 chunks of one event each, and pack what can be packed."""
    for _ in range(rounds):
        for _ in range(16):
            contract.publish(store, *(contract.chunk(each, b"1") for each in range(64)))
        while store.seal(FEED, before=EVER):
            pass


def test_the_room_of_what_is_packed_is_used_again(tmp_path: Path) -> None:
    """The file of a feed of single events stays small, and a backup has nothing of what is free."""
    file = tmp_path / "feeds.db"
    with closing(open_store(f"sqlite:///{file}", receipts=3)) as store:
        store.create(FEED, 64)
        one_by_one(store, 3)
        before = emptied(file)
        one_by_one(store, 4)
        copy = tmp_path / "copy.db"
        backup(str(file), copy)
    after = emptied(file)
    assert after < before + 4 * 40_000  # in rows, a round takes 130,000 bytes
    assert copy.stat().st_size < after - 100_000


def emptied(file: Path) -> int:
    """Return the size of a file whose log is in it."""
    with closing(sqlite3.connect(file)) as other:
        assert (0, 0, 0) == other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return file.stat().st_size


def test_packing_waits_while_a_reader_keeps_the_log_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that reads for hours does not fill my disk. Nothing is packed until it ends, and
    its snapshot stays the same.
    """
    for limit, short in (("LOG_BYTES", 1 << 20), ("_READERS_SECONDS", 0.05)):
        monkeypatch.setattr(f"zeh_spark.service.sqlite.writer.{limit}", short)
    monkeypatch.setattr("zeh_spark.service.sqlite.store.LOG_BYTES", 1 << 20)
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 100)
    file, log = tmp_path / "feeds.db", tmp_path / "feeds.db-wal"
    with closing(open_store(f"sqlite:///{file}", receipts=3)) as store:
        store.create(FEED, 64)
        for _ in range(4):
            contract.publish(store, *(contract.chunk(each, b"1") for each in range(64)))
        eventually(lambda: 100 == store.seal(FEED, before=EVER))  # once the log is short
        count = "SELECT count(*) FROM recent_chunks"
        with closing(sqlite3.connect(file, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            before = reader.execute(count).fetchall()
            while log.stat().st_size <= 1 << 20:
                contract.publish(store, contract.chunk(0, b"1"))
            grown = log.stat().st_size
            for _ in range(9):
                assert 0 == store.seal(FEED, before=EVER)
            assert (before, grown) == (reader.execute(count).fetchall(), log.stat().st_size)
        for _ in range(4):  # the writer looks at the log again when it has grown
            contract.publish(store, contract.chunk(0, b"1"))
        eventually(lambda: 100 == store.seal(FEED, before=EVER))  # once the log is short
        assert log.stat().st_size <= 1 << 20
