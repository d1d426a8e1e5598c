"""One client cannot take what all clients need: uploads that drip, and direct reads."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import anyio.lowlevel
import pytest
import requests

from tests.cases import each_case
from tests.fix_publish import Who, rows
from tests.fix_publisher import Burst, connected, is_silent, token_of
from tests.patience import eventually
from tests.scratch_store import ScratchStore
from tests.store_contract.site import StoppedClock
from tests.store_contract.writers import call, chunk, declared, everything, upload
from zeh_spark.publisher import create_app
from zeh_spark.service.access.gate import Gate
from zeh_spark.service.app.feed_calls import WORKERS
from zeh_spark.service.app.publish_api import BODIES, QUESTIONS
from zeh_spark.service.network.shares import SHARE, Shares
from zeh_spark.service.store.problems import Problem
from zeh_spark.service.store.token_rights import ADMIN
from zeh_spark.testing import publish, running_publisher
from zeh_spark.wire.upload_format import upload_body

OURS, OTHERS = "127.0.0.1", "127.0.0.2"
"""Two addresses of this machine."""


@pytest.fixture
def store() -> ScratchStore:
    return ScratchStore(orders=2)


def head(name: str, length: int, token: str = "", more: str = "") -> bytes:
    who = Who()
    path = f"/orders{who.path}/uploads/{who.run}.{name}?{who.query()}"
    sent = f"Authorization: Bearer {token}\r\n" if token else ""
    lines = f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{sent}{more}\r\n"
    return lines.encode()


def told(base: str, source: str, request: bytes) -> bytes:
    """The status line of an answer."""
    with connected(base, source) as link:
        link.sendall(request)
        return link.recv(12)


def uploaded(base: str, source: str, token: str = "") -> bytes:
    """The status line of an upload that is sent whole."""
    body = upload_body(rows(1))
    return told(base, source, head("1.0.0", len(body), token) + body)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has to wait for his turn is refused soon; bodies may take their time."""
    monkeypatch.setattr("zeh_spark.service.network.bodies.TURN_SECONDS", 1.0)
    monkeypatch.setattr("zeh_spark.service.network.bodies.IDLE_SECONDS", 60.0)
    monkeypatch.setattr("zeh_spark.service.network.bodies.BODY_SECONDS", 60.0)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("by", ["address", "token"])
