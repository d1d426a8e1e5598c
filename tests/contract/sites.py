"""Where our stores' data is, for the contract.

A new store is a class here and a name in SITES; every test of this folder then runs against it.
"""

from __future__ import annotations

import functools
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from tests import postgresql
from zeh_spark.publisher import Store, open_store
from zeh_spark.sql_store.store import SqlStore
from zeh_spark.store.batches import RECEIPTS
from zeh_spark.store.interface import Clock, now_ms


class SqliteSite:
    """A file. A crash goes on with a copy of it and of its log, as they stand."""

    slowness = 4

    def __init__(self, directory: Path, clock: Clock = now_ms, receipts: int = RECEIPTS) -> None:
        self.clock, self.receipts = clock, receipts
        self._directory = directory
        self._numbers = count()
        self.file = directory / "feeds.db"
        self._stores: list[Store] = []

    @property
    def url(self) -> str:
        return f"sqlite:///{self.file}"

    def open(self) -> Store:
        self._stores.append(open_store(self.url, clock=self.clock, receipts=self.receipts))
        return self._stores[-1]

    def opener(self) -> Callable[[], Store]:
        return partial(open_store, self.url, receipts=self.receipts)

    def crash(self) -> None:
        file = self._another()
        for end in ("", "-wal"):
            if Path(f"{self.file}{end}").exists():
                shutil.copyfile(f"{self.file}{end}", f"{file}{end}")
        self.close()
        self.file = file

    def copy(self) -> Any:
        file = self._another()
        with sqlite3.connect(self.file) as source:
            source.execute("VACUUM INTO ?", (str(file),))
        source.close()
        return file

    def restore(self, backup: Any) -> None:
        self.close()
        self.file = self._another()
        shutil.copyfile(backup, self.file)

    def settle(self) -> None:
        _settle(self._stores)

    def close(self) -> None:
        for store in self._stores:
            store.close()
        self._stores.clear()

    def _another(self) -> Path:
        return self._directory / f"feeds{next(self._numbers)}.db"


class PostgresqlSite:
    """A database. A crash ends the connections to it, as the system does for a dead process."""

    slowness = 10

    def __init__(self, directory: Path, clock: Clock = now_ms, receipts: int = RECEIPTS) -> None:
        postgresql.needed()
        self.clock, self.receipts = clock, receipts
        self._server = postgresql.shared()
        self._databases = [self._server.create_database(self.template())]
        self._stores: list[Store] = []

    @staticmethod
    @functools.cache
    def template() -> str:
        """A database that has what a store makes when it is opened first."""
        server = postgresql.shared()
        name = server.create_database()
        open_store(server.url(name)).close()
        return name

    @property
    def url(self) -> str:
        return self._server.url(self._databases[-1])

    def open(self) -> Store:
        self._stores.append(open_store(self.url, clock=self.clock, receipts=self.receipts))
        return self._stores[-1]

    def opener(self) -> Callable[[], Store]:
        return partial(open_store, self.url, receipts=self.receipts)

    def crash(self) -> None:
        self._server.disconnect(self._databases[-1])
        self._close_stores()

    def copy(self) -> Any:
        return self._server.copy_database(self._databases[-1])

    def restore(self, backup: Any) -> None:
        self._close_stores()
        self._databases += [backup, self._server.create_database(backup)]

    def settle(self) -> None:
        _settle(self._stores)

    def somebody_waits_for_a_lock(self) -> bool:
        found = self._server.execute(
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            f"AND datname = '{self._databases[-1]}'"
        )
        return len(found) > 0

    def close(self) -> None:
        self._close_stores()
        for each in {*self._databases}:
            self._server.drop_database(each)

    def _close_stores(self) -> None:
        for store in self._stores:
            store.close()
        self._stores.clear()


def _settle(stores: Sequence[Store]) -> None:
    for store in stores:
        assert isinstance(store, SqlStore)
        while store._write(store._tidy):
            pass


SITES: dict[str, type[SqliteSite | PostgresqlSite]] = {
    "sqlite": SqliteSite,
    "postgresql": PostgresqlSite,
}
