"""What a table of SQLite needs to be a feed: how its ids are declared, how it is built anew."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fix_table import Database, SqliteDatabase, broken, read, refusal
from zeh_spark.errors import StoreError, ZeroEventHubError


@pytest.mark.parametrize(
    ("table", "settings", "reason"),
    [
        ("id INTEGER PRIMARY KEY AUTOINCREMENT, x", {}, "there is no column data; there are id, x"),
        ("nr INTEGER PRIMARY KEY AUTOINCREMENT, data", {}, "there is no column id"),
        ("id TEXT PRIMARY KEY, data", {}, "id is not INTEGER PRIMARY KEY AUTOINCREMENT"),
        ("id INTEGER, data, PRIMARY KEY (id)", {}, "id is not INTEGER PRIMARY KEY AUTOINCREMENT"),
        (
            "order_id INTEGER PRIMARY KEY AUTOINCREMENT, id INTEGER, data",
            {},
            "id is not INTEGER PRIMARY KEY AUTOINCREMENT",
        ),
        (
            "/* id INTEGER PRIMARY KEY AUTOINCREMENT */ id INTEGER, data",
            {},
            "id is not INTEGER PRIMARY KEY AUTOINCREMENT",
        ),
        (
            "id INTEGER, data DEFAULT 'id INTEGER PRIMARY KEY AUTOINCREMENT'",
            {},
            "id is not INTEGER PRIMARY KEY AUTOINCREMENT",
        ),
    ],
)
def test_table_of_sqlite_that_cannot_be_repaired_is_refused(
    sqlite_database: Database, table: str, settings: dict[str, Any], reason: str
) -> None:
    """Of the id, too, if another column has what it needs."""
    sqlite_database.execute(f"CREATE TABLE outbox ({table})")
    feed = sqlite_database.feed(**settings)
    assert reason in refusal(feed)
    with pytest.raises(StoreError, match=reason):
        feed.ddl()


@pytest.mark.parametrize(
    "declared",
    [
        "id integer primary key autoincrement",
        '"id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT',
        "[id]\tINTEGER\nPRIMARY KEY ASC AUTOINCREMENT",
        "`id` INTEGER CONSTRAINT pk PRIMARY KEY ON CONFLICT ABORT AUTOINCREMENT",
        "id INTEGER CHECK (id NOT IN (0, 1)) PRIMARY KEY AUTOINCREMENT",
        "id INTEGER /* a, b */ PRIMARY KEY AUTOINCREMENT",
    ],
)
def test_ids_of_sqlite_may_be_declared_in_many_ways(
    sqlite_database: Database, declared: str
) -> None:
    """My table need not look like your example."""
    sqlite_database.execute(f"CREATE TABLE outbox ({declared}, data JSON)")
    sqlite_database.run(sqlite_database.feed().ddl())
    assert [] == read(sqlite_database.feed()).data


@pytest.mark.parametrize(
    "table",
    [
        'CREATE TABLE "outbox" (id INTEGER PRIMARY KEY, data JSON)',
        "CREATE TABLE IF NOT EXISTS main.outbox (id INTEGER NOT NULL PRIMARY KEY, data JSON)",
        "CREATE TABLE outbox(id INTEGER PRIMARY KEY, data JSON, n INTEGER AS (data + 1) STORED)",
        "CREATE TABLE outbox (order_id INTEGER, id INTEGER PRIMARY KEY, data JSON)",
        "CREATE TABLE outbox (id INTEGER PRIMARY KEY, data JSON) STRICT".replace("JSON", "TEXT"),
        "CREATE TABLE outbox (id INTEGER PRIMARY KEY, data JSON) -- mine",
    ],
)
def test_table_of_sqlite_is_built_anew(sqlite_database: Database, table: str) -> None:
    """With the columns and rows that it has."""
    sqlite_database.execute(table)
    sqlite_database.execute("INSERT INTO outbox (id, data) VALUES (2, '2'), (1, '1')")
    sqlite_database.run(sqlite_database.feed().ddl())
    assert [1, 2] == read(sqlite_database.feed()).data


def test_ids_are_not_given_again_when_the_table_is_built_anew_twice(
    sqlite_database: Database,
) -> None:
    """I pasted it once more, a day later, when rows had been deleted."""
    sqlite_database.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY, data JSON)")
    statements = sqlite_database.feed().ddl()
    sqlite_database.run(statements)
    sqlite_database.execute("INSERT INTO outbox (data) VALUES ('1'), ('2'), ('3')")
    sqlite_database.execute("DELETE FROM outbox WHERE id > 1")
    sqlite_database.run(statements)
    sqlite_database.execute("INSERT INTO outbox (data) VALUES ('4')")
    assert [(1,), (4,)] == sqlite_database.execute("SELECT id FROM outbox")


def test_indexes_and_triggers_are_named_when_the_table_is_built_anew(
    sqlite_database: Database,
) -> None:
    """They go with the old one: I am told which I have to create again, as SQL."""
    sqlite_database.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY, data JSON, k TEXT)")
    sqlite_database.execute("CREATE UNIQUE INDEX once ON outbox (k)")
    assert "CREATE UNIQUE INDEX once ON outbox (k)" in "\n".join(sqlite_database.feed().ddl())


@pytest.mark.parametrize("option", [{"updates": True}, {"grant_to": "clerk"}], ids=str)
def test_sqlite_says_what_it_cannot_do(
    sqlite_database: SqliteDatabase, option: dict[str, Any]
) -> None:
    """It has no transactions' numbers to move rows by, and no roles: I do not believe I had it."""
    broken(sqlite_database)
    with pytest.raises(ZeroEventHubError, match="SQLite"):
        sqlite_database.feed().ddl(**option)
