"""The disk of a SQLite store: a small one, that fills up, loses power, and says yes to a sync."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from tests import postgresql

SIZE = 48 << 20
PAGE = 4096
"""What a power cut leaves of writes that were not synced is decided page by page."""


def why_no_compiler() -> str | None:
    return None if shutil.which("cc") else "C compiler (Debian: apt-get install gcc libc6-dev)"


why_no_small_disk = postgresql.why_no_small_disk


class Disk:
    """A folder for a store, of SIZE bytes if this process may mount it.

    Guarantee: after `cut_power`, of each file all is there that was written before its last sync;
    and of each page that was written after it, either the old content or the new one.
    """

    def __init__(self, work: Path) -> None:
        self.folder, self._synced = work / "disk", work / "synced"
        self._library = work / "disk.so"
        for each in (self.folder, self._synced):
            each.mkdir()
        self._mounted = not why_no_small_disk()
        if self._mounted:
            command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(self.folder)]
            subprocess.run(command, check=True)
        if not why_no_compiler():
            source = Path(__file__).with_name("disk.c")
            command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(self._library), str(source)]
            subprocess.run([*command, "-ldl"], check=True)

    @property
    def environment(self) -> dict[str, str]:
        """For a process whose writes may be lost."""
        if why_no_compiler():
            return {}
        names = {"ZEH_DISK": str(self.folder), "ZEH_SYNCED": str(self._synced)}
        return {"LD_PRELOAD": str(self._library), **names}

    def sync(self) -> None:
        """What is in the files is on the disk."""
        shutil.rmtree(self._synced)
        shutil.copytree(self.folder, self._synced)

    def fill(self, left: int) -> None:
        """Leave some bytes, until `free`; when nobody has the files open.

        The write-ahead log is emptied before: SQLite writes it over, and would need no room.
        """
        for file in self.folder.glob("*.db"):
            with closing(sqlite3.connect(file)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.sync()
        with (self.folder / "ballast").open("wb") as ballast:
            free = shutil.disk_usage(self.folder).free
            os.posix_fallocate(ballast.fileno(), 0, max(free - left, 1))

    def free(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)

    def lie(self) -> None:
        """From now on, nothing is synced, and each sync says yes."""
        (self._synced / "lies").touch()

    def cut_power(self, chance: random.Random | None = None) -> None:
        """Lose what was not synced, or some of it; when nobody has the files open."""
        (self._synced / "lies").unlink(missing_ok=True)
        for file in self.folder.iterdir():
            if file.name.endswith("-shm"):  # of a memory map, which no disk keeps
                file.unlink()
            elif file.name != "ballast":
                kept = self._synced / file.name
                old = kept.read_bytes() if kept.exists() else b""
                file.write_bytes(_left(old, file.read_bytes(), chance) if chance else old)
        self.free()
        self.sync()

    def close(self) -> None:
        if self._mounted:
            subprocess.run(["umount", str(self.folder)], check=True)


def _left(old: bytes, new: bytes, chance: random.Random) -> bytes:
    """Mix the pages of a file's last sync with those that were written after it."""
    share = chance.choice((0.0, 0.5, 1.0))
    size = len(chance.choice((old, new)))
    found = bytearray(max(len(old), len(new)))
    found[: len(old)] = old
    for begin in range(0, len(new), PAGE):
        page = new[begin : begin + PAGE]
        if page != old[begin : begin + PAGE] and chance.random() < share:
            found[begin : begin + len(page)] = page
    return bytes(found[:size])
