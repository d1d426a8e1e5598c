"""What a table needs to be a feed: what `check` refuses, and what `zeh-spark ddl` prints."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests import postgresql
from tests.fix_table import (
    COLUMNS,
    ROWS,
    Database,
    PostgresqlDatabase,
    insert,
    prepared,
    read,
    refusal,
)
from zeh_spark.errors import StoreError
from zeh_spark.service.outbox import postgresql_ddl
from zeh_spark.service.outbox.table import OutboxTable

KEYED = {"partition_by": "k", "partitions": 4}
STORED = {"partition": "p", "partitions": 2}
INDEX = postgresql_ddl.index_name(OutboxTable("outbox", "data"), '"tx", "id"')
DROP_INDEX = f'DROP INDEX "{INDEX}"'
DROP_KEY = "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey"
DROP_HISTORIES = "DROP TABLE zeroeventhub_history"
NULLABLE = "ALTER TABLE outbox ALTER %s DROP NOT NULL"
ANOTHER = "CREATE INDEX x ON outbox (%s, tx, id)"
PARTITION = "mod(('x' || substr(md5(coalesce(%s::text, id::text)), 1, 8))::bit(32)::bigint, %d)"
UNFINISHED = "UPDATE pg_index SET indisvalid = false WHERE indexrelid::regclass::text ~ 'zeroevent'"
REBUILT = [
    "ALTER TABLE outbox RENAME TO old",
    f"CREATE TABLE outbox (id INTEGER PRIMARY KEY, {COLUMNS})",
    "INSERT INTO outbox SELECT * FROM old",
]

Missing = tuple[str, str]
"""What is said is missing, and the statement that mends it."""
NOT_UNIQUE = "nothing says that id is unique", "UNIQUE"
NO_TX = "there is no column tx, for the transaction that writes a row", "ADD COLUMN IF NOT EXISTS"
NO_DEFAULT = "tx does not get the transaction by its default", "SET DEFAULT"
NO_INDEX = r"there is no index on \(tx, id\)", "CREATE INDEX CONCURRENTLY"
NO_PARTITIONS = r"there is no index on \(partition, tx, id\)", "CREATE INDEX CONCURRENTLY"
NO_HISTORY = "outbox has no history of its own"

Fault = tuple[list[str], dict[str, Any], Missing]
"""The changes that break a table, the feed's settings, and what is missing then."""
FAULTS: dict[str, dict[str, Fault]] = {
    "postgresql": {
        "id not unique": ([DROP_KEY], {}, NOT_UNIQUE),
        "id unique in part": (
            [DROP_KEY, "CREATE UNIQUE INDEX ON outbox (id) WHERE id > 1"], {}, NOT_UNIQUE),
        "id unique with another": (
            [DROP_KEY, "CREATE UNIQUE INDEX ON outbox (id, k)"], {}, NOT_UNIQUE),
        "id may be NULL": (
            [DROP_KEY, "CREATE UNIQUE INDEX ON outbox (id)", NULLABLE % "id"], {},
            ("id may be NULL", "SET NOT NULL")),
        "tx missing": (["ALTER TABLE outbox DROP tx"], {}, NO_TX),
        "tx without a default": (["ALTER TABLE outbox ALTER tx DROP DEFAULT"], {}, NO_DEFAULT),
        "tx of 0": (["ALTER TABLE outbox ALTER tx SET DEFAULT 0"], {}, NO_DEFAULT),
        "tx of the transaction alone": (
            ["ALTER TABLE outbox ALTER tx SET DEFAULT pg_current_xact_id()::text::bigint"], {},
            NO_DEFAULT),
        "tx may be NULL": (
            [NULLABLE % "tx", "UPDATE outbox SET tx = NULL"], {},
            ("tx may be NULL", "SET NOT NULL")),
        "no index": ([DROP_INDEX], {}, NO_INDEX),
        "index of id and tx": ([DROP_INDEX, "CREATE INDEX ON outbox (id, tx)"], {}, NO_INDEX),
        "index of some rows": (
            [DROP_INDEX, "CREATE INDEX ON outbox (tx, id) WHERE id > 1"], {}, NO_INDEX),
        "index that was not finished": ([UNFINISHED], {}, NO_INDEX),
        "index without partitions": ([], KEYED, NO_PARTITIONS),
        "index of fewer partitions": ([ANOTHER % PARTITION % ("k", 2)], KEYED, NO_PARTITIONS),
        "index of more partitions": ([ANOTHER % PARTITION % ("k", 14)], KEYED, NO_PARTITIONS),
        "index by another column": ([ANOTHER % PARTITION % ("p", 4)], KEYED, NO_PARTITIONS),
        "index by a column with a longer name": (
            ["ALTER TABLE outbox ADD kind text", ANOTHER % PARTITION % ("kind", 4)], KEYED,
            NO_PARTITIONS),
        "index of ours, by another column": (
            [DROP_INDEX, f'CREATE INDEX "{INDEX}" ON outbox ({PARTITION % ("p", 4)}, tx, id)'],
            KEYED, NO_PARTITIONS),
        "no index of stored partitions": ([], STORED, NO_PARTITIONS),
        "no history": (["DELETE FROM zeroeventhub_history"], {}, (NO_HISTORY, "INSERT INTO")),
        "no table of histories": ([DROP_HISTORIES], {}, (NO_HISTORY, "CREATE TABLE")),
        "everything": (
            ["ALTER TABLE outbox DROP tx", DROP_KEY, DROP_HISTORIES], KEYED,
            ("unique; there is no index on .* history of its own", "CREATE INDEX CONCURRENTLY")),
    },
    "sqlite": {
        "ids are given again": (REBUILT, {}, (
            "id is not INTEGER PRIMARY KEY AUTOINCREMENT: SQLite would give the ids of",
            "PRIMARY KEY AUTOINCREMENT")),
        "no history": (["DELETE FROM zeroeventhub_history"], {}, (NO_HISTORY, "INSERT OR IGNORE")),
        "no table of histories": ([DROP_HISTORIES], {}, (NO_HISTORY, "CREATE TABLE")),
        "everything": (
            [*REBUILT, DROP_HISTORIES], KEYED,
            (f"AUTOINCREMENT.* {NO_HISTORY}", "BEGIN IMMEDIATE")),
    },
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
    new = 0 if database.kind == "postgresql" else 4  # in PostgreSQL transactions go before ids
    insert(database, new)
    database.run(statements)
    assert (after, history) == (parts(database), database.feed(**settings).state().history)
    assert [1, 2, 3, new] == read(feed, n=1).data


# What is refused, and repaired


@pytest.mark.parametrize(
    ("database", "fault"),
    [(kind, fault) for kind in FAULTS for fault in FAULTS[kind]],
    indirect=["database"],
)
def test_table_that_misses_something_is_repaired_by_what_is_printed(
    database: Database, fault: str
) -> None:
    """I read what is wrong and paste the repair, also twice: rows are kept, before all others."""
    changes, settings, (reason, statement) = FAULTS[database.kind][fault]
    prepared(database, *changes)
    refused = refusal(database.feed(**settings))
    wanted = rf"table outbox cannot be served as a feed: .*{reason}.*zeh-spark ddl prints"
    assert re.search(wanted, refused), refused
    assert statement in refused.partition("zeh-spark ddl prints what is missing:\n")[2]
    repaired_by_what_is_printed(database, settings)


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
    """In an empty database, the printed table has all that it needs; again, it keeps its id."""
    name = settings.get("table", "outbox")
    assert f"there is no table {name}" in refusal(database.feed(**settings))
    statements = database.feed(**settings).ddl()
    database.run(statements)
    feed = database.feed(**settings)
    feed.check()
    assert [] == feed.ddl()
    before = feed.identity()
    database.run(statements)
    assert before == database.feed(**settings).identity()


@pytest.mark.parametrize("there", [False, True])
def test_all_that_can_be_had_is_printed(database: Database, there: bool) -> None:
    """With --updates and --retention, too; zeh-spark ddl can be repeated."""
    more = {"updates": database.kind == "postgresql", "retention": True}
    if there:
        prepared(database)
    database.run(database.feed().ddl(**more))
    database.feed().check()
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
        ("ALTER k TYPE jsonb USING NULL", KEYED,
         "k is of type jsonb; it must be one of int2, int4, int8, text, varchar, bpchar, uuid"),
        ("ALTER p TYPE text", STORED, "p is of type text; it must be one of int2, int4, int8"),
    ],
)  # fmt: skip
def test_table_that_cannot_be_repaired_is_refused(
    postgresql_database: Database, change: str, settings: dict[str, Any], reason: str
) -> None:
    """I am told why, by the command as well."""
    prepared(postgresql_database, f"ALTER TABLE outbox {change}")
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
            prepared(each)
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


