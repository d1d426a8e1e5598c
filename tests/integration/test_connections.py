"""Many connections at once do not stall a publisher, nor stop it, nor fill its log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from tests.fix_metrics import Scrape
from tests.fix_publisher import (
    connected,
    is_silent,
    limited,
    new_feed,
    served,
    serving_app,
    token_of,
)
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.publisher import create_app, open_store
from zeh_spark.service.app.server import listen
from zeh_spark.service.network.connections import TURN, Listener
from zeh_spark.service.store.token_rights import ADMIN, Grant, Right
from zeh_spark.testing import running_publisher

REFUSED = b"HTTP/1.1 503 Service Unavailable"
PAGE = "/orders?n=1&cursor0=_first"


@dataclass
class Serving:
    """A `zeh-spark serve` that may have few files open."""

    base: str
    log: Path

    def status(self, path: str = PAGE, token: str = "") -> int:
        """Of an answer on a new connection; 0 if it was closed without one."""
        shown = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            return requests.get(self.base + path, headers=shown, timeout=30).status_code
        except requests.ConnectionError:
            return 0

    def waiting(self, source: str, token: str = "") -> socket.socket:
        """A reader that waits for an event."""
        shown = f"Authorization: Bearer {token}\r\n" if token else ""
        head = f"GET /orders?n=1&cursor0=_last&wait=60 HTTP/1.1\r\nHost: 127.0.0.1\r\n{shown}\r\n"
        found = connected(self.base, source)
        found.sendall(head.encode())
        return found


@contextmanager
def serving(store_url: str, files: str, *words: str) -> Iterator[tuple[Serving, ExitStack]]:
    """The publisher, and what closes connections before it ends."""
    log = Path(store_url.removeprefix("sqlite:///")).with_name("log")
    with (
        served(store_url, *words, log=log, files=files) as (base, _),
        ExitStack() as open_sockets,
    ):
        yield Serving(base, log), open_sockets


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    return new_feed(tmp_path / "feeds.db", "first")


def refused(connection: socket.socket) -> bool:
    """Whether the publisher refuses this connection. The others are silent: it waits for them."""
    connection.settimeout(0.2)
    try:
        return connection.recv(100).startswith(REFUSED)
    except TimeoutError:
        return False


def test_silent_connections_keep_nobody_out(store_url: str) -> None:
    """80 sockets that say nothing do not take all 64 files of the process, nor fill its log."""
    with serving(store_url, "-n 64") as (publisher, open_sockets):
        silent = [open_sockets.enter_context(connected(publisher.base)) for _ in range(80)]
        eventually(lambda: publisher.status("/healthz") == 200)
        assert 200 == publisher.status()
        eventually(lambda: not is_silent(silent[0]))  # it had been idle longest


def test_health_and_administrator_are_answered_beside_busy_connections(store_url: str) -> None:
    """Readers that wait take all connections but a few: nothing restarts the publisher for it."""
    reader = Grant(Right.READ, "*")
    with closing(open_store(store_url)) as store:
        *busy, reads = (token_of(store, reader, name=f"t{each}") for each in range(5))
        administers = token_of(store, *ADMIN)
    with serving(store_url, "-n 64") as (publisher, open_sockets):

        def is_full() -> bool:  # some may have been closed again, before their requests came
            for number, token in enumerate(busy, 2):
                for _ in range(7):
                    open_sockets.enter_context(publisher.waiting(f"127.0.0.{number}", token))
            return publisher.status(token=reads) == 503

        eventually(is_full)
        # those that were just refused may still be open
        eventually(lambda: publisher.status("/healthz") == 200)
        eventually(lambda: publisher.status(token=administers) == 200)
        told = publisher.log.read_text()
        open_sockets.close()
        eventually(lambda: publisher.status(token=reads) == 200)
    assert [True] == ["connections are refused" in line for line in told.splitlines()]


def test_one_address_leaves_connections_for_others(store_url: str) -> None:
    """And each of its own requests has an answer that says why, is counted, and logged."""
    log = "--access-log", "--log-format", "json"
    with serving(store_url, "-n 64", *log) as (publisher, open_sockets):
        said = [b""]

        def is_refused() -> bool:
            late = open_sockets.enter_context(publisher.waiting("127.0.0.2"))
            late.settimeout(0.05)
            with contextlib.suppress(OSError):  # it waits, or gave way to another one
                said.append(b"".join(iter(lambda: late.recv(1 << 16), b"")))
            return bool(said[-1])

        eventually(is_refused, 30)
        assert 200 == publisher.status()  # from 127.0.0.1
        named = {"feed": "(none)", "problem": "too-many-connections"}
        assert Scrape(publisher.base)("zeh_refusals_total", **named) > 0
        lines = map(json.loads, publisher.log.read_text().splitlines())
        assert {("too-many-connections", 503)} == {
            (each["problem"], each["status"]) for each in lines if "problem" in each
        }
    head, _, body = said[-1].partition(b"\r\n\r\n")
    assert head.startswith(REFUSED)
    assert b"retry-after: 1" in head.lower().split(b"\r\n")
    assert b"urn:zeroeventhub:problem:too-many-connections" in body


def test_what_is_left_for_the_administrator_is_also_left_on_ipv6() -> None:
    """Whose peers Python describes in four parts, and uvicorn in two."""
    listener, app = listen("::1", 0), create_app(ScratchStore())
    listener.allow(8, 1, [])
    page = "/orders?n=1&cursor0=_last"
    wait = f"GET {page}&wait=60 HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    with serving_app(app, app.state.stop, listener) as port, ExitStack() as readers:
        base = f"http://[::1]:{port}"

        def is_refused() -> bool:  # a reader whose request had not come yet gave way
            reader = readers.enter_context(socket.create_connection(("::1", port)))
            reader.sendall(wait)
            return requests.get(base + page, timeout=30).status_code == 503

        eventually(is_refused, 30)
        assert 200 == requests.get(base + "/healthz", timeout=30).status_code


def test_no_request_outlives_its_connection() -> None:
    """Not one, either, after which its client has sent another: that would wait for events on."""
    store = ScratchStore(orders=1)
    with running_publisher(store) as base:
        head = b"GET /orders?n=1&cursor0=_last&wait=300 HTTP/1.1\r\nHost: x\r\n\r\n"
        with connected(base) as client:
            client.sendall(head + head)
            eventually(lambda: 1 == waiting(base))
        eventually(lambda: 0 == waiting(base), 30)


def waiting(base: str) -> float:
    """Return how many readers wait."""
    return Scrape(base)("zeh_waiting_readers", feed="orders")


@pytest.mark.parametrize(
    ("option", "beyond"),
    [("--forwarded-allow-ips=127.0.0.2", 0), ("--connections-per-address=40", 5)],
)
def test_a_gateway_has_as_many_connections_as_there_are(
    store_url: str, option: str, beyond: int
) -> None:
    """All clients behind a gateway have the gateway's address."""
    with serving(store_url, "-n 128", option) as (publisher, open_sockets):
        mine = [open_sockets.enter_context(publisher.waiting("127.0.0.2")) for _ in range(45)]
        assert 200 == publisher.status()
        eventually(lambda: beyond == sum(not is_silent(each) for each in mine))


