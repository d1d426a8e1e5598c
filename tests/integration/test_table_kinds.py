"""Tables of a schema, views, partitioned tables, and roles that serve them."""

from __future__ import annotations

from typing import Any

import pytest

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
from zeh_spark.publisher import Problem, SqlTableFeed
from zeh_spark.service.store.interface import StoreBusyError

EVERYTHING = {"updates": True, "retention": True}
VIEW = "CREATE VIEW orders AS SELECT id, {}data FROM outbox WHERE id > 1"


# Roles


@pytest.mark.parametrize("retention", [False, True])
def test_role_serves_the_table_with_what_it_was_granted(
    postgresql_database: PostgresqlDatabase, clerk: str, retention: bool
) -> None:
    """--grant-to prints all that it needs, and no more than to read, the feed's id too."""
    database = postgresql_database
    for table in ("outbox", "shop.outbox", 'Shop s.Out"box'):
        quoted = ".".join('"' + each.replace('"', '""') + '"' for each in table.split("."))
        if "." in table:
            database.execute(f"CREATE SCHEMA {quoted.partition('.')[0]}")
        database.execute(f"CREATE TABLE {quoted} ({database.id}, {COLUMNS})")
        statements = database.feed(table=table).ddl(retention=retention, grant_to=clerk)
        database.run([*statements, *statements])
        database.execute(f"INSERT INTO {quoted} (data) VALUES ('1'), ('2')")
        feed = database.feed(table=table, role=clerk)
        feed.check()
        first = read(feed, hint=1)
        assert ([1], [2]) == (first.data, read(feed, first.cursors).data)
        assert (False, 0) == (feed.version() is None, feed.state().skipped)
        assert feed.identity() == database.feed(table=table).identity()


def test_role_without_grants_is_told_so(
    postgresql_database: PostgresqlDatabase, clerk: str
) -> None:
    """And not that something is missing."""
    prepared(postgresql_database)
    with pytest.raises(StoreError, match="permission denied for table"):
        read(postgresql_database.feed(role=clerk))


# Tables of other kinds


def test_table_of_a_schema_is_served(postgresql_database: Database) -> None:
    """What it needs stands in its schema, and another one of its name is another one."""
    feeds = []
    for schema in ("shop", "depot"):
        table = f"{schema}.outbox"
        postgresql_database.execute(f"CREATE SCHEMA {schema}")
        postgresql_database.execute(f"CREATE TABLE {table} ({postgresql_database.id}, data json)")
        feeds.append(postgresql_database.feed(table=table))
        postgresql_database.run(feeds[-1].ddl(**EVERYTHING))
        postgresql_database.execute(f"INSERT INTO {table} (data) VALUES ('\"{schema}\"')")
    assert [["shop"], ["depot"]] == [read(feed).data for feed in feeds]
    assert [] == feeds[0].ddl(**EVERYTHING)
    assert feeds[0].state().history != feeds[1].state().history


def test_view_is_served(database: Database) -> None:
    """It shows a part of a table, which has the index; its history and id are its own."""
    table = prepared(database, VIEW.format("tx, " if database.kind == "postgresql" else ""))
    feed = database.feed(table="orders")
    assert "orders has no history of its own" in refusal(feed)
    statements = feed.ddl()
    database.run([*statements, *statements])
    insert(database, 4)
    first = read(feed, hint=1)
    assert ([2], [3, 4], []) == (first.data, read(feed, first.cursors).data, feed.ddl())
    assert feed.identity().id != table.identity().id


def test_view_without_transactions_is_refused(postgresql_database: Database) -> None:
    """Only I can say which table's they are."""
    prepared(postgresql_database, VIEW.format(""))
    feed = postgresql_database.feed(table="orders")
    assert "the view has no column tx: let it show its table's" in refusal(feed)
    with pytest.raises(StoreError, match="the view has no column tx"):
        feed.ddl()


def test_slow_view_is_given_up_in_time(postgresql_database: Database) -> None:
    """A reader is told to ask again; no connection is kept for ever."""
    database = postgresql_database
    prepared(
        database,
        "CREATE VIEW slow AS SELECT id, tx, data FROM outbox WHERE pg_sleep(5) IS NOT NULL",
    )
    database.run(database.feed(table="slow").ddl())
    engine = database.engine(statement_timeout="100ms")
    with pytest.raises(StoreBusyError, match="statement timeout"):
        read(SqlTableFeed(engine, table="slow", data="data"))


@pytest.mark.parametrize("option", EVERYTHING)
def test_views_need_what_their_tables_have(database: Database, option: str) -> None:
    """Triggers belong to the table: nothing is printed that would not work."""
    prepared(database, VIEW.format("tx, " if database.kind == "postgresql" else ""))
    feed = database.feed(table="orders")
    try:
        statements = feed.ddl(**{option: True})
    except StoreError as exc:
        assert "orders is a view" in str(exc)
        return
    database.run(statements)


@pytest.mark.parametrize(
    "settings", [{}, {"partition_by": "k", "partitions": 4}], ids=["one", "four"]
)
def test_partitioned_table_is_served(
    postgresql_database: Database, settings: dict[str, Any]
) -> None:
    """Its rows stand in several tables, of which one is added later."""
    database = postgresql_database
    database.execute(
        f"CREATE TABLE outbox (id bigint PRIMARY KEY, {COLUMNS}) PARTITION BY RANGE (id)"
    )
    database.execute("CREATE TABLE low PARTITION OF outbox FOR VALUES FROM (0) TO (3)")
    database.execute("CREATE TABLE high PARTITION OF outbox FOR VALUES FROM (3) TO (6)")
    database.execute(ROWS)
    feed = database.feed(**settings)
    statements = feed.ddl(**EVERYTHING)
    database.run([*statements, *statements])
    assert [] == feed.ddl(**EVERYTHING)
    before = read(feed, n=1)
    database.execute("CREATE TABLE higher PARTITION OF outbox FOR VALUES FROM (6) TO (9)")
    insert(database, 7)
    insert(database, 4)
    database.execute("UPDATE outbox SET data = '22' WHERE id = 2")
    assert ([1, 2, 3], [7, 4, 22]) == (before.data, read(feed, before.cursors, n=1).data)
    database.execute("DELETE FROM outbox WHERE id IN (1, 7)")
    with pytest.raises(Problem, match="events after it were removed"):
        read(feed, before.cursors, n=1)
