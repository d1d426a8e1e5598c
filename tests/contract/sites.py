"""Where our stores' data is, for the contract.

A new store is a class here and a name in SITES; every test of this folder then runs against it.
"""

from __future__ import annotations

import functools
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from tests import postgresql
from tests.scratch_store import empty_store
from zeh_spark.errors import StoreError
from zeh_spark.publisher import Store, open_store
from zeh_spark.service.retention.segments import offload
from zeh_spark.service.segments.objects import Objects
from zeh_spark.service.segments.ownership import adopt
from zeh_spark.service.store.batches import RECEIPTS
from zeh_spark.service.store.interface import Clock, now_ms
from zeh_spark.service.store.log import Log


class OurSite:
    """What the sites have in common: stores that are opened by a URL."""

    url: str

    def __init__(self, directory: Path, clock: Clock = now_ms, receipts: int = RECEIPTS) -> None:
        self.clock, self.receipts = clock, receipts
        self._directory = directory
        self._stores: list[Store] = []

    def open(self) -> Store:
        self._stores.append(open_store(self.url, clock=self.clock, receipts=self.receipts))
        return self._stores[-1]

    def opener(self) -> Callable[[], Store]:
        return partial(open_store, self.url, receipts=self.receipts)

    def settle(self) -> None:
        for store in self._stores:
            while store.tidy():
                pass

    def close(self) -> None:
        for store in self._stores:
            store.close()
        self._stores.clear()


class SqliteSite(OurSite):
    """A SQLite file. `crash` copies it and its log as they are, and continues with the copies."""

    slowness = 4
    schema = ""
    columns = "SELECT name FROM pragma_table_info('feeds')"

    def __init__(self, directory: Path, *given: Any) -> None:
        super().__init__(directory, *given)
        self._numbers = count()
        self.file = directory / "feeds.db"
        self.file.write_bytes(empty_store())

    @property
    def url(self) -> str:
        return f"sqlite:///{self.file}"

    def crash(self) -> None:
        file = self._another()
        for end in ("", "-wal"):
            if Path(f"{self.file}{end}").exists():
                shutil.copyfile(f"{self.file}{end}", f"{file}{end}")
        self.close()
        self.file = file

    def copy(self) -> Any:
        file = self._another()
        self.execute(f"VACUUM INTO '{file}'")
        return file

    def restore(self, backup: Any) -> None:
        self.close()
        self.file = self._another()
        shutil.copyfile(backup, self.file)

    def execute(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.file, isolation_level=None)) as other:
            return other.execute(statement).fetchall()

    def version(self) -> int:
        return self.execute("PRAGMA user_version")[0][0]

    def set_version(self, version: int) -> None:
        self.execute(f"PRAGMA user_version = {version}")

    def _another(self) -> Path:
        return self._directory / f"feeds{next(self._numbers)}.db"


class PostgresqlSite(OurSite):
    """A database. A crash ends the connections to it, as the system does for a dead process."""

    slowness = 10
    schema = "zeroeventhub."
    columns = (
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = 'zeroeventhub' AND table_name = 'feeds'"
    )

    def __init__(self, directory: Path, *given: Any) -> None:
        super().__init__(directory, *given)
        postgresql.needed()
        self._server = postgresql.shared()
        self._databases = [self._server.create_database(self.template())]

    @staticmethod
    @functools.cache
    def template() -> str:
        """A database that has what a store makes when it is opened first."""
        server = postgresql.shared()
        name = server.create_database()
        open_store(server.url(name)).close()
        return name

    @property
    def database(self) -> str:
        return self._databases[-1]

    @property
    def url(self) -> str:
        return self._server.url(self.database)

    def crash(self) -> None:
        self.disconnect()
        super().close()

    def copy(self) -> Any:
        return self._server.copy_database(self.database)

    def restore(self, backup: Any) -> None:
        super().close()
        self._databases += [backup, self._server.create_database(backup)]

    def disconnect(self) -> None:
        self._server.disconnect(self.database)

    def execute(self, statement: str) -> list[Any]:
        return self._server.execute(statement, self.database)

    def version(self) -> int:
        return self.execute("SELECT version FROM zeroeventhub.store")[0][0]

    def set_version(self, version: int) -> None:
        self.execute(f"UPDATE zeroeventhub.store SET version = {version}")

    def somebody_waits_for_a_lock(self) -> bool:
        found = self.execute(
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND datname = current_database()"
        )
        return len(found) > 0

    def close(self) -> None:
        super().close()
        for each in {*self._databases}:
            self._server.drop_database(each)


class _Sealing:
    """Seals the oldest chunks before half of all reads, and moves packs to a folder before some."""

    def open(self) -> Store:
        store = super().open()  # type: ignore[misc]
        chance, opened = random.Random(len(self._stores)), store.snapshot  # type: ignore[attr-defined]
        moves = random.Random(f"{len(self._stores)}")  # type: ignore[attr-defined]
        objects = Objects(str(self._directory / "cold"))  # type: ignore[attr-defined]
        adopt(objects, store)

        def snapshot(feed: str, positions: Iterable[int] = ()) -> AbstractContextManager[Log]:
            with suppress(StoreError):  # the read says what is wrong
                while chance.random() < 0.5 and store.seal(feed, before=1 << 62):
                    if moves.random() < 0.5:
                        offload(store, feed, objects, before=1 << 62)  # type: ignore[arg-type]
            return opened(feed, positions)

        store.snapshot = snapshot
        return store


class SealingSqliteSite(_Sealing, SqliteSite):
    """The same, and what is read is packed, and moved to objects, at random moments."""


class SealingPostgresqlSite(_Sealing, PostgresqlSite):
    """The same, and what is read is packed, and moved to objects, at random moments."""


SITES: dict[str, type[SqliteSite | PostgresqlSite]] = {
    "sqlite": SqliteSite,
    "postgresql": PostgresqlSite,
}
SEALING = {"sqlite-sealing": SealingSqliteSite, "postgresql-sealing": SealingPostgresqlSite}
