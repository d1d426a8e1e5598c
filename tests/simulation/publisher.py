"""The simulated publishers: the real app on a real store in memory, and the network before it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.default import DefaultDialect

from tests.contract.sites import SqliteSite
from tests.simulation.world import Died, World
from zeh_spark.errors import StoreError
from zeh_spark.publisher import create_app
from zeh_spark.service.sqlite.writer import Writer

HOST = "http://publisher.example"
FEED, COPY, DEAD = "orders", "copy", "dead"
URL, COPY_URL, DEAD_URL = (f"{HOST}/{each}" for each in (FEED, COPY, DEAD))
MOST_STATEMENTS = 40
"""A publisher dies at one of so many SQL statements after the request with which it is to die."""

Answer = tuple[int, list[tuple[str, str]], bytes]


class WriterInPlace(Writer):
    """Writes in the thread that asks for it."""

    def write(self, work: Callable[[Any], Any], *, durable: bool = True) -> Any:
        done: Future[Any] = Future()
        self._connected([(work, done)], durable)
        return done.result()


@dataclass(eq=False)
class Front:
    """One of the publishers of the store. It answers from `up_at` on."""

    store: Any
    app: Any = None
    up_at: float = 0.0


class Publisher:
    """Publishers of one store, each until it dies, and then again, with what the store has."""

    def __init__(self, world: World, folder: Path, partitions: int, fronts: int) -> None:
        self.world = world
        self._fuse: int | None = None
        self._dead = False
        self._full_until = 0.0
        self._loop = asyncio.new_event_loop()
        self._site = SqliteSite(folder, lambda: int((world.now + world.skew) * 1000))
        self._fronts = [Front(self._site.open()) for _ in range(fronts)]
        for feed in (FEED, COPY, DEAD):
            self.store.create(feed, partitions)
        self.partitions = partitions

    @property
    def store(self) -> Any:
        return self._fronts[0].store

    def close(self) -> None:
        self._site.close()
        self._loop.close()

    def deliver(self, method: str, url: str, headers: Any, body: bytes) -> Answer:
        """Return the answer to a request. Raises ConnectionError if there is none."""
        front = self.world.random.choice(self._fronts)
        if self.world.now < front.up_at:
            raise requests.ConnectionError("connection refused")
        self._may_fail()
        return self._died_in(front, lambda: self._called(front, method, url, headers, body))

    def act(self, what: str, work: Callable[[Any], object]) -> None:
        """Do what an operator or the upkeep does; perhaps the publisher dies of it."""
        self.world.step(what)
        front = self.world.random.choice(self._fronts)
        if self.world.now < front.up_at:
            return
        self._may_fail()
        with contextlib.suppress(requests.ConnectionError, StoreError):
            self._died_in(front, lambda: work(front.store))

    def _may_fail(self) -> None:
        if self.world.chance("publisher dies"):
            self._fuse = self.world.random.randrange(MOST_STATEMENTS)
        if self.world.chance("disk full"):
            self._full_until = self.world.now + self.world.random.random() * 10

    def restore(self, backup: Any) -> None:
        """Do what `zeh-spark restore` does."""
        self._site.restore(backup)
        self._open()
        for feed in (FEED, COPY, DEAD):
            self.store.begin_epoch(feed)
        self.world.restores += 1

    def _open(self) -> None:
        for each in self._fronts:
            each.store, each.app = self._site.open(), None

    def copy(self) -> Any:
        return self._site.copy()

    def events(self, feed: str = FEED) -> dict[int, list[Any]]:
        """Return the data of all events of each partition, in order, as the publisher has them."""
        found: dict[int, list[Any]] = {}
        for partition in range(self.partitions):
            cursor, data = "_first", []
            while True:
                query = f"n={self.partitions}&cursor{partition}={cursor}&pagesizehint=100000"
                url = f"{HOST}/{feed}?{query}"
                status, _, body = self._called(self._fronts[0], "GET", url, {}, b"")
                assert status == 200, body
                lines = [json.loads(line) for line in body.splitlines()]
                some = [line["data"] for line in lines if "data" in line]
                data += some
                cursor = lines[-1]["cursor"]
                if not some:
                    break
            found[partition] = data
        return found

    def _died_in(self, front: Front, work: Callable[[], Any]) -> Any:
        try:
            done = work()
        except BaseException:  # raised again, but of a dead one: asyncio makes others of `Died`
            if not self._dead:
                self._fuse = None
                raise
        self._fuse = None
        if not self._dead:
            return done
        self._dead = False  # whatever the dead one did since then
        self.world.say("the publisher is dead")
        self._loop.close()
        self._loop = asyncio.new_event_loop()
        self._site.crash()
        self._open()
        front.up_at = self.world.now + self.world.random.random() * 3
        raise requests.ConnectionError("connection reset")

    def executes(self, cursor: Any) -> None:
        """Note a statement. While the disk is full, its database has no room for another page."""
        if self._full_until:
            pages = 1 if self.world.now < self._full_until else 1 << 30
            cursor.execute(f"PRAGMA max_page_count = {pages}")
        self.passes()

    def passes(self) -> None:
        """Note a statement or a commit; die at that one where the fuse ends, and at all others."""
        if self._fuse is None:
            return
        self._dead = self._dead or self._fuse == 0
        self._fuse -= 1
        if self._dead:
            raise Died

    def _called(self, front: Front, method: str, url: str, headers: Any, body: bytes) -> Answer:
        parts, sent = urlsplit(url), itertools.chain([body])
        status, fields, content = 0, [], bytearray()

        async def receive() -> dict[str, Any]:
            for each in sent:
                return {"type": "http.request", "body": each, "more_body": False}
            return await asyncio.get_running_loop().create_future()

        async def send(message: dict[str, Any]) -> None:
            nonlocal status, fields
            if message["type"] == "http.response.start":
                status, fields = message["status"], message["headers"]
            else:
                content.extend(message.get("body", b""))

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": parts.path, "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(), "root_path": "", "client": ("10.0.0.1", 5000),
            "server": ("publisher.example", 80), "state": {},
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()]
            + [(b"host", b"publisher.example"), (b"content-length", b"%d" % len(body))],
        }  # fmt: skip
        front.app = front.app or create_app(front.store)
        self._loop.run_until_complete(front.app(scope, receive, send))
        return status, [(k.decode(), v.decode()) for k, v in fields], bytes(content)


class Network(HTTPAdapter):
    """What lies between clients and publisher: loses, delays, doubles and cuts."""

    def __init__(self, world: World, publisher: Publisher) -> None:
        super().__init__()
        self._world, self._publisher = world, publisher

    def send(self, request: Any, *_: Any, **__: Any) -> requests.Response:
        world = self._world
        world.step(f"{request.method} {request.url.removeprefix(HOST)}")
        body = request.body or b""
        if "/batches/" in request.url and body and world.chance("request changed"):
            body = self._changed(body)

        def deliver() -> Answer:
            return self._publisher.deliver(request.method, request.url, request.headers, body)

        def late() -> None:
            with contextlib.suppress(requests.ConnectionError):
                world.say("late:", request.method, request.url.removeprefix(HOST))
                deliver()

        if world.chance("request lost"):
            raise self._silence(request)
        if world.chance("request late"):
            world.late.append(late)
            raise self._silence(request)
        if world.chance("request doubled"):
            late()
        status, fields, content = deliver()
        world.step(f"is answered {status}")
        if world.chance("answer lost"):
            raise self._silence(request)
        headers = {name: value for name, value in fields if name != "content-length"}
        headers["Content-Length"] = str(len(content))
        if content and "/chunks" in request.url and world.chance("chunks changed"):
            content = self._changed(content)
        if content and world.chance("answer cut"):
            content = content[: world.random.randrange(len(content))]
        raw = urllib3.HTTPResponse(
            io.BytesIO(content), headers, status, preload_content=False,
            request_method=request.method,
        )  # fmt: skip
        return self.build_response(request, raw)

    def _changed(self, body: bytes) -> bytes:
        """Change one bit, as memory that fails does: TCP does not notice."""
        changed = bytearray(body)
        changed[self._world.random.randrange(len(body))] ^= 1 << self._world.random.randrange(8)
        return bytes(changed)

    def _silence(self, request: Any) -> requests.ReadTimeout:
        self._world.pause(1.0)
        return requests.ReadTimeout("no answer", request=request)


@contextlib.contextmanager
def served(world: World, folder: Path, partitions: int, fronts: int) -> Iterator[Publisher]:
    """Publishers for the clients of this world; they reach nothing else."""

    async def run_sync(work: Callable[..., Any], *given: Any, **_: Any) -> Any:
        return work(*given)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch("zeh_spark.service.sqlite.store.Writer", WriterInPlace))
        stack.enter_context(mock.patch("anyio.to_thread.run_sync", run_sync))
        for name, instead in (
            ("token_bytes", world.random.randbytes),
            ("token_hex", lambda size=32: world.random.randbytes(size).hex()),
        ):
            stack.enter_context(mock.patch(f"secrets.{name}", instead))
        made = Publisher(world, folder, partitions, fronts)
        publisher = stack.enter_context(contextlib.closing(made))
        network = Network(world, publisher)
        stack.enter_context(
            mock.patch("zeh_spark.client.http.transport.find_adapter", lambda _: network)
        )
        commit = DefaultDialect.do_commit

        def do_commit(dialect: Any, connection: Any) -> None:
            publisher.passes()
            commit(dialect, connection)
            publisher.passes()

        def statement(*given: Any) -> None:
            publisher.executes(given[1])

        stack.enter_context(mock.patch.object(DefaultDialect, "do_commit", do_commit))
        event.listen(Engine, "before_cursor_execute", statement)
        stack.callback(event.remove, Engine, "before_cursor_execute", statement)
        yield publisher
