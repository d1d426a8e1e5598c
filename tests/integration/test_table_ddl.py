"""What a table needs to be a feed: what `check` refuses, and what `zeh-spark ddl` prints."""

from __future__ import annotations

from typing import Any

import pytest

from tests import postgresql
from tests.fix_table import (
    COLUMNS,
    ROWS,
    Database,
    PostgresqlDatabase,
    broken,
    insert,
    read,
    refusal,
)
from zeh_spark.errors import StoreError
from zeh_spark.outbox import postgresql_ddl
from zeh_spark.outbox.table import OutboxTable

KEYED = {"partition_by": "k", "partitions": 4}
INDEX = postgresql_ddl.index_name(OutboxTable("outbox", "data"), '"tx", "id"')
DROP_INDEX = f'DROP INDEX "{INDEX}"'
DROP_KEY = "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey"
NULLABLE = "ALTER TABLE outbox ALTER %s DROP NOT NULL"
ANOTHER = "CREATE INDEX x ON outbox (%s, tx, id)"
PARTITION = "mod(('x' || substr(md5(coalesce(%s::text, id::text)), 1, 8))::bit(32)::bigint, %d)"

# Of each: what makes it, what is said, and what mends it.
Fault = tuple[list[str], dict[str, Any], str, str]
"""Changes that break a table, the feed's settings, the reason of the refusal, and the repair."""
POSTGRESQL_FAULTS: dict[str, Fault] = {
    "id not unique": ([DROP_KEY], {}, "nothing says that id is unique", "UNIQUE"),
    "id unique in part": (
        [DROP_KEY, "CREATE UNIQUE INDEX ON outbox (id) WHERE id > 1"], {},
        "nothing says that id is unique", "UNIQUE",
    ),
    "id unique with another": (
        [DROP_KEY, "CREATE UNIQUE INDEX ON outbox (id, k)"], {},
        "nothing says that id is unique", "UNIQUE",
    ),
    "id may be NULL": (
        [DROP_KEY, "CREATE UNIQUE INDEX ON outbox (id)", NULLABLE % "id"],
        {}, "id may be NULL", "SET NOT NULL",
    ),
    "tx missing": (
        ["ALTER TABLE outbox DROP tx"], {},
        "there is no column tx, for the transaction that writes a row", "ADD COLUMN IF NOT EXISTS",
    ),
    "tx without a default": (
        ["ALTER TABLE outbox ALTER tx DROP DEFAULT"], {},
        "tx does not get the transaction by its default", "SET DEFAULT",
    ),
    "tx of 0": (
        ["ALTER TABLE outbox ALTER tx SET DEFAULT 0"], {},
        "tx does not get the transaction by its default", "SET DEFAULT",
    ),
    "tx of the transaction alone": (
        ["ALTER TABLE outbox ALTER tx SET DEFAULT pg_current_xact_id()::text::bigint"], {},
        "tx does not get the transaction by its default", "SET DEFAULT",
    ),
    "tx may be NULL": (
        [NULLABLE % "tx", "UPDATE outbox SET tx = NULL"], {},
        "tx may be NULL", "SET NOT NULL",
    ),
    "no index": ([DROP_INDEX], {}, r"there is no index on \(tx, id\)", "CREATE INDEX CONCURRENTLY"),
    "index of id and tx": (
        [DROP_INDEX, "CREATE INDEX ON outbox (id, tx)"], {},
        r"there is no index on \(tx, id\)", "CREATE INDEX CONCURRENTLY",
    ),
    "index of some rows": (
        [DROP_INDEX, "CREATE INDEX ON outbox (tx, id) WHERE id > 1"], {},
        r"there is no index on \(tx, id\)", "CREATE INDEX CONCURRENTLY",
    ),
    "index that was not finished": (
        ["UPDATE pg_index SET indisvalid = false WHERE indexrelid::regclass::text ~ 'zeroevent'"],
        {}, r"there is no index on \(tx, id\)", "INDEX CONCURRENTLY",
    ),
    "index without partitions": (
        [], KEYED, r"there is no index on \(partition, tx, id\)", "CREATE INDEX CONCURRENTLY",
    ),
    "index of fewer partitions": (
        [ANOTHER % PARTITION % ("k", 2)], KEYED,
        r"there is no index on \(partition, tx, id\)", "CREATE INDEX CONCURRENTLY",
    ),
    "index of more partitions": (
        [ANOTHER % PARTITION % ("k", 14)], KEYED,
        r"there is no index on \(partition, tx, id\)", "CREATE INDEX CONCURRENTLY",
    ),
    "index by another column": (
        [ANOTHER % PARTITION % ("p", 4)], KEYED,
        r"there is no index on \(partition, tx, id\)", "CREATE INDEX CONCURRENTLY",
    ),
    "index by a column with a longer name": (
        ["ALTER TABLE outbox ADD kind text", ANOTHER % PARTITION % ("kind", 4)], KEYED,
        r"there is no index on \(partition, tx, id\)", "CREATE INDEX CONCURRENTLY",
    ),
    "index of ours, by another column": (
        [DROP_INDEX, f'CREATE INDEX "{INDEX}" ON outbox ({PARTITION % ("p", 4)}, tx, id)'], KEYED,
        r"there is no index on \(partition, tx, id\)", "INDEX CONCURRENTLY",
    ),
    "no index of stored partitions": (
        [], {"partition": "p", "partitions": 2},
        r"there is no index on \(partition, tx, id\)", "CREATE INDEX CONCURRENTLY",
    ),
    "no history": (
        ["DELETE FROM zeroeventhub_history"], {}, "outbox has no history of its own", "INSERT INTO",
    ),
    "no table of histories": (
        ["DROP TABLE zeroeventhub_history"], {}, "outbox has no history of its own", "CREATE TABLE",
    ),
    "everything": (
        ["ALTER TABLE outbox DROP tx", DROP_KEY, "DROP TABLE zeroeventhub_history"], KEYED,
        "unique; there is no index on .* history of its own", "CREATE INDEX CONCURRENTLY",
    ),
}  # fmt: skip

