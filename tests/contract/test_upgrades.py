"""Stores of other versions, and `migrate`."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

from tests.contract.sites import OurSite, PostgresqlSite, SqliteSite
from tests.fix_publisher import open_feeds
from tests.fix_upgrades import BEFORE
from tests.store_contract.writers import FEED, call, chunk, data, publish, upload
from zeh_spark.errors import StoreError
from zeh_spark.publisher import migrate_store, open_store
from zeh_spark.service.sql import upgrades
from zeh_spark.service.sql.schema import VERSION
from zeh_spark.service.store.acts import Actor, Via
from zeh_spark.service.store.interface import Retention, StoreBusyError
from zeh_spark.service.store.token_rights import ADMIN, new_token

ALICE = Actor("alice@host", Via.CLI)
FAILED = {
    SqliteSite: r"cannot be upgraded: duplicate column.*as it was",
    PostgresqlSite: rf"version {BEFORE}, and its upgrade failed: .*already exists.*as it was",
}


@pytest.fixture
def before(site: OurSite) -> str:
    """The URL of a store as the version before left it, with two chunks of three events."""
    with open_feeds(site.url, orders=2) as store:
        publish(store, chunk(0, b"1", b"22"), chunk(1, b"333"))
    site.set_version(BEFORE)
    site.execute(f"DROP TABLE {site.schema}makers")  # a table that the upgrade makes
    return site.url


def steps(site: OurSite) -> dict[int, tuple[str, ...]]:
    return upgrades.SQLITE if isinstance(site, SqliteSite) else upgrades.POSTGRESQL


def as_before(site: OurSite) -> bool:
    return site.version() == BEFORE and ("colour",) not in site.execute(site.columns)


def test_each_released_version_has_its_step(site):
    assert sorted(steps(site)) == [*range(upgrades.FIRST, VERSION)]


@pytest.mark.usefixtures("invented")
def test_an_upgraded_store_goes_on(site, before):
    """Its events are there, what is published comes after them, and I see who upgraded it."""
    would = migrate_store(before, dry_run=True)
    done = migrate_store(before, by=ALICE)
    again = migrate_store(before)
    store = site.open()
    publish(store, chunk(1, b"4"))
    (act,) = [each for each in store.acts() if each.action == "migrate"]
    assert ("cli", "alice@host", "migrate") == (act.via, act.actor, act.action)
    assert {"before": BEFORE, "after": VERSION} == act.details
    assert [b"1", b"22", b"333", b"4"] == data(store)
    assert would == done == upgrades.Migration(BEFORE, VERSION, steps(site)[BEFORE])
    assert (VERSION, VERSION, ()) == (again.before, again.after, again.statements)
    assert ("colour",) in site.execute(site.columns)


@pytest.mark.usefixtures("invented")
def test_only_migrate_upgrades_a_store(site, before):
    """Looking at a store changes nothing: an older publisher may still serve it."""
    works = rf"version {BEFORE}.* works with version {VERSION}.*zeh-spark migrate"
    for must_exist in (True, False):
        with pytest.raises(StoreError, match=works):
            open_store(before, must_exist=must_exist)
    migrate_store(before, dry_run=True)
    assert as_before(site)


@pytest.mark.usefixtures("invented")
def test_upgrade_that_fails_changes_nothing(site, before, monkeypatch):
    """The store is as it was, and I hear what to look at."""
    (step,) = steps(site)[BEFORE]
    for name in ("SQLITE", "POSTGRESQL"):
        monkeypatch.setattr(upgrades, name, {BEFORE: (step, step)})
    with pytest.raises(StoreError, match=FAILED[type(site)]):
        migrate_store(before)
    assert as_before(site)


@pytest.mark.parametrize("use", [open_store, migrate_store])
@pytest.mark.parametrize(
    ("version", "says"),
    [
        (99, f"version 99, and this zeh-spark knows versions up to {VERSION}. Upgrade zeh-spark"),
        (1, f"version 1, which no release .* first one is {upgrades.FIRST}.* Make a new store"),
        (9, "version 9, which no release .*cannot be upgraded"),
    ],
)
def test_store_of_an_unknown_version_is_left_alone(site, use, version, says):
    """An old program does not harm what a newer one has written; a development state's is named."""
    open_store(site.url).close()
    site.set_version(version)
    with pytest.raises(StoreError, match=says):
        use(site.url)
    assert version == site.version()


def test_acts_stay(site, store):
    """Also from my own mistakes."""
    store.begin_epoch(FEED, by=ALICE)
    for statement in (f"UPDATE {site.schema}acts SET time = 1", f"DELETE FROM {site.schema}acts"):
        with pytest.raises(
            (sqlite3.IntegrityError, psycopg.Error), match="never changed or deleted"
        ):
            site.execute(statement)


def test_store_that_is_upgraded_meanwhile_takes_no_writes(site, store, monkeypatch):
    """Who has it open reads on, and writes nothing that a newer one would misunderstand."""
    monkeypatch.setattr("zeh_spark.service.store.packs.PACK_CHUNKS", 1)
    for each in (b"1", b"2"):
        publish(store, chunk(0, each))
    site.set_version(99)
    for write in (
        lambda: publish(store, chunk(0, b"3")),
        lambda: store.seal(FEED, before=1 << 62),
        lambda: store.stage(FEED, call(), upload(chunk(0, b"3"))),
        lambda: store.remove(FEED, 1),
        lambda: store.save_cursors(FEED, "mailer", 2, {0: "1.x"}),
        lambda: store.set_retention(FEED, Retention(age_ms=5)),
        lambda: store.begin_epoch(FEED),
        lambda: store.create("another", 1),
        lambda: store.delete_producer(FEED, "test"),
        lambda: store.add_token(new_token("all", ADMIN, 1)[1]),
    ):
        with pytest.raises(StoreBusyError, match=r"was upgraded.*may only read.*Replace"):
            write()
    assert [b"1", b"2"] == data(store)