def test_soft_limit_of_files_is_raised(store_url: str) -> None:
    """A shell's small soft limit does not keep readers out, if the hard one is larger."""
    with serving(store_url, "-S -n 64") as (publisher, open_sockets):
        for _ in range(150):
            open_sockets.enter_context(connected(publisher.base))
        assert 200 == publisher.status()


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


def test_an_idle_connection_gives_way_to_a_new_one(listener: Listener) -> None:
    """The one that has been idle longest is closed; of an address that has its part, its own."""
    listener.most, listener.each = 4, 3
    with ExitStack() as clients:
        peers = [
            Peer(clients.enter_context(taken(listener, f"127.0.0.{each}"))) for each in (1, 1, 2, 2)
        ]
        for each, peer in zip((1, 1, 2, 2), peers, strict=True):
            listener.idle.add(peer, f"address 127.0.0.{each}")
        peers.append(Peer(clients.enter_context(taken(listener, "127.0.0.2"))))
        assert [True, False, False, False, False] == [each.is_ended for each in peers]
        clients.enter_context(taken(listener, "127.0.0.2"))
        assert [True, False, True, False, False] == [each.is_ended for each in peers]


def test_a_spare_connection_gives_way_to_a_spare_one(listener: Listener) -> None:
    """Readers do not take, one by one, what is left for health checks and the administrator."""
    listener.most, listener.each = 16, 16
    with ExitStack() as clients:
        for _ in range(14):
            clients.enter_context(taken(listener, "127.0.0.2"))
        for _ in range(3):
            peer = Peer(clients.enter_context(taken(listener, "127.0.0.2")))
            listener.idle.add(peer, "address 127.0.0.2")
            assert peer.client in listener.idle.spare


@contextmanager
def taken(listener: Listener, source: str) -> Iterator[socket.socket]:
    """A connection that the listener has accepted."""
    address = listener.getsockname()[:2]
    with socket.create_connection(address, 30, (source, 0)), listener.accept()[0] as found:
        yield found


@dataclass(eq=False)
class Peer:
    """A connection that may be closed."""

    accepted: socket.socket
    is_ended: bool = False

    def __post_init__(self) -> None:
        self.client = self.accepted.getpeername()

    def end(self) -> None:
        self.is_ended = True
        self.accepted.close()


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


def no_file_left() -> AbstractContextManager[None]:
    """This process can open no file."""
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    return limited(resource.RLIMIT_NOFILE, free)


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