def test_dripping_uploads_of_one_client_leave_room_for_others(store: ScratchStore, by: str) -> None:
    """As many uploads as there are places, none of which ends: mine is taken all the same. Behind a
    proxy all have one address: then tokens tell clients apart.
    """
    theirs, mine = "", ""
    if by == "token":
        theirs, mine = (token_of(store, *ADMIN, name=name) for name in ("theirs", "mine"))
    app = create_app(store, gate=Gate(store) if mine else None)
    heads = [
        head(f"0.0.{number}", 100, theirs, "Expect: 100-continue\r\n") for number in range(BODIES)
    ]
    with running_publisher(store, app) as base, closing(Burst(base, heads, OURS)) as dripping:
        eventually(lambda: len(dripping.answers(429)) == BODIES - BODIES // SHARE)

        assert b"HTTP/1.1 201" == uploaded(base, OURS if mine else OTHERS, mine)
        assert BODIES // SHARE == len(dripping.answers(100))
        assert b"HTTP/1.1 429" == uploaded(base, OTHERS if mine else OURS, theirs)
        dripping.close()  # a client that was refused gets its share again
        eventually(lambda: uploaded(base, OURS, theirs) in {b"HTTP/1.1 201", b"HTTP/1.1 200"})


@pytest.mark.parametrize("what", ["plan", "chunks"])
def test_direct_reads_of_one_address_leave_room_for_others(store: ScratchStore, what: str) -> None:
    """Requests whose bodies do not come hold the places of their client, and not all."""
    begin = f"POST /orders/{what} HTTP/1.1\r\nHost: x\r\nContent-Length: ".encode()
    answered = []
    body = json.dumps({"n": 1, "cursors": {"0": "_first"}} if what == "plan" else {}).encode()
    with running_publisher(store) as base, ExitStack() as stack:
        while True:
            link = stack.enter_context(connected(base, OURS))
            link.sendall(begin + b"100\r\nExpect: 100-continue\r\n\r\n")
            answered.append(link.recv(12))
            if answered[-1] != b"HTTP/1.1 100":
                break
        other = stack.enter_context(connected(base, OTHERS))
        other.sendall(begin + f"{len(body)}\r\n\r\n".encode() + body)

        assert b"HTTP/1.1 503" == answered[-1]
        assert other.recv(12) in {b"HTTP/1.1 200", b"HTTP/1.1 400"}


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("path", ["/orders/producers/p", "/orders/producers/p/batches/0"])
def test_questions_of_one_address_leave_room_for_others(path: str) -> None:
    """They wait for commits under way; a client that repeats one does not keep writers out."""
    clock = StoppedClock()
    with closing(ScratchStore(clock=clock, orders=2)) as store, ExitStack() as stack:
        base = stack.enter_context(running_publisher(store))
        store.stage("orders", call(0), one := upload(chunk(0, b"1")))
        commits = threading.Thread(target=store.commit, args=("orders", call(0), declared(one)))
        with clock.held() as under_way:
            commits.start()
            assert under_way.wait(30)
            mine = [stack.enter_context(connected(base, OURS)) for _ in range(QUESTIONS)]
            for each in mine:
                each.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            refused = QUESTIONS - QUESTIONS // SHARE
            eventually(lambda: sum(not is_silent(each) for each in mine) == refused)
            said = [each for each in mine if not is_silent(each)]
        commits.join()
        assert {b"HTTP/1.1 429"} == {each.recv(12) for each in said}
        assert {b"HTTP/1.1 200"} == {each.recv(12) for each in mine if each not in said}


def test_a_client_alone_has_most_slots() -> None:
    """The last quarter is kept for others, each of which has at least a quarter."""
    slots = Shares(8, "plans are under way")
    for _ in range(6):
        slots.take("a")
    with pytest.raises(Problem, match="6 of 8 plans are under way, 6 of them for this client"):
        slots.take("a")
    slots.take("b")
    slots.take("b")
    with pytest.raises(Problem, match="8 of 8 plans are under way, 0 of them"):
        slots.take("c")
    slots.release("a")
    slots.take("c")


class HeldStore(ScratchStore):
    """A store that does not answer about the feed `slow` until it is let go."""

    def __init__(self) -> None:
        super().__init__(orders=2, slow=2)
        self.let_go = threading.Event()

    def before_read(self, what: str, feed: str) -> None:
        if (what, feed) == ("snapshot", "slow"):
            assert self.let_go.wait(60)


@pytest.fixture
def held() -> Iterator[HeldStore]:
    store = HeldStore()
    yield store
    store.let_go.set()


def asking(what: str, number: int) -> bytes:
    """A read of the feed `slow`, no two of which are equal."""
    if what == "large page":
        cursors = "&".join(f"cursor{each}=_first" for each in range(2000))
        return (
            f"GET /slow?n=2000&{cursors}&pagesizehint={number} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        )
    if what == "plan":
        body = b'{"n":2,"cursors":{"0":"_first","1":"_first"}}'
        return b"POST /slow/plan HTTP/1.1\r\nHost: x\r\nContent-Length: 45\r\n\r\n" + body
    query = f"cursors?n=2&time={number}" if what == "cursors" else f"?n=2&cursor0={number}.00000000"
    path = query if query.startswith("?") else f"/{query}"
    return f"GET /slow{path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


PAGE = b"GET /orders?n=2&cursor0=_first HTTP/1.1\r\nHost: x\r\n\r\n"


ALL = [f"127.0.0.{number + 10}" for number in range(4 * WORKERS)]
"""Many addresses of this machine."""


@pytest.mark.parametrize(
    ("what", "sources"),
    [*((each, [OURS] * 2 * WORKERS) for each in ("page", "cursors", "plan")), ("plan", ALL)],
    ids=["page", "cursors", "plan", "plans of all"],
)
def test_slow_reads_leave_threads_for_others(
    held: HeldStore, what: str, sources: list[str]
) -> None:
    """One client has many slow pages or plans under way. Other clients and feeds are still
    answered.
    """
    with running_publisher(held) as base, ExitStack() as stack:
        for number, source in enumerate(sources):
            link = stack.enter_context(connected(base, source))
            link.sendall(asking(what, number))
        assert b"HTTP/1.1 200" == told(base, OTHERS, PAGE)
        held.let_go.set()


def test_large_reads_are_made_one_by_one(held: HeldStore) -> None:
    """Thousands of cursors, many times, take one thread: others, and writes, get on between."""
    with running_publisher(held) as base, ExitStack() as stack:
        links = [stack.enter_context(connected(base, OURS)) for _ in range(WORKERS)]
        for number, link in enumerate(links):
            link.sendall(asking("large page", number))
        eventually(lambda: held.reads["snapshot", "slow"] > 0)
        assert b"HTTP/1.1 200" == told(base, OURS, PAGE)  # a small one of the same client
        assert 1 == held.reads["snapshot", "slow"]
        held.let_go.set()
        assert {b"HTTP/1.1 200"} == {link.recv(12) for link in links}


def test_a_client_that_goes_away_gives_back_its_turn() -> None:
    """Turns go to clients one after the other, and to those who still wait."""
    told: list[str] = []

    async def call(turns: Shares, client: str, name: str) -> None:
        async with turns.place(client):
            told.append(name)
            await anyio.lowlevel.checkpoint()

    async def story() -> None:
        turns = Shares(2, "")  # a share is one
        async with turns.place("a"):
            names = ("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("b", "b2"), ("b", "b3")
            calls = [asyncio.create_task(call(turns, *each)) for each in names]
            await asyncio.wait(calls[3:])
            assert ["b1", "b2", "b3"] == told  # a share of the others is free
            calls[0].cancel()
            await asyncio.wait({calls[0]})
        await asyncio.wait(calls)
        async with turns.place("c"), turns.place("d"):  # all places are there again
            pass

    asyncio.run(asyncio.wait_for(story(), 30))
    assert ["b1", "b2", "b3", "a2", "a3"] == told


@each_case("what", ["cursors", "_first", "_last", "_last page", "chunks"])
def test_work_is_that_of_the_stored_partitions(what: str) -> None:
    """A reader with 65,536 partitions asks a store of 2 no more than a reader with 3."""

    def asked(base: str, n: int) -> requests.Response:
        if what == "cursors":
            return requests.get(f"{base}/orders/cursors?n={n}&time=1", timeout=60)
        if what == "_last page":
            cursors = "&".join(f"cursor{each}=_last" for each in range(min(n, 2000)))
            return requests.get(f"{base}/orders?n={n}&{cursors}", timeout=60)
        if what == "chunks":
            at = everything(store, "orders")[0].cursor
            ranges = [{"partition": each, "from": at, "to": at} for each in range(min(n, 10_000))]
            body = {"n": n, "ranges": ranges}
            return requests.post(f"{base}/orders/chunks", json=body, timeout=60)
        body = {"n": n, "cursors": {str(each): what for each in range(n)}}
        return requests.post(f"{base}/orders/plan", json=body, timeout=60)

    with closing(ScratchStore(orders=2)) as store:
        publish(store, "orders", range(4))
        with running_publisher(store, create_app(store, cache_bytes=0)) as base:
            counts = []
            for n in (3, 3, 65_536):  # at first the lag is counted
                before = store.reads.total()
                answer = asked(base, n)
                assert 200 == answer.status_code, answer.text
                counts.append(store.reads.total() - before)
    assert counts[1] == counts[2]
