"""Triggers of a table that is a feed: rows that are updated, rows that are deleted, and who may."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from tests.fix_table import (
    COLUMNS,
    Database,
    PostgresqlDatabase,
    broken,
    insert,
    read,
    refusal,
)
from zeh_spark.outbox import feed as outbox_feed
from zeh_spark.publisher import Problem, SqlTableFeed

KEYED = {"partition_by": "k", "partitions": 4}


# Updates


def test_rows_may_be_updated(postgresql_database: Database) -> None:
    """With --updates, a row that is updated is a new event, behind all others."""
    broken(postgresql_database)
    postgresql_database.run(postgresql_database.feed().ddl(updates=True))
    feed = postgresql_database.feed()
    before = read(feed)
    postgresql_database.execute("UPDATE outbox SET data = '11' WHERE id = 1")
    assert ([1, 2, 3], [11], [2, 3, 11]) == (
        before.data,
        read(feed, before.cursors).data,
        read(feed).data,
    )


def test_transactions_of_rows_are_not_for_writers_to_say(postgresql_database: Database) -> None:
    """With --updates, what my service writes into `tx` does not count."""
    broken(postgresql_database)
    postgresql_database.run(postgresql_database.feed().ddl(updates=True))
    postgresql_database.execute("INSERT INTO outbox (id, tx, data) VALUES (0, 0, '4')")
    postgresql_database.execute("UPDATE outbox SET tx = 999999999 WHERE id = 1")
    assert [2, 3, 4, 1] == read(postgresql_database.feed()).data


def test_default_is_not_needed_where_a_trigger_gives_transactions(
    postgresql_database: Database,
) -> None:
    """One of both is enough."""
    broken(postgresql_database)
    postgresql_database.run(postgresql_database.feed().ddl(updates=True))
    postgresql_database.execute("ALTER TABLE outbox ALTER tx DROP DEFAULT")
    assert [] == postgresql_database.feed().ddl()


def test_trigger_that_is_off_gives_no_transactions(postgresql_database: Database) -> None:
    """I had disabled it for a load, and forgot it."""
    broken(postgresql_database)
    postgresql_database.run(postgresql_database.feed().ddl(updates=True))
    postgresql_database.execute("ALTER TABLE outbox ALTER tx DROP DEFAULT")
    postgresql_database.execute("ALTER TABLE outbox DISABLE TRIGGER zeroeventhub_tx")
    assert "tx does not get the transaction by its default" in refusal(postgresql_database.feed())


# Retention


def kept(database: Database, **settings: Any) -> SqlTableFeed:
    """A table of five rows, where what is deleted is noted."""
    broken(database)
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


def test_late_reader_is_told_what_was_deleted(database: Database) -> None:
    """I read up to row 2, and row 3 was deleted before I came again: 410, and where to go on."""
    feed = kept(database)
    cursor = cursor_behind(feed, 2)
    database.execute("DELETE FROM outbox WHERE id <= 3")
    assert [4, 5] == read(feed, gone(feed, cursor)).data


def test_reader_that_read_all_that_was_deleted_goes_on(database: Database) -> None:
    """Though the row of my cursor is gone."""
    feed = kept(database)
    cursors = [cursor_behind(feed, rows) for rows in (3, 4, 5)]
    database.execute("DELETE FROM outbox WHERE id <= 3")
    assert [[4, 5], [5], []] == [read(feed, cursor).data for cursor in cursors]


def test_reader_that_read_nothing_is_told_what_was_deleted(database: Database) -> None:
    """I have the cursor before the first row."""
    feed = kept(database)
    cursor = read(feed, hint=0).cursors[0]
    database.execute("DELETE FROM outbox WHERE id = 1")
    assert [2, 3, 4, 5] == read(feed, gone(feed, cursor)).data


def test_new_reader_begins_with_what_is_left(database: Database) -> None:
    """_first is no error."""
    feed = kept(database)
    database.execute("DELETE FROM outbox WHERE id <= 3")
    first = read(feed, hint=1)
    assert ([4], [5]) == (first.data, read(feed, first.cursors).data)


def test_new_reader_gets_all_that_is_left(database: Database) -> None:
    """Row 4 alone was deleted: the older ones are still there."""
    feed = kept(database)
    database.execute("DELETE FROM outbox WHERE id = 4")
    assert [1, 2, 3, 5] == read(feed).data


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_late_reader_is_told_that_all_was_deleted(database: Database, rows: int) -> None:
    """By TRUNCATE as well; then come new rows."""
    feed = kept(database)
    cursor = cursor_behind(feed, rows)
    end = cursor_behind(feed, 5)
    database.execute("TRUNCATE outbox" if database.kind == "postgresql" else "DELETE FROM outbox")
    insert(database, 6)
    assert ([6], [6], [6]) == (
        read(feed, gone(feed, cursor)).data,
        read(feed, end).data,
        read(feed).data,
    )


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


def test_deleting_nothing_is_no_news(database: Database) -> None:
    """A cron job that had nothing to do."""
    feed = kept(database)
    cursor = cursor_behind(feed, 1)
    database.execute("DELETE FROM outbox WHERE id > 100")
    assert [2, 3, 4, 5] == read(feed, cursor).data


def test_what_was_deleted_first_does_not_count_again(database: Database) -> None:
    """Rows are deleted in any order."""
    feed = kept(database)
    cursor = cursor_behind(feed, 3)
    for key in (3, 1, 2):
        database.execute(f"DELETE FROM outbox WHERE id = {key}")
    assert [4, 5] == read(feed, cursor).data


@pytest.mark.parametrize(
    ("kind", "by"),
    [("postgresql", "partition"), ("postgresql", "partition_by"), ("sqlite", "partition")],
)
def test_rows_are_noted_by_partition(request: pytest.FixtureRequest, kind: str, by: str) -> None:
    """What was deleted in another partition does not concern me. (SQLite cannot compute partitions,
    and notes those together.)
    """
    database: Database = request.getfixturevalue(f"{kind}_database")
    column = {"partition": "p", "partition_by": "k"}[by]
    feed = kept(database, **{by: column}, partitions=2)
    mine = {each: read(feed, {each: "_first"}).data for each in (0, 1)}
    with_three = next(each for each, data in mine.items() if 3 in data)
    other = 1 - with_three
    assert mine[other] and mine[with_three], "keys spread over partitions"
    cursors = {each: read(feed, {each: "_first"}, hint=0).cursors[each] for each in (0, 1)}
    database.execute("DELETE FROM outbox WHERE id = 3")
    left = [each for each in mine[with_three] if each != 3]
    assert mine[other] == read(feed, {other: cursors[other]}).data
    oldest = gone(feed, cursors[with_three], with_three)
    assert left == read(feed, {with_three: oldest}).data


def test_reader_of_fewer_partitions_is_told_of_each(database: Database) -> None:
    """A partition of mine is made of two."""
    feed = kept(database, partition="p", partitions=2)
    cursor = read(feed, n=1, hint=0).cursors[0]
    database.execute("DELETE FROM outbox WHERE p = 1")
    with pytest.raises(Problem) as raised:
        read(feed, {0: cursor}, n=1)
    assert "cursor-gone" == raised.value.name


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


def test_tables_are_noted_apart(database: Database) -> None:
    """What is deleted from one does not concern readers of another."""
    names = [f"outbox_of_a_service_whose_name_is_long_enough_{each}" for each in "ab"]
    for name in names:
        database.execute(f"CREATE TABLE {name} ({database.id}, {COLUMNS})")
        database.run(database.feed(table=name).ddl(retention=True))
        database.execute(f"INSERT INTO {name} (data) VALUES ('1'), ('2')")
    feeds = [database.feed(table=name) for name in names]
    cursors = [cursor_behind(feed, 0) for feed in feeds]
    database.execute(f"DELETE FROM {names[0]} WHERE id = 1")
    assert ([2], [1, 2]) == (
        read(feeds[0], gone(feeds[0], cursors[0])).data,
        read(feeds[1], cursors[1]).data,
    )


def test_retention_can_be_pasted_twice(database: Database) -> None:
    """What was noted stays noted."""
    broken(database)
    statements = database.feed().ddl(retention=True)
    database.run(statements)
    feed = database.feed()
    cursor = cursor_behind(feed, 0)
    database.execute("DELETE FROM outbox WHERE id <= 2")
    database.run(statements)
    assert [3] == read(feed, gone(feed, cursor)).data


# Who writes


def as_role(database: PostgresqlDatabase, role: str, statement: str) -> None:
    with closing(database.connect()) as connection:
        connection.execute(f"SET ROLE {role}")
        connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize("statement", ["DELETE FROM outbox WHERE id = 1", "TRUNCATE outbox"])
def test_who_may_delete_still_may_where_it_is_noted(
    postgresql_database: PostgresqlDatabase, clerk: str, statement: str
) -> None:
    """My service's role owns nothing; --retention does not break it."""
    feed = kept(postgresql_database)
    cursor = cursor_behind(feed, 0)
    postgresql_database.execute(f"GRANT SELECT, DELETE, TRUNCATE ON outbox TO {clerk}")
    as_role(postgresql_database, clerk, statement)
    gone(feed, cursor)