REBUILT = [
    "ALTER TABLE outbox RENAME TO old",
    f"CREATE TABLE outbox (id INTEGER PRIMARY KEY, {COLUMNS})",
    "INSERT INTO outbox SELECT * FROM old",
]
SQLITE_FAULTS: dict[str, Fault] = {
    "ids are given again": (
        REBUILT, {}, "id is not INTEGER PRIMARY KEY AUTOINCREMENT: SQLite would give the ids of",
        "PRIMARY KEY AUTOINCREMENT",
    ),
    "no history": (
        ["DELETE FROM zeroeventhub_history"], {}, "outbox has no history of its own",
        "INSERT OR IGNORE",
    ),
    "no table of histories": (
        ["DROP TABLE zeroeventhub_history"], {}, "outbox has no history of its own", "CREATE TABLE",
    ),
    "everything": (
        [*REBUILT, "DROP TABLE zeroeventhub_history"], KEYED,
        "AUTOINCREMENT.* outbox has no history of its own", "BEGIN IMMEDIATE",
    ),
}  # fmt: skip


def parts(database: Database) -> list[tuple[Any, ...]]:
    """All that the database has beside rows."""
    if database.kind == "sqlite":
        return database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name")
    return [
        *database.execute("SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1"),
        *database.execute("SELECT tgname, tgrelid::regclass::text FROM pg_trigger ORDER BY 1"),
        *database.execute("SELECT conname FROM pg_constraint ORDER BY 1"),
    ]


def repaired_by_what_is_printed(database: Database, settings: dict[str, Any]) -> None:
    statements = database.feed(**settings).ddl()
    database.run(statements)
    feed = database.feed(**settings)
    feed.check()
    assert [] == feed.ddl()
    after, history = parts(database), feed.state().history
    insert(database, 4)
    database.run(statements)
    assert (after, history) == (parts(database), database.feed(**settings).state().history)
    assert [1, 2, 3, 4] == read(feed, n=1).data


# What is refused, and repaired


def refused_with_the_repair(database: Database, fault: Fault) -> None:
    changes, settings, reason, statement = fault
    broken(database, changes)
    feed = database.feed(**settings)
    wanted = rf"table outbox cannot be served as a feed: .*{reason}.*zeh-spark ddl prints"
    with pytest.raises(StoreError, match=wanted):
        feed.check()
    assert statement in refusal(feed).partition("zeh-spark ddl prints what is missing:\n")[2]


@pytest.mark.parametrize("fault", POSTGRESQL_FAULTS)
def test_table_in_postgresql_that_misses_something_is_repaired_by_what_is_printed(
    postgresql_database: Database, fault: str
) -> None:
    """I read what is wrong, and the statements that repair it. I paste them, also twice: rows are
    kept, and come before all others.
    """
    refused_with_the_repair(postgresql_database, POSTGRESQL_FAULTS[fault])
    repaired_by_what_is_printed(postgresql_database, POSTGRESQL_FAULTS[fault][1])


