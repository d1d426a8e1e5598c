"""Columns, tables and ids are of any name, and ids of any type; so are those in cursors."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.fix_table import Database, PostgresqlDatabase, read

# Names


NAMES = ["Order", "my col", 'a"b', "per%cent", "%s", "a:b", ":x", "it's", "ä", "select", "a\\b"]
SHORT = ["v", "t", "i", "d", "f", "h0", "c1", "c2", "found", "picked"]
"""What we may call something ourselves."""


def test_columns_may_have_any_name_as_data_header_and_key(database: Database) -> None:
    """I need not rename them."""
    for number, name in enumerate(NAMES + SHORT):
        quoted = '"' + name.replace('"', '""') + '"'
        settings = {"data": [name, "other"], "headers": [name], "partition_by": name}
        table = f"box{number}"
        feed = database.served(f"{quoted} text, other text", table=table, partitions=2, **settings)
        database.execute(f"INSERT INTO {table} ({quoted}, other) VALUES ('x', 'y'), ('z', 'y')")
        found = sorted(read(feed).events, key=lambda event: event["data"][name])
        assert [
            ({name: "x", "other": "y"}, {name: "x"}),
            ({name: "z", "other": "y"}, {name: "z"}),
        ] == [(event["data"], event["headers"]) for event in found]


def test_rows_come_in_order_of_ids_of_any_name(database: Database) -> None:
    """Whatever the id is called, and however the database reads the table."""
    if isinstance(database, PostgresqlDatabase):
        for each in ("indexscan", "bitmapscan", "indexonlyscan"):
            database.execute(f"ALTER DATABASE {database.name} SET enable_{each} = off")
    column = database.id
    for number, name in enumerate(NAMES + SHORT):
        quoted = '"' + name.replace('"', '""') + '"'
        database.id = column.replace("id ", f"{quoted} ", 1)
        settings = {"table": f"box{number}", "id": name, "partition_by": "k", "partitions": 2}
        feed = database.served("data integer, k text", **settings)
        values = ", ".join(f"({key}, {9 - key}, 'k{key % 3}')" for key in (3, 1, 2, 5, 4))
        database.execute(f"INSERT INTO box{number} ({quoted}, data, k) VALUES {values}")
        first = read(feed, n=1, hint=2)
        found = first.data, read(feed, first.cursors, n=1).data
        assert (name, [8, 7], [6, 5, 4]) == (name, *found)


def test_rows_come_in_order_of_transactions_of_any_name(postgresql_database: Database) -> None:
    """Whatever `tx` is called."""
    for number, name in enumerate(["v", "i", "t", "c0", "Tx No", "%d"]):
        feed = postgresql_database.served("data integer", table=f"box{number}", tx=name)
        for key in (3, 1, 2):
            row = f"INSERT INTO box{number} (id, data) VALUES ({key}, {key})"
            postgresql_database.execute(row)
        first = read(feed, hint=1)
        assert (name, [3], [1, 2]) == (name, first.data, read(feed, first.cursors).data)


def test_tables_may_have_any_name(database: Database) -> None:
    """I need not rename them either."""
    for name in ("Order", "my table", 'a"b', "per%cent", "a:b", "it's", "ä", "v"):
        quoted = '"' + name.replace('"', '""') + '"'
        database.execute(f"CREATE TABLE {quoted} ({database.id}, data text)")
        feed = database.feed(table=name)
        database.run(feed.ddl(retention=True))
        database.execute(f"INSERT INTO {quoted} (data) VALUES ('1'), ('2')")
        database.execute(f"DELETE FROM {quoted} WHERE id = 1")
        assert (name, [2]) == (name, read(feed).data)


def test_stored_partition_may_have_any_name(database: Database) -> None:
    """It is a column like others."""
    feed = database.served('data text, "v" integer', partition="v", partitions=2)
    database.execute("""INSERT INTO outbox (data, "v") VALUES ('0', 0), ('1', 1)""")
    assert {0: [0], 1: [1]} == {each: read(feed, {each: "_first"}, 2).data for each in (0, 1)}


# Ids


@pytest.mark.parametrize(
    ("type", "keys"),
    [
        ("smallint", ["-5", "0", "7"]),
        ("integer", ["-5", "0", "7"]),
        ("bigint", ["-5", "0", "7"]),
        ("uuid", [f"'{digit}b1ff5a4-9d0e-4e1f-8a39-0a6a0d2c7e11'" for digit in "09af"]),
    ],
)
def test_ids_are_integers_of_any_size_or_uuids(
    postgresql_database: Database, type: str, keys: list[str]
) -> None:
    """Negative ones among them. Rows of a transaction come in their order."""
    postgresql_database.id = f"id {type} PRIMARY KEY"
    feed = postgresql_database.served("data integer", partition_by="id", partitions=4)
    values = ", ".join(f"({key}, {number})" for number, key in reversed([*enumerate(keys)]))
    postgresql_database.execute(f"INSERT INTO outbox (id, data) VALUES {values}")
    page, found = read(feed, n=1, hint=1), []
    while page.data:
        found += page.data
        page = read(feed, page.cursors, n=1, hint=1)
    assert [*range(len(keys))] == found


@pytest.mark.postgresql
@pytest.mark.parametrize("size", [10, 60_000])
def test_uuids_come_in_their_own_order_in_a_danish_database(size: int) -> None:
    """There, aa is the last letter: no row comes twice, and a full page leaves out none."""
    with closing(PostgresqlDatabase()) as database:
        database.server.drop_database(database.name)
        database.server.execute(
            f"CREATE DATABASE {database.name} TEMPLATE template0 ENCODING 'UTF8'"
            " LOCALE_PROVIDER icu ICU_LOCALE 'da' LOCALE 'C.UTF-8'"
        )
        database.id = "id uuid PRIMARY KEY"
        feed = database.served("data jsonb")
        rest = "-0000-4000-8000-000000000000"
        keys = [f"0aa00000{rest}", *(f"0b0000{number:02}{rest}" for number in range(1, 20))]
        rows = ", ".join(
            f"('{key}', to_jsonb('{number:02}' || repeat('x', {size})))"
            for number, key in enumerate(keys)
        )
        database.execute(f"INSERT INTO outbox (id, data) VALUES {rows}")
        found, page = [], read(feed)
        while page.data:
            found += [int(each[:2]) for each in page.data]
            page = read(feed, page.cursors)
        assert [*range(20)] == found
