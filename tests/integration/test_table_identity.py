"""The id of a feed that is a service's table: kept beside its history, told to readers."""

from __future__ import annotations

import pytest
import requests

from tests.fix_table import Database, PostgresqlDatabase, SqliteDatabase, broken, read
from zeh_spark.errors import StoreError
from zeh_spark.outbox.feed import SqlTableFeed
from zeh_spark.protocol import feed_identity
from zeh_spark.protocol.feed_identity import Epoch
from zeh_spark.publisher import Problem
from zeh_spark.testing import running_publisher


def id_of(feed: SqlTableFeed) -> str:
    return feed.identity().id


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
    assert id_of(database.feed()) != id_of(database.feed(table="other"))


def test_what_is_printed_may_be_run_again(database: Database) -> None:
    """It gives no other id."""
    statements = database.feed().ddl()
    database.run(statements)
    told = id_of(database.feed())
    database.run(statements)
    assert told == id_of(database.feed())


def test_table_that_no_release_has_prepared_is_refused(database: Database) -> None:
    """It has no id: I hear what to do, and that works."""
    broken(database)
    database.execute("ALTER TABLE zeroeventhub_history DROP COLUMN feed_id")
    said = r"no column feed_id, so no release of zeh-spark has made it: drop it, and run what"
    feed = database.feed()
    for attempt in (feed.check, feed.ddl, lambda: database.feed(writes=True).new_history()):
        with pytest.raises(StoreError, match=said):
            attempt()
    database.execute("DROP TABLE zeroeventhub_history")
    database.run(database.feed().ddl())
    assert [1, 2, 3] == read(database.feed()).data


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
    assert before != after
    with pytest.raises(Problem) as refused:
        read(database.feed(), cursors)
    assert "cursor-of-another-history" == refused.value.name
    assert [1, 2, 3] == read(database.feed()).data


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
    assert id_of(feed) != id_of(sqlite_database.feed())
