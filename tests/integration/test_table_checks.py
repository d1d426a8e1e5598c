"""The database refuses rows that cannot be events, in the service's own transaction."""

from __future__ import annotations

import json
import re
import sqlite3

import psycopg
import pytest

from tests.fix_cli import call
from tests.fix_table import Database, quoted, read
from zeh_spark.publisher import Problem, SqlTableFeed
from zeh_spark.wire import wire

REFUSED = (psycopg.Error, sqlite3.Error)
HEADERS = ["type", "amount", "tags"]


def served(database: Database, data: str = "text", **table: object) -> SqlTableFeed:
    """A table whose events have a header of text, one of a number, and one of JSON."""
    columns = f"type text, amount numeric, tags json, data {data}"
    return database.served(columns, headers=HEADERS, **table)


def insert(database: Database, data: str | None, type: str = "a", tags: str = "[]") -> None:
    given = "NULL" if data is None else quoted(data)
    database.execute(
        "INSERT INTO outbox (type, amount, tags, data)"
        f" VALUES ({quoted(type)}, 1.5, {quoted(tags)}, {given})"
    )


NO_EVENTS = [None, "null", "{", "", "{}{}", "nul", "{'a': 1}", json.dumps("x" * wire.MAX_LINE)]


@pytest.mark.parametrize("data", NO_EVENTS, ids=lambda each: str(each)[:8])
def test_what_cannot_be_an_event_is_refused(database: Database, data: str | None) -> None:
    """My service gets the error, at once, and not its readers, later."""
    served(database)
    with pytest.raises(REFUSED):
        insert(database, data)
    insert(database, "1")
    with pytest.raises(REFUSED):
        database.execute(f"UPDATE outbox SET data = {'NULL' if data is None else quoted(data)}")


def test_the_limit_counts_headers_as_they_are_sent(database: Database) -> None:
    """What is accepted can be served, up to the last byte that is."""
    feed = served(database)
    texts = ["a", 'quo"te' * 3000, "ö" * 9000, "\x01\t" * 3000]
    for text in texts:
        low, high = 0, wire.MAX_LINE
        while high - low > 1:  # the longest data that is accepted with this header
            size = (low + high) // 2
            try:
                insert(database, json.dumps("x" * size), text, json.dumps([text[:100]]))
                low = size
            except REFUSED:
                high = size
        assert low > 0
    found = read(feed, hint=10_000).lines
    assert len(found) == database.execute("SELECT count(*) FROM outbox")[0][0]
    for text in texts:
        longest = max(len(each) for each in found if json.loads(each)["headers"]["type"] == text)
        assert wire.MAX_LINE - 100 < longest <= wire.MAX_LINE + 1


def test_an_object_of_columns_is_counted(database: Database) -> None:
    """Its columns are data together; none of them has to be JSON."""
    feed = database.served("a text, b text", data=["a", "b"])
    half = "x" * (wire.MAX_LINE // 2)
    with pytest.raises(REFUSED):
        database.execute(f"INSERT INTO outbox (a, b) VALUES ('{half}', '{half}')")
    database.execute(f"INSERT INTO outbox (a, b) VALUES ('{half}', NULL)")
    assert [{"a": half, "b": None}] == read(feed).data


@pytest.mark.parametrize("kind", ["json", "jsonb", "integer", "varchar(70000)", "bytea"])
def test_every_type_of_data_is_checked(database: Database, kind: str) -> None:
    """A value that fits is accepted, and served."""
    if database.kind == "sqlite" and kind == "bytea":
        kind = "blob"
    feed = served(database, kind)
    insert(database, "12")
    assert 1 == len(read(feed).lines)
    assert [] == feed.ddl()


def test_rows_that_are_there_already_are_left_alone(database: Database) -> None:
    """The error of the first of them has the statement that replaces its data."""
    feed = served(database)
    bad = database.feed(table="older")
    database.execute(f"CREATE TABLE older ({database.id}, data text)")
    database.execute("INSERT INTO older (data) VALUES ('{'), ('2')")
    database.apply(bad.ddl())
    with pytest.raises(Problem) as raised:
        read(bad)
    [statement] = re.findall(r"UPDATE .*?;", raised.value.detail)
    database.execute(statement)
    assert [{"removed": True}, 2] == sorted(read(bad).data, key=str, reverse=True)
    assert [] == feed.ddl()


def test_checks_can_be_left_out(database: Database) -> None:
    """For a service that checks itself: `ddl --no-checks`."""
    database.execute(f"CREATE TABLE outbox ({database.id}, data text)")
    without = call("ddl", "outbox", "--url", database.url, "--no-checks")
    both = call("ddl", "outbox", "--url", database.url)
    assert "bytes" in both.stdout or "octet_length" in both.stdout, both.stderr
    database.run([without.stdout])
    insert_any = "INSERT INTO outbox (data) VALUES ('no JSON')"
    database.execute(insert_any)
    feed = database.feed()
    feed.check()
    database.apply(feed.ddl())
    with pytest.raises(REFUSED):
        database.execute(insert_any)


def test_statements_can_be_pasted_again(database: Database) -> None:
    """And after other settings the new limit takes the place of the old one."""
    served(database)
    feed = database.feed(headers=["type"])
    statements = feed.ddl()
    database.run(statements)
    database.run(statements)
    assert [] == feed.ddl()


COUNT_CHECKS = {
    "postgresql": "SELECT count(*) FROM pg_constraint WHERE conrelid = 'outbox'::regclass"
    " AND contype = 'c'",
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE sql LIKE 'CREATE TRIGGER%RAISE%'",
}


def test_a_column_that_is_no_header_any_more_can_be_dropped(database: Database) -> None:
    """No check of older settings is left, which would read it; other triggers stay."""
    database.execute(f"CREATE TABLE outbox ({database.id}, kind text, data json)")
    for headers in ([], ["kind"], []):
        feed = database.feed(headers=headers)
        database.run(feed.ddl(retention=True))
        assert [(2,)] == database.execute(COUNT_CHECKS[database.kind])
    database.execute("ALTER TABLE outbox DROP COLUMN kind")
    database.execute("INSERT INTO outbox (data) VALUES ('1')")
    with pytest.raises(REFUSED):
        database.execute("INSERT INTO outbox (data) VALUES ('{')")
    assert [] == feed.ddl(retention=True)
    assert [1] == read(feed).data
