"""Copies of a store in SQLite: how one is made while the store is used, and put in its place.

Runs in commands.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from sqlalchemy import create_engine, inspect
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from zeh_spark.errors import StoreError
from zeh_spark.service.sql import acts
from zeh_spark.service.sql.administration import every_token
from zeh_spark.service.sql.commits import latest_known
from zeh_spark.service.sql.store import SqlStore
from zeh_spark.service.sql.upgrades import check_known
from zeh_spark.service.sqlite.store import (
    APPLICATION_ID,
    check_names,
    make_private,
    migrate,
    open_sqlite,
    path_of,
)
from zeh_spark.service.store.acts import EVERY_ACT, Act, Actor
from zeh_spark.service.store.token_rights import Token

T = TypeVar("T")


_VM_STEPS = 1_000_000
"""Steps of SQLite's virtual machine between two looks at how far a copy is."""


def backup(file: str, copy: Path, progress: Callable[[int], object] = lambda size: None) -> None:
    """Make a consistent copy of a store in a new file, also while other processes write.

    The new file exists only once the copy is complete and on disk. `progress` is told the bytes
    that were written since its last call.
    """
    path = path_of(file, must_exist=True)
    check_names(path)
    part = copy.with_name(f"{copy.name}.{secrets.token_hex(4)}.part")  # `copy` itself is complete
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as source:
            make_private(part, path.stat().st_mode & 0o777)
            source.set_progress_handler(_growth(part, progress), _VM_STEPS)
            source.execute("VACUUM INTO ?", (str(part),))
        with part.open("rb+") as written:
            os.fsync(written.fileno())
        part.rename(copy)
        _sync(copy.parent)
    except (sqlite3.Error, OSError) as exc:
        part.unlink(missing_ok=True)
        raise StoreError(
            f"{path} cannot be copied to {copy}: {exc}. Check the disk and the permissions"
        ) from exc


def _growth(part: Path, progress: Callable[[int], object]) -> Callable[[], int]:
    """Return a function that tells how much a file has grown since its last call."""
    told = 0

    def look() -> int:
        nonlocal told
        size = part.stat().st_size
        progress(size - told)
        told = size
        return 0  # another number would end the statement

    return look


@dataclass(frozen=True, slots=True)
class Replaced:
    """What a restored copy takes over from the store that it replaces.

    `time` is the latest time that the store knows, in ms since 1970; 0 if it knows none.
    """

    tokens: Sequence[Token] = ()
    acts: Sequence[Act] = ()
    time: int = 0


def restore(
    file: str,
    copy: Path,
    renew: Callable[[SqlStore, Replaced | None], T],
    *,
    by: Actor | None = None,
    progress: Callable[[int], object] = lambda size: None,
) -> tuple[Path | None, T]:
    """Put a copy of a store in its place, with all that belongs to the old one out of the way.

    SQLite would take the log of the old file for that of the new one. The caller sees to it that no
    process serves the store. A crash leaves the old store or the new one, each whole. `renew`
    changes the new store before it takes the place. It gets what to take over from the old one,
    None if there is none, or if it cannot be read. It returns where the old store is now, beside
    the new one, None if there was none; and what `renew` returned. `progress` is told the bytes
    that were copied since its last call. Raises StoreError if the copy is no store or is damaged,
    another process uses the store, or a file cannot be written.
    """
    path = path_of(file, must_exist=False)
    there = path.exists()
    if there and path.samefile(copy):
        raise StoreError(f"{copy} is the store itself. Name a copy of it")
    _check_copy(copy)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    now = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    old = path.with_name(f"{path.name}.before-{now}-{secrets.token_hex(2)}")
    try:
        known = kept_of(path) if there else None
        make_private(part, path.stat().st_mode & 0o777 if there else 0o600)
        if there:
            owner = path.stat()
            with suppress(PermissionError):
                os.chown(part, owner.st_uid, owner.st_gid)
        with copy.open("rb") as source, part.open("rb+") as made:
            while block := source.read(1 << 20):
                progress(made.write(block))
        migrate(str(part), by=by)
        with closing(open_sqlite(str(part))) as store:
            done = renew(store, known)
        _sync(part)
        if there:
            _move_aside(path, old)
        part.replace(path)
        _sync(path.parent)
    except OSError as exc:
        raise StoreError(
            f"{copy} cannot be put in the place of {path}: {exc}. Check the disk and the "
            f"permissions. The old store is as it was, at {path} or {old}"
        ) from exc
    finally:
        for end in ("", "-wal", "-shm"):
            part.with_name(f"{part.name}{end}").unlink(missing_ok=True)
    return (old if there else None), done


def _check_copy(copy: Path) -> None:
    if copy.with_name(f"{copy.name}-wal").exists():
        raise StoreError(
            f"{copy} has a log beside it: it is in use, or was copied while it was. Name a copy "
            f"that zeh-spark backup has made"
        )
    try:
        address = f"file:{quote(str(copy))}?mode=ro&immutable=1"  # makes no files beside it
        with closing(sqlite3.connect(address, uri=True)) as source:
            (owner,) = source.execute("PRAGMA application_id").fetchone()
            (version,) = source.execute("PRAGMA user_version").fetchone()
            (found,) = source.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as exc:
        raise StoreError(f"{copy} cannot be read: {exc}. Name a copy of a store") from exc
    if owner != APPLICATION_ID:
        raise StoreError(f"{copy} is no store of feeds. Name a copy that zeh-spark backup has made")
    check_known(version)
    if found != "ok":
        raise StoreError(f"{copy} is damaged ({found}). Take another copy")


def kept_of(path: Path) -> Replaced | None:
    """Return what to take over from a store of any version; None if it cannot be read."""
    engine = create_engine(URL.create("sqlite", database=str(path)))
    try:
        with engine.connect() as connection:
            tables = inspect(connection).get_table_names()
            kept = every_token(connection) if "tokens" in tables else []
            done = acts.newest(connection, EVERY_ACT) if "acts" in tables else []
            time = latest_known(connection) if {"clocks", "feeds"} <= {*tables} else 0
            return Replaced(kept, done[::-1], time)
    except DBAPIError:
        return None  # it is damaged, which may be why it is replaced
    finally:
        engine.dispose()


def _move_aside(path: Path, old: Path) -> None:
    """Give a store another name, as a whole: what is in its log is in its file then."""
    log = path.with_name(f"{path.name}-wal")
    busy = 0
    with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as store:
        (busy, *_) = store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        raise StoreError(f"{path} is used by another process. Stop it first")
    try:
        os.link(path, old)
    except OSError:  # not every file system has links
        path.rename(old)
    if log.exists():  # the store is damaged
        log.rename(old.with_name(f"{old.name}-wal"))
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Have a file or a directory on disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
