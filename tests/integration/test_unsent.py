"""Readers that ask and take nothing hold a bounded amount of memory, and each client a share."""

from __future__ import annotations

import asyncio
import re
import socket
from collections import Counter
from contextlib import closing

import pytest

from tests.fix_publisher import connected, token_of
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from zeh_spark.publisher import create_app
from zeh_spark.service.access.gate import Gate
from zeh_spark.service.network.shares import PIECE, Unsent
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.store.token_rights import ADMIN
from zeh_spark.testing import publish, running_publisher

OURS, OTHERS = "127.0.0.1", "127.0.0.2"
"""Two addresses of this machine."""

BUFFER = 8 << 20
"""Most bytes that wait for clients, in these tests."""

PAGE = b"GET /orders?n=2&cursor0=_first&cursor1=_first HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
def full() -> ScratchStore:
    """A feed whose page is longer than what the kernel keeps of an answer."""
    store = ScratchStore(orders=2)
    publish(store, "orders", ["x" * 60_000] * 400)
    return store


class Greedy:
    """Readers that ask for all events and take nothing."""

    def __init__(self, base: str, source: str, count: int, head: bytes = PAGE) -> None:
        self._sockets = []
        for _ in range(count):
            link = socket.socket()
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.bind((source, 0))
            link.connect(("127.0.0.1", int(base.rpartition(":")[2])))
            link.sendall(head + b"\r\n")
            self._sockets.append(link)

    def statuses(self) -> Counter[bytes]:
        """How many have been answered how; it waits until all are."""
        for each in self._sockets:
            each.settimeout(60)
        return Counter(each.recv(12, socket.MSG_PEEK)[9:] for each in self._sockets)

    def close(self) -> None:
        for each in self._sockets:
            each.close()


def test_readers_that_take_nothing_hold_a_share_of_memory(full: ScratchStore) -> None:
    """The rest of them are refused, other readers are served, and all of it is given back."""
    app = create_app(full, send_buffer=BUFFER, cache_bytes=0)
    with running_publisher(full, app) as base:
        with closing(Greedy(base, OURS, 40)) as greedy:
            found = greedy.statuses()
            assert {b"200", b"503"} == set(found)
            assert app.state.unsent.total < BUFFER
            with closing(Greedy(base, OURS, 1)) as late:
                assert {b"503": 1} == late.statuses()
            assert 400 == len(lines(base, OTHERS))
        eventually(lambda: app.state.unsent.total == 0, 60)
        assert 400 == len(lines(base, OURS))


class Meanwhile(ScratchStore):
    """A store from which others ask for answers while one is read."""

    unsent: Unsent | None = None

    def before_read(self, what: str, feed: str) -> None:
        if self.unsent and not self.unsent.total:
            self.unsent.hold("others", BUFFER - PIECE + 1)


def test_an_answer_begins_only_if_there_is_room_for_its_next_part() -> None:
    """The kernel may take a first part at once: any number of answers would begin, and wait."""
    store = Meanwhile(orders=2)
    for _ in range(20):
        publish(store, "orders", ["x" * 60_000] * 4)
    app = create_app(store, send_buffer=BUFFER, cache_bytes=0)
    with running_publisher(store, app) as base:
        store.unsent = app.state.unsent
        with closing(Greedy(base, OURS, 1)) as refused:
            assert {b"503": 1} == refused.statuses()
        store.unsent = None
        app.state.unsent.release("others", BUFFER - PIECE + 1)
        with closing(Greedy(base, OURS, 1)) as begun:
            assert {b"200": 1} == begun.statuses()


def test_tokens_behind_one_address_have_shares_of_memory(full: ScratchStore) -> None:
    """A reader that takes nothing does not keep out others behind the same proxy."""
    theirs, mine = (
        f"Authorization: Bearer {token_of(full, *ADMIN, name=name)}\r\n".encode()
        for name in ("theirs", "mine")
    )
    app = create_app(full, send_buffer=BUFFER, cache_bytes=0, gate=Gate(full))
    with (
        running_publisher(full, app) as base,
        closing(Greedy(base, OURS, 40, PAGE + theirs)) as greedy,
    ):
        assert greedy.statuses()[b"503"]
        assert 400 == len(lines(base, OURS, mine))


def lines(base: str, source: str, more: bytes = b"") -> list[bytes]:
    """The events of all pages that a reader gets on one connection."""
    with connected(base, source) as link:
        link.sendall(PAGE + more + b"Connection: close\r\n\r\n")
        said = b"".join(iter(lambda: link.recv(1 << 20), b""))
    assert said.startswith(b"HTTP/1.1 200") and said.endswith(b"0\r\n\r\n")
    return re.findall(rb'"data":', said)


def test_an_answer_that_waits_for_room_gets_its_turn() -> None:
    """Those who wait go on in turn, those who gave up hold nothing, and a share stays free."""

    async def waited() -> None:
        unsent = Unsent(8)
        for client in "aaab":
            assert 2 == await unsent.turn(client)
        first, second, other = (asyncio.ensure_future(unsent.turn(each)) for each in "aac")
        done, _ = await asyncio.wait({first, second, other}, timeout=0)
        assert not done
        first.cancel()
        await asyncio.wait({first})
        unsent.release("a", 2)
        await other  # the last share is not for a client that has one
        unsent.release("a", 2)
        assert not second.done()
        unsent.release("b", 2)
        await second
        for client in "aac":
            unsent.release(client, 2)
        assert 0 == unsent.total

    asyncio.run(waited())


def test_an_answer_that_waits_for_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds nothing then, and others are not held up by it."""
    monkeypatch.setattr("zeh_spark.service.network.bodies.TURN_SECONDS", 0.01)

    async def waited() -> None:
        unsent = Unsent(8)
        unsent.hold("a", 8)
        with pytest.raises(Problem, match="wait until clients take them"):
            await unsent.turn("a")
        unsent.release("a", 8)
        assert 0 == unsent.total

    asyncio.run(waited())
