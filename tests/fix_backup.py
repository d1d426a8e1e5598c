"""Stores with the backups that the README advises, made and put back with the programs it names."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

import pytest

from tests import postgresql
from tests.fix_cli import call
from tests.fix_publisher import new_feed


class Place(Protocol):
    """Where a store is."""

    url: str

    def back_up(self) -> Path:
        """While it is served."""

    def restore(self, backup: Path) -> None:
        """In the place of what is there, while it is not served."""


class SqliteFile:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "feeds.db"
        self.url = f"sqlite:///{self._file}"

    def back_up(self) -> Path:
        copy = self._folder / f"copy{len(list(self._folder.glob('copy*')))}.db"
        done = call("backup", str(copy), "--store", self.url)
        assert done.returncode == 0, done.stderr
        return copy

    def restore(self, backup: Path) -> None:
        for end in ("-wal", "-shm"):
            Path(f"{self._file}{end}").unlink(missing_ok=True)
        shutil.copyfile(backup, self._file)


class DumpedDatabase:
    def __init__(self, folder: Path) -> None:
        postgresql.needed()
        self._folder = folder
        self._server = postgresql.shared()
        self._name = self._server.create_database()
        self.url = self._server.url(self._name)

    def back_up(self) -> Path:
        dump = self._server.directory / f"{self._name}-{len(list(self._folder.iterdir()))}.dump"
        self._server.run("pg_dump", "-Fc", "-f", str(dump), self._name)
        return dump

    def restore(self, backup: Path) -> None:
        self._server.drop_database(self._name)
        self._server.execute(f"CREATE DATABASE {self._name}")
        self._server.run("pg_restore", "-d", self._name, str(backup))


@pytest.fixture(params=[SqliteFile, DumpedDatabase], ids=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """With an empty feed `orders` of three partitions."""
    place = request.param(tmp_path)
    new_feed(place.url, partitions=3)
    return place
