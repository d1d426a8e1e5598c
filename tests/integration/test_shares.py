"""One client cannot take what all clients need: uploads that drip, and direct reads."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.fix_publish import Who, rows
from zeh_spark.access.gate import Gate
from zeh_spark.access.shares import SHARE, Slots
from zeh_spark.protocol.upload_format import upload_body
from zeh_spark.publisher import MemoryStore, create_app
from zeh_spark.publisher.publish_api import BODIES, QUESTIONS
from zeh_spark.store.access import ADMIN, new_token
from zeh_spark.store.problems import Problem
from zeh_spark.testing import running_publisher
from zeh_spark.testing.site import StoppedClock
from zeh_spark.testing.writers import call, chunk, declared, until, upload

OURS, OTHERS = "127.0.0.1", "127.0.0.2"
"""Two addresses of this machine."""


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    with closing(MemoryStore()) as store:
        store.create("orders", 2)
        yield store


class Uploads:
    """Uploads whose bodies do not come, from one address."""

    def __init__(self, base: str, count: int, token: str = "") -> None:
        self._sockets = [connected(base, OURS) for _ in range(count)]
        for number, each in enumerate(self._sockets):
            each.sendall(head("0.0." + str(number), 100, token, "Expect: 100-continue\r\n"))
            each.setblocking(False)

    def answers(self, status: int) -> int:
        """How many have been answered so."""
        found = 0
        for each in self._sockets:
            try:
                begin = each.recv(4096, socket.MSG_PEEK)
            except BlockingIOError:
                continue
            found += begin.startswith(b"HTTP/1.1 %d" % status)
        return found

    def close(self) -> None:
        for each in self._sockets:
            each.close()


def connected(base: str, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(base.rpartition(":")[2])), 30, (source, 0))


def head(name: str, length: int, token: str = "", more: str = "") -> bytes:
    who = Who()
    path = f"/orders{who.path}/uploads/{who.run}.{name}?{who.query()}"
    sent = f"Authorization: Bearer {token}\r\n" if token else ""
    lines = f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{sent}{more}\r\n"
    return lines.encode()


def uploaded(base: str, source: str, token: str = "") -> bytes:
    """The status line of an upload that is sent whole."""
    body = upload_body(rows(1))
    with closing(connected(base, source)) as link:
        link.sendall(head("1.0.0", len(body), token) + body)
        return link.recv(12)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has to wait for his turn is refused soon; bodies may take their time."""
    monkeypatch.setattr("zeh_spark.network.bodies.TURN_SECONDS", 1.0)
    monkeypatch.setattr("zeh_spark.network.bodies.IDLE_SECONDS", 60.0)
    monkeypatch.setattr("zeh_spark.network.bodies.BODY_SECONDS", 60.0)


@pytest.mark.usefixtures("hasty")
def test_dripping_uploads_of_one_address_leave_room_for_others(store: MemoryStore) -> None:
    """As many uploads as there are places, none of which ends: mine is taken all the same."""
    with running_publisher(store) as base, closing(Uploads(base, BODIES)) as dripping:
        until(lambda: dripping.answers(429) == BODIES - BODIES // SHARE)

        assert b"HTTP/1.1 201" == uploaded(base, OTHERS)
        assert BODIES // SHARE == dripping.answers(100)
        assert b"HTTP/1.1 429" == uploaded(base, OURS)


@pytest.mark.usefixtures("hasty")
def test_dripping_uploads_of_one_token_leave_room_for_others(store: MemoryStore) -> None:
    """Behind a proxy all have one address: then tokens tell clients apart."""
    texts = []
    for name in ("theirs", "mine"):
        text, token = new_token(name, ADMIN, store.now())
        store.add_token(token)
        texts.append(text)
    theirs, mine = texts
    with (
        running_publisher(store, create_app(store, gate=Gate(store))) as base,
        closing(Uploads(base, BODIES, theirs)) as dripping,
    ):
        until(lambda: dripping.answers(429) == BODIES - BODIES // SHARE)

        assert b"HTTP/1.1 201" == uploaded(base, OURS, mine)
        assert b"HTTP/1.1 429" == uploaded(base, OTHERS, theirs)


@pytest.mark.usefixtures("hasty")
def test_a_place_is_given_back_when_the_client_goes_away(store: MemoryStore) -> None:
    """A client that was refused gets its share again."""
    with running_publisher(store) as base:
        with closing(Uploads(base, BODIES)) as dripping:
            until(lambda: dripping.answers(429) > 0)
        until(lambda: uploaded(base, OURS) in {b"HTTP/1.1 201", b"HTTP/1.1 200"})


@pytest.mark.parametrize("what", ["plan", "chunks"])
def test_direct_reads_of_one_address_leave_room_for_others(store: MemoryStore, what: str) -> None:
    """Requests whose bodies do not come hold the places of their client, and not all."""
    begin = f"POST /orders/{what} HTTP/1.1\r\nHost: x\r\nContent-Length: ".encode()
    answered = []
    body = json.dumps({"n": 1, "cursors": {"0": "_first"}} if what == "plan" else {}).encode()
    with running_publisher(store) as base, ExitStack() as stack:
        while True:
            link = stack.enter_context(closing(connected(base, OURS)))
            link.sendall(begin + b"100\r\nExpect: 100-continue\r\n\r\n")
            answered.append(link.recv(12))
            if answered[-1] != b"HTTP/1.1 100":
                break
        other = stack.enter_context(closing(connected(base, OTHERS)))
        other.sendall(begin + f"{len(body)}\r\n\r\n".encode() + body)

        assert b"HTTP/1.1 503" == answered[-1]
        assert other.recv(12) in {b"HTTP/1.1 200", b"HTTP/1.1 400"}


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("path", ["/orders/producers/p", "/orders/producers/p/batches/0"])
def test_questions_of_one_address_leave_room_for_others(path: str) -> None:
    """They wait for commits under way; a client that repeats one does not keep writers out."""
    clock = StoppedClock()
    with closing(MemoryStore(clock=clock)) as store, ExitStack() as stack:
        store.create("orders", 2)
        base = stack.enter_context(running_publisher(store))
        store.stage("orders", call(0), one := upload(chunk(0, b"1")))
        commits = threading.Thread(target=store.commit, args=("orders", call(0), declared(one)))
        with clock.held() as under_way:
            commits.start()
            assert under_way.wait(30)
            mine = [stack.enter_context(closing(connected(base, OURS))) for _ in range(QUESTIONS)]
            for each in mine:
                each.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            refused = QUESTIONS - QUESTIONS // SHARE
            until(lambda: sum(map(is_answered, mine)) == refused)
            said = [each for each in mine if is_answered(each)]
        commits.join()
        assert {b"HTTP/1.1 429"} == {each.recv(12) for each in said}
        assert {b"HTTP/1.1 200"} == {each.recv(12) for each in mine if each not in said}


def is_answered(link: socket.socket) -> bool:
    """Whether an answer has come so far."""
    link.setblocking(False)
    try:
        return bool(link.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        link.settimeout(30)


def test_a_client_alone_has_most_slots() -> None:
    """The last quarter is kept for others, each of which has at least a quarter."""
    slots = Slots(8, "plans")
    for _ in range(6):
        slots.take("a")
    with pytest.raises(Problem, match="6 plans of this client"):
        slots.take("a")
    slots.take("b")
    slots.take("b")
    with pytest.raises(Problem, match="8 plans are under way"):
        slots.take("c")
    slots.give_back("a")
    slots.take("c")
