"""Many connections at once do not stall a publisher, nor stop it, nor fill its log."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from zeh_spark.network.connections import TURN, Listener
from zeh_spark.publisher import open_store
from zeh_spark.publisher.server import listen
from zeh_spark.testing import publish
from zeh_spark.testing.writers import until

SERVE = [sys.executable, "-m", "zeh_spark.cli", "serve", "--port", "0"]
REFUSED = b"HTTP/1.1 503 Service Unavailable"

pytestmark = pytest.mark.timeout(60)


@dataclass
class Serving:
    """A `zeh-spark serve` that may have few files open."""

    url: str
    port: int
    log: Path

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def answers(self) -> bool:
        try:
            return requests.get(f"{self.url}?n=1&cursor0=_first", timeout=30).status_code == 200
        except requests.ConnectionError:
            return False


@contextmanager
def serving(store_url: str, log: Path, files: str) -> Iterator[Serving]:
    command = ["sh", "-c", f'ulimit {files}; exec "$@"', "sh", *SERVE, "--store", store_url]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as server,
    ):
        try:
            assert server.stdout
            told = (re.search(r"(http://\S+:(\d+)/orders)\b", line) for line in server.stdout)
            found = next(filter(None, told))
            yield Serving(found[1], int(found[2]), log)
        finally:
            server.terminate()


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/feeds.db"
    store = open_store(url)
    store.create("orders", 1)
    publish(store, "orders", ["first"])
    store.close()
    return url


def refused(connection: socket.socket) -> bool:
    """Whether the publisher refuses this connection. The others are silent: it waits for them."""
    connection.settimeout(0.2)
    try:
        return connection.recv(100).startswith(REFUSED)
    except TimeoutError:
        return False


def test_silent_connections_beyond_the_limit_are_refused(store_url: str, tmp_path: Path) -> None:
    """80 sockets that say nothing do not take all 64 files of the process, nor fill its log."""
    with serving(store_url, tmp_path / "log", "-n 64") as publisher, ExitStack() as open_sockets:
        reader = requests.Session()
        assert 200 == reader.get(f"{publisher.url}?n=1&cursor0=_first", timeout=30).status_code
        silent = [open_sockets.enter_context(publisher.connected()) for _ in range(80)]
        until(lambda: not publisher.answers())  # the last ones are refused, and so is this one
        assert refused(silent[-1])
        answer = reader.get(f"{publisher.url}?n=1&cursor0=_first", timeout=30)
        assert 200 == answer.status_code
        told = publisher.log.read_text()
        open_sockets.close()
        until(publisher.answers)
    assert 1 == told.count("connections are refused")
    assert 1 == len(told.splitlines())


def test_a_refusal_is_a_problem_that_passes(store_url: str, tmp_path: Path) -> None:
    """My client knows that it may come again."""
    with serving(store_url, tmp_path / "log", "-n 64") as publisher, ExitStack() as open_sockets:
        for _ in range(64):
            open_sockets.enter_context(publisher.connected())
        until(lambda: not publisher.answers())
        with publisher.connected() as late:
            head, _, body = late.recv(1 << 16).partition(b"\r\n\r\n")
    assert head.startswith(REFUSED)
    assert b"Retry-After: 1" in head.split(b"\r\n")
    assert b"urn:zeroeventhub:problem:too-many-connections" in body


def test_soft_limit_of_files_is_raised(store_url: str, tmp_path: Path) -> None:
    """A shell's small soft limit does not keep readers out, if the hard one is larger."""
    with serving(store_url, tmp_path / "log", "-S -n 64") as publisher, ExitStack() as open_sockets:
        for _ in range(150):
            open_sockets.enter_context(publisher.connected())
        assert publisher.answers()


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listen("127.0.0.1", 0) as found:
        found.setblocking(False)
        yield found


def test_a_turn_of_the_loop_accepts_a_bounded_number(listener: Listener) -> None:
    """Who is connected is served while a thousand connections arrive."""

    async def accepted() -> list[int]:
        turns = []
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, sock=listener, backlog=2048)
        with ExitStack() as clients:
            for _ in range(100):
                clients.enter_context(socket.create_connection(listener.getsockname()[:2]))
            while sum(turns) < 100:
                before = listener.open
                await asyncio.sleep(0)
                turns.append(listener.open - before)
        while listener.open:
            await asyncio.sleep(0)
        server.close()
        return turns

    found = asyncio.run(accepted())
    assert (100, TURN) == (sum(found), max(found))


def test_a_connection_that_is_closed_makes_room(listener: Listener) -> None:
    """The publisher counts connections that are open, not all that ever were."""
    listener.most = 1
    address = listener.getsockname()[:2]
    with socket.create_connection(address), listener.accept()[0]:
        assert 1 == listener.open
        with socket.create_connection(address) as late:
            with pytest.raises(BlockingIOError):
                listener.accept()
            assert refused(late)
    assert 0 == listener.open
    with socket.create_connection(address), listener.accept()[0]:
        assert 1 == listener.open


@contextmanager
def no_file_left() -> Iterator[None]:
    """This process can open no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_a_file_left_connections_are_refused(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """A publisher that is out of files for another reason neither spins nor fills its log."""
    address = listener.getsockname()[:2]
    with ExitStack() as clients, pytest.raises(BlockingIOError):
        clients.enter_context(socket.create_connection(address))
        clients.enter_context(listener.accept()[0])
        late = [clients.enter_context(socket.create_connection(address)) for _ in range(5)]
        with no_file_left(), pytest.raises(BlockingIOError):
            listener.accept()
        assert [True] * 5 == [refused(each) for each in late]
        assert 1 == len(caplog.messages)
        listener.accept()  # nobody is left in the queue
