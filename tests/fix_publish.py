"""Publishing without our own client, as another program would: raw calls to a publisher; a gateway
that forwards whole requests, or loses, repeats, holds back and cuts them; and the real process.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
import requests

from tests.fix_publisher import Publisher
from zeh_spark.chunks import Chunker, Content, StagedChunk, lines_of, upload_body
from zeh_spark.publish_client import Batch, PublishClient, Receipt, TaskDone
from zeh_spark.publisher import Store

HERE = Path(__file__).parents[1]
PROBLEM = "urn:zeroeventhub:problem:"


def rows(*data: object, partition: int = 0) -> list[StagedChunk]:
    """Events as the chunks of a task."""
    chunker = Chunker()
    full = [
        chunk
        for each in data
        for chunk in chunker.add(
            partition, {}, each if isinstance(each, bytes) else msgspec.json.encode(each)
        )
    ]
    return [*full, *chunker.close()]


@dataclass(frozen=True)
class Who:
    """Which batch a call is about, and who calls; None leaves a parameter out."""

    batch: int | str = 0
    producer: str = "p"
    incarnation: str | None = "a"
    run: str = "r1"
    n: int | str | None = 2
    remedies: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"/producers/{quote(self.producer, safe='')}/batches/{self.batch}"

    def query(self, **more: str) -> str:
        given = {"incarnation": self.incarnation, "n": self.n, **more, **self.remedies}
        return urlencode({name: value for name, value in given.items() if value is not None})

    def but(self, **changes: Any) -> Who:
        return replace(self, **changes)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    document: dict[str, Any]

    @property
    def short(self) -> tuple[int, str]:
        """Status, and what became of the call: its status in words, or the problem's name."""
        kind = str(self.document.get("type", "")).removeprefix(PROBLEM)
        return self.status, kind or str(self.document.get("status", ""))

    @property
    def remedy(self) -> dict[str, str]:
        option: dict[str, str] = self.document["option"]
        return option


class Caller:
    """Calls one feed's publish API, over one connection as long as it holds."""

    def __init__(self, url: str, timeout: float = 60) -> None:
        self.url = url
        self._session = requests.Session()
        self._timeout = timeout

    def call(
        self, method: str, path: str, query: str = "", body: object = None, **headers: str
    ) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"{self.url}{path}?{query}"
        answer = self._session.request(method, url, data=body, headers=named, timeout=self._timeout)
        return Reply(answer.status_code, answer.headers, answer.json())

    def upload(
        self,
        who: Who,
        chunks: Sequence[StagedChunk] | bytes,
        *,
        name: str | None = None,
        **headers: str,
    ) -> Reply:
        """As upload 0 of task 0's attempt 0, unless the name says otherwise."""
        body = chunks if isinstance(chunks, bytes) else upload_body(chunks)
        path = f"{who.path}/uploads/{who.run}.{name or '0.0.0'}"
        return self.call("PUT", path, who.query(), body, **headers)

    def commit(self, who: Who, chunks: Sequence[StagedChunk] = (), **changes: object) -> Reply:
        """Of one task with one upload of these chunks, none if there are none."""
        body = {**commit_of(chunks), **changes}
        return self.call(
            "POST", f"{who.path}/commit", who.query(run=who.run), msgspec.json.encode(body)
        )

    def publish(self, who: Who, *data: object) -> Reply:
        """A whole batch of partition 0."""
        chunks = rows(*data)
        self.upload(who, chunks)
        return self.commit(who, chunks)

    def release(self, who: Who) -> Reply:
        return self.call("DELETE", f"{who.path}/uploads", urlencode({"run": who.run}))

    def receipt(self, who: Who, query: str = "") -> Reply:
        return self.call("GET", who.path, query)

    def close(self) -> None:
        self._session.close()


def commit_of(chunks: Sequence[StagedChunk]) -> dict[str, object]:
    """The body of a commit, as a driver sends it."""
    content = sum((each.content for each in chunks), Content())
    task = {"task": 0, "attempt": 0, "uploads": int(bool(chunks)), "events": content.events}
    return {
        "events": content.events,
        "digest": content.digest,
        "digestVersion": 1,
        "attempts": [task],
    }


def publish_batch(client: PublishClient, batch: Batch, chunks: Sequence[StagedChunk]) -> Receipt:
    """With our own client, as a driver of one task does."""
    known, count = client.look_up(batch)
    if known is None:
        client.upload(batch, count, 0, 0, 0, upload_body(chunks))
    content = sum((each.content for each in chunks), Content())
    return client.commit(batch, count, [TaskDone(0, 0, 1, content)])


@pytest.fixture
def caller(publisher: Publisher) -> Iterator[Caller]:
    """To the feed `orders` of the test's publisher."""
    with contextlib.closing(Caller(publisher.url)) as caller:
        yield caller


@pytest.fixture
def call_feed() -> Iterator[Callable[[str], Caller]]:
    """To a feed elsewhere, by its URL."""
    with contextlib.ExitStack() as stack:
        yield lambda url: stack.enter_context(contextlib.closing(Caller(url)))


def events_of(store: Store, feed: str = "orders", producer: str | None = None) -> list[bytes]:
    """The data of all events of a feed in its order, or of those of one producer."""
    state = store.feed(feed)
    found = store.chunks(feed, dict.fromkeys(range(state.partitions), 0), state.head, 1 << 40)
    blobs = [each.blob for each in found if producer in (None, each.producer)]
    lines = [
        line
        for begin in range(0, len(blobs), 200)
        for frame in store.frames(blobs[begin : begin + 200])
        for line in lines_of(frame).split(b"\n")[:-1]
    ]
    return [line.split(b'"data":', 1)[1][:-1] for line in lines]


