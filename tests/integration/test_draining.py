"""A publisher that stops is unready first, and ends within a bound, also under load."""

from __future__ import annotations

import itertools
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import requests

from tests import postgresql
from tests.fix_middlemen import Proxy
from tests.fix_publisher import connected, new_feed, open_feeds, served
from tests.patience import PATIENCE, eventually
from zeh_spark.publish import Producer
from zeh_spark.testing import publish


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with a feed `orders`, which has one event."""
    return new_feed(tmp_path / "feeds.db", "first")


def port_of(base: str) -> int:
    return int(base.rpartition(":")[2])


def end_of(base: str) -> str:
    """Return the address of a request for what comes after the last event."""
    lines = requests.get(f"{base}/orders?n=1&cursor0=_last", timeout=30).json()
    return f"{base}/orders?n=1&cursor0={lines['cursor']}"


def stopped(process: subprocess.Popen[str]) -> int:
    """Wait until the process has ended, and return its exit code."""
    return process.wait(PATIENCE)


def test_it_answers_while_it_drains_and_closes_each_connection(store: str) -> None:
    """My load balancer has time to see it, and no client's request fails meanwhile."""
    with served(store, "--drain-delay", "2s") as (base, process), requests.Session() as reader:
        end = end_of(base)
        before = reader.get(f"{base}/orders?n=1&cursor0=_first", timeout=30)
        process.send_signal(signal.SIGTERM)
        eventually(lambda: reader.get(end, timeout=30).headers.get("Connection") == "close")
        after = reader.get(f"{base}/orders?n=1&cursor0=_first", timeout=30)
        assert 0 == stopped(process)
    assert (200, 200) == (before.status_code, after.status_code)
    assert before.content == after.content
    assert (None, "close") == tuple(each.headers.get("Connection") for each in (before, after))


def test_long_polls_end_soon_while_it_drains(store: str) -> None:
    """Readers that wait go to another publisher before this one is gone, and lose nothing."""
    answers: list[tuple[int, str | None]] = []
    with served(store, "--drain-delay", "60s") as (base, process):
        waiting = f"{end_of(base)}&wait=60"

        def ask() -> None:
            answer = requests.get(waiting, timeout=70)
            answers.append((answer.status_code, answer.headers.get("Connection")))

        poll = threading.Thread(target=ask)
        poll.start()
        eventually(lambda: _connections(process) > 0)
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        poll.join()
        ask()  # one that comes meanwhile
        took = time.monotonic() - begin
    assert [(200, "close")] * 2 == answers
    assert took < 60  # and not 120


def _connections(process: subprocess.Popen[str]) -> int:
    found = psutil.Process(process.pid).net_connections("tcp")
    return sum(each.status == psutil.CONN_ESTABLISHED for each in found)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_it_at_once(store: str, number: signal.Signals) -> None:
    """I need not wait for a drain that I no longer want."""
    with served(store, "--drain-delay", "600s") as (base, process):
        process.send_signal(number)
        eventually(
            lambda: requests.get(end_of(base), timeout=30).headers.get("Connection") == "close"
        )
        process.send_signal(number)
        assert 128 + number == stopped(process)


def test_answers_that_do_not_end_are_cut_after_the_grace(store: str) -> None:
    """A client that takes nothing does not keep it."""
    with served(store, "--grace", "500ms") as (base, process), ExitStack() as stack:
        slow = stack.enter_context(connected(base))
        slow.sendall(
            b"PUT /orders/producers/p/batches/0/uploads/r.0.0.0 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Content-Length: 1000\r\n\r\nbegun"
        )
        eventually(lambda: _connections(process) > 0)
        process.send_signal(signal.SIGINT)  # Ctrl-C, as for the service manager
        assert 0 == stopped(process)


@pytest.mark.slow
def test_a_database_that_hangs_does_not_keep_it(postgresql_server: postgresql.Server) -> None:
    """A call that waits for a lock of the database is given up."""
    name = postgresql_server.create_database()
    url = new_feed(postgresql_server.url(name))
    with (
        served(url, "--grace", "1s") as (base, process),
        psycopg.connect(
            host="127.0.0.1", port=postgresql_server.port, user=postgresql.USER, dbname=name
        ) as holder,
        connected(base) as asking,
    ):
        holder.execute("LOCK TABLE zeroeventhub.feeds, zeroeventhub.recent_chunks")
        asking.sendall(b"GET /orders?n=1&cursor0=_first HTTP/1.1\r\nHost: x\r\n\r\n")
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        eventually(lambda: postgresql_server.execute(waits)[0][0] > 0)
        process.send_signal(signal.SIGTERM)
        assert 0 == stopped(process)
        holder.rollback()


