"""Triggers of a table that is a feed: rows that are updated, rows that are deleted, and who may."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from tests.fix_table import (
    COLUMNS,
    Database,
    PostgresqlDatabase,
    insert,
    prepared,
    read,
    refusal,
)
from zeh_spark.errors import StoreError
from zeh_spark.publisher import Problem, SqlTableFeed
from zeh_spark.service.outbox import pages as outbox_feed
from zeh_spark.service.outbox import postgresql_ddl
from zeh_spark.service.outbox.table import OutboxTable

KEYED = {"partition_by": "k", "partitions": 4}


# Updates


def test_rows_may_be_updated(postgresql_database: Database) -> None:
    """With --updates, a row that is updated is a new event, behind all others; readers whose row
    has moved on go on. What my service writes into `tx` does not count.
    """
    feed = prepared(postgresql_database, updates=True)
    before = read(feed)
    for key in (1, 3):
        update = f"UPDATE outbox SET data = '{key}{key}' WHERE id = {key}"
        postgresql_database.execute(update)
    pages = before, read(feed, before.cursors), read(feed)
    assert [[1, 2, 3], [11, 33], [2, 11, 33]] == [each.data for each in pages]
    postgresql_database.execute("INSERT INTO outbox (id, tx, data) VALUES (0, 0, '4')")
    postgresql_database.execute("UPDATE outbox SET tx = 999999999 WHERE id = 2")
    assert [11, 33, 4, 2] == read(feed).data


def test_default_is_not_needed_where_a_trigger_gives_transactions(
    postgresql_database: Database,
) -> None:
    """One of both is enough, but not a trigger that I disabled for a load, and forgot."""
    prepared(postgresql_database, "ALTER TABLE outbox ALTER tx DROP DEFAULT", updates=True)
    assert [] == postgresql_database.feed().ddl()
    postgresql_database.execute("ALTER TABLE outbox DISABLE TRIGGER zeroeventhub_tx")
    assert "tx does not get the transaction by its default" in refusal(postgresql_database.feed())


# Retention


def kept(database: Database, **settings: Any) -> SqlTableFeed:
    """A table of five rows, where what is deleted is noted."""
    prepared(database)
    insert(database, 4)
    insert(database, 5)
    database.run(database.feed(**settings).ddl(retention=True))
    return database.feed(**settings)


def cursor_behind(feed: SqlTableFeed, rows: int, partition: int = 0) -> str:
    return read(feed, {partition: "_first"}, hint=rows).cursors[partition]


def gone(feed: SqlTableFeed, cursor: str, partition: int = 0) -> str:
    """The oldest cursor, as a reader is told it."""
    with pytest.raises(Problem) as raised:
        read(feed, {partition: cursor})
    document = raised.value.document()
    assert ("urn:zeroeventhub:problem:cursor-gone", 410, partition, cursor) == tuple(
        document[each] for each in ("type", "status", "partition", "cursor")
    )
    return str(document["oldest"])


@pytest.mark.parametrize(
    ("deleted", "last", "left"),
    [
        (["id <= 3"], 3, [4, 5]),
        (["id = 3", "id = 1", "id = 2"], 3, [4, 5]),
        (["id = 1"], 1, [2, 3, 4, 5]),
        (["id = 4"], 4, [1, 2, 3, 5]),
        (["id > 100"], 0, [1, 2, 3, 4, 5]),
        (["true"], 5, []),
    ],
    ids=str,
)
def test_late_reader_is_told_what_was_deleted(
    database: Database, deleted: list[str], last: int, left: list[int]
) -> None:
    """I have not read the last row that was deleted: 410, and where to go on. Who has read it goes
    on, though the row of his cursor is gone; _first begins with what is left.
    """
    feed = kept(database)
    cursors = [read(feed, hint=rows).cursors[0] for rows in range(6)]
    for each in deleted:
        truncated = each == "true" and database.kind == "postgresql"
        database.execute("TRUNCATE outbox" if truncated else f"DELETE FROM outbox WHERE {each}")
    insert(database, 6)
    first = read(feed, hint=1)
    assert [*left, 6] == [*first.data, *read(feed, first.cursors).data]
    later = [[key for key in (*left, 6) if key > rows] for rows in range(6)]
    assert later == [
        read(feed, gone(feed, cursor) if rows < last else cursor).data
        for rows, cursor in enumerate(cursors)
    ]


def test_rows_that_are_deleted_while_a_page_is_read_are_missed_by_nobody(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page ends before them, and the next one tells me."""
    monkeypatch.setattr(outbox_feed, "READ_ROWS", 2)
    feed = kept(database)
    page = feed.page({0: "_first"}, 1, None)
    before = next(page)
    database.execute("DELETE FROM outbox WHERE id IN (3, 4)")
    assert [] == list(page)
    assert [5] == read(feed, gone(feed, before.cursor)).data


