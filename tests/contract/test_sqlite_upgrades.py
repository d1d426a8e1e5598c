"""Stores of other versions in SQLite files, and `migrate`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.fix_upgrades import BEFORE
from tests.store_contract.writers import chunk, data, publish
from zeh_spark.errors import StoreError
from zeh_spark.publisher import migrate_store, open_store
from zeh_spark.sql_store import upgrades
from zeh_spark.sql_store.schema import VERSION
from zeh_spark.store.acts import Actor, Via
from zeh_spark.store.interface import StoreBusyError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A store with two chunks of three events."""
    file = tmp_path / "feeds.db"
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.create("orders", 2)
        publish(store, chunk(0, b"1", b"22"), chunk(1, b"333"))
    return file


@pytest.fixture
def before(file: Path) -> str:
    """The URL of the same store, as the version before left it."""
    _set_version(file, BEFORE)
    with closing(sqlite3.connect(file)) as other:
        other.execute("DROP TABLE makers")  # a table that the upgrade makes
    return f"sqlite:///{file}"


@pytest.mark.parametrize("steps", [upgrades.SQLITE, upgrades.POSTGRESQL])
def test_each_released_version_has_its_step(steps: dict[int, tuple[str, ...]]) -> None:
    assert sorted(steps) == [*range(upgrades.FIRST, VERSION)]


@pytest.mark.usefixtures("invented")
def test_an_upgraded_store_goes_on(before: str, file: Path) -> None:
    """Its events are there, what is published comes after them, and I see who upgraded it."""
    would = migrate_store(before, dry_run=True)
    done = migrate_store(before, by=Actor("alice@host", Via.CLI))
    again = migrate_store(before)
    with closing(open_store(before)) as store:
        publish(store, chunk(1, b"4"))
        (act,) = [each for each in store.acts() if each.action == "migrate"]
        assert ("cli", "alice@host", "migrate") == (act.via, act.actor, act.action)
        assert {"before": BEFORE, "after": VERSION} == act.details
        assert [b"1", b"22", b"333", b"4"] == data(store)
    assert would == done == upgrades.Migration(BEFORE, VERSION, upgrades.SQLITE[BEFORE])
    assert (VERSION, VERSION, ()) == (again.before, again.after, again.statements)
    assert "colour" in _columns(file)


@pytest.mark.usefixtures("invented")
def test_only_migrate_upgrades_a_store(before: str, file: Path) -> None:
    """Looking at a store changes nothing: an older publisher may still serve it."""
    for must_exist in (True, False):
        with pytest.raises(StoreError, match=rf"version {BEFORE}.*with version {VERSION}.*migrate"):
            open_store(before, must_exist=must_exist)
    migrate_store(before, dry_run=True)
    assert (BEFORE, False) == (_version(file), "colour" in _columns(file))


@pytest.mark.usefixtures("invented")
def test_upgrade_that_fails_changes_nothing(
    before: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is as it was, and I hear what to look at."""
    (step,) = upgrades.SQLITE[BEFORE]
    monkeypatch.setattr(upgrades, "SQLITE", {BEFORE: (step, step)})
    with pytest.raises(StoreError, match=r"cannot be upgraded: duplicate column.*as it was"):
        migrate_store(before)
    assert (BEFORE, False) == (_version(file), "colour" in _columns(file))


@pytest.mark.parametrize("use", [open_store, migrate_store])
@pytest.mark.parametrize(
    ("version", "says"),
    [
        (99, f"version 99, and this zeh-spark knows versions up to {VERSION}. Upgrade zeh-spark"),
        (1, f"version 1, which no release .* first one is {upgrades.FIRST}.* Make a new store"),
        (9, "version 9, which no release .*cannot be upgraded"),
    ],
)
def test_store_of_an_unknown_version_is_left_alone(
    file: Path, use: object, version: int, says: str
) -> None:
    """An old program does not harm what a newer one has written; a development state's is named."""
    _set_version(file, version)
    with pytest.raises(StoreError, match=says):
        use(f"sqlite:///{file}")  # type: ignore[operator]
    assert version == _version(file)


def test_acts_stay(file: Path) -> None:
    """Also from my own mistakes."""
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.begin_epoch("orders", by=Actor("alice@host", Via.CLI))
    for statement in ("UPDATE acts SET time = 1", "DELETE FROM acts"):
        with closing(sqlite3.connect(file)) as other:
            with pytest.raises(sqlite3.IntegrityError, match="never changed or deleted"):
                other.execute(statement)


def test_store_that_is_upgraded_meanwhile_takes_no_writes(file: Path) -> None:
    """A program that has the store open reads on, and does not write what a newer one would
    misunderstand.
    """
    with closing(open_store(f"sqlite:///{file}")) as store:
        _set_version(file, 99)
        with pytest.raises(StoreBusyError, match=r"was upgraded.*may only read.*Replace"):
            publish(store, chunk(0, b"4"))
        assert [b"1", b"22", b"333"] == data(store)


def _version(file: Path) -> int:
    with closing(sqlite3.connect(file)) as other:
        return int(other.execute("PRAGMA user_version").fetchone()[0])


def _set_version(file: Path, version: int) -> None:
    with closing(sqlite3.connect(file)) as other:
        other.execute(f"PRAGMA user_version = {version}")


def _columns(file: Path) -> set[str]:
    with closing(sqlite3.connect(file)) as other:
        return {name for _, name, *_ in other.execute("PRAGMA table_info(feeds)")}
