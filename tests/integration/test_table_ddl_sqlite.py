"""What a table of SQLite needs to be a feed: how its ids are declared, how it is built anew."""

from __future__ import annotations

import pytest

from tests.fix_table import Database, SqliteDatabase, prepared, read, refusal
from zeh_spark.errors import StoreError
from zeh_spark.service.store.problems import Problem

NO_ID = "id is not INTEGER PRIMARY KEY AUTOINCREMENT"


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("id INTEGER PRIMARY KEY AUTOINCREMENT, x", "there is no column data; there are id, x"),
        ("nr INTEGER PRIMARY KEY AUTOINCREMENT, data", "there is no column id"),
        ("id TEXT PRIMARY KEY, data", NO_ID),
        ("id INTEGER, data, PRIMARY KEY (id)", NO_ID),
        ("order_id INTEGER PRIMARY KEY AUTOINCREMENT, id INTEGER, data", NO_ID),
        ("/* id INTEGER PRIMARY KEY AUTOINCREMENT */ id INTEGER, data", NO_ID),
        ("id INTEGER, data DEFAULT 'id INTEGER PRIMARY KEY AUTOINCREMENT'", NO_ID),
    ],
)
def test_table_of_sqlite_that_cannot_be_repaired_is_refused(
    sqlite_database: Database, table: str, reason: str
) -> None:
    """Of the id, too, if another column has what it needs."""
    sqlite_database.execute(f"CREATE TABLE outbox ({table})")
    feed = sqlite_database.feed()
    assert reason in refusal(feed)
    with pytest.raises(StoreError, match=reason):
        feed.ddl()


@pytest.mark.parametrize(
    "table",
    [
        # ids may be declared in many ways
        "CREATE TABLE outbox (id integer primary key autoincrement, data JSON)",
        'CREATE TABLE outbox ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, data JSON)',
        "CREATE TABLE outbox ([id]\tINTEGER\nPRIMARY KEY ASC AUTOINCREMENT, data JSON)",
        "CREATE TABLE outbox (`id` INTEGER CONSTRAINT pk PRIMARY KEY ON CONFLICT ABORT"
        " AUTOINCREMENT, data JSON)",
        "CREATE TABLE outbox (id INTEGER CHECK (id NOT IN (8, 9)) PRIMARY KEY AUTOINCREMENT, data)",
        "CREATE TABLE outbox (id INTEGER /* a, b */ PRIMARY KEY AUTOINCREMENT, data JSON)",
        # and are declared anew
        'CREATE TABLE "outbox" (id INTEGER PRIMARY KEY, data JSON)',
        "CREATE TABLE IF NOT EXISTS main.outbox (id INTEGER NOT NULL PRIMARY KEY, data JSON)",
        "CREATE TABLE outbox(id INTEGER PRIMARY KEY, data JSON, n INTEGER AS (data + 1) STORED)",
        "CREATE TABLE outbox (order_id INTEGER, id INTEGER PRIMARY KEY, data JSON)",
        "CREATE TABLE outbox (id INTEGER PRIMARY KEY, data TEXT) STRICT",
        "CREATE TABLE outbox (id INTEGER PRIMARY KEY, data JSON) -- mine",
    ],
)
def test_table_of_sqlite_is_built_anew_if_its_ids_need_it(
    sqlite_database: Database, table: str
) -> None:
    """My table need not look like your example. It keeps the columns and rows that it has."""
    sqlite_database.execute(table)
    sqlite_database.execute("INSERT INTO outbox (id, data) VALUES (2, '2'), (1, '1')")
    statements = sqlite_database.feed().ddl()
    assert ("AUTOINCREMENT" not in table.upper()) == ("AUTOINCREMENT" in "".join(statements))
    sqlite_database.run(statements)
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


def test_a_table_that_takes_a_renamed_ones_place_gets_what_the_old_one_has(
    sqlite_database: SqliteDatabase,
) -> None:
    """Triggers and indexes go with the old table, and keep their names."""
    columns = "written TEXT, data JSON"
    sqlite_database.served(columns, time="written")
    sqlite_database.apply(sqlite_database.feed(time="written").ddl(retention=True))
    sqlite_database.execute("ALTER TABLE outbox RENAME TO outbox_2026")
    sqlite_database.execute(f"CREATE TABLE outbox ({sqlite_database.id}, {columns})")
    statements = sqlite_database.feed(time="written").ddl(retention=True)
    for _ in range(2):
        sqlite_database.apply(statements)
    feed = sqlite_database.feed(time="written")
    sqlite_database.execute("INSERT INTO outbox (data) VALUES (1), (2), (3)")
    first = read(feed, hint=1)
    sqlite_database.execute("DELETE FROM outbox WHERE id = 2")
    with pytest.raises(Problem) as raised:
        read(feed, first.cursors)
    assert 410 == raised.value.status
    assert [] == sqlite_database.feed(time="written").ddl(retention=True)


def test_the_trigger_of_a_renamed_table_is_not_taken_for_that_of_the_new_one(
    sqlite_database: SqliteDatabase,
) -> None:
    """Its first request would look for it for ever."""
    prepared(sqlite_database, "ALTER TABLE outbox RENAME TO outbox_2026", retention=True)
    feed = sqlite_database.served("data JSON")
    sqlite_database.execute("INSERT INTO outbox (data) VALUES (7)")
    assert [7] == read(feed).data


def test_sqlite_says_what_it_cannot_do(sqlite_database: SqliteDatabase) -> None:
    """It wakes no readers, and has no transactions' numbers to move rows by, and no roles: nothing
    that I ask for is left out without a word.
    """
    feed = prepared(sqlite_database)
    for asked in ({"notify": True}, {"grant_to": "clerk"}, {"updates": True}):
        with pytest.raises(StoreError, match="SQLite"):
            feed.ddl(**asked)