@pytest.mark.parametrize("name", ["outbx", "Outbox", "outboxes"])
def test_a_misspelled_table_is_not_created(database: Database, name: str) -> None:
    """Its feed would be empty, and nothing would say so."""
    database.served("data json")
    said = refusal(database.feed(table=name))
    assert f"there is no table {name}; did you mean outbox?" in said
    with pytest.raises(StoreError, match=r"did you mean outbox\?"):
        database.feed(table=name).ddl()


@pytest.mark.parametrize(("old", "new"), [("outbox", "payments"), ("outbox_archive", "outbox")])
def test_a_table_with_another_name_is_created(database: Database, old: str, new: str) -> None:
    """As a new service begins, or one that has put its old rows aside."""
    database.served("data json", table=old)
    feed = database.feed(table=new)
    database.apply(feed.ddl())
    feed.check()


def test_a_misspelled_table_in_a_schema_is_not_created(postgresql_database: Database) -> None:
    """Only tables of that schema are meant."""
    postgresql_database.execute("CREATE SCHEMA shop")
    postgresql_database.served("data json")
    assert "did you mean" not in refusal(postgresql_database.feed(table="shop.outbx"))
    postgresql_database.execute("CREATE TABLE shop.outbox (id int)")
    assert "did you mean outbox?" in refusal(postgresql_database.feed(table="shop.outbx"))
