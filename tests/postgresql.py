"""A PostgreSQL server of the tests' own: in a directory and on a port of its own, as a user without
privileges, as which it insists to run. Started when the first test wants it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import glob
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.patience import eventually
from tests.ports import free_port

USER = "zeh"
marked = False
"""Whether the test that runs has the mark `postgresql` (tests/conftest.py)."""
_NAMES = count()
ROOM = 4 << 30


def why_absent() -> str | None:
    """In the words of the tests that skip."""
    if not _programs():
        return "PostgreSQL (Debian: apt-get install postgresql)"
    if os.geteuid() == 0 and not _unprivileged():
        return "a user without privileges, as which PostgreSQL could run"
    return None


def why_no_pooler() -> str | None:
    return None if _pgbouncer() else "pgbouncer (Debian: apt-get install pgbouncer)"


def _pgbouncer() -> str | None:
    """Debian installs it where only root's shells look."""
    return shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


def why_no_small_disk() -> str | None:
    return "root, to mount a disk that fills up" if os.geteuid() else None


def needed() -> None:
    """Skip a test where there is none. Fail one that `-m "not postgresql"` would not leave out."""
    assert marked, "this test starts PostgreSQL: it needs the mark `postgresql`"
    if reason := why_absent():
        pytest.skip(reason)


def _programs() -> str | None:
    """The folder of the newest ones."""
    on_path = shutil.which("initdb")
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"), key=_version) or [on_path]
    return os.path.dirname(os.path.realpath(found[-1])) if found[-1] else None


def _version(path: str) -> float:
    return float(path.split("/")[4])


def _unprivileged() -> str | None:
    names = {each.pw_name for each in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


def program(name: str) -> str:
    return f"{_programs()}/{name}"


def _roomy_memory() -> str | None:
    """Return a folder in memory, if there is room for the servers of all processes of xdist."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > ROOM
    return str(memory) if roomy else None


class Server:
    """Guarantee: what it was told is committed survives `kill`, not a power cut.

    Its files are in memory if there is room: a new database then takes a fifth of the time.
    """

    def __init__(self, *settings: str) -> None:
        self.settings = settings
        self._admin: psycopg.Connection[Any] | None = None
        self.directory = Path(tempfile.mkdtemp(prefix="zeh-postgresql-", dir=_roomy_memory()))
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._user = {"user": _unprivileged(), "extra_groups": []}
        self.own(self.directory)
        self.data = self.directory / "data"
        self.port = free_port()
        self.fill()
        self.start()

    def fill(self) -> None:
        """Make the cluster."""
        self.run("initdb", "--auth=trust", f"--username={USER}", "--encoding=UTF8",
                 "--locale=C.UTF-8", "--no-sync", "-D", str(self.data))  # fmt: skip

    def run(self, name: str, *arguments: str) -> str:
        """One of PostgreSQL's programs, as the server's user."""
        done = subprocess.run(
            [program(name), *arguments],
            cwd=self.directory,
            env={"PATH": os.environ["PATH"], "PGPORT": str(self.port), **self._connection()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **self._user,
        )
        if done.returncode:
            raise AssertionError(f"{name} failed: {done.stdout}")
        return done.stdout

    def own(self, path: Path) -> None:
        """Give a path to the server's user."""
        if self._user:
            shutil.chown(path, self._user["user"])

    def start(self) -> None:
        options = [
            f"port={self.port}",
            "listen_addresses=127.0.0.1",
            f"unix_socket_directories={self.directory}",
            "fsync=off",
            "autovacuum=off",
            "jit=off",
            "max_wal_size=128MB",
            "max_connections=300",
            *self.settings,
        ]
        given = " ".join(f"-c {each}" for each in options)
        log = str(self.directory / "log")
        self.run("pg_ctl", "-D", str(self.data), "-l", log, "-w", "-o", given, "start")

    def stop(self, mode: str = "fast") -> None:
        self._leave()
        self.run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "stop")

    def kill(self) -> None:
        """SIGKILL for all of its processes; `start` then recovers."""
        self._leave()
        postmaster = psutil.Process(int((self.data / "postmaster.pid").read_text().split()[0]))
        postmaster.suspend()  # it begins no process that would outlive it, and hold its memory
        processes = [postmaster, *postmaster.children(recursive=True)]
        for each in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(processes, timeout=30)

    def remove(self) -> None:
        with contextlib.suppress(AssertionError):  # it may not run
            self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def _connection(self) -> dict[str, str]:
        return {"PGHOST": "127.0.0.1", "PGUSER": USER, "PGDATABASE": "postgres"}

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        if database == "postgres":
            return _rows(self._stays(), statement)
        with self._connect(database) as connection:
            return _rows(connection, statement)

    def _stays(self) -> psycopg.Connection[Any]:
        """Return a connection for all statements until the server stops: each costs 5 ms."""
        if self._admin is None or self._admin.closed:
            self._admin = self._connect("postgres")
        return self._admin

    def _connect(self, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, dbname=database, autocommit=True
        )

    def _leave(self) -> None:
        if self._admin:
            self._admin.close()
            self._admin = None

    def create_database(self, template: str = "template1") -> str:
        """Make one from another, whose files are copied: the log would take three times as long."""
        name = f"feeds{next(_NAMES)}"
        # Before version 15 there was no other way.
        how = "STRATEGY file_copy" if self._stays().info.server_version >= 150000 else ""
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} {how}")
        return name

    def copy_database(self, name: str) -> str:
        """A copy of one that others are connected to."""
        self.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        self.disconnect(name)
        copy = self.create_database(name)
        self.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        return copy

    def drop_database(self, name: str) -> None:
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def disconnect(self, name: str) -> None:
        """Who is connected loses the connection, and is gone before this returns."""
        self.execute(
            f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            f"WHERE datname = '{name}'"
        )


