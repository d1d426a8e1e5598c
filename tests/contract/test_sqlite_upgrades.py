"""Stores of older versions in SQLite files, and `migrate`."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.store_contract.writers import chunk, data, everything, publish
from zeh_spark.errors import StoreError
from zeh_spark.protocol.upload_format import StagedChunk
from zeh_spark.publisher import Store, migrate_store, open_store
from zeh_spark.store.access import ADMIN, new_token
from zeh_spark.store.acts import Actor, Via
from zeh_spark.store.commit_plan import tag
from zeh_spark.store.cursor_sets import CursorSet
from zeh_spark.store.interface import Retention, StoreBusyError, now_ms
from zeh_spark.store.problems import Problem

VERSION_1 = """
CREATE TABLE feeds (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, name VARCHAR(100) NOT NULL,
    partitions INTEGER NOT NULL, origin BLOB NOT NULL, head BIGINT NOT NULL, history BLOB NOT NULL,
    time BIGINT NOT NULL, UNIQUE (name)
);
CREATE TABLE blobs (id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, frame BLOB NOT NULL);
CREATE TABLE staged (
    blob INTEGER NOT NULL, batch VARCHAR(100) NOT NULL, partition INTEGER NOT NULL,
    events INTEGER NOT NULL, size INTEGER NOT NULL, digest BLOB NOT NULL, created BIGINT NOT NULL,
    PRIMARY KEY (blob), FOREIGN KEY(blob) REFERENCES blobs (id)
);
CREATE INDEX ix_staged_batch ON staged (batch);
CREATE TABLE chunks (
    feed INTEGER NOT NULL, g BIGINT NOT NULL, partition INTEGER NOT NULL, events INTEGER NOT NULL,
    size INTEGER NOT NULL, time BIGINT NOT NULL, tag VARCHAR(8) NOT NULL, blob INTEGER NOT NULL,
    PRIMARY KEY (feed, g), FOREIGN KEY(feed) REFERENCES feeds (id),
    FOREIGN KEY(blob) REFERENCES blobs (id)
);
CREATE UNIQUE INDEX chunks_by_partition ON chunks (feed, partition, g);
CREATE TABLE cursor_sets (
    feed INTEGER NOT NULL, name VARCHAR(50) NOT NULL, n INTEGER NOT NULL,
    partition INTEGER NOT NULL, cursor VARCHAR NOT NULL, PRIMARY KEY (feed, name, n, partition),
    FOREIGN KEY(feed) REFERENCES feeds (id)
);
PRAGMA application_id = 1514489905;
PRAGMA user_version = 1;
"""


def test_store_of_the_first_version_goes_on(tmp_path: Path) -> None:
    """An upgrade keeps my events and every cursor, and writes go on behind them."""
    file = tmp_path / "feeds.db"
    old = [chunk(1, b"1"), chunk(0, b"2"), chunk(1, b"3")]
    tags = _write_version_1(file, old)
    with closing(_upgraded(file)) as store:
        publish(store, chunk(1, b"4"))
        found = everything(store)
        assert [b"1", b"2", b"3", b"4"] == data(store, found)
        assert (tags, {0: "1.x"}) == (
            [each.tag for each in found[:3]],
            store.load_cursors("orders", "mailer", 2),
        )
        stamps = [(each.producer, each.batch, each.sequence) for each in found]
        assert [(None, None, None)] * 3 + [("test", 0, 0)] == stamps


def test_upgrade_drops_what_was_staged_and_never_committed(tmp_path: Path) -> None:
    """Half of a load that crashed under the old version does not stay for ever."""
    file = tmp_path / "feeds.db"
    _write_version_1(file, [chunk(0, b"1")])
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("INSERT INTO blobs (id, frame) VALUES (99, x'00')")
        other.execute("INSERT INTO staged VALUES (99, 'crashed', 0, 1, 1, x'00', 0)")
    for _ in range(2):
        _upgraded(file).close()
    with closing(sqlite3.connect(file)) as other:
        assert [(1,)] == other.execute("SELECT id FROM blobs").fetchall()
        assert (10,) == other.execute("PRAGMA user_version").fetchone()


def test_store_of_version_3_goes_on(tmp_path: Path) -> None:
    """My feeds keep their events, their cursors and their ids, and take epochs from then on."""
    file = tmp_path / "feeds.db"
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.create("orders", 2)
        publish(store, chunk(0, b"1"))
        before, name = everything(store), store.identity("orders").id
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("DROP TABLE epochs")  # what version 4 has added
        other.execute("DROP TABLE cursor_set_names")
        _without_version_5(other)
        other.execute("PRAGMA user_version = 3")
    with closing(_upgraded(file)) as store:
        assert ([name], before) == (
            [e.id for e in store.identity("orders").epochs],
            everything(store),
        )
        begun = store.begin_epoch("orders")
        publish(store, chunk(0, b"2"))
        assert (name, begun.epochs[1].id) == (
            begun.at(before[0].time),
            begun.at(everything(store)[1].time),
        )


def test_store_of_version_4_keeps_names_for_90_days(tmp_path: Path) -> None:
    """What a feed keeps stays as it was set; names expire as in new feeds."""
    file = tmp_path / "feeds.db"
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.create("orders", 2)
        store.set_retention("orders", Retention(5, None, ("mailer",)))
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("DROP TABLE cursor_set_names")
        _without_version_5(other)
        other.execute("PRAGMA user_version = 4")
    with closing(_upgraded(file)) as store:
        assert Retention(5, None, ("mailer",)) == store.retention("orders")
        store.set_retention("orders", Retention(names_ms=None))
        assert Retention(names_ms=None) == store.retention("orders")


def test_store_of_version_5_keeps_its_cursor_sets(tmp_path: Path) -> None:
    """A reader finds its place after the upgrade, and is the one that has its name then."""
    file = tmp_path / "feeds.db"
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.create("orders", 2)
        store.save_cursors("orders", "mailer", 2, {0: "1.x"})
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("DROP TABLE cursor_set_names")
        _without_version_8(other)
        other.execute("PRAGMA user_version = 5")
    with closing(_upgraded(file)) as store:
        assert [CursorSet("mailer", "", {2: {0: "1.x"}})] == store.cursor_sets("orders")
        store.save_cursors("orders", "mailer", 2, {1: "2.x"}, "a")
        assert {0: "1.x", 1: "2.x"} == store.load_cursors("orders", "mailer", 2, "a")
        with pytest.raises(Problem, match="bound to consumer 'a'"):
            store.load_cursors("orders", "mailer", 2, "b")


def test_store_of_version_6_takes_tokens(tmp_path: Path) -> None:
    """I can close my publisher after the upgrade."""
    file = tmp_path / "feeds.db"
    open_store(f"sqlite:///{file}").close()
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("DROP TABLE tokens")
        _without_version_8(other)
        other.execute("PRAGMA user_version = 6")
    _, token = new_token("all", ADMIN, 1)
    with closing(_upgraded(file)) as store:
        assert [] == store.tokens()
        store.add_token(token)
        assert [token] == store.tokens()


@pytest.fixture
def version_7(tmp_path: Path) -> Path:
    """A store as version 7 left it, with two chunks of three events."""
    file = tmp_path / "feeds.db"
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.create("orders", 2)
        publish(store, chunk(0, b"1", b"22"), chunk(1, b"333"))
    with closing(sqlite3.connect(file)) as other, other:
        _without_version_8(other)
        other.execute("PRAGMA user_version = 7")
    return file


def test_store_of_version_7_gets_its_totals(version_7: Path) -> None:
    """`zeh-spark feeds` counts as before; what I publish and remove is counted from then on."""
    with closing(_upgraded(version_7)) as store:
        before = store.feed("orders")
        publish(store, chunk(1, b"4"))
        store.remove("orders", 1)
        after, chunks = store.feed("orders"), everything(store)
    assert (3, 2) == (before.events, after.events)
    assert sum(each.size for each in chunks) == after.size < before.size


def test_store_of_version_8_gets_its_log_of_acts(tmp_path: Path) -> None:
    """I see who upgraded my store; and from then on acts stay, also from my own mistakes."""
    file = tmp_path / "feeds.db"
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.create("orders", 2)
    with closing(sqlite3.connect(file)) as other, other:
        _without_version_9(other)
        other.execute("PRAGMA user_version = 8")
    migrate_store(f"sqlite:///{file}", by=Actor("alice@host", Via.CLI))
    with closing(open_store(f"sqlite:///{file}")) as store:
        (act,) = store.acts()
        assert ("cli", "alice@host", "migrate") == (act.via, act.actor, act.action)
        assert {"before": 8, "after": 10} == act.details
        store.set_retention("orders", Retention(producers_ms=5))
        assert Retention(producers_ms=5) == store.retention("orders")
    for statement in ("UPDATE acts SET time = 1", "DELETE FROM acts"):
        with closing(sqlite3.connect(file)) as other:
            with pytest.raises(sqlite3.IntegrityError, match="never changed or deleted"):
                other.execute(statement)


def test_only_migrate_upgrades_a_store(version_7: Path) -> None:
    """Looking at a store changes nothing: an older publisher may still serve it."""
    for attempt in (
        lambda: open_store(f"sqlite:///{version_7}", must_exist=True),
        lambda: open_store(f"sqlite:///{version_7}"),
    ):
        with pytest.raises(StoreError, match=r"version 7.* works with version 10.*migrate"):
            attempt()
    would = migrate_store(f"sqlite:///{version_7}", dry_run=True)
    assert (7, 10) == (would.before, would.after)
    assert any("ADD COLUMN size" in each for each in would.statements)
    with closing(sqlite3.connect(version_7)) as other:
        assert (7,) == other.execute("PRAGMA user_version").fetchone()


def test_upgrade_that_fails_changes_nothing(version_7: Path) -> None:
    """The store is as it was, and I hear what to look at."""
    with closing(sqlite3.connect(version_7)) as other, other:
        other.execute("ALTER TABLE feeds ADD COLUMN size BIGINT")  # in the way of the second step
    with pytest.raises(StoreError, match=r"cannot be upgraded: duplicate column.*as it was"):
        migrate_store(f"sqlite:///{version_7}")
    with closing(sqlite3.connect(version_7)) as other:
        assert (7,) == other.execute("PRAGMA user_version").fetchone()
        columns = {name for _, name, *_ in other.execute("PRAGMA table_info(feeds)")}
    assert "events" not in columns


def test_store_that_is_upgraded_meanwhile_takes_no_writes(tmp_path: Path) -> None:
    """A program that has the store open reads on, and does not write what a newer one would
    misunderstand.
    """
    file = tmp_path / "feeds.db"
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.create("orders", 2)
        publish(store, chunk(0, b"1"))
        with closing(sqlite3.connect(file)) as newer:
            newer.execute("PRAGMA user_version = 99")
        with pytest.raises(StoreBusyError, match=r"was upgraded.*may only read.*Replace"):
            publish(store, chunk(0, b"2"))
        assert [b"1"] == data(store)


def test_program_that_is_older_than_the_check_cannot_commit(version_7: Path) -> None:
    """A load that an older program has begun is refused, and the totals stay right."""
    with closing(_upgraded(version_7)) as store, closing(sqlite3.connect(version_7)) as older:
        with pytest.raises(sqlite3.IntegrityError, match="program is of an older version"):
            older.execute("UPDATE feeds SET head = head + 1")
        older.rollback()
        publish(store, chunk(0, b"4"))
        assert 4 == store.feed("orders").events


def test_store_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    """An old program does not harm what a newer one has written."""
    file = tmp_path / "feeds.db"
    open_store(f"sqlite:///{file}").close()
    with closing(sqlite3.connect(file)) as other:
        other.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="version 99, and this zeh-spark knows versions up to 10"):
        open_store(f"sqlite:///{file}")


def _upgraded(file: Path) -> Store:
    migrate_store(f"sqlite:///{file}")
    return open_store(f"sqlite:///{file}")


def _without_version_10(store: sqlite3.Connection) -> None:
    store.execute("DROP TABLE makers")
    store.execute("ALTER TABLE retentions DROP COLUMN producers_ms")


def _without_version_9(store: sqlite3.Connection) -> None:
    store.execute("DROP TABLE acts")
    _without_version_10(store)


def _without_version_8(store: sqlite3.Connection) -> None:
    _without_version_9(store)
    store.execute("DROP TRIGGER check_version")
    store.execute("DROP TABLE clocks")
    store.execute("ALTER TABLE feeds DROP COLUMN events")
    store.execute("ALTER TABLE feeds DROP COLUMN size")


def _without_version_5(store: sqlite3.Connection) -> None:
    _without_version_8(store)
    store.execute("ALTER TABLE retentions DROP COLUMN names_ms")
    store.execute("ALTER TABLE sequences DROP COLUMN first")


def _write_version_1(file: Path, old: list[StagedChunk]) -> list[str]:
    """A store as the first version left it, with a feed of these chunks; returns their tags."""
    origin = history = b"o" * 32
    tags = []
    with closing(sqlite3.connect(file, isolation_level=None)) as made:
        made.executescript(VERSION_1)
        for g, each in enumerate(old, 1):
            history = hashlib.sha256(
                history + each.partition.to_bytes(4, "big") + each.digest
            ).digest()
            tags.append(tag(history))
            made.execute("INSERT INTO blobs (id, frame) VALUES (?, ?)", (g, each.frame))
            row = (1, g, each.partition, each.events, each.size, 5, tags[-1], g)
            made.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        feed = ("orders", 2, origin, len(old), history, now_ms())
        made.execute("INSERT INTO feeds VALUES (1, ?, ?, ?, ?, ?, ?)", feed)
        made.execute("INSERT INTO cursor_sets VALUES (1, 'mailer', 2, 0, '1.x')")
    return tags
