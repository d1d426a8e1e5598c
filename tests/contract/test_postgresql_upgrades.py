"""Upgrades of a store in PostgreSQL: who makes one, what it keeps, and who may write meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from sqlalchemy import Connection, text

from tests.contract.databases import in_threads, site, store
from tests.contract.sites import PostgresqlSite
from tests.store_contract.writers import FEED, call, chunk, data, everything, publish, until, upload
from zeh_spark.errors import StoreError
from zeh_spark.publisher import migrate_store, open_store
from zeh_spark.sql_store.store import SqlStore
from zeh_spark.store.access import ADMIN, new_token
from zeh_spark.store.acts import Actor, Via
from zeh_spark.store.interface import Retention, StoreBusyError

__all__ = ["site", "store"]


def test_tables_of_a_later_version_are_left_alone(site: PostgresqlSite, store: SqlStore) -> None:
    """An old program does not harm what a newer one has written."""
    store._write(lambda db: db.execute(text("UPDATE zeroeventhub.store SET version = 99")))
    with pytest.raises(StoreError, match="version 99, and this zeh-spark knows versions up to 10"):
        open_store(site.url)


_WITHOUT_VERSION_10 = (
    "ALTER TABLE zeroeventhub.chunks ADD CONSTRAINT chunks_blob_fkey"
    " FOREIGN KEY (blob) REFERENCES zeroeventhub.blobs",
    "DROP TABLE zeroeventhub.makers",
    "ALTER TABLE zeroeventhub.retentions DROP COLUMN producers_ms",
)
_WITHOUT_VERSION_9 = (
    *_WITHOUT_VERSION_10,
    "DROP TABLE zeroeventhub.acts",
    "DROP FUNCTION zeroeventhub.acts_stay",
)


def _as_version_8(store: SqlStore) -> None:
    """Without what version 9 and later ones have added."""
    for each in (*_WITHOUT_VERSION_9, "UPDATE zeroeventhub.store SET version = 8"):
        store._write(lambda db, each=each: db.execute(text(each)))


def _as_version_9(store: SqlStore) -> None:
    """With what version 10 has dropped."""
    for each in (*_WITHOUT_VERSION_10, "UPDATE zeroeventhub.store SET version = 9"):
        store._write(lambda db, each=each: db.execute(text(each)))


def _as_version_3(store: SqlStore) -> None:
    """Without what later versions have added."""
    statements = [
        *_WITHOUT_VERSION_9,
        "DROP FUNCTION zeroeventhub.check_version CASCADE",
        "DROP TABLE zeroeventhub.epochs, zeroeventhub.cursor_set_names, zeroeventhub.clocks",
        "ALTER TABLE zeroeventhub.retentions DROP COLUMN names_ms",
        "ALTER TABLE zeroeventhub.sequences DROP COLUMN first",
        "ALTER TABLE zeroeventhub.feeds DROP COLUMN events, DROP COLUMN size",
        "UPDATE zeroeventhub.store SET version = 3",
    ]
    for each in statements:
        store._write(lambda db, each=each: db.execute(text(each)))


def test_store_of_version_3_goes_on(site: PostgresqlSite, store: SqlStore) -> None:
    """My feeds keep their events, their cursors and their ids, also if the store is upgraded five
    times at once; and take epochs from then on.
    """
    publish(store, chunk(0, b"1"))
    store.set_retention(FEED, Retention(age_ms=5))
    store.save_cursors(FEED, "mailer", 2, {0: "1.x"})
    name, _ = store.identity(FEED).id, _as_version_3(store)
    assert [] == in_threads(5, lambda _: migrate_store(site.url))
    publish(store, chunk(0, b"2"))
    begun = site.open().begin_epoch(FEED)
    publish(store, chunk(0, b"3"))
    assert Retention(age_ms=5) == site.open().retention(FEED)
    store.save_cursors(FEED, "mailer", 2, {1: "2.x"}, "a")
    assert {0: "1.x", 1: "2.x"} == store.load_cursors(FEED, "mailer", 2, "a")
    found = [begun.at(each.time) for each in everything(store)]
    assert ([b"1", b"2", b"3"], [name, name, begun.epochs[1].id]) == (data(store), found)


@pytest.mark.parametrize("back", [None, _as_version_9, _as_version_3])
def test_nothing_that_is_deleted_is_searched_for_in_a_whole_table(
    site: PostgresqlSite, store: SqlStore, back: Callable[[SqlStore], None] | None
) -> None:
    """PostgreSQL looks for rows that refer to a deleted one, through an index or through all rows:
    retention must not take longer with each chunk that a feed has.
    """
    if back:
        back(store)
        migrate_store(site.url)
    unindexed = (
        "SELECT c.conname FROM pg_constraint c WHERE c.contype = 'f'"
        " AND c.connamespace = 'zeroeventhub'::regnamespace AND NOT EXISTS (SELECT FROM pg_index i"
        " WHERE i.indrelid = c.conrelid AND i.indkey[0] = c.conkey[1])"
    )
    assert [] == site._server.execute(unindexed, site._databases[-1])


@pytest.mark.parametrize("back", [_as_version_3, _as_version_8])
def test_upgrade_leaves_one_act(
    site: PostgresqlSite, store: SqlStore, back: Callable[[SqlStore], None]
) -> None:
    """I see who upgraded my store; and from then on acts stay, and older programs add none."""
    back(store)
    before = store.stored_version()
    alice = Actor("alice@host", Via.CLI)
    assert [] == in_threads(3, lambda _: migrate_store(site.url, by=alice))
    (act,) = site.open().acts()
    assert ("cli", "alice@host", "migrate") == (act.via, act.actor, act.action)
    assert {"before": before, "after": 10} == act.details
    server, database = site._server, site._databases[-1]
    for statement in ("UPDATE zeroeventhub.acts SET time = 1", "DELETE FROM zeroeventhub.acts"):
        with pytest.raises(psycopg.Error, match="never changed or deleted"):
            server.execute(statement, database)
    with pytest.raises(psycopg.Error, match="and the program that writes"):
        server.execute(
            "INSERT INTO zeroeventhub.acts (time, actor, via, action, feed, subject, details)"
            " VALUES (1, '', '', '', '', '', '{}')", database,
        )  # fmt: skip


def test_who_may_not_upgrade_a_store_is_told(site: PostgresqlSite, store: SqlStore) -> None:
    """My publisher's role owns nothing there: I hear which role has to upgrade the store."""
    _as_version_3(store)
    server, database = site._server, site._databases[-1]
    server.execute("DROP ROLE IF EXISTS upgrader")
    server.execute("CREATE ROLE upgrader LOGIN")
    server.execute("GRANT USAGE ON SCHEMA zeroeventhub TO upgrader", database)
    server.execute("GRANT ALL ON ALL TABLES IN SCHEMA zeroeventhub TO upgrader", database)
    with pytest.raises(StoreError, match=r"version 3.*must be owner.*owns the schema"):
        migrate_store(site.url.replace("//zeh@", "//upgrader@"))
    migrate_store(site.url)
    open_store(site.url).close()