def _rows(connection: psycopg.Connection[Any], statement: str) -> list[Any]:
    cursor = connection.execute(statement)  # type: ignore[call-overload]
    return cursor.fetchall() if cursor.description else []


class Pooler:
    """PgBouncer before a server: two connections to each database, lent for one transaction."""

    def __init__(self, server: Server) -> None:
        self.port = free_port()
        user = {"user": _unprivileged()} if os.geteuid() == 0 else {}
        users = server.directory / f"pooler-{self.port}-users"
        users.write_text(f'"{USER}" ""\n')
        settings = server.directory / f"pooler-{self.port}.ini"
        settings.write_text(
            f"[databases]\n"
            f"* = host=127.0.0.1 port={server.port}\n"
            f"[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\n"
            f"unix_socket_dir =\n"
            f"auth_type = trust\n"
            f"auth_file = {users}\n"
            f"pool_mode = transaction\n"
            f"default_pool_size = 2\n"
        )
        for each in (users, settings):
            server.own(each)
        program = _pgbouncer()
        assert program
        self._process = subprocess.Popen(
            [program, "--quiet", str(settings)], stderr=subprocess.DEVNULL, **user
        )
        eventually(self._answers, 30)

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/{database}"

    def _answers(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


class Replica(Server):
    """A hot standby, which follows another server."""

    def __init__(self, primary: Server) -> None:
        self._primary = primary
        super().__init__(*primary.settings)

    def fill(self) -> None:
        self.run("pg_basebackup", "-D", str(self.data), "-R", "--checkpoint=fast", "--no-sync",
                 "-h", "127.0.0.1", "-p", str(self._primary.port), "-U", USER)  # fmt: skip


@functools.cache
def shared() -> Server:
    """One for all tests that leave it running."""
    server = Server()
    atexit.register(server.remove)
    return server


@pytest.fixture(scope="session")
def postgresql_server() -> Server:
    """The one for all tests that leave it running."""
    needed()
    return shared()


@pytest.fixture
def pooler(postgresql_server: Server) -> Iterator[Pooler]:
    """A pooler before the server that all tests share."""
    if reason := why_no_pooler():
        pytest.skip(reason)
    with contextlib.closing(Pooler(postgresql_server)) as found:
        yield found


@pytest.fixture
def own_server() -> Iterator[Server]:
    """One that the test may stop."""
    needed()
    server = Server()
    yield server
    server.remove()
