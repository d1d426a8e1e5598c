"""Upgrades of a store in PostgreSQL: who makes one, and who may write meanwhile.

What they keep is in test_upgrades.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.contract.databases import commit_under_way, in_threads, site, store
from tests.contract.sites import PostgresqlSite
from tests.fix_upgrades import BEFORE
from tests.patience import eventually
from tests.store_contract.writers import FEED, call, chunk, data, publish, upload
from zeh_spark.errors import StoreError
from zeh_spark.publisher import migrate_store, open_store
from zeh_spark.service.sql.schema import VERSION
from zeh_spark.service.sql.store import SqlStore
from zeh_spark.service.store.interface import StoreBusyError

__all__ = ["site", "store"]


@pytest.fixture
def before(site: PostgresqlSite, store: SqlStore) -> str:
    """The URL of a store as the version before left it, with a chunk of two events."""
    publish(store, chunk(0, b"1", b"2"))
    site.set_version(BEFORE)
    return site.url


@pytest.mark.usefixtures("invented")
def test_a_store_is_upgraded_once_however_many_do_it(site, before):
    """Five at once leave one act, and all that was there."""
    assert [] == in_threads(5, lambda _: migrate_store(before))
    store = site.open()
    assert ["migrate"] == [each.action for each in store.acts() if each.action == "migrate"]
    assert [b"1", b"2"] == data(store)


def test_nothing_that_is_deleted_is_searched_for_in_a_whole_table(site, store):
    """PostgreSQL looks for rows that refer to a deleted one, through an index or through all rows:
    retention must not take longer with each chunk that a feed has.
    """
    assert [] == site.execute(
        "SELECT c.conname FROM pg_constraint c WHERE c.contype = 'f'"
        " AND c.connamespace = 'zeroeventhub'::regnamespace AND NOT EXISTS (SELECT FROM pg_index i"
        " WHERE i.indrelid = c.conrelid AND i.indkey[0] = c.conkey[1])"
    )


def test_program_that_names_no_version_cannot_write(site, store):
    """It might leave the totals of feeds wrong, not know of a later rule, or add acts."""
    publish(store, chunk(0, b"1"))
    said = f"the store is of version {VERSION}, and the program that writes"
    for statement in (
        "UPDATE zeroeventhub.feeds SET head = head + 1",
        "INSERT INTO zeroeventhub.acts (time, actor, via, action, feed, subject, details)"
        " VALUES (1, '', '', '', '', '', '{}')",
    ):
        with pytest.raises(psycopg.Error, match=said) as refused:
            site.execute(statement)
        assert str(refused.value.sqlstate).startswith("55")


@pytest.mark.usefixtures("invented", "store")
def test_who_may_not_upgrade_a_store_is_told(site, before):
    """My publisher's role owns nothing there: I hear which role has to upgrade the store."""
    for statement in (
        "DROP ROLE IF EXISTS upgrader",
        "CREATE ROLE upgrader LOGIN",
        "GRANT USAGE ON SCHEMA zeroeventhub TO upgrader",
        "GRANT ALL ON ALL TABLES IN SCHEMA zeroeventhub TO upgrader",
    ):
        site.execute(statement)
    with pytest.raises(StoreError, match=rf"version {BEFORE}.*must be owner.*owns the schema"):
        migrate_store(before.replace("//zeh@", "//upgrader@"))
    migrate_store(before)
    open_store(before).close()


def test_upgrade_waits_for_a_commit_under_way(site, store):
    """What is being published is counted, or is refused: nothing is in between."""
    store.stage(FEED, call(), sent := upload(chunk(0, b"1")))
    with ThreadPoolExecutor(1) as thread, commit_under_way(store, call(), sent):
        # as an upgrade to a later version would
        upgrading = thread.submit(
            site.execute,
            "BEGIN; LOCK TABLE zeroeventhub.feeds IN ACCESS EXCLUSIVE MODE;"
            " UPDATE zeroeventhub.store SET version = 99; COMMIT",
        )
        eventually(site.somebody_waits_for_a_lock)
    upgrading.result(30)
    assert [b"1"] == data(store)
    with pytest.raises(StoreBusyError, match="was upgraded"):
        publish(store, chunk(0, b"2"))
