"""Files of a store: who can read them, and how a copy takes the place of one."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.fix_cli import Run
from tests.fix_publisher import served
from zeh_spark.publisher import open_store
from zeh_spark.service.store.clock import FAR_MS
from zeh_spark.service.store.interface import now_ms
from zeh_spark.testing import publish


def modes(folder: Path) -> dict[str, int]:
    return {each.name: each.stat().st_mode & 0o777 for each in sorted(folder.glob("*.db*"))}


def events(file: Path, feed: str = "orders") -> int:
    with closing(open_store(f"sqlite:///{file}", must_exist=True)) as store:
        return {each.name: each.events for each in store.feeds()}[feed]


@pytest.fixture(autouse=True)
def open_umask():
    """By default, new files can be read by everybody."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_store_can_be_read_by_its_owner_alone(run: Run, tmp_path: Path) -> None:
    """It holds all events; so do its log, and its copies."""
    run("create", "orders")
    with served(tmp_path / "feeds.db"), closing(open_store(f"sqlite:///{tmp_path}/feeds.db")) as s:
        publish(s, "orders", [1])
        run("backup", "copy.db")
        found = modes(tmp_path)

    assert {"feeds.db", "feeds.db-wal", "feeds.db.serve.lock", "copy.db"} <= found.keys()
    assert set(found.values()) == {0o600}


def test_a_store_with_two_names_is_refused_under_both(run: Run, tmp_path: Path) -> None:
    """SQLite would keep two logs, and the store would be damaged."""
    run("create", "orders")
    os.link(tmp_path / "feeds.db", tmp_path / "other.db")
    for file in ("feeds.db", "other.db"):
        for words in (["feeds"], ["serve", "--port", "0"], ["backup", "copy.db"], ["migrate"]):
            done = run(*words, "--store", f"sqlite:///{tmp_path / file}")
            assert (1, True) == (done.returncode, "has 2 names (hard links)" in done.stderr)
    (tmp_path / "other.db").unlink()
    assert run("feeds").returncode == 0


def test_what_an_owner_has_opened_stays_open(run: Run, tmp_path: Path) -> None:
    """A copy has the rights of its store, and so has a store that it takes the place of."""
    run("create", "orders")
    (tmp_path / "feeds.db").chmod(0o640)
    run("backup", "copy.db")
    assert run("restore", "copy.db", "--yes").returncode == 0

    assert {name: mode for name, mode in modes(tmp_path).items() if "lock" not in name} == {
        "copy.db": 0o640,
        "feeds.db": 0o640,
        next(each.name for each in tmp_path.glob("feeds.db.before-*")): 0o640,
    }


def test_a_restore_brings_what_the_copy_has_and_keeps_the_old_store(
    run: Run, tmp_path: Path
) -> None:
    """Also the old one's last commits, which were in its log, are in the old store."""
    run("create", "orders")
    file = tmp_path / "feeds.db"
    with closing(open_store(f"sqlite:///{file}")) as store:
        publish(store, "orders", [1, 2])
        run("backup", "copy.db")
        publish(store, "orders", [3])
        for name in ("feeds.db", "feeds.db-wal", "feeds.db-shm"):  # as a crash leaves it
            shutil.copy(tmp_path / name, tmp_path / f"x{name}")
    for name in ("feeds.db", "feeds.db-wal", "feeds.db-shm"):
        shutil.move(tmp_path / f"x{name}", tmp_path / name)
    assert (tmp_path / "feeds.db-wal").stat().st_size

    said = run("restore", "copy.db", "--yes").stdout

    (old,) = tmp_path.glob("feeds.db.before-*")
    assert (events(file), events(old)) == (2, 3)
    assert (
        str(old) in said
        and "Feed 'orders': events that are published from now on have zeh-feed" in said
    )
    with closing(open_store(f"sqlite:///{file}")) as store:
        begun = len(store.identity("orders").epochs)
    with closing(open_store(f"sqlite:///{old}")) as store:
        assert begun == len(store.identity("orders").epochs) + 1


def with_sql(statement: str) -> Callable[[Path], None]:
    def change(copy: Path) -> None:
        with closing(sqlite3.connect(copy)) as database:
            database.execute(statement)

    return change


def make_another_database(copy: Path) -> None:
    copy.unlink()
    with_sql("CREATE TABLE t (i)")(copy)