def test_only_migrate_upgrades_a_store(site: PostgresqlSite, store: SqlStore) -> None:
    """Looking at a store changes nothing: publishers of the older version still serve it."""
    publish(store, chunk(0, b"1", b"2"))
    _as_version_3(store)
    with pytest.raises(StoreError, match=r"version 3.* works with version 10.*zeh-spark migrate"):
        open_store(site.url)
    would = migrate_store(site.url, dry_run=True)
    assert (3, 10) == (would.before, would.after)
    with pytest.raises(StoreError, match="version 3"):
        open_store(site.url)
    migrate_store(site.url)
    assert 2 == site.open().feed(FEED).events


@pytest.mark.parametrize(
    "write",
    [
        lambda store: publish(store, chunk(0, b"2")),
        lambda store: store.stage(FEED, call(), upload(chunk(0, b"3"))),
        lambda store: store.remove(FEED, 1),
        lambda store: store.save_cursors(FEED, "mailer", 2, {0: "1.x"}),
        lambda store: store.set_retention(FEED, Retention(age_ms=5)),
        lambda store: store.begin_epoch(FEED),
        lambda store: store.create("another", 1),
        lambda store: store.delete_producer(FEED, "test"),
        lambda store: store.add_token(new_token("all", ADMIN, 1)[1]),
    ],
    ids=lambda _: "",
)
def test_store_that_is_upgraded_meanwhile_takes_no_writes(
    site: PostgresqlSite, store: SqlStore, write: Callable[[SqlStore], object]
) -> None:
    """A publisher of the older version serves readers until I replace it, and writes nothing."""
    publish(store, chunk(0, b"1"))
    server, database = site._server, site._databases[-1]
    server.execute("UPDATE zeroeventhub.store SET version = 99", database)
    with pytest.raises(StoreBusyError, match=r"was upgraded.*may only read.*Replace"):
        write(store)
    assert [b"1"] == data(store)


def test_program_that_is_older_than_the_check_cannot_write(
    site: PostgresqlSite, store: SqlStore
) -> None:
    """It does not know the totals of feeds, and would leave them wrong. It answers 503 meanwhile:
    to it, SQLSTATEs of the class 55 pass.
    """
    publish(store, chunk(0, b"1"))
    server, database = site._server, site._databases[-1]
    said = "the store is of version 10, and the program that writes"
    with pytest.raises(psycopg.Error, match=said) as refused:
        server.execute("UPDATE zeroeventhub.feeds SET head = head + 1", database)
    assert str(refused.value.sqlstate).startswith("55")


def test_upgrade_waits_for_a_commit_under_way(site: PostgresqlSite, store: SqlStore) -> None:
    """What is being published is counted, or is refused: nothing is in between."""
    publish(store, chunk(0, b"1"))
    begun, go_on = threading.Event(), threading.Event()

    def slowly(connection: Connection) -> None:
        connection.execute(text("UPDATE zeroeventhub.feeds SET time = time + 1"))
        begun.set()
        assert go_on.wait(30)

    with ThreadPoolExecutor(2) as threads:
        writing = threads.submit(store._write, slowly)
        assert begun.wait(30)
        # as an upgrade to a later version would
        upgrading = threads.submit(
            site._server.execute,
            "BEGIN; LOCK TABLE zeroeventhub.feeds IN ACCESS EXCLUSIVE MODE;"
            " UPDATE zeroeventhub.store SET version = 99; COMMIT",
            site._databases[-1],
        )
        until(site.somebody_waits_for_a_lock, seconds=10)
        go_on.set()
        writing.result(30)
        upgrading.result(30)
    with pytest.raises(StoreBusyError, match="was upgraded"):
        publish(store, chunk(0, b"2"))