@pytest.mark.slow
def test_it_stops_while_it_prunes(tmp_path: Path) -> None:
    """A feed that has much to forget does not delay an upgrade."""
    url = f"sqlite:///{tmp_path / 'feeds.db'}"
    with open_feeds(url, orders=1024) as store:
        for _ in range(12):
            publish(store, "orders", range(1024))
        keep = replace(store.retention("orders"), bytes=1)
        store.set_retention("orders", keep)
        before = next(each.events for each in store.feeds())
        with served(url) as (_, process):
            eventually(lambda: next(each.events for each in store.feeds()) < before)
            process.send_signal(signal.SIGTERM)
            code = stopped(process)
            left = next(each.events for each in store.feeds())
    assert 0 == code
    assert 1024 < left < before


# One after the other


class Balancer(Proxy):
    """Passes each new connection to the next publisher in rotation.

    It asks each publisher twenty times a second. One that does not answer, or that closes its
    connections after the answer, is out of rotation, and its connections go on to their ends.
    """

    def __init__(self) -> None:
        self.lost: list[str] = []
        """Connections for which no publisher was there."""
        self._ended = threading.Event()
        self._in_rotation: dict[int, bool] = {}
        self._turns = itertools.count()
        super().__init__()
        self._spawn(self._look)

    def add(self, port: int) -> None:
        self._in_rotation[port] = False

    def remove(self, port: int) -> None:
        del self._in_rotation[port]

    def sends_to(self, port: int) -> bool:
        return self._in_rotation[port]

    def close(self) -> None:
        self._ended.set()
        super().close()

    def connect(self) -> socket.socket:
        ready = [port for port, is_ready in self._in_rotation.items() if is_ready]
        port = ready[next(self._turns) % len(ready)] if ready else 0
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError as exc:
            self.lost.append(f"{port}: {exc}")
            raise

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            for port in list(self._in_rotation):
                ready = False
                with suppress(requests.RequestException):
                    found = requests.get(f"http://127.0.0.1:{port}/openapi.json", timeout=5)
                    ready = found.headers.get("Connection") != "close"
                if port in self._in_rotation:
                    self._in_rotation[port] = ready


class Load:
    """A reader and a producer at one address. Whatever goes wrong is in `errors`."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/orders"
        self._ended, self._written = threading.Event(), threading.Event()
        self.errors: list[str] = []
        self.published: list[int] = []
        self.got: list[int] = []

    def __enter__(self) -> Load:
        self._pool = ThreadPoolExecutor(2)
        for work in (self._write, self._read):
            self._pool.submit(self._run, work)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._pool.shutdown()

    def _run(self, work: Any) -> None:
        try:
            work()
        except Exception as exc:  # noqa: BLE001  # the test shows it
            self.errors.append(f"{work.__name__}: {exc!r}")
            self._written.set()

    def _write(self) -> None:
        producer = Producer(self._url, "till-7")
        while not self._ended.is_set():
            with producer.batch() as batch:
                batch.add(len(self.published), partition=0)
            self.published.append(len(self.published))
        self._written.set()

    def _read(self) -> None:
        """Read with connections that are kept, and without a second try."""
        cursor = "_first"
        with requests.Session() as session:
            while not (self._written.is_set() and len(self.got) >= len(self.published)):
                query = {"n": "1", "cursor0": cursor, "wait": "5"}
                answer = session.get(self._url, params=query, timeout=30)
                answer.raise_for_status()
                for line in answer.content.splitlines():
                    event = requests.models.complexjson.loads(line)
                    cursor = event.get("cursor", cursor)
                    self.got += [event["data"]] if "data" in event else []


@contextmanager
def replaceable(url: str, balancer: Balancer) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A publisher in rotation; gives its port."""
    with served(url, "--drain-delay", "1s") as (base, process):
        balancer.add(port_of(base))
        eventually(lambda: balancer.sends_to(port_of(base)))
        yield port_of(base), process


@pytest.mark.slow
def test_publishers_are_replaced_one_after_the_other_without_an_error(
    postgresql_server: postgresql.Server, caplog: pytest.LogCaptureFixture
) -> None:
    """I upgrade while clients read and publish, and no request of theirs is repeated."""
    url = new_feed(postgresql_server.url(postgresql_server.create_database()))
    with closing(Balancer()) as balancer, ExitStack() as stack:
        old = [stack.enter_context(replaceable(url, balancer)) for _ in range(2)]
        with Load(balancer.address) as load:
            eventually(lambda: len(load.got) > 20)
            for port, process in old:
                stack.enter_context(replaceable(url, balancer))
                process.send_signal(signal.SIGTERM)
                assert 0 == stopped(process)
                balancer.remove(port)
                some = len(load.got)
                eventually(lambda some=some: load.errors or len(load.got) > some + 20)
    assert ([], []) == (load.errors, balancer.lost)
    assert load.published == load.got
    assert [] == [each.message for each in caplog.records if "trying again" in each.message]