NO_COPIES: list[tuple[Callable[[Path], object], str]] = [
    (lambda copy: copy.write_text("no database"), ""),
    (lambda copy: os.truncate(copy, copy.stat().st_size // 2), ""),
    (lambda copy: copy.with_name(f"{copy.name}-wal").write_bytes(b"x"), ""),
    (make_another_database, ""),
    (with_sql("PRAGMA user_version = 99"), "Upgrade zeh-spark"),
    (with_sql("PRAGMA user_version = 9"), "no release of zeh-spark has written"),
]
"""What makes a copy no copy, and what is said then, beside its name."""


def test_what_is_refused_changes_nothing(run: Run, tmp_path: Path) -> None:
    """A wrong file, a broken one, one of an unknown version, the store itself, and without a yes or
    while the store is served: each is refused before the store is touched.
    """
    run("create", "orders")
    file = tmp_path / "feeds.db"
    with closing(open_store(f"sqlite:///{file}")) as store:
        publish(store, "orders", ["x" * 5000] * 100)
    for number, (spoil, said) in enumerate(NO_COPIES):
        copy = tmp_path / f"copy-{number}.db"
        run("backup", copy.name)
        spoil(copy)
        done = run("restore", copy.name, "--yes")
        assert (1, True) == (done.returncode, (said or copy.name) in done.stderr), (number, done)
    run("backup", "copy.db")
    assert run("restore", "copy.db", stdin="n\n").returncode == 1
    itself = run("restore", "feeds.db", "--yes")
    with served(file):
        meanwhile = run("restore", "copy.db", "--yes")

    assert "is the store itself" in itself.stderr
    assert (1, True) == (meanwhile.returncode, "served by another process" in meanwhile.stderr)
    assert events(file) == 100
    assert not list(tmp_path.glob("*.part")) + list(tmp_path.glob("feeds.db.before-*"))


def test_tokens_stay_as_they_are(run: Run) -> None:
    """A restore neither revives a token that was revoked, nor opens the publisher."""
    run("create", "orders")
    run("token", "create", "gone", "--read", "orders")
    run("backup", "copy.db")
    run("token", "revoke", "gone")
    run("token", "create", "new", "--read", "orders")
    run("restore", "copy.db", "--yes")

    listed = run("token", "list").stdout.splitlines()
    assert [line.split()[1:3] for line in listed[1:]] == [["gone", "revoked"], ["new", "valid"]]


def test_tokens_of_a_damaged_store_are_told_of(run: Run, tmp_path: Path) -> None:
    run("create", "orders")
    run("backup", "copy.db")
    (tmp_path / "feeds.db").write_bytes(b"x" * 100_000)
    done = run("restore", "copy.db", "--yes")

    assert (done.returncode, "look at zeh-spark token list" in done.stderr) == (0, True)
    assert events(tmp_path / "feeds.db") == 0


def test_a_copy_of_years_ago_needs_a_clock_that_somebody_knows_to_be_right(
    run: Run, tmp_path: Path
) -> None:
    """Its replaced store knows the time; so do I, if there is none. Else commits might get a time
    of the future for ever.
    """
    run("create", "orders")
    long_ago = now_ms() - 2 * FAR_MS
    with closing(open_store(f"sqlite:///{tmp_path}/feeds.db", clock=lambda: long_ago)) as store:
        publish(store, "orders", [1])
    run("backup", "copy.db")
    for accepted in ("feeds.db", "copy.db"):
        refused = run("restore", "copy.db", "--yes")
        assert (1, True) == (refused.returncode, "no epoch begins" in refused.stderr)
        run("clock", "--accept", "--store", f"sqlite:///{accepted}")
        assert 0 == run("restore", "copy.db", "--yes").returncode
        for each in tmp_path.glob("feeds.db*"):
            each.unlink()


def test_a_plain_copy_of_a_store_that_nobody_uses_is_taken(run: Run, tmp_path: Path) -> None:
    """No files are left beside it. It may make a store where there is none."""
    run("create", "orders")
    shutil.copy(tmp_path / "feeds.db", tmp_path / "copy.db")

    assert run("restore", "copy.db", "--yes").returncode == 0
    assert [each.name for each in tmp_path.glob("copy*")] == ["copy.db"]
    for each in tmp_path.glob("feeds.db*"):
        each.unlink()
    run("restore", "copy.db", "--yes")
    assert events(tmp_path / "feeds.db") == 0


def test_a_store_behind_a_link_is_replaced_where_it_is(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    run("create", "orders", "--store", "sqlite:///data/real.db")
    (tmp_path / "feeds.db").symlink_to("data/real.db")
    run("backup", "copy.db")
    run("restore", "copy.db", "--yes")

    assert (tmp_path / "feeds.db").is_symlink()
    assert len(list((tmp_path / "data").glob("real.db.before-*"))) == 1


def test_there_is_a_store_at_every_moment(run: Run, tmp_path: Path, monkeypatch) -> None:
    """A crash leaves the old store or the new one at its place; two restores keep both old ones."""
    run("create", "orders")
    run("backup", "copy.db")
    file, seen = tmp_path / "feeds.db", []

    def watched(real):
        def call(*given, **more):
            seen.append(file.exists())
            done = real(*given, **more)
            seen.append(file.exists())
            return done

        return call

    for owner, name in ((os, "link"), (os, "fsync"), (Path, "rename"), (Path, "replace")):
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    for _ in range(2):
        assert run("restore", "copy.db", "--yes").returncode == 0
    assert len(seen) >= 12 and all(seen)
    assert len(list(tmp_path.glob("feeds.db.before-*"))) == 2