@pytest.mark.parametrize("fault", SQLITE_FAULTS)
def test_table_in_sqlite_that_misses_something_is_repaired_by_what_is_printed(
    sqlite_database: Database, fault: str
) -> None:
    """I read what is wrong, and the statements that repair it. I paste them, also twice: rows are
    kept.
    """
    refused_with_the_repair(sqlite_database, SQLITE_FAULTS[fault])
    repaired_by_what_is_printed(sqlite_database, SQLITE_FAULTS[fault][1])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"data": ["a", "b"], "headers": ["kind"]},
        KEYED,
        {"partition": "p", "partitions": 2},
        {"table": "Order", "id": "No", "headers": ["data"]},
    ],
    ids=str,
)
def test_table_that_is_missing_is_made_by_what_is_printed(
    database: Database, settings: dict[str, Any]
) -> None:
    """I begin with an empty database: the table that is printed has all that it needs."""
    name = settings.get("table", "outbox")
    assert f"there is no table {name}" in refusal(database.feed(**settings))
    statements = database.feed(**settings).ddl()
    database.run(statements)
    database.feed(**settings).check()
    assert [] == database.feed(**settings).ddl()
    database.run(statements)


def test_all_that_can_be_had_is_printed_for_a_table_that_is_missing(database: Database) -> None:
    """With --updates and --retention, too."""
    more = {"updates": database.kind == "postgresql", "retention": True}
    database.run(database.feed().ddl(**more))
    database.feed().check()
    assert [] == database.feed().ddl(**more)


def test_existing_rows_have_transaction_0(postgresql_database: Database) -> None:
    """A table that I have had for years becomes a feed."""
    postgresql_database.execute(f"CREATE TABLE outbox (id bigint PRIMARY KEY, {COLUMNS})")
    postgresql_database.execute(ROWS)
    postgresql_database.run(postgresql_database.feed().ddl())
    insert(postgresql_database, 0)
    found = postgresql_database.execute("SELECT id FROM outbox WHERE tx = 0 ORDER BY id")
    assert ([(1,), (2,), (3,)], [1, 2, 3, 0]) == (found, read(postgresql_database.feed()).data)


def test_tables_that_have_all_need_nothing(database: Database) -> None:
    """zeh-spark ddl can be repeated."""
    more = {"updates": database.kind == "postgresql", "retention": True}
    broken(database)
    database.run(database.feed().ddl(**more))
    assert [] == database.feed().ddl(**more)


# What no statement mends


@pytest.mark.parametrize(
    ("change", "settings", "reason"),
    [
        ("DROP k", KEYED, "there is no column k; there are id, p, data, tx"),
        ("DROP data", {}, "there is no column data; there are id, k, p, tx"),
        ("ADD x text", {"headers": ["y", "x"]}, "there is no column y; there are"),
        ("ADD x text", {"id": "nr"}, "there is no column nr; there are"),
        ("ALTER id TYPE text", {}, "id is of type text; it must be one of int2, int4, int8, uuid"),
        ("ALTER id TYPE numeric", {}, "id is of type numeric; it must be one of int2"),
        ("ALTER tx DROP DEFAULT, ALTER tx TYPE integer", {}, "tx is of type int4; it must be big"),
        (
            "ALTER k TYPE jsonb USING NULL",
            KEYED,
            "k is of type jsonb; it must be one of int2, int4, int8, text, varchar, bpchar, uuid",
        ),
        (
            "ADD x text",
            {"partition": "k", "partitions": 2},
            "k is of type text; it must be one of int2, int4, int8",
        ),
    ],
)
def test_table_that_cannot_be_repaired_is_refused(
    postgresql_database: Database, change: str, settings: dict[str, Any], reason: str
) -> None:
    """I am told why, by the command as well."""
    broken(postgresql_database, [f"ALTER TABLE outbox {change}"])
    feed = postgresql_database.feed(**settings)
    assert reason in refusal(feed)
    with pytest.raises(StoreError, match=reason):
        feed.ddl()


@pytest.mark.postgresql
def test_table_of_a_subscription_is_refused() -> None:
    """Its rows have numbers of another cluster's transactions."""
    postgresql.needed()
    server = postgresql.Server("wal_level=logical")
    source, target = PostgresqlDatabase(server), PostgresqlDatabase(server)
    try:
        for each in (source, target):
            broken(each)
        source.execute("CREATE PUBLICATION p FOR TABLE outbox")
        source.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        target.execute(
            f"CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port={server.port}"
            f" user={postgresql.USER} dbname={source.name}' PUBLICATION p"
            f" WITH (create_slot = false, copy_data = false, slot_name = 's')"
        )
        source.feed().check()
        assert "outbox is filled by a logical subscription" in refusal(target.feed())
        with pytest.raises(StoreError, match="serve the table where it is written"):
            target.feed().ddl()
    finally:
        for each in (source, target):
            Database.close(each)  # the databases go with the server
        server.remove()


def test_partitioned_table_is_repaired(postgresql_database: Database) -> None:
    """Indexes of partitioned tables cannot be made concurrently: it is not said so."""
    database = postgresql_database
    database.execute(f"CREATE TABLE outbox (id bigint NOT NULL, {COLUMNS}) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE low PARTITION OF outbox FOR VALUES FROM (0) TO (9)")
    database.execute(ROWS)
    repaired_by_what_is_printed(database, {})
