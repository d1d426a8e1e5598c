"""A running publisher: the real server over a real store, on a port of its own."""

from __future__ import annotations

import functools
import json
import os
import resource
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from tests import postgresql
from zeh_spark.publisher import Store, open_store
from zeh_spark.service.app.server import Running, Server
from zeh_spark.service.network.connections import Listener
from zeh_spark.service.store.batches import RECEIPTS
from zeh_spark.service.store.token_rights import Grant, new_token
from zeh_spark.testing import publish, running_publisher

HERE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Answer:
    """An answer, its lines parsed."""

    status: int
    headers: Any
    lines: list[dict[str, Any]]

    @property
    def problem(self) -> dict[str, Any]:
        (document,) = self.lines
        return document

    @property
    def data(self) -> list[Any]:
        return [line["data"] for line in self.lines if "data" in line]

    @property
    def cursors(self) -> dict[int, str]:
        """The last cursor of each partition."""
        return {line["partition"]: line["cursor"] for line in self.lines if "cursor" in line}


@dataclass(frozen=True)
class Publisher:
    """A feed `orders` with two partitions, at `url`."""

    store: Store
    base: str
    store_url: str

    @property
    def url(self) -> str:
        return f"{self.base}/orders"

    def publish(self, *events: object, partition: int | None = None) -> None:
        """One batch."""
        publish(self.store, "orders", events, partition=partition)

    def get(self, query: str = "", *, path: str = "/orders", **options: Any) -> Answer:
        url = f"{self.base}{path}?{query}"
        response = requests.request(options.pop("method", "GET"), url, timeout=30, **options)
        lines = [json.loads(line) for line in response.content.split(b"\n") if line]
        return Answer(response.status_code, response.headers, lines)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the SQLite store of a test is."""
    return tmp_path / "feeds.db"


@pytest.fixture
def store(file: Path) -> Iterator[Store]:
    """A store in that file, with the feed `orders` of two partitions, which nobody serves."""
    with open_feeds(file, orders=2) as store:
        yield store


@pytest.fixture
def receipts() -> int:
    """How many the test's publisher keeps of a producer."""
    return RECEIPTS


@pytest.fixture
def publisher(tmp_path: Path, receipts: int) -> Iterator[Publisher]:
    """One for this test."""
    with _publisher(tmp_path, receipts) as running:
        yield running


@pytest.fixture(scope="module")
def quiet_publisher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publisher]:
    """One for all tests of a module that publish nothing."""
    with _publisher(tmp_path_factory.mktemp("quiet")) as running:
        yield running


@contextmanager
def _publisher(directory: Path, receipts: int = RECEIPTS) -> Iterator[Publisher]:
    url = store_url(directory)
    with open_feeds(url, receipts, orders=2) as store, running_publisher(store) as base:
        yield Publisher(store, base, url)


@functools.cache
def store_url(directory: Path) -> str:
    """A store of the directory's own: SQLite, or PostgreSQL with ZEH_TEST_STORE=postgresql."""
    if os.environ.get("ZEH_TEST_STORE") == "postgresql":
        server = postgresql.shared()
        return server.url(server.create_database())
    return f"sqlite:///{directory / 'feeds.db'}"


@contextmanager
def served(
    store: Path | str, *words: str, port: int = 0, **more: Any
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`zeh-spark serve` on a file or URL: base URL and process, which is killed at the end."""
    url = store if isinstance(store, str) else f"sqlite:///{store}"
    with _serve("--store", url, "--port", str(port), *words, **more) as running:
        yield running


@contextmanager
def served_tables(
    file: Path, log: Path | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`zeh-spark serve` with a file of settings."""
    with _serve("--config", str(file), "--port", "0", log=log) as running:
        yield running


@contextmanager
def _serve(
    *words: str,
    log: Path | None = None,
    files: str = "",
    program: Sequence[str] = ("-m", "zeh_spark"),
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the command, with its log in a file, and with the limit of files that `ulimit` sets."""
    limit = ["sh", "-c", f'ulimit {files}; exec "$@"', "sh"] if files else []
    command = [*limit, sys.executable, *program, "serve", *words]
    with ExitStack() as stack:
        errors = stack.enter_context(log.open("w")) if log else None
        process = stack.enter_context(
            subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=errors, text=True)
        )
        stack.callback(process.kill)
        assert process.stdout
        yield process.stdout.readline().split(" at ")[1].split(";")[0], process


@contextmanager
def serving_app(
    app: Any, stop: Callable[[], object], listener: Listener, running: Running | None = None
) -> Iterator[int]:
    """The server itself, in a thread; gives its port."""
    server = Server(app, stop, running=running)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    with listener:
        thread.start()
        try:
            assert server.ready.wait(30)
            yield int(listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(30)


@contextmanager
def limited(what: int, most: int) -> Iterator[None]:
    """Lower a limit of this process, `resource.RLIMIT_…`, for a block."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


def change_file(file: Path, statement: str) -> None:
    """Let another process change the file of a SQLite store."""
    with closing(sqlite3.connect(file, timeout=30)) as connection:
        connection.execute(statement)
        connection.commit()


def token_of(store: Store, *grants: Grant, name: str = "test") -> str:
    """A new token with these rights."""
    text, token = new_token(name, grants, store.now())
    store.add_token(token)
    return text


@contextmanager
def open_feeds(place: Path | str, receipts: int = RECEIPTS, **feeds: int) -> Iterator[Store]:
    """A store in a file or at a URL, open for a block, with feeds of so many partitions each."""
    url = place if isinstance(place, str) else f"sqlite:///{place}"
    with closing(open_store(url, receipts=receipts)) as store:
        for name, partitions in feeds.items():
            store.create(name, partitions)
        yield store


def new_feed(store: Path | str, *events: object, partitions: int = 1) -> str:
    """A store with the feed `orders` and these events; its URL."""
    url = store if isinstance(store, str) else f"sqlite:///{store}"
    with open_feeds(url, orders=partitions) as opened:
        if events:
            publish(opened, "orders", events)
    return url


def connected(base: str, source: str = "127.0.0.1") -> socket.socket:
    """A connection to a publisher of this machine, from one of its addresses."""
    return socket.create_connection(("127.0.0.1", int(base.rpartition(":")[2])), 30, (source, 0))


class Burst:
    """Requests that are under way at a time, each on a connection of its own."""

    def __init__(self, base: str, requests: Iterable[bytes], source: str = "127.0.0.1") -> None:
        self._sockets = []
        for each in requests:
            self._sockets.append(connected(base, source))
            self._sockets[-1].sendall(each)
            self._sockets[-1].setblocking(False)

    def answers(self, status: int | str = "") -> list[str]:
        """The beginnings of the answers (with this status) that have come so far."""
        found = []
        for each in self._sockets:
            with suppress(BlockingIOError):
                found.append(each.recv(4096, socket.MSG_PEEK).decode(errors="replace"))
        return [each for each in found if each.startswith(f"HTTP/1.1 {status}")]

    def close(self) -> None:
        """Break all of them off."""
        while self._sockets:
            with self._sockets.pop() as each:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def is_silent(connection: socket.socket) -> bool:
    """Whether it is open, and nothing has come."""
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except ConnectionResetError:
        pass
    finally:
        connection.settimeout(30)
    return False
