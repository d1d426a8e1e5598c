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
from tests.fix_upgrades import BEFORE
from tests.store_contract.writers import FEED, call, chunk, data, publish, until, upload
from zeh_spark.errors import StoreError
from zeh_spark.publisher import migrate_store, open_store
from zeh_spark.sql_store import upgrades
from zeh_spark.sql_store.schema import VERSION
from zeh_spark.sql_store.store import SqlStore
from zeh_spark.store.access import ADMIN, new_token
from zeh_spark.store.acts import Actor, Via
from zeh_spark.store.interface import Retention, StoreBusyError

__all__ = ["site", "store"]


@pytest.fixture
def before(site: PostgresqlSite, store: SqlStore) -> str:
    """The URL of a store as the version before left it, with a chunk of two events."""
    publish(store, chunk(0, b"1", b"2"))
    _set_version(store, BEFORE)
    return site.url


def _set_version(store: SqlStore, version: int) -> None:
    statement = text(f"UPDATE zeroeventhub.store SET version = {version}")
    store._write(lambda db: db.execute(statement))


@pytest.mark.parametrize("use", [open_store, migrate_store])
@pytest.mark.parametrize(
    ("version", "says"),
    [
        (99, f"version 99, and this zeh-spark knows versions up to {VERSION}"),
        (3, f"version 3, which no release .* first one is {upgrades.FIRST}.* Make a new store"),
        (9, "version 9, which no release .*cannot be upgraded"),
    ],
)
def test_tables_of_an_unknown_version_are_left_alone(
    site: PostgresqlSite, store: SqlStore, use: Callable[[str], object], version: int, says: str
) -> None:
    """An old program does not harm what a newer one has written; a development state's is named."""
    _set_version(store, version)
    with pytest.raises(StoreError, match=says):
        use(site.url)
    assert version == store.stored_version()


@pytest.mark.usefixtures("invented")
def test_an_upgraded_store_goes_on(site: PostgresqlSite, store: SqlStore, before: str) -> None:
    """Its events are there, and what is published comes after them, also if it is upgraded five
    times at once. There is one act: I see who upgraded it.
    """
    alice = Actor("alice@host", Via.CLI)
    assert [] == in_threads(5, lambda _: migrate_store(before, by=alice))
    publish(store, chunk(0, b"3"))
    (act,) = [each for each in site.open().acts() if each.action == "migrate"]
    assert ("cli", "alice@host", "migrate") == (act.via, act.actor, act.action)
    assert {"before": BEFORE, "after": VERSION} == act.details
    assert [b"1", b"2", b"3"] == data(store)
    found = site._server.execute("SELECT colour FROM zeroeventhub.feeds", site._databases[-1])
    assert 1 == len(found)


def test_nothing_that_is_deleted_is_searched_for_in_a_whole_table(
    site: PostgresqlSite, store: SqlStore
) -> None:
    """PostgreSQL looks for rows that refer to a deleted one, through an index or through all rows:
    retention must not take longer with each chunk that a feed has.
    """
    unindexed = (
        "SELECT c.conname FROM pg_constraint c WHERE c.contype = 'f'"
        " AND c.connamespace = 'zeroeventhub'::regnamespace AND NOT EXISTS (SELECT FROM pg_index i"
        " WHERE i.indrelid = c.conrelid AND i.indkey[0] = c.conkey[1])"
    )
    assert [] == site._server.execute(unindexed, site._databases[-1])


def test_acts_stay(site: PostgresqlSite, store: SqlStore) -> None:
    """Also from my own mistakes; and other programs add none."""
    store.begin_epoch(FEED, by=Actor("alice@host", Via.CLI))
    server, database = site._server, site._databases[-1]
    for statement in ("UPDATE zeroeventhub.acts SET time = 1", "DELETE FROM zeroeventhub.acts"):
        with pytest.raises(psycopg.Error, match="never changed or deleted"):
            server.execute(statement, database)
    with pytest.raises(psycopg.Error, match="and the program that writes"):
        server.execute(
            "INSERT INTO zeroeventhub.acts (time, actor, via, action, feed, subject, details)"
            " VALUES (1, '', '', '', '', '', '{}')", database,
        )  # fmt: skip


@pytest.mark.usefixtures("invented", "store")
def test_who_may_not_upgrade_a_store_is_told(site: PostgresqlSite, before: str) -> None:
    """My publisher's role owns nothing there: I hear which role has to upgrade the store."""
    server, database = site._server, site._databases[-1]
    server.execute("DROP ROLE IF EXISTS upgrader")
    server.execute("CREATE ROLE upgrader LOGIN")
    server.execute("GRANT USAGE ON SCHEMA zeroeventhub TO upgrader", database)
    server.execute("GRANT ALL ON ALL TABLES IN SCHEMA zeroeventhub TO upgrader", database)
    with pytest.raises(StoreError, match=rf"version {BEFORE}.*must be owner.*owns the schema"):
        migrate_store(before.replace("//zeh@", "//upgrader@"))
    migrate_store(before)
    open_store(before).close()


@pytest.mark.usefixtures("invented")
def test_only_migrate_upgrades_a_store(site: PostgresqlSite, before: str) -> None:
    """Looking at a store changes nothing: publishers of the older version still serve it."""
    works = rf"version {BEFORE}.* works with version {VERSION}.*zeh-spark migrate"
    with pytest.raises(StoreError, match=works):
        open_store(before)
    would = migrate_store(before, dry_run=True)
    assert upgrades.Migration(BEFORE, VERSION, upgrades.POSTGRESQL[BEFORE]) == would
    with pytest.raises(StoreError, match=f"version {BEFORE}"):
        open_store(before)
    assert would == migrate_store(before)
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


def test_program_that_names_no_version_cannot_write(site: PostgresqlSite, store: SqlStore) -> None:
    """It might leave the totals of feeds wrong, or not know of a later rule."""
    publish(store, chunk(0, b"1"))
    server, database = site._server, site._databases[-1]
    said = f"the store is of version {VERSION}, and the program that writes"
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
        until(site.somebody_waits_for_a_lock)
        go_on.set()
        writing.result(30)
        upgrading.result(30)
    with pytest.raises(StoreBusyError, match="was upgraded"):
        publish(store, chunk(0, b"2"))