@pytest.mark.parametrize(
    ("database", "by"),
    [
        ("postgresql", {"partition": "p"}),
        ("postgresql", {"partition_by": "k"}),
        ("sqlite", {"partition": "p"}),
    ],
    indirect=["database"],
)
def test_rows_are_noted_by_partition(database: Database, by: dict[str, str]) -> None:
    """What was deleted in another partition does not concern me, unless mine is made of both.
    (SQLite cannot compute partitions, and notes those together.)
    """
    feed = kept(database, **by, partitions=2)
    mine = {each: read(feed, {each: "_first"}).data for each in (0, 1)}
    with_three = next(each for each, data in mine.items() if 3 in data)
    other = 1 - with_three
    assert mine[other] and mine[with_three], "keys spread over partitions"
    cursors = {each: cursor_behind(feed, 0, each) for each in (0, 1)}
    of_both = read(feed, n=1, hint=0).cursors[0]
    database.execute("DELETE FROM outbox WHERE id = 3")
    with pytest.raises(Problem, match="events after it were removed"):
        read(feed, {0: of_both}, n=1)
    assert mine[other] == read(feed, {other: cursors[other]}).data
    oldest = gone(feed, cursors[with_three], with_three)
    assert [each for each in mine[with_three] if each != 3] == read(feed, {with_three: oldest}).data


def test_rows_are_noted_by_the_partitions_of_today(postgresql_database: Database) -> None:
    """I have four partitions now, where there were two: what is printed then tells it."""
    database = postgresql_database
    kept(database, partition_by="k", partitions=2)
    database.run(database.feed(**KEYED).ddl(retention=True))
    feed = database.feed(**KEYED)
    database.execute(
        "INSERT INTO outbox (id, k, data) SELECT g, g, '1' FROM generate_series(6, 40) g"
    )
    found = [read(feed, {each: "_first"}, hint=1) for each in range(4)]
    later = [read(feed, page.cursors).lines for page in found]
    assert all(later), "keys spread over partitions"
    database.execute("DELETE FROM outbox")
    for partition, page in enumerate(found):
        gone(feed, page.cursors[partition], partition)


def test_a_publisher_stops_if_deletions_are_noted_by_other_partitions(
    postgresql_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ddl` ran with four partitions, and the publisher still has two: also a page that it has
    begun ends there. After `ddl` with two, it serves again.
    """
    monkeypatch.setattr(outbox_feed, "READ_ROWS", 2)
    database = postgresql_database
    feed = kept(database, partition_by="k", partitions=2)
    database.execute(
        "INSERT INTO outbox (id, k, data) SELECT g, g, '1' FROM generate_series(6, 40) g"
    )
    start = read(feed, n=1, hint=0).cursors
    page = feed.page(start, 1, None)
    begun = next(page)
    database.run(database.feed(**KEYED).ddl(retention=True))
    partition = postgresql_ddl.partition_sql(OutboxTable("outbox", "data", **KEYED))
    database.execute(f"DELETE FROM outbox WHERE id > 20 AND {partition} >= 2")
    assert [] == list(page)
    with pytest.raises(StoreError, match="notes deleted rows by other partitions than"):
        read(feed, {0: begun.cursor}, n=1)
    database.run(database.feed(partition_by="k", partitions=2).ddl(retention=True))
    with pytest.raises(Problem, match="events after it were removed"):
        read(feed, {0: begun.cursor}, n=1)


def test_tables_are_noted_apart(database: Database) -> None:
    """One's deletions do not concern readers of another; run again, what was noted stays so."""
    names = [f"outbox_of_a_service_whose_name_is_long_enough_{each}" for each in "ab"]
    statements = []
    for name in names:
        database.execute(f"CREATE TABLE {name} ({database.id}, {COLUMNS})")
        statements.append(database.feed(table=name).ddl(retention=True))
        database.run(statements[-1])
        database.execute(f"INSERT INTO {name} (data) VALUES ('1'), ('2')")
    feeds = [database.feed(table=name) for name in names]
    cursors = [cursor_behind(feed, 0) for feed in feeds]
    database.execute(f"DELETE FROM {names[0]} WHERE id = 1")
    database.run(statements[0])
    assert ([2], [1, 2]) == (
        read(feeds[0], gone(feeds[0], cursors[0])).data,
        read(feeds[1], cursors[1]).data,
    )


# Who writes


def test_who_may_write_still_may(postgresql_database: PostgresqlDatabase, clerk: str) -> None:
    """My service's role owns nothing: neither option breaks it, and what it deletes is noted."""
    feed = kept(postgresql_database)
    postgresql_database.run(feed.ddl(updates=True))
    rights = "SELECT, INSERT, UPDATE, DELETE, TRUNCATE"
    postgresql_database.execute(f"GRANT {rights} ON outbox TO {clerk}")
    for statement, last in (
        ("UPDATE public.outbox SET data = '7' WHERE id = 1", 7),
        ("INSERT INTO public.outbox (id, data) VALUES (6, '6')", 6),
        ("DELETE FROM public.outbox WHERE id = 1", None),
        ("TRUNCATE public.outbox", None),
    ):
        cursor = cursor_behind(feed, 0)
        with closing(postgresql_database.connect()) as connection:
            connection.execute(f"SET ROLE {clerk}")
            connection.execute("SET search_path = ''")
            connection.execute(statement)
            connection.commit()
        if last is None:
            gone(feed, cursor)
        else:
            assert last == read(feed).data[-1]