def test_who_may_write_still_may(postgresql_database: PostgresqlDatabase, clerk: str) -> None:
    """With --updates and all."""
    kept(postgresql_database)
    postgresql_database.run(postgresql_database.feed().ddl(updates=True))
    postgresql_database.execute(f"GRANT SELECT, INSERT, UPDATE ON outbox TO {clerk}")
    as_role(postgresql_database, clerk, "INSERT INTO outbox (id, data) VALUES (6, '6')")
    as_role(postgresql_database, clerk, "UPDATE outbox SET data = '66' WHERE id = 6")
    assert 66 == read(postgresql_database.feed()).data[-1]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM public.outbox WHERE id = 1",
        "TRUNCATE public.outbox",
        "UPDATE public.outbox SET data = '7' WHERE id = 1",
        "INSERT INTO public.outbox (id, data) VALUES (6, '6')",
    ],
)
def test_writers_may_have_any_search_path(
    postgresql_database: PostgresqlDatabase, statement: str
) -> None:
    """My service writes `public.outbox`, and looks for other tables elsewhere."""
    kept(postgresql_database)
    postgresql_database.run(postgresql_database.feed().ddl(updates=True))
    with closing(postgresql_database.connect()) as connection:
        connection.execute("SET search_path = ''")
        connection.execute(statement)
        connection.commit()
    read(postgresql_database.feed())
