"""The id of a feed that is a service's table: kept beside its history, told to readers."""

from __future__ import annotations

import re

import pytest
import requests

from tests.fix_table import Database, PostgresqlDatabase, SqliteDatabase, broken, insert, read
from zeh_spark.errors import StoreError
from zeh_spark.outbox.feed import SqlTableFeed
from zeh_spark.protocol import feed_identity
from zeh_spark.protocol.feed_identity import Epoch
from zeh_spark.publisher import Problem
from zeh_spark.testing import running_publisher


def id_of(feed: SqlTableFeed) -> str | None:
    found = feed.identity()
    return found.id if found else None


def as_before(database: Database) -> None:
    """A table that is a feed, as a version prepared it that gave feeds no ids."""
    broken(database)
    database.execute("ALTER TABLE zeroeventhub_history DROP COLUMN feed_id")


def test_reader_of_a_table_is_told_which_feed_it_is(database: Database) -> None:
    """It has one epoch, and the same id for as long as the table is there."""
    broken(database)
    with running_publisher({"outbox": database.feed()}) as base:
        told = feed_identity.parse(requests.get(f"{base}/outbox", timeout=30).json()["feed"])
    assert (Epoch(told.id),) == told.epochs
    assert told == database.feed().identity()
    database.feed(writes=True).new_history()
    assert told == database.feed().identity()


def test_two_tables_are_two_feeds(database: Database) -> None:
    """Also in one database, with one table of histories."""
    broken(database)
    database.execute(f"CREATE TABLE other ({database.id}, data json)")
    database.run(database.feed(table="other").ddl())
    assert len({id_of(database.feed()), id_of(database.feed(table="other")), None}) == 3


def test_table_of_an_older_version_is_served_without_an_id(database: Database) -> None:
    """An upgrade of the publisher stops no feed; what `ddl` prints then gives it an id, also while
    it is served.
    """
    as_before(database)
    feed = database.feed()
    assert ([1, 2, 3], None) == (read(feed).data, id_of(feed))
    with running_publisher({"outbox": feed}) as base:
        before = requests.get(f"{base}/outbox", timeout=30).json()
        cursors = read(feed).cursors
        statements = database.feed().ddl()
        database.run(statements)
        after = requests.get(f"{base}/outbox", timeout=30).json()
    insert(database, 4)
    assert (False, [4]) == ("feed" in before, read(feed, cursors).data)
    assert after["feed"]["id"] == id_of(database.feed())
    assert [] == database.feed().ddl()
    assert ["ALTER TABLE", "UPDATE"] == [re.match("[A-Z]+( TABLE)?", e)[0] for e in statements]  # type: ignore[index]


def test_what_is_printed_for_postgresql_may_be_run_again(
    postgresql_database: PostgresqlDatabase,
) -> None:
    """It gives no other id."""
    as_before(postgresql_database)
    statements = postgresql_database.feed().ddl()
    postgresql_database.run(statements)
    told = id_of(postgresql_database.feed())
    postgresql_database.run(statements)
    assert told == id_of(postgresql_database.feed())


def test_second_table_beside_one_of_an_older_version_gets_an_id(database: Database) -> None:
    """The table of histories gets its column on the way; the older feed has no id yet."""
    as_before(database)
    database.execute(f"CREATE TABLE other ({database.id}, data json)")
    feed = database.feed(table="other")
    database.run(feed.ddl())
    assert ([], None) == (feed.ddl(), id_of(database.feed()))
    assert id_of(feed)
    (statement,) = database.feed().ddl()
    assert statement.startswith("UPDATE")


def test_row_without_an_id_tells_none_and_gets_one(database: Database) -> None:
    """Somebody has written the row by hand."""
    broken(database)
    database.execute("UPDATE zeroeventhub_history SET feed_id = NULL")
    assert ([1, 2, 3], None) == (read(database.feed()).data, id_of(database.feed()))
    database.run(database.feed().ddl())
    assert id_of(database.feed())


def test_id_of_another_form_is_refused(database: Database) -> None:
    """Whoever writes one by hand hears what it has to be."""
    broken(database)
    database.execute("UPDATE zeroeventhub_history SET feed_id = 'orders'")
    with pytest.raises(StoreError, match="is 'orders'; it must be 16 digits"):
        database.feed().identity()


def test_feed_whose_history_is_gone_does_not_tell_that_it_has_no_id(database: Database) -> None:
    """It would look like another feed; I am told what is missing."""
    broken(database)
    feed = database.feed()
    feed.check()
    database.execute("DELETE FROM zeroeventhub_history")
    with pytest.raises(StoreError, match="zeh-spark ddl prints what is missing"):
        feed.identity()


def test_a_copy_of_a_table_gets_an_id_of_its_own(database: Database) -> None:
    """It goes on beside the original: another feed, whose readers begin anew."""
    broken(database)
    cursors, before = read(database.feed()).cursors, id_of(database.feed())
    database.feed(writes=True).new_history(copy=True)
    after = id_of(database.feed())
    assert None not in {before, after} and before != after
    with pytest.raises(Problem) as refused:
        read(database.feed(), cursors)
    assert "cursor-of-another-history" == refused.value.name
    assert [1, 2, 3] == read(database.feed()).data


def test_copy_of_a_table_of_an_older_version_is_told_what_it_needs(database: Database) -> None:
    """Nothing is half done: the history stays, and the statements are in the message."""
    as_before(database)
    history = database.feed().state().history
    with pytest.raises(StoreError, match="has no column feed_id yet") as refused:
        database.feed(writes=True).new_history(copy=True)
    assert history == database.feed().state().history
    assert all(each in str(refused.value) for each in database.feed().ddl())


def test_who_serves_a_table_may_tell_its_id(
    postgresql_database: PostgresqlDatabase, clerk: str
) -> None:
    """The rights that `ddl --grant-to` prints are enough."""
    broken(postgresql_database)
    postgresql_database.run(postgresql_database.feed().ddl(grant_to=clerk))
    assert id_of(postgresql_database.feed(role=clerk)) == id_of(postgresql_database.feed())


def test_ddl_gives_a_view_an_id(sqlite_database: SqliteDatabase) -> None:
    """A view is a feed of its own."""
    broken(sqlite_database)
    sqlite_database.execute("CREATE VIEW orders AS SELECT id, data FROM outbox")
    feed = sqlite_database.feed(table="orders")
    sqlite_database.run(feed.ddl())
    assert id_of(feed) not in {None, id_of(sqlite_database.feed())}
