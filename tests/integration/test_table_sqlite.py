"""A service's table in SQLite as a feed."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from functools import partial

import pytest

from tests.fix_table import SqliteDatabase, read
from tests.integration.test_table_restores import events, refusal
from tests.integration.test_table_writers import Follower, read_while
from zeh_spark.publisher import SqlTableFeed, create_app
from zeh_spark.wire import partitioning

SCHEMA = """
CREATE TABLE orders (key TEXT PRIMARY KEY, version INTEGER NOT NULL);
CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, version INTEGER);
INSERT INTO orders VALUES ('1', 0), ('2', 0), ('3', 0), ('4', 0), ('5', 0);
"""


@pytest.fixture
def feed(sqlite_database: SqliteDatabase) -> SqlTableFeed:
    """With 4 partitions."""
    sqlite_database.run([SCHEMA])
    feed = sqlite_database.feed(data=["id", "key", "version"], partition_by="key", partitions=4)
    sqlite_database.run(feed.ddl())
    return feed


def sell(connection: sqlite3.Connection, key: str) -> None:
    """A new version of an order, and its event."""
    raised = "UPDATE orders SET version = version + 1 WHERE key = ? RETURNING key, version"
    (row,) = connection.execute(raised, [key]).fetchall()
    connection.execute("INSERT INTO outbox (key, version) VALUES (?, ?)", row)


def connected(database: SqliteDatabase) -> sqlite3.Connection:
    return sqlite3.connect(database.file, timeout=60, isolation_level=None)


def test_feeds_whose_addresses_collide_are_refused(feed: SqlTableFeed) -> None:
    """No feed is left out unnoticed."""
    with pytest.raises(ValueError, match="'orders' is in feeds and in tables"):
        create_app({"orders": feed}, {"orders": feed})
    with pytest.raises(ValueError, match="where 'orders' of tables has no address"):
        create_app(feed, {"orders": feed})


def test_every_row_comes_once_and_each_order_in_order_while_many_write(
    sqlite_database: SqliteDatabase, feed: SqlTableFeed
) -> None:
    """Writers wait for each other in SQLite, so ids are enough."""

    def write(number: int) -> None:
        choice = random.Random(number)
        with closing(connected(sqlite_database)) as connection:
            for _ in range(20):
                connection.execute("BEGIN IMMEDIATE")
                for key in choice.sample("12345", choice.randint(1, 3)):
                    sell(connection, key)
                connection.execute("ROLLBACK" if choice.random() < 0.2 else "COMMIT")

    followers = [Follower(lambda: feed, n, hint) for n, hint in ((4, 100), (1, 3), (2, 10))]
    read_while([each.run for each in followers], [partial(write, number) for number in range(5)])
    with closing(connected(sqlite_database)) as connection:
        ids = [key for (key,) in connection.execute("SELECT id FROM outbox ORDER BY id")]
    assert ids
    assert [(ids, [])] * 3 == [(each.ids, each.backwards) for each in followers]


def test_partitions_are_those_of_every_writer(
    sqlite_database: SqliteDatabase, feed: SqlTableFeed
) -> None:
    """A key is in the partition in which the sink and `load --key` would put it."""
    with closing(connected(sqlite_database)) as connection:
        for key in "12345":
            sell(connection, key)
    found = {
        event["data"]["key"]: partition
        for partition in range(4)
        for event in read(feed, {partition: "_first"}, 4).events
    }
    assert {key: partitioning.partition_of(key, 4) for key in "12345"} == found


def test_reader_of_what_a_restore_undid_is_told(
    sqlite_database: SqliteDatabase, feed: SqlTableFeed
) -> None:
    """An older copy was put in the place of the file, and other rows got the same ids."""
    with closing(connected(sqlite_database)) as connection:
        sell(connection, "1")
        _, early = events(feed)
        copy = sqlite_database.copied()
        sell(connection, "2")
        _, late = events(feed)
    sqlite_database.put_back(copy)  # connections have the old one open
    behind = refusal(feed, late)
    with closing(connected(sqlite_database)) as connection:
        sell(connection, "3")
    again = refusal(feed, late)
    assert ("cursor-of-another-history", "cursor-of-another-history") == (behind[0], again[0])
    assert [2] == events(feed, early)[0]


def test_a_page_looks_at_each_row_once_whatever_is_asked(
    sqlite_database: SqliteDatabase, feed: SqlTableFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request for a thousand partitions costs no more than one for all four."""
    with closing(connected(sqlite_database)) as connection:
        connection.executemany(
            "INSERT INTO outbox (key, version) VALUES (?, 1)", [(str(each),) for each in range(500)]
        )
    looks, real = [], partitioning.partition_of

    def counted(key: str, partitions: int) -> int:
        looks.append(key)
        return real(key, partitions)

    monkeypatch.setattr(partitioning, "partition_of", counted)
    blocks = list(feed.page(dict.fromkeys(range(1000), "_first"), 1000, 500))

    assert 500 == sum(block.lines.count(b"\n") for block in blocks)
    assert 500 <= len(looks) <= 3 * 500


@pytest.mark.parametrize("seed", range(10))
def test_partitions_read_together_are_those_read_alone(
    sqlite_database: SqliteDatabase, feed: SqlTableFeed, seed: int
) -> None:
    """Wherever each partition stands, and whichever are asked for together."""
    chance = random.Random(seed)
    with closing(connected(sqlite_database)) as connection:
        connection.executemany(
            "INSERT INTO outbox (key, version) VALUES (?, 1)",
            [(chance.choice("abcdefgh"),) for _ in range(60)],
        )
    cursors = {}
    for partition in chance.sample(range(4), chance.randint(1, 4)):
        cursors[partition] = "_first"
        if hint := chance.randint(0, 10):
            *_, last = feed.page({partition: "_first"}, 4, hint)
            cursors[partition] = last.cursor

    def lines(asked: dict[int, str]) -> dict[int, bytes]:
        found = dict.fromkeys(asked, b"")
        for block in feed.page(asked, 4, 100):
            found[block.partition] += block.lines
        return found

    alone = {each: lines({each: cursor})[each] for each, cursor in cursors.items()}
    assert alone == lines(cursors)
