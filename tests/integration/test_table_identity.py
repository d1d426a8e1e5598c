"""The id of a feed that is a service's table: kept beside its history, told to readers."""

from __future__ import annotations

import pytest
import requests

from tests.fix_table import Database, prepared, read
from zeh_spark.errors import StoreError
from zeh_spark.publisher import Problem
from zeh_spark.testing import running_publisher
from zeh_spark.wire import feed_identity
from zeh_spark.wire.feed_identity import Epoch


def test_reader_of_a_table_is_told_which_feed_it_is(database: Database) -> None:
    """It has one epoch, and the same id for as long as the table is there; another table in the
    same database, with one table of histories, has another one.
    """
    with running_publisher({"outbox": prepared(database)}) as base:
        told = feed_identity.parse(requests.get(f"{base}/outbox", timeout=30).json()["feed"])
    assert (Epoch(told.id),) == told.epochs
    assert told == database.feed().identity()
    database.feed(writes=True).new_history()
    assert told == database.feed().identity()
    assert told.id != database.served("data json", table="other").identity().id


def test_table_that_no_release_has_prepared_is_refused(database: Database) -> None:
    """It has no id: I hear what to do, and that works."""
    prepared(database, "ALTER TABLE zeroeventhub_history DROP COLUMN feed_id")
    said = r"no column feed_id, so no release of zeh-spark has made it: drop it, and run what"
    feed = database.feed()
    for attempt in (feed.check, feed.ddl, lambda: database.feed(writes=True).new_history()):
        with pytest.raises(StoreError, match=said):
            attempt()
    database.execute("DROP TABLE zeroeventhub_history")
    database.run(database.feed().ddl())
    assert [1, 2, 3] == read(database.feed()).data


def test_id_that_is_of_another_form_or_gone_is_refused(database: Database) -> None:
    """An id that was written by hand and is none is refused with its form. If the history is gone,
    the error says what is missing, because the feed would otherwise look like another one.
    """
    prepared(database, "UPDATE zeroeventhub_history SET feed_id = 'orders'")
    feed = database.feed()
    feed.check()
    with pytest.raises(StoreError, match="is 'orders'; it must be 16 digits"):
        feed.identity()
    database.execute("DELETE FROM zeroeventhub_history")
    with pytest.raises(StoreError, match="zeh-spark ddl prints what is missing"):
        feed.identity()


def test_a_copy_of_a_table_gets_an_id_of_its_own(database: Database) -> None:
    """It goes on beside the original: another feed, whose readers begin anew."""
    feed = prepared(database)
    cursors, before = read(feed).cursors, feed.identity()
    database.feed(writes=True).new_history(copy=True)
    feed = database.feed()
    assert before.id != feed.identity().id
    with pytest.raises(Problem) as refused:
        read(feed, cursors)
    assert "cursor-of-another-history" == refused.value.name
    assert [1, 2, 3] == read(feed).data