# A gateway between client and publisher


@dataclass(frozen=True)
class Passing:
    """A request on its way, as it was sent."""

    number: int
    method: str
    target: str
    raw: bytes

    @property
    def head(self) -> int:
        """Bytes before its body."""
        return self.raw.index(b"\r\n\r\n") + 4


@dataclass(frozen=True)
class Given:
    """What the client gets: these bytes; then its connection is kept or closed."""

    raw: bytes = b""
    keep: bool = False


Fate = Callable[["Gateway", Passing], Given]


def passed(gateway: Gateway, request: Passing) -> Given:
    return Given(gateway.forward(request.raw), keep=True)


def lost(gateway: Gateway, request: Passing) -> Given:
    return Given()


def answer_lost(gateway: Gateway, request: Passing) -> Given:
    gateway.forward(request.raw)
    return Given()


def twice(gateway: Gateway, request: Passing) -> Given:
    gateway.forward(request.raw)
    return passed(gateway, request)


def twice_at_once(gateway: Gateway, request: Passing) -> Given:
    other = threading.Thread(target=gateway.forward, args=(request.raw,))
    other.start()
    given = passed(gateway, request)
    other.join()
    return given


def held(gateway: Gateway, request: Passing) -> Given:
    """The client takes it for lost; `deliver` brings it after all."""
    gateway.held.append(request)
    return Given()


def copied(gateway: Gateway, request: Passing) -> Given:
    """It arrives, and a copy of it stays on the way."""
    gateway.held.append(request)
    return passed(gateway, request)


def request_cut(where: Callable[[Passing], int]) -> Fate:
    def fate(gateway: Gateway, request: Passing) -> Given:
        gateway.forward(request.raw[: where(request)], cut=True)
        return Given()

    return fate


def answer_cut(where: Callable[[bytes], int]) -> Fate:
    def fate(gateway: Gateway, request: Passing) -> Given:
        answer = gateway.forward(request.raw)
        return Given(answer[: where(answer)])

    return fate


class Gateway:
    """Takes whole requests and lets `fate` decide about each; `held` are those on their way."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.fate: Fate = passed
        self.requests: list[Passing] = []
        self.held: list[Passing] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def script(self, *fates: Fate) -> None:
        """One for each of the next requests, in order of arrival; then all pass."""
        left = list(fates)

        def fate(gateway: Gateway, request: Passing) -> Given:
            with self._lock:
                chosen = left.pop(0) if left else passed
            return chosen(gateway, request)

        self.fate = fate

    def forward(self, raw: bytes, *, cut: bool = False) -> bytes:
        """Over a connection of its own, which ends where a request is cut."""
        with socket.create_connection(("127.0.0.1", self.server_port), 60) as server:
            server.sendall(raw)
            if cut:
                server.shutdown(socket.SHUT_WR)
                with contextlib.suppress(OSError):
                    while server.recv(65536):
                        pass
                return b""
            answer = http.client.HTTPResponse(server, method=raw.split(b" ", 1)[0].decode())
            answer.begin()
            body = answer.read()
        head = [f"HTTP/1.1 {answer.status} forwarded"]
        head += [f"{name}: {value}" for name, value in answer.getheaders()]
        return "\r\n".join([*head, "", ""]).encode() + body

    def deliver(self, *which: int) -> list[bytes]:
        """Bring what is on its way, in this order, or all as they were sent; the answers."""
        order = which or range(len(self.held))
        return [self.forward(self.held[each].raw) for each in order]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            self._open.add(client)
        with contextlib.suppress(OSError), client, client.makefile("rb") as reader:
            while raw := _whole_request(reader):
                method, target, _ = raw.split(b" ", 2)
                with self._lock:
                    number = len(self.requests)
                    request = Passing(number, method.decode(), target.decode(), raw)
                    self.requests.append(request)
                given = self.fate(self, request)
                client.sendall(given.raw)
                if not given.keep:
                    client.shutdown(socket.SHUT_RDWR)
                    break
        with self._lock:
            self._open.discard(client)


def _whole_request(reader: Any) -> bytes:
    head, length = b"", 0
    while line := reader.readline():
        head += line
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
        if line == b"\r\n":
            return head + reader.read(length)
    return b""


@pytest.fixture
def gateway(publisher: Publisher) -> Iterator[Gateway]:
    """Before the test's publisher."""
    with contextlib.closing(Gateway(int(publisher.base.rpartition(":")[2]))) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def weather(quiet_publisher: Publisher) -> Iterator[tuple[Publisher, Gateway]]:
    """A publisher for all tests of a module, and a gateway before it."""
    with contextlib.closing(Gateway(int(quiet_publisher.base.rpartition(":")[2]))) as gateway:
        yield quiet_publisher, gateway


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other at once."""
    monkeypatch.setattr("zeh_spark.transport.backoff", lambda attempt, jitter: 0.005)


# The real process


@contextmanager
def served(
    store: Path | str, *words: str, port: int = 0
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`zeh-spark serve` on a store, a SQLite file or a URL: its base URL, and the process. Killed
    at the end.
    """
    url = store if isinstance(store, str) else f"sqlite:///{store}"
    command = [sys.executable, "-m", "zeh_spark.cli", "serve", "--store", url]
    command += ["--port", str(port), *words]
    with subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().split(" at ")[1].split(";")[0], process
        finally:
            process.kill()
