"""How much room a store in SQLite has left, and what a publisher still takes when it is little.

With less than `--least-free`, uploads are refused, before their bodies are read. With less than
half of it, so is everything else that makes the store grow: commits, and cursor sets. The rest is a
reserve for what frees room or takes rights away: retention, deleting producers, cursor sets and
uploads, and revoking tokens. On a full disk, even these would fail.

Pages that retention has freed count as room, because SQLite uses them again and the file does not
shrink; but not while the disk has no room for SQLite's write-ahead log. Runs in threads of the
publisher.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from zeh_spark.service.store.interface import Store
from zeh_spark.service.store.problems import Problem
from zeh_spark.wire import problems

_LOG = 4
"""The write-ahead log needs one of so many parts of `--least-free`."""


class Disk:
    """The room that a store has on its disk.

    Args:
        file: The file of a SQLite database; None for any other store, which has its own disk.
        store: What the file holds; None to count only the disk's free space.
    """

    def __init__(self, file: Path | None, least: int, store: Store | None = None) -> None:
        self._file, self._least, self._store = file, least, store

    def look(self) -> tuple[bool, str]:
        """Return whether there is room for everything, and what was found, for the operator."""
        room = self._room()
        said = f"{room >> 20:,} MiB free; at least {self._least >> 20:,} MiB are needed"
        return room >= self._least, said

    def check_upload(self) -> None:
        """Refuse an upload if there is little room (`store-full`)."""
        self._check("uploads", self._least)

    def check_growth(self) -> None:
        """Refuse anything else that makes the store grow if there is only the reserve left."""
        self._check("commits and cursor sets", self._least // 2)

    def _check(self, what: str, least: int) -> None:
        if (room := self._room()) < least:
            raise Problem(
                problems.STORE_FULL,
                f"the disk of the publisher's store has {room >> 20:,} MiB left, and {what} need "
                f"at least {least >> 20:,} MiB. The publisher's operator can set a retention, make "
                f"room on the disk, or lower --least-free",
            )

    def _room(self) -> int:
        if self._file is None:
            return self._least
        free, log = shutil.disk_usage(self._file.parent).free, 0
        with suppress(OSError):
            log = self._file.with_name(f"{self._file.name}-wal").stat().st_size
        if free >= self._least or free + log < self._least // _LOG:
            return free
        return free + (self._store.free_bytes() if self._store else 0)
